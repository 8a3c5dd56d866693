//! Blobs and bundles that could not be repacked: each is tried again after a pause that doubles. A blob that a backend
//! reports missing may be back in an hour.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::format::entry::Container;
use crate::limits::{REPACK_BACKOFF, REPACK_BACKOFF_MAX};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct RepackBackoff(BTreeMap<Container, (Instant, Duration)>);

impl RepackBackoff {
    /// Sets one aside; returns for how long.
    pub(super) fn add(&mut self, container: Container, now: Instant) -> Duration {
        let last = self.0.get(&container).map(|(_, pause)| *pause);
        let pause = last.map_or(REPACK_BACKOFF, |pause| (2 * pause).min(REPACK_BACKOFF_MAX));
        self.0.insert(container, (now + pause, pause));
        pause
    }

    /// Returns true if it is not to be tried yet.
    pub(super) fn has(&self, container: Container, now: Instant) -> bool {
        self.0.get(&container).is_some_and(|(until, _)| now < *until)
    }

    /// It was repacked.
    pub(super) fn forget(&mut self, container: Container) {
        self.0.remove(&container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BlobId;

    #[test]
    fn what_was_set_aside_is_tried_again_after_growing_pauses() {
        let (mut backoff, blob) = (RepackBackoff::default(), Container::Blob(BlobId::default()));
        let mut now = Instant::now();
        assert!(!backoff.has(blob, now));
        for pause in [REPACK_BACKOFF, 2 * REPACK_BACKOFF, 4 * REPACK_BACKOFF] {
            assert_eq!(backoff.add(blob, now), pause);
            assert!(backoff.has(blob, now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!backoff.has(blob, now));
        }
        backoff.forget(blob);
        assert_eq!(backoff.add(blob, now), REPACK_BACKOFF);
        for _ in 0..20 {
            assert!(backoff.add(blob, now) <= REPACK_BACKOFF_MAX);
        }
    }
}
