//! What cannot be served now, and for how long it has been so: a request for it ends soon.
//!
//! A request that meets a failure waits for the failover, which takes seconds. Where there has been none for longer than that
//! takes, waiting is of no use: its client, or the load balancer before it, goes to another place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use larder_protocol::manager::state::Topology;
use larder_types::PgId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{MANAGERS_SILENT_MS, UNSERVED_MS, UNSERVED_PATIENCE_MS};
use crate::managers::Managers;

/// Told to clients then.
pub(super) const UNLED: &str =
    "no manager of the cluster leads, as most of them do not run or do not reach each other";

/// When to give up what the managers are to agree on, and may agree on until `deadline`.
pub(super) fn deadline_of_managers(managers: &dyn Managers, deadline: Instant) -> Instant {
    if are_led(managers) { deadline } else { soon(deadline) }
}

/// False if no manager has said for long that its map is the latest.
pub(super) fn are_led(managers: &dyn Managers) -> bool {
    managers.silent() < Duration::from_millis(MANAGERS_SILENT_MS)
}

fn soon(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + Duration::from_millis(UNSERVED_PATIENCE_MS))
}

/// PGs without an active view, as requests met them, and since when.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    since: Mutex<BTreeMap<PgId, Instant>>,
    /// Of the map above: none, nearly always.
    count: AtomicUsize,
}

impl Unserved {
    /// When to give up a request about these PGs that may go on until `deadline`.
    pub(super) fn deadline(
        &self,
        managers: &dyn Managers,
        map: &Topology,
        pgs: impl Iterator<Item = PgId>,
        deadline: Instant,
    ) -> Instant {
        // While nobody leads the managers no view begins.
        if !are_led(managers) {
            return soon(deadline);
        }
        let (now, mut longest) = (Instant::now(), Duration::ZERO);
        for pg in pgs {
            let is_served = map.pg(pg).is_none_or(|record| record.is_active());
            longest = longest.max(self.note(pg, is_served, now));
        }
        if longest >= Duration::from_millis(UNSERVED_MS) { soon(deadline) } else { deadline }
    }

    /// For how long a PG has not been served.
    fn note(&self, pg: PgId, is_served: bool, now: Instant) -> Duration {
        if is_served && self.count.load(Ordering::Relaxed) == 0 {
            return Duration::ZERO;
        }
        let mut since = self.since.lock();
        let unserved = match is_served {
            true => {
                since.remove(&pg);
                Duration::ZERO
            }
            false => now - *since.entry(pg).or_insert(now),
        };
        self.count.store(since.len(), Ordering::Relaxed);
        unserved
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use larder_protocol::manager::policy::ServerMessage;
    use larder_protocol::manager::state::{Applied, Command, MapVersion, PgRecord};
    use tokio::time::advance;

    use super::*;
    use crate::managers::{NotProposed, VersionWatch, Versions};

    /// Managers that have not been heard for so long.
    struct Silent(Duration);

    impl Managers for Silent {
        fn map(&self) -> Arc<Topology> {
            Arc::default()
        }

        fn versions(&self) -> VersionWatch {
            Versions::new(MapVersion(0)).subscribe()
        }

        fn told_of(&self, _: MapVersion) {}

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            async { Err(NotProposed::NoLeader) }.boxed()
        }

        fn say(&self, _: ServerMessage) {}

        fn silent(&self) -> Duration {
            self.0
        }
    }

    const HEARD: Silent = Silent(Duration::ZERO);
    const SOON: Duration = Duration::from_millis(UNSERVED_PATIENCE_MS);

    /// A PG that is in no view, and one that the map does not have.
    fn map() -> Topology {
        Topology { pgs: vec![PgRecord::default()], ..Topology::default() }
    }

    fn patience(unserved: &Unserved, managers: &Silent, map: &Topology, pg: u32) -> Duration {
        let (now, pgs) = (Instant::now(), [PgId(pg)].into_iter());
        unserved.deadline(managers, map, pgs, now + Duration::from_secs(30)) - now
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_failover_and_no_longer() {
        let (unserved, map, whole) = (Unserved::default(), map(), Duration::from_secs(30));
        assert!(!map.pgs[0].is_active());
        assert_eq!(patience(&unserved, &HEARD, &map, 0), whole);
        advance(Duration::from_millis(UNSERVED_MS - 1)).await;
        assert_eq!(patience(&unserved, &HEARD, &map, 0), whole);
        advance(Duration::from_millis(1)).await;
        assert_eq!(patience(&unserved, &HEARD, &map, 0), SOON);
        assert_eq!(patience(&unserved, &HEARD, &map, 1), whole, "of another group");
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_is_served_again_is_waited_for_as_before() {
        let (unserved, whole) = (Unserved::default(), Duration::from_secs(30));
        patience(&unserved, &HEARD, &map(), 0);
        advance(Duration::from_millis(UNSERVED_MS)).await;
        assert_eq!(patience(&unserved, &HEARD, &Topology::default(), 0), whole);
        assert_eq!(patience(&unserved, &HEARD, &map(), 0), whole, "it is counted anew");
    }

    #[tokio::test(start_paused = true)]
    async fn while_nobody_leads_the_managers_all_ends_soon() {
        let (unserved, lost) =
            (Unserved::default(), Silent(Duration::from_millis(MANAGERS_SILENT_MS)));
        assert_eq!(patience(&unserved, &lost, &Topology::default(), 0), SOON);
    }
}
