//! A failure detector of data servers, fed by the proxy's own requests (Ambry, figure 5). After a few failures in a row
//! a server counts as down and gets no requests for a while. Then one request probes it.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_protocol::scheduler::ServerHealth;
use larder_types::ServerId;
use tokio::time::Instant;

use crate::limits::{DOWN_FAILURES, DOWN_MS};

/// The knowledge of a server when it was asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRead {
    pub(super) server: ServerId,
    /// Times that it had answered.
    answers: u64,
    pub(super) is_probe: bool,
}

/// The knowledge of one server.
#[derive(Debug, Default)]
struct Detector {
    answers: u64,
    /// Since the last answer.
    failures: u32,
    /// Not to be asked before.
    down_until: Option<Instant>,
}

impl Detector {
    fn health(&self, now: Instant) -> ServerHealth {
        match self.down_until {
            None => ServerHealth::Up,
            Some(until) if now >= until => ServerHealth::Due,
            Some(_) => ServerHealth::Down,
        }
    }

    fn failed(&mut self, now: Instant) {
        self.failures += 1;
        if self.failures >= DOWN_FAILURES {
            self.down_until = Some(now + Duration::from_millis(DOWN_MS));
        }
    }
}

/// All servers that were ever asked.
#[derive(Debug, Default)]
pub(super) struct Detectors {
    servers: BTreeMap<ServerId, Detector>,
}

impl Detectors {
    pub(super) fn health(&self, server: ServerId, now: Instant) -> ServerHealth {
        self.servers.get(&server).map_or(ServerHealth::Up, |detector| detector.health(now))
    }

    /// A request to the server is about to be sent. Others wait for the result of a probe.
    pub(super) fn asked(&mut self, server: ServerId, now: Instant) -> PendingRead {
        let detector = self.servers.entry(server).or_default();
        let is_probe = detector.health(now) == ServerHealth::Due;
        if is_probe {
            detector.down_until = Some(now + Duration::from_millis(DOWN_MS));
        }
        PendingRead { server, answers: detector.answers, is_probe }
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self, server: ServerId) {
        let detector = self.servers.entry(server).or_default();
        detector.answers += 1;
        (detector.failures, detector.down_until) = (0, None);
    }

    /// It did not answer.
    pub(super) fn failed(&mut self, server: ServerId, now: Instant) {
        self.servers.entry(server).or_default().failed(now);
    }

    /// Another server that was asked later has answered, and this one is not waited for any more. If it has answered no
    /// request meanwhile it hangs; else it is slow.
    pub(super) fn outrun(&mut self, asked: &PendingRead, now: Instant) {
        let detector = self.servers.entry(asked.server).or_default();
        if detector.answers == asked.answers {
            detector.failed(now);
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
            assert_eq!(detectors.health(SERVER, now), ServerHealth::Up);
            detectors.failed(SERVER, now);
        }
        detectors
    }

    #[test]
    fn a_server_is_down_after_failures_in_a_row() {
        let now = Instant::now();
        assert_eq!(down(now).health(SERVER, now), ServerHealth::Down);
        let mut detectors = Detectors::default();
        for _ in 0..2 * DOWN_FAILURES {
            detectors.failed(SERVER, now);
            detectors.answered(SERVER);
        }
        assert_eq!(detectors.health(SERVER, now), ServerHealth::Up);
    }

    #[test]
    fn one_request_finds_out_whether_it_is_up_again() {
        let now = Instant::now();
        let mut detectors = down(now);
        let later = now + Duration::from_millis(DOWN_MS);
        assert_eq!(detectors.health(SERVER, later), ServerHealth::Due);
        assert!(detectors.asked(SERVER, later).is_probe);
        assert_eq!(detectors.health(SERVER, later), ServerHealth::Down, "others wait for it");
        assert!(!detectors.asked(SERVER, later).is_probe, "not a second one");
        detectors.answered(SERVER);
        assert_eq!(detectors.health(SERVER, later), ServerHealth::Up);
    }

    #[test]
    fn a_probe_that_fails_keeps_it_down() {
        let now = Instant::now();
        let mut detectors = down(now);
        let later = now + Duration::from_millis(DOWN_MS);
        detectors.asked(SERVER, later);
        detectors.failed(SERVER, later);
        assert_eq!(detectors.health(SERVER, later), ServerHealth::Down);
        assert_eq!(
            detectors.health(SERVER, later + Duration::from_millis(DOWN_MS)),
            ServerHealth::Due
        );
    }

    #[test]
    fn an_outrun_holder_is_down_only_if_it_answers_no_request() {
        let now = Instant::now();
        let mut slow = Detectors::default();
        for _ in 0..2 * DOWN_FAILURES {
            let outrun = slow.asked(SERVER, now);
            slow.answered(SERVER);
            slow.outrun(&outrun, now);
        }
        assert_eq!(slow.health(SERVER, now), ServerHealth::Up);
        let mut hung = Detectors::default();
        for _ in 0..DOWN_FAILURES {
            let outrun = hung.asked(SERVER, now);
            hung.outrun(&outrun, now);
        }
        assert_eq!(hung.health(SERVER, now), ServerHealth::Down);
    }
}
