//! Blobs and bundles that could not be repacked: each is tried again after a pause that doubles. A
//! blob that a backend says it does not have may be back in an hour.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::format::entry::Within;
use crate::limits::{ASIDE_PAUSE, ASIDE_PAUSE_MAX};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct SetAside(BTreeMap<Within, (Instant, Duration)>);

impl SetAside {
    /// Sets one aside; returns for how long.
    pub(super) fn add(&mut self, within: Within, now: Instant) -> Duration {
        let last = self.0.get(&within).map(|(_, pause)| *pause);
        let pause = last.map_or(ASIDE_PAUSE, |pause| (2 * pause).min(ASIDE_PAUSE_MAX));
        self.0.insert(within, (now + pause, pause));
        pause
    }

    /// Returns true if it is not to be tried yet.
    pub(super) fn has(&self, within: Within, now: Instant) -> bool {
        self.0.get(&within).is_some_and(|(until, _)| now < *until)
    }

    /// It was repacked.
    pub(super) fn forget(&mut self, within: Within) {
        self.0.remove(&within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BlobId;

    #[test]
    fn what_was_set_aside_is_tried_again_after_growing_pauses() {
        let (mut aside, blob) = (SetAside::default(), Within::Blob(BlobId::default()));
        let mut now = Instant::now();
        assert!(!aside.has(blob, now));
        for pause in [ASIDE_PAUSE, 2 * ASIDE_PAUSE, 4 * ASIDE_PAUSE] {
            assert_eq!(aside.add(blob, now), pause);
            assert!(aside.has(blob, now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!aside.has(blob, now));
        }
        aside.forget(blob);
        assert_eq!(aside.add(blob, now), ASIDE_PAUSE);
        for _ in 0..20 {
            assert!(aside.add(blob, now) <= ASIDE_PAUSE_MAX);
        }
    }
}
