//! The runs of a process's servers, for which its meta server sends heartbeats: one message covers all of them.
//!
//! # Invariants
//!
//! 1. A run is noted here only while its [`Presence`](super::Presence) is kept and the map names it.
//! 2. A server for which the meta server has not spoken for [`PRESENCE_BEAT_MS`](larder_protocol::limits::PRESENCE_BEAT_MS)
//!    speaks for itself. So a meta server that stands still makes none of the others silent. Nor does one that managers do
//!    not hear: it speaks for others only while its leases are granted.
//! 3. A run that was not noted for [`SPOKEN_FOR_MS_MAX`] is not spoken for: its part of the process stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_types::{BootId, ServerId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{BESIDE_MAX, SPOKEN_FOR_MS_MAX};

/// A run that goes on.
#[derive(Debug)]
struct Running {
    boot: BootId,
    /// The last time that it was noted.
    noted: Instant,
    /// The last time that the meta server spoke for it.
    spoken_for: Option<Instant>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Colocated(Mutex<BTreeMap<ServerId, Running>>);

impl Colocated {
    /// Notes that a run goes on. Returns the last time that the meta server spoke for it.
    pub(super) fn goes_on(&self, server: ServerId, boot: BootId) -> Option<Instant> {
        let (mut runs, noted) = (self.0.lock(), Instant::now());
        let begun = Running { boot, noted, spoken_for: None };
        let run = runs.entry(server).or_insert(begun);
        let spoken_for = run.spoken_for.filter(|_| run.boot == boot);
        *run = Running { boot, noted, spoken_for };
        spoken_for
    }

    /// A server has no run any more that goes on.
    pub(super) fn ended(&self, server: ServerId) {
        self.0.lock().remove(&server);
    }

    /// The runs for which a message of the meta server speaks that is sent now.
    pub(super) fn speak(&self) -> Vec<(ServerId, BootId)> {
        let (mut runs, now) = (self.0.lock(), Instant::now());
        let goes_on = |run: &Running| now - run.noted <= Duration::from_millis(SPOKEN_FOR_MS_MAX);
        let going = runs.iter_mut().filter(|(_, run)| goes_on(run)).take(BESIDE_MAX);
        let spoken = going.map(|(server, run)| {
            run.spoken_for = Some(now);
            (*server, run.boot)
        });
        spoken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_speaks_for_a_run_that_stands_still() {
        let colocated = Colocated::default();
        let data = (ServerId(2), BootId(7));
        colocated.goes_on(data.0, data.1);
        tokio::time::advance(Duration::from_millis(SPOKEN_FOR_MS_MAX)).await;
        assert_eq!(colocated.speak(), [data]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(colocated.speak(), []);
        assert!(colocated.goes_on(data.0, data.1).is_some(), "it was spoken for a moment ago");
        assert_eq!(colocated.speak(), [data]);
    }

    #[test]
    fn one_speaks_for_runs_that_go_on() {
        let colocated = Colocated::default();
        let (data, proxy) = (ServerId(2), ServerId(3));
        assert_eq!(colocated.goes_on(data, BootId(7)), None);
        assert_eq!(colocated.goes_on(proxy, BootId(8)), None);
        assert_eq!(colocated.speak(), [(data, BootId(7)), (proxy, BootId(8))]);
        assert!(colocated.goes_on(data, BootId(7)).is_some());
        assert_eq!(colocated.goes_on(data, BootId(9)), None, "nobody has spoken for this run");
        colocated.ended(proxy);
        assert_eq!(colocated.speak(), [(data, BootId(9))]);
    }
}
