//! Which data servers answer, known from the requests that they were sent anyway (Ambry, figure 5): after a few
//! failures in a row a server is down and not asked for a while; then one request finds out whether it still is.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_types::ServerId;
use tokio::time::Instant;

use crate::limits::{DOWN_FAILURES, DOWN_MS};

/// Whether a server should be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answers.
    Up,
    /// It was down; it may be asked, once.
    Due,
    /// It is down.
    Down,
}

/// What is known of one server.
#[derive(Debug, Default)]
struct Detector {
    /// Since the last answer.
    failures: u32,
    /// Not to be asked before.
    down_until: Option<Instant>,
}

/// All servers that have ever failed; of the others there is nothing to know.
#[derive(Debug, Default)]
pub(super) struct Detectors(BTreeMap<ServerId, Detector>);

impl Detectors {
    pub(super) fn standing(&self, server: ServerId, now: Instant) -> Standing {
        match self.0.get(&server).and_then(|detector| detector.down_until) {
            None => Standing::Up,
            Some(until) if now >= until => Standing::Due,
            Some(_) => Standing::Down,
        }
    }

    /// The server is about to be asked; returns whether that is a probe. Others wait for what comes of it.
    pub(super) fn asked(&mut self, server: ServerId, now: Instant) -> bool {
        let is_probe = self.standing(server, now) == Standing::Due;
        if is_probe && let Some(detector) = self.0.get_mut(&server) {
            detector.down_until = Some(now + Duration::from_millis(DOWN_MS));
        }
        is_probe
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self, server: ServerId) {
        self.0.remove(&server);
    }

    /// It did not answer.
    pub(super) fn failed(&mut self, server: ServerId, now: Instant) {
        let detector = self.0.entry(server).or_default();
        detector.failures += 1;
        if detector.failures >= DOWN_FAILURES {
            detector.down_until = Some(now + Duration::from_millis(DOWN_MS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(7);

    fn down(now: Instant) -> Detectors {
        let mut detectors = Detectors::default();
        for _ in 0..DOWN_FAILURES {
            assert_eq!(detectors.standing(SERVER, now), Standing::Up);
            detectors.failed(SERVER, now);
        }
        detectors
    }

    #[test]
    fn a_server_is_down_after_failures_in_a_row() {
        let now = Instant::now();
        assert_eq!(down(now).standing(SERVER, now), Standing::Down);
        let mut detectors = Detectors::default();
        for _ in 0..2 * DOWN_FAILURES {
            detectors.failed(SERVER, now);
            detectors.answered(SERVER);
        }
        assert_eq!(detectors.standing(SERVER, now), Standing::Up);
    }

    #[test]
    fn one_request_finds_out_whether_it_is_up_again() {
        let now = Instant::now();
        let mut detectors = down(now);
        let later = now + Duration::from_millis(DOWN_MS);
        assert_eq!(detectors.standing(SERVER, later), Standing::Due);
        assert!(detectors.asked(SERVER, later), "a probe");
        assert_eq!(detectors.standing(SERVER, later), Standing::Down, "others wait for it");
        assert!(!detectors.asked(SERVER, later), "not a second one");
        detectors.answered(SERVER);
        assert_eq!(detectors.standing(SERVER, later), Standing::Up);
    }

    #[test]
    fn a_probe_that_fails_keeps_it_down() {
        let now = Instant::now();
        let mut detectors = down(now);
        let later = now + Duration::from_millis(DOWN_MS);
        detectors.asked(SERVER, later);
        detectors.failed(SERVER, later);
        assert_eq!(detectors.standing(SERVER, later), Standing::Down);
        assert_eq!(
            detectors.standing(SERVER, later + Duration::from_millis(DOWN_MS)),
            Standing::Due
        );
    }
}
