//! The runs of a process's servers, for which its meta server sends heartbeats: one message covers all of them.
//!
//! # Invariants
//!
//! 1. A run is noted here only while its [`Presence`](super::Presence) is kept and the map names it.
//! 2. A server for which the meta server has not spoken for [`PRESENCE_BEAT_MS`](larder_protocol::limits::PRESENCE_BEAT_MS)
//!    speaks for itself. So a meta server that stands still makes none of the others silent. Nor does one that managers do
//!    not hear: it speaks for others only while its leases are granted.
//! 3. A run that was not noted for [`PROXIED_BEAT_MS_MAX`] is not spoken for: its part of the process stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_types::{BootId, ServerId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{COLOCATED_MAX, PROXIED_BEAT_MS_MAX};

/// A run that goes on.
#[derive(Debug)]
struct Running {
    boot: BootId,
    /// The last time that it was noted.
    noted: Instant,
    /// The last time that the meta server spoke for it.
    proxied_until: Option<Instant>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Colocated(Mutex<BTreeMap<ServerId, Running>>);

impl Colocated {
    /// Notes that a run goes on. Returns the last time that the meta server spoke for it.
    pub(super) fn alive_until(&self, server: ServerId, boot: BootId) -> Option<Instant> {
        let (mut runs, noted) = (self.0.lock(), Instant::now());
        let begun = Running { boot, noted, proxied_until: None };
        let run = runs.entry(server).or_insert(begun);
        let proxied_until = run.proxied_until.filter(|_| run.boot == boot);
        *run = Running { boot, noted, proxied_until };
        proxied_until
    }

    /// A server has no run any more that goes on.
    pub(super) fn ended(&self, server: ServerId) {
        self.0.lock().remove(&server);
    }

    /// The runs for which a message of the meta server speaks that is sent now.
    pub(super) fn beats_to_send(&self) -> Vec<(ServerId, BootId)> {
        let (mut runs, now) = (self.0.lock(), Instant::now());
        let goes_on = |run: &Running| now - run.noted <= Duration::from_millis(PROXIED_BEAT_MS_MAX);
        let going = runs.iter_mut().filter(|(_, run)| goes_on(run)).take(COLOCATED_MAX);
        let spoken = going.map(|(server, run)| {
            run.proxied_until = Some(now);
            (*server, run.boot)
        });
        spoken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_beats_are_sent_for_a_stalled_run() {
        let colocated = Colocated::default();
        let data = (ServerId(2), BootId(7));
        colocated.alive_until(data.0, data.1);
        tokio::time::advance(Duration::from_millis(PROXIED_BEAT_MS_MAX)).await;
        assert_eq!(colocated.beats_to_send(), [data]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(colocated.beats_to_send(), []);
        assert!(colocated.alive_until(data.0, data.1).is_some(), "it was spoken for a moment ago");
        assert_eq!(colocated.beats_to_send(), [data]);
    }

    #[test]
    fn one_server_sends_beats_for_live_runs() {
        let colocated = Colocated::default();
        let (data, proxy) = (ServerId(2), ServerId(3));
        assert_eq!(colocated.alive_until(data, BootId(7)), None);
        assert_eq!(colocated.alive_until(proxy, BootId(8)), None);
        assert_eq!(colocated.beats_to_send(), [(data, BootId(7)), (proxy, BootId(8))]);
        assert!(colocated.alive_until(data, BootId(7)).is_some());
        assert_eq!(colocated.alive_until(data, BootId(9)), None, "nobody has spoken for this run");
        colocated.ended(proxy);
        assert_eq!(colocated.beats_to_send(), [(data, BootId(9))]);
    }
}
