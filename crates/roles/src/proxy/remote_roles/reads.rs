//! The knowledge that all reads of the proxy share: the [machine](machine::Reads) that chooses holders and hedges, and
//! the servers that respond.
//!
//! # Invariants
//!
//! 1. Each holder that was asked ends once for the machine, also if the client goes away meanwhile: a [`Holder`] that is
//!    dropped was given up.

use std::time::Duration;

use larder_env::SeededRng;
use larder_env::rng::unique_u64;
use larder_protocol::manager::state::{
    MapVersion, ServerRecord, ServerRole, ServerState, Topology,
};
use larder_protocol::scheduler::{
    Policy, ReadCounts, Reading, Report, SizeClass, reads as machine,
};
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Replicas;
use super::counters::{ProxyCounters, count};
use super::detector;
use super::planted::{self, Bug};

/// See the module's head.
pub(super) struct Reads {
    state: Mutex<State>,
    began: Instant,
}

struct State {
    machine: machine::Reads,
    rng: SeededRng,
    /// Map by which the number of proxies is known.
    as_of: Option<MapVersion>,
}

impl Reads {
    pub(super) fn new(policy: Policy) -> Self {
        let (machine, rng) = (machine::Reads::new(policy), SeededRng::new(unique_u64()));
        Self { state: Mutex::new(State { machine, rng, as_of: None }), began: Instant::now() }
    }

    /// A read begins.
    pub(super) fn begin(&self, map: &Topology) {
        let mut state = self.state.lock();
        state.machine.begin();
        if state.as_of != Some(map.version) {
            state.as_of = Some(map.version);
            state.machine.set_requesters(proxies(map));
        }
    }

    /// The counts of the machine, and the holders that owe an answer.
    pub(super) fn counts(&self) -> (ReadCounts, u64) {
        let state = self.state.lock();
        (state.machine.counts().clone(), state.machine.outstanding())
    }

    /// The time for which a read of a size is waited for alone.
    pub(super) fn hedge_after(&self, class: SizeClass) -> Duration {
        Duration::from_micros(self.state.lock().machine.hedge_after_us(class))
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

/// Proxies that ask the same data servers.
fn proxies(map: &Topology) -> usize {
    let is_proxy = |record: &&ServerRecord| {
        record.state == ServerState::Up && record.roles.contains(&ServerRole::Proxy)
    };
    map.servers.values().filter(is_proxy).count()
}

/// A holder that was asked.
pub(super) struct Holder<'a> {
    of: &'a Replicas,
    asked: Mutex<Option<machine::PendingRead>>,
    detected: detector::PendingRead,
    /// The time to wait for it alone.
    pub(super) hedge_after: Duration,
}

impl<'a> Holder<'a> {
    /// The next holder to read from; `None` if all were tried.
    pub(super) fn next(
        of: &'a Replicas,
        reading: &mut Reading,
        counters: &ProxyCounters,
    ) -> Option<Self> {
        Self::choose(of, counters, |machine, now_us, draw| machine.next(now_us, reading, draw))
    }

    /// The one to ask beside one that takes long, if any may be.
    pub(super) fn beside(
        of: &'a Replicas,
        reading: &mut Reading,
        counters: &ProxyCounters,
    ) -> Option<Self> {
        Self::choose(of, counters, |machine, now_us, draw| machine.hedge(now_us, reading, draw))
    }

    fn choose(
        of: &'a Replicas,
        counters: &ProxyCounters,
        how: impl FnOnce(&mut machine::Reads, u64, u64) -> Option<machine::PendingRead>,
    ) -> Option<Self> {
        let mut state = of.reads.state.lock();
        let draw = state.rng.next_u64();
        let asked = how(&mut state.machine, of.reads.now_us(), draw);
        drop(state);
        asked.map(|asked| Self::asked(of, asked, counters))
    }

    fn asked(of: &'a Replicas, asked: machine::PendingRead, counters: &ProxyCounters) -> Self {
        let detected = of.detectors.lock().asked(asked.replica.server, Instant::now());
        if detected.is_probe {
            count(&counters.probes);
        }
        let hedge_after = Duration::from_micros(asked.hedge_after_us);
        Self { of, asked: Mutex::new(Some(asked)), detected, hedge_after }
    }

    pub(super) fn server(&self) -> ServerId {
        self.detected.server
    }

    /// It answered with what was asked for.
    pub(super) fn answered(&self, report: Option<Report>) {
        self.of.detectors.lock().answered(self.server());
        self.end(|machine, now_us, asked| machine.answered(now_us, asked, report));
    }

    /// It answered, but has no such bytes, or wrong ones.
    pub(super) fn refused(&self) {
        self.of.detectors.lock().answered(self.server());
        self.end(machine::Reads::refused);
    }

    /// It answered, and has something else where the chunk was remembered to lie: that says nothing about it.
    pub(super) fn forgot(&self) {
        self.of.detectors.lock().answered(self.server());
        self.gave_up();
    }

    /// It has too much to do, or too much was sent to it.
    pub(super) fn is_busy(&self) {
        self.end(machine::Reads::refused);
    }

    /// It did not answer, though it may be up.
    pub(super) fn failed(&self) {
        self.of.detectors.lock().failed(self.server(), Instant::now());
    }

    /// Nobody waits for it any more, unless it has ended.
    pub(super) fn gave_up(&self) {
        self.end(|machine, _, asked| machine.gave_up(asked));
    }

    /// The one that was asked beside it answered first.
    pub(super) fn outrun(&self) {
        self.of.detectors.lock().outrun(&self.detected, Instant::now());
        self.end(machine::Reads::outrun);
    }

    fn end(&self, how: impl FnOnce(&mut machine::Reads, u64, machine::PendingRead)) {
        let Some(asked) = self.asked.lock().take() else { return };
        let now_us = self.of.reads.now_us();
        how(&mut self.of.reads.state.lock().machine, now_us, asked);
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        if planted::has(Bug::OwesForEver) {
            return;
        }
        self.gave_up();
    }
}
