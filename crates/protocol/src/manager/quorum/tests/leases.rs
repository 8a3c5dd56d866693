//! Leases that leaders of two releases grant while managers are restarted with one or the other: the one that is elected
//! waits until the last has run out.

use super::{NetworkFaults, QuorumMessage, Term, World, seeds};
use crate::limits::{LEASE_DRIFT_MS, LEASE_GRANTED_MS, LEASE_MS, ROUND_FIRST};
use crate::manager::policy::inherited_until_ms;

/// The leases that leaders granted, and those that they waited out when they were elected.
#[derive(Default)]
pub(super) struct Leases {
    /// The time at which each lease ends that was confirmed, and the term in which it was.
    granted: Vec<(Term, u64)>,
    /// Until when each that was elected waits.
    waits: Vec<(Term, u64)>,
    /// Of these, those that know that they need not wait for long.
    brief: u64,
}

impl World {
    /// A message with the rounds of the release of who leads.
    pub(super) fn as_released(
        &self,
        from: usize,
        to: usize,
        message: QuorumMessage,
    ) -> QuorumMessage {
        match message {
            QuorumMessage::Append { term, round, commit, entries }
                if self.earlier.contains(&from) =>
            {
                QuorumMessage::Append { term, round: round - ROUND_FIRST, commit, entries }
            }
            QuorumMessage::Appended { term, round, last } if self.earlier.contains(&to) => {
                QuorumMessage::Appended { term, round: round.saturating_add(ROUND_FIRST), last }
            }
            other => other,
        }
    }

    /// One that leads in this term was confirmed, with a renewal that was sent just before it asked.
    pub(super) fn grants(&mut self, at: usize, term: Term, requested_ms: u64) {
        let lasts_ms = if self.earlier.contains(&at) { LEASE_MS } else { LEASE_GRANTED_MS };
        let end_ms = requested_ms + lasts_ms;
        self.leases.granted.push((term, end_ms));
        for (later, until_ms) in &self.leases.waits {
            assert!(
                *later <= term || end_ms + LEASE_DRIFT_MS <= *until_ms,
                "{later:?} is too early"
            );
        }
    }

    /// One was elected in this term.
    pub(super) fn waits_out(&mut self, at: usize, term: Term, shortened_since_ms: Option<u64>) {
        let shortened_since_ms = shortened_since_ms.filter(|_| !self.earlier.contains(&at));
        let until_ms = inherited_until_ms(self.now_ms, shortened_since_ms);
        self.leases.waits.push((term, until_ms));
        self.leases.brief += u64::from(until_ms < self.now_ms + LEASE_MS + LEASE_DRIFT_MS);
        for (before, end_ms) in &self.leases.granted {
            assert!(
                *before >= term || end_ms + LEASE_DRIFT_MS <= until_ms,
                "{term:?} waits until {until_ms}: a lease of {before:?} lasts until {end_ms}"
            );
        }
    }

    /// Each that thinks that it leads asks whether it does.
    fn renew(&mut self) {
        for at in 0..self.machines.len() {
            if self.machines[at].quorum.as_ref().is_some_and(super::Quorum::leads) {
                self.confirm(at);
            }
        }
    }
}

/// Managers that stop, start with either release, are cut off and heard again, often within one election.
fn changes(seed: u64, machines: usize) -> World {
    let mut world = World::new(seed, machines, machines);
    world.network_faults = NetworkFaults {
        lost: 20 + world.rng.below(60),
        doubled: 20 + world.rng.below(30),
        late: 20 + world.rng.below(60),
        slow_disk: 40 + world.rng.below(100),
    };
    for _ in 0..400 {
        for _ in 0..world.rng.below(8) {
            world.run_for(50);
            world.renew();
        }
        let at = world.rng.below(machines as u64) as usize;
        match world.rng.below(8) {
            0 => world.crash(at),
            1 | 2 if world.machines[at].quorum.is_none() => {
                world.earlier.remove(&at);
                if world.rng.one_in(2) {
                    world.earlier.insert(at);
                }
                world.start(at);
            }
            3 => world.cut_off(at),
            4 => {
                let leader = world.leader().unwrap_or(at);
                world.cut_off(leader);
            }
            5 | 6 => world.cut.clear(),
            _ => {}
        }
    }
    world
}

#[test]
fn whoever_is_elected_waits_out_leases_of_every_release() {
    let (mut elected, mut brief, mut granted) = (0, 0, 0);
    for seed in seeds() {
        for machines in [3, 5] {
            let world = changes(seed, machines);
            elected += world.leases.waits.len() as u64;
            brief += world.leases.brief;
            granted += world.leases.granted.len();
        }
    }
    assert!(brief > elected / 20 && brief < elected, "{brief} of {elected} knew who led before");
    assert!(granted as u64 > elected, "{granted} leases, {elected} elections");
}
