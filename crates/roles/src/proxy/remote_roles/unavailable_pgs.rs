//! Placement groups that cannot be served now, and for how long: a request for one of them ends soon.
//!
//! A request that meets a failure waits for the failover, which takes seconds. Where there has been none for longer than that
//! takes, waiting is of no use: its client, or the load balancer before it, goes to another place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use larder_protocol::manager::state::Topology;
use larder_types::{PgId, View};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{MANAGERS_SILENT_MS, UNAVAILABLE_TIMEOUT_MS, UNSERVED_MS};
use crate::managers::Managers;

/// Told to clients while no manager leads.
pub(super) const UNLED: &str =
    "no manager of the cluster leads, as most of them do not run or do not reach each other";

/// The deadline of a command that the managers are to agree on for a client, `deadline` at the latest.
pub(super) fn deadline_of_managers(managers: &dyn Managers, deadline: Instant) -> Instant {
    if are_led(managers) { deadline } else { soon(deadline) }
}

/// False if no manager has said for long that its map is the latest.
pub(super) fn are_led(managers: &dyn Managers) -> bool {
    managers.silent() < Duration::from_millis(MANAGERS_SILENT_MS)
}

fn soon(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + Duration::from_millis(UNAVAILABLE_TIMEOUT_MS))
}

/// Until when an answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    until: Instant,
    /// A client waits: it hears soon that something cannot be served.
    is_of_client: bool,
}

impl Wait {
    /// A client waits.
    pub(super) fn of_client(until: Instant) -> Self {
        Self { until, is_of_client: true }
    }

    /// No client waits: it has all of its time, as nobody else would do the work soon.
    pub(super) fn of_nobody(until: Instant) -> Self {
        Self { until, is_of_client: false }
    }
}

/// PGs without an active view, as requests met them: in which view, and since when.
#[derive(Debug, Default)]
pub(super) struct UnavailablePgs {
    since: Mutex<BTreeMap<PgId, (View, Instant)>>,
    /// Entries of `since`: nearly always 0, so that the lock is seldom taken.
    count: AtomicUsize,
}

impl UnavailablePgs {
    /// The deadline of a request about these PGs. Once it is cut short for a request it stays so.
    pub(super) fn deadline(
        &self,
        managers: &dyn Managers,
        map: &Topology,
        pgs: impl Iterator<Item = PgId>,
        wait: &mut Wait,
    ) -> Instant {
        if wait.is_of_client && (!are_led(managers) || self.are_unserved(map, pgs)) {
            // While nobody leads the managers no view begins.
            wait.until = soon(wait.until);
            wait.is_of_client = false;
        }
        wait.until
    }

    /// Returns true if one of these PGs has not been served for longer than a failover takes.
    fn are_unserved(&self, map: &Topology, pgs: impl Iterator<Item = PgId>) -> bool {
        let (now, mut longest) = (Instant::now(), Duration::ZERO);
        for pg in pgs {
            let unserved = map.pg(pg).filter(|record| !record.is_active());
            longest = longest.max(self.note(pg, unserved.map(|record| record.view), now));
        }
        longest >= Duration::from_millis(UNSERVED_MS)
    }

    /// Time for which a PG has had no active view, zero if it is served.
    fn note(&self, pg: PgId, unserved: Option<View>, now: Instant) -> Duration {
        if unserved.is_none() && self.count.load(Ordering::Relaxed) == 0 {
            return Duration::ZERO;
        }
        let mut since = self.since.lock();
        let for_long = match unserved {
            None => {
                since.remove(&pg);
                Duration::ZERO
            }
            Some(view) => {
                let noted = since.entry(pg).or_insert((view, now));
                // An entry from an earlier view was of another failure.
                if noted.0 != view {
                    *noted = (view, now);
                }
                now - noted.1
            }
        };
        self.count.store(since.len(), Ordering::Relaxed);
        for_long
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

        fn note_newer_map(&self, _: MapVersion) {}

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            async { Err(NotProposed::NoLeader) }.boxed()
        }

        fn send_message(&self, _: ServerMessage) {}

        fn silent(&self) -> Duration {
            self.0
        }
    }

    const HEARD: Silent = Silent(Duration::ZERO);
    const SOON: Duration = Duration::from_millis(UNAVAILABLE_TIMEOUT_MS);

    /// A PG that is in no view, and one that the map does not have.
    fn map() -> Topology {
        Topology { pgs: vec![PgRecord::default()], ..Topology::default() }
    }

    fn max_wait(unserved: &UnavailablePgs, managers: &Silent, map: &Topology, pg: u32) -> Duration {
        let (now, pgs) = (Instant::now(), [PgId(pg)].into_iter());
        let mut wait = Wait::of_client(now + Duration::from_secs(30));
        unserved.deadline(managers, map, pgs, &mut wait) - now
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_failover_and_no_longer() {
        let (unserved, map, whole) = (UnavailablePgs::default(), map(), Duration::from_secs(30));
        assert!(!map.pgs[0].is_active());
        assert_eq!(max_wait(&unserved, &HEARD, &map, 0), whole);
        advance(Duration::from_millis(UNSERVED_MS - 1)).await;
        assert_eq!(max_wait(&unserved, &HEARD, &map, 0), whole);
        advance(Duration::from_millis(1)).await;
        assert_eq!(max_wait(&unserved, &HEARD, &map, 0), SOON);
        assert_eq!(max_wait(&unserved, &HEARD, &map, 1), whole, "of another group");
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_is_served_again_is_waited_for_as_before() {
        let (unserved, whole) = (UnavailablePgs::default(), Duration::from_secs(30));
        max_wait(&unserved, &HEARD, &map(), 0);
        advance(Duration::from_millis(UNSERVED_MS)).await;
        assert_eq!(max_wait(&unserved, &HEARD, &Topology::default(), 0), whole);
        assert_eq!(max_wait(&unserved, &HEARD, &map(), 0), whole, "it is counted anew");
    }

    #[tokio::test(start_paused = true)]
    async fn another_failure_of_a_group_is_waited_for_as_the_first() {
        let (unserved, mut map, whole) =
            (UnavailablePgs::default(), map(), Duration::from_secs(30));
        max_wait(&unserved, &HEARD, &map, 0);
        advance(Duration::from_millis(UNSERVED_MS)).await;
        map.pgs[0].view = View(map.pgs[0].view.0 + 1);
        assert_eq!(max_wait(&unserved, &HEARD, &map, 0), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_to_end_soon_gets_no_more_time_and_one_of_nobody_all_of_it() {
        let lost = Silent(Duration::from_millis(MANAGERS_SILENT_MS));
        let (unserved, map, none) =
            (UnavailablePgs::default(), Topology::default(), std::iter::empty);
        let until = Instant::now() + Duration::from_secs(30);
        let (mut of_client, mut of_nobody) = (Wait::of_client(until), Wait::of_nobody(until));
        let first = unserved.deadline(&lost, &map, none(), &mut of_client);
        advance(SOON).await;
        assert_eq!(unserved.deadline(&lost, &map, none(), &mut of_client), first);
        assert_eq!(unserved.deadline(&lost, &map, none(), &mut of_nobody), until);
    }

    #[tokio::test(start_paused = true)]
    async fn while_nobody_leads_the_managers_all_ends_soon() {
        let (unserved, lost) =
            (UnavailablePgs::default(), Silent(Duration::from_millis(MANAGERS_SILENT_MS)));
        assert_eq!(max_wait(&unserved, &lost, &Topology::default(), 0), SOON);
    }
}
