//! The runs of a process's servers, for which its meta server speaks: one message tells managers that all of them go on.
//!
//! # Invariants
//!
//! 1. A run is noted here only while its [`Presence`](super::Presence) is kept and the map names it.
//! 2. A server for which the meta server has not spoken for [`PRESENCE_BEAT_MS`](larder_protocol::limits::PRESENCE_BEAT_MS)
//!    speaks for itself. So a meta server that stands still makes none of the others silent.

use std::collections::BTreeMap;

use larder_types::{BootId, ServerId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::BESIDE_MAX;

/// A run that goes on.
#[derive(Debug)]
struct Running {
    boot: BootId,
    /// The last time that the meta server spoke for it.
    spoken_for: Option<Instant>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Colocated(Mutex<BTreeMap<ServerId, Running>>);

impl Colocated {
    /// Notes that a run goes on. Returns the last time that the meta server spoke for it.
    pub(super) fn goes_on(&self, server: ServerId, boot: BootId) -> Option<Instant> {
        let mut runs = self.0.lock();
        let run = runs.entry(server).or_insert(Running { boot, spoken_for: None });
        if run.boot != boot {
            *run = Running { boot, spoken_for: None };
        }
        run.spoken_for
    }

    /// A server has no run any more that goes on.
    pub(super) fn ended(&self, server: ServerId) {
        self.0.lock().remove(&server);
    }

    /// The runs for which a message of the meta server speaks that is sent now.
    pub(super) fn speak(&self) -> Vec<(ServerId, BootId)> {
        let (mut runs, now) = (self.0.lock(), Instant::now());
        let spoken = runs.iter_mut().take(BESIDE_MAX).map(|(server, run)| {
            run.spoken_for = Some(now);
            (*server, run.boot)
        });
        spoken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
