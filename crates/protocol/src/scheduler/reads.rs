//! A proxy's reads of chunks: chooses the first holder, the next one after a failure, and hedges.
//!
//! ```text
//!  begin ─▶ next ─▶ asked ──▶ answered with the right bytes (and a report)
//!             ▲       │  ├──▶ refused: no bytes, wrong ones, or too much to do ──▶ next
//!             │       │  └──▶ gave up: silent, cancelled ──▶ next
//!             │       └─ late ─▶ hedge ─▶ another asked; of the two, one is answered and the other given up or outrun
//! ```
//!
//! The driver sends requests, verifies answers and keeps the time. This machine chooses the holders.
//!
//! # Invariants
//!
//! 1. Only replicas that METAX names as holders are asked, each at most once in a round.
//! 2. Each request ends once: it was answered, refused, given up or outrun. So [`PendingRead`] is handed back by value.
//! 3. A replica that is down is asked only if no other is left. It is never a hedge, nor is one that may still be down. A
//!    replica that refused is asked after the others for [`REFUSED_US`], under every policy: refusals are quick, so its
//!    times and its queue look good.
//! 4. Less than 3 % of all reads are hedged in the long run ([`hedge`](super::hedge)).

use std::collections::BTreeMap;

use larder_types::{DiskId, Holders, ServerId};

use super::balance::{Balance, Policy};
use super::hedge::{HedgeBudget, LatencyEstimate};
use super::meter::{Report, SIZE_CLASSES, SizeClass};
use crate::limits::{CHOICES_MAX, HOLDERS_TRACKED_MAX, REFUSED_US};

/// Number of ranks of holders in counts: the first, the second, the third, and all others.
pub const RANKS: usize = 4;

/// The state of a server, by which it should be asked or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerHealth {
    /// It answers.
    Up,
    /// It was down, and one read should probe it. It is no hedge: it may still be down.
    Due,
    /// It is down.
    Down,
}

/// A replica of a chunk's volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Its index in the volume, by which METAX names it.
    pub index: usize,
    /// Its server.
    pub server: ServerId,
    /// Its disk.
    pub disk: DiskId,
    /// True if it is in the asker's failure domain.
    pub is_near: bool,
    /// The asker's view of its server.
    pub health: ServerHealth,
}

/// One round of a read.
#[derive(Debug)]
pub struct Reading {
    /// Holders that were not asked yet, with their ranks.
    left: Vec<(usize, Replica)>,
    bytes: u64,
}

impl Reading {
    /// A round for so many bytes of a chunk that `holders` have, of the replicas of its volume.
    #[must_use]
    pub fn of(holders: Holders, replicas: impl IntoIterator<Item = Replica>, bytes: u64) -> Self {
        let holders = replicas.into_iter().filter(|replica| holders.has(replica.index));
        Self { left: holders.enumerate().take(CHOICES_MAX).collect(), bytes }
    }

    /// Returns true if every holder was asked.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }
}

/// A request to a holder that has not ended.
#[derive(Debug)]
#[must_use = "its end is to be reported"]
pub struct PendingRead {
    /// The replica that was asked.
    pub replica: Replica,
    bytes: u64,
    at_us: u64,
    /// The time to wait for its answer before a hedge.
    pub hedge_after_us: u64,
}

/// Counts since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Holders asked, by the policy's place in [`Policy::ALL`] and by rank, hedges too.
    pub asked: [[u64; RANKS]; Policy::ALL.len()],
    /// Of these, hedges.
    pub hedges: u64,
    /// Hedges that were answered first.
    pub hedges_won: u64,
    /// Hedges that were not sent, as the share of hedges was spent.
    pub hedges_spared: u64,
    /// Holders asked that had sent a report before.
    pub reports: u64,
    /// Sum of the ages of these reports, in microseconds.
    pub report_age_us: u64,
}

/// A proxy's choice of holders, which all of its reads share.
#[derive(Debug)]
pub struct Reads {
    balance: Balance,
    usual: [LatencyEstimate; SIZE_CLASSES],
    hedge_budget: HedgeBudget,
    /// Disks that refused, with the time until which they are asked after the others.
    refused: BTreeMap<DiskId, u64>,
    counts: ReadCounts,
}

impl Reads {
    /// A machine that has asked no holder yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            balance: Balance::new(policy, 1),
            usual: [LatencyEstimate::default(); SIZE_CLASSES],
            hedge_budget: HedgeBudget::default(),
            refused: BTreeMap::new(),
            counts: ReadCounts::default(),
        }
    }

    /// Chooses by another policy from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.balance.set_policy(policy);
    }

    /// Sets the number of proxies that ask the same disks.
    pub fn set_requesters(&mut self, askers: usize) {
        self.balance.set_requesters(u32::try_from(askers).unwrap_or(u32::MAX));
    }

    /// Begins a read. It takes one turn and adds to the budget of hedges once, however many holders it asks.
    pub fn begin(&mut self) {
        self.hedge_budget.earn();
        self.balance.take_turn();
    }

    /// Chooses the next holder to read from; `None` if all were tried. `draw` is a random number for this choice.
    pub fn next(&mut self, now_us: u64, reading: &mut Reading, draw: u64) -> Option<PendingRead> {
        let is_up = |replica: &Replica| replica.health != ServerHealth::Down;
        if let Some(asked) = self.request_from_one(&is_up, now_us, reading, draw) {
            return Some(asked);
        }
        // Only replicas that are down are left.
        let at = (draw % reading.left.len().max(1) as u64) as usize;
        (!reading.left.is_empty()).then(|| self.ask(now_us, reading, at))
    }

    /// Chooses the holder of a hedge; `None` if no other is up, or the budget of hedges is spent.
    pub fn hedge(&mut self, now_us: u64, reading: &mut Reading, draw: u64) -> Option<PendingRead> {
        let is_up = |replica: &Replica| replica.health == ServerHealth::Up;
        if !reading.left.iter().any(|(_, replica)| is_up(replica)) {
            return None;
        }
        if !self.hedge_budget.pay() {
            self.counts.hedges_spared += 1;
            return None;
        }
        self.counts.hedges += 1;
        self.request_from_one(&is_up, now_us, reading, draw)
    }

    /// Notes that a holder sent the requested bytes, and its report if its release sends one.
    pub fn answered(&mut self, now_us: u64, asked: PendingRead, report: Option<Report>) {
        let PendingRead { replica, bytes, at_us, .. } = asked;
        let took_us = now_us.saturating_sub(at_us);
        self.balance.answered(now_us, replica.disk, bytes, took_us, report);
        self.usual[SizeClass::of(bytes) as usize].note(took_us);
    }

    /// Notes that a holder gave no bytes or wrong ones, or was busy.
    pub fn refused(&mut self, now_us: u64, asked: PendingRead) {
        if self.refused.len() >= HOLDERS_TRACKED_MAX {
            self.refused.retain(|_, until_us| *until_us > now_us);
        }
        if self.refused.len() < HOLDERS_TRACKED_MAX {
            self.refused.insert(asked.replica.disk, now_us + REFUSED_US);
        }
        self.gave_up(asked);
    }

    /// Notes that a holder did not answer, or that the caller waits no longer.
    pub fn gave_up(&mut self, asked: PendingRead) {
        self.balance.gave_up(asked.replica.disk, asked.bytes);
    }

    /// Notes that a hedge was answered before this request.
    pub fn outrun(&mut self, now_us: u64, asked: PendingRead) {
        self.usual[SizeClass::of(asked.bytes) as usize].note(now_us.saturating_sub(asked.at_us));
        self.counts.hedges_won += 1;
        self.gave_up(asked);
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// The number of requests that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.balance.outstanding()
    }

    /// The time to wait for an answer of this size before a hedge.
    #[must_use]
    pub fn hedge_after_us(&self, class: SizeClass) -> u64 {
        self.usual[class as usize].hedge_after_us()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.balance.policy()
    }

    fn request_from_one(
        &mut self,
        is_up: &dyn Fn(&Replica) -> bool,
        now_us: u64,
        reading: &mut Reading,
        draw: u64,
    ) -> Option<PendingRead> {
        let has_refused =
            |disk: &DiskId| self.refused.get(disk).is_some_and(|until_us| now_us < *until_us);
        let of_all = |is_fit: &dyn Fn(&Replica) -> bool| {
            let (mut disks, mut far, mut fit) = ([DiskId(0); CHOICES_MAX], 0_u16, 0);
            for (_, replica) in reading.left.iter().filter(|(_, replica)| is_fit(replica)) {
                disks[fit] = replica.disk;
                far |= u16::from(!replica.is_near) << fit;
                fit += 1;
            }
            self.balance.choose_near(now_us, (&disks[..fit], far), reading.bytes, draw)
        };
        let disk = of_all(&|replica| is_up(replica) && !has_refused(&replica.disk))
            .or_else(|| of_all(is_up))?;
        let is_chosen = |(_, it): &(usize, Replica)| it.disk == disk && is_up(it);
        let at = reading.left.iter().position(is_chosen)?;
        Some(self.ask(now_us, reading, at))
    }

    fn ask(&mut self, now_us: u64, reading: &mut Reading, at: usize) -> PendingRead {
        let (rank, replica) = reading.left.remove(at);
        let bytes = reading.bytes;
        self.counts.asked[self.balance.policy() as usize][rank.min(RANKS - 1)] += 1;
        if let Some(age_us) = self.balance.age_us(now_us, replica.disk) {
            self.counts.reports += 1;
            self.counts.report_age_us = self.counts.report_age_us.saturating_add(age_us);
        }
        self.balance.sent(now_us, replica.disk, bytes);
        let hedge_after_us = self.hedge_after_us(SizeClass::of(bytes));
        PendingRead { replica, bytes, at_us: now_us, hedge_after_us }
    }
}

#[cfg(test)]
mod tests;
