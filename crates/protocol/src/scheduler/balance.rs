//! The choice of the holder that serves a read: reports of disks, and policies that choose by them.
//!
//! Each asker (a proxy; in the comparison with the paper a primary) has a [`Balance`]. It knows the requests that it sent
//! itself and the reports that came with answers. Other askers' requests it knows only from these reports.
//!
//! | policy | asks |
//! |---|---|
//! | `primary-first` | the first holder |
//! | `random` | any holder |
//! | `round-robin` | the holders in turn |
//! | `parallel` | the one with the shortest queue: requests reported, and those sent since (Shi et al., 2019) |
//! | `c3` | the one with the least `R − s + q³ · s` (Suresh et al., NSDI 2015), without its rate control. R is the response time, s the service time, q the queue, in which own requests count once for each asker |
//! | `prequal` | the one with the least latency, of those whose queue is not in the longest sixth of recent reports; else the one with the shortest queue. Reports that come with answers replace probes (Wydrowski et al., NSDI 2024) |
//! | `earliest-finish` | the one that would finish first: the service times of its queue and of the request itself, added up |
//!
//! # Invariants
//!
//! 1. The choice is among the holders that were given. It depends on nothing but reports, own requests, the time and the
//!    random number drawn for it.
//! 2. Holders that are about equal are chosen at random, so that askers with the same reports do not form a herd. Of equal
//!    holders a near one is chosen: its answer does not cross the network.
//! 3. A report loses its weight. The queue in it fades within the time in which the disk would serve that queue. It fades
//!    to the mean of the holders, or to the disk's own average if that is less. The report expires when it is
//!    [`STALE_AFTER_FINISHES`] times older than that time, and at the latest after [`STALE_US_MAX`]. Then its disk counts
//!    like one that never reported: as good as the best. **So no disk starves on account of an old report**: such a disk is
//!    chosen among n holders with a probability of at least 1/n. If it is far and others are near, that holds whenever the
//!    near ones are worse than the far ones on average.
//! 4. A disk that owes an answer does not count as unheard because it is silent. The driver reports the end of each request
//!    that it sent, so a silent disk is asked again once it has answered or was given up.
//! 5. A disk may answer without a service time: its server has an older release, or its device has served
//!    nothing yet. It counts with the mean service time of the others.
//! 6. At most [`HOLDERS_TRACKED_MAX`] disks are remembered. The one whose report is oldest, of those that owe nothing, is
//!    forgotten for another.

use std::collections::BTreeMap;

use larder_types::DiskId;
use serde::Deserialize;

use super::meter::{Load, Report, SIZE_CLASSES, SizeClass, moved};
use crate::limits::{
    CHOICES_MAX, HOLDERS_TRACKED_MAX, STALE_AFTER_FINISHES, STALE_US_MAX, STALE_US_MIN,
};

mod holder_state;
mod score;

/// The rule by which a holder is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Always the first holder.
    PrimaryFirst,
    /// At random.
    Random,
    /// By turns.
    RoundRobin,
    /// By C3's score.
    C3,
    /// By Prequal's rule.
    Prequal,
    /// By the time at which it would finish.
    #[default]
    EarliestFinish,
    /// By the queue.
    Parallel,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 7] = [
        Self::PrimaryFirst,
        Self::Random,
        Self::RoundRobin,
        Self::C3,
        Self::Prequal,
        Self::EarliestFinish,
        Self::Parallel,
    ];

    /// Its name in configurations and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PrimaryFirst => "primary-first",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::C3 => "c3",
            Self::Prequal => "prequal",
            Self::EarliestFinish => "earliest-finish",
            Self::Parallel => "parallel",
        }
    }
}

/// An asker's memory of a disk.
#[derive(Debug, Default)]
struct HolderReport {
    report: Option<Report>,
    /// Its last answer had no report.
    is_mute: bool,
    /// The time at which the report came.
    heard_us: u64,
    /// Average number of requests in its reports, in sixteenths.
    queue_average: u64,
    /// Average time from sending a request to its answer; 0 before the first.
    response_us: u64,
    /// Requests of this asker that have not ended.
    outstanding: [Load; SIZE_CLASSES],
    /// Requests of these that were sent after the report came.
    since: [Load; SIZE_CLASSES],
    /// The time since which it owes answers and has given none.
    silent_since_us: u64,
}

impl HolderReport {
    fn outstanding(&self) -> u32 {
        self.outstanding.iter().map(|load| load.requests).sum()
    }

    /// Returns true if it has a report that has not expired.
    fn is_heard(&self, now_us: u64) -> bool {
        self.report.is_some_and(|report| {
            let stale_us = holder_state::finish_us(&report).saturating_mul(STALE_AFTER_FINISHES);
            let age_us = now_us.saturating_sub(self.heard_us);
            age_us < stale_us.clamp(STALE_US_MIN, STALE_US_MAX)
        })
    }
}

/// Chooses holders by one policy, and remembers what it needs for that.
#[derive(Debug)]
pub struct Balance {
    policy: Policy,
    /// An estimate of the number of askers in the cluster: policies count own requests once for each.
    askers: u32,
    known: BTreeMap<DiskId, HolderReport>,
    /// The queues of the last reports of all disks.
    queues: score::Recent,
    turn: u64,
}

impl Balance {
    /// A chooser without reports, one of about `askers`.
    #[must_use]
    pub fn new(policy: Policy, askers: u32) -> Self {
        let queues = score::Recent::default();
        Self { policy, askers, known: BTreeMap::new(), queues, turn: 0 }
    }

    /// Sets the estimate of the number of askers.
    pub fn set_requesters(&mut self, askers: u32) {
        self.askers = askers.max(1);
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Chooses by another policy from now on. Reports stay.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Chooses the holder to ask for so many bytes: one of the first [`CHOICES_MAX`] of `holders`. `draw` is a random number
    /// for this choice. `None` if there is no holder.
    pub fn choose(
        &mut self,
        now_us: u64,
        holders: &[DiskId],
        bytes: u64,
        draw: u64,
    ) -> Option<DiskId> {
        self.take_turn();
        self.choose_near(now_us, (holders, 0), bytes, draw)
    }

    /// Begins the next turn of [`Policy::RoundRobin`]: choices of one turn prefer the same place among their holders.
    pub fn take_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// As [`choose`](Self::choose), within the present turn, where the holders at whose places `far` has a bit are reached
    /// over the network. Policies that use reports choose a near holder unless a far one is better by more than the trip.
    /// Round-robin takes turns among the near ones.
    pub fn choose_near(
        &self,
        now_us: u64,
        (holders, far): (&[DiskId], u16),
        bytes: u64,
        draw: u64,
    ) -> Option<DiskId> {
        let holders = &holders[..holders.len().min(CHOICES_MAX)];
        let first = *holders.first()?;
        let all = u16::MAX >> (CHOICES_MAX - holders.len());
        let far = if far & all == all { 0 } else { far & all };
        let (among, draw) = match self.policy {
            Policy::PrimaryFirst => return Some(first),
            Policy::Random => (all, draw),
            Policy::RoundRobin => (all & !far, self.turn),
            Policy::C3 | Policy::Prequal | Policy::EarliestFinish | Policy::Parallel => {
                (self.best(now_us, (holders, far), SizeClass::of(bytes)), draw)
            }
        };
        assert!(among != 0 && among & !all == 0, "some of them are as good as any");
        let nth = draw % u64::from(among.count_ones());
        let of_them = (0..holders.len()).filter(|at| among >> at & 1 == 1);
        of_them.map(|at| holders[at]).nth(nth as usize)
    }

    /// Notes that this asker sent a request for so many bytes to a disk, whichever way it was chosen.
    pub fn sent(&mut self, now_us: u64, disk: DiskId, bytes: u64) {
        self.make_room(disk);
        let known = self.known.entry(disk).or_default();
        if known.outstanding() == 0 {
            known.silent_since_us = now_us;
        }
        let class = SizeClass::of(bytes) as usize;
        known.outstanding[class].add(bytes);
        known.since[class].add(bytes);
    }

    /// Notes that a request was answered `took_us` after it was sent, with a report if the server's release gives one.
    pub fn answered(
        &mut self,
        now_us: u64,
        disk: DiskId,
        bytes: u64,
        took_us: u64,
        report: impl Into<Option<Report>>,
    ) {
        self.ended(disk, bytes);
        let report = report.into();
        if let Some(report) = report {
            self.record_report(now_us, disk, report);
        }
        if let Some(known) = self.known.get_mut(&disk) {
            // Its server may have gone back to a release without reports: an earlier report is void then.
            known.report = report;
            known.is_mute = report.is_none();
            known.silent_since_us = now_us;
            known.response_us = match known.response_us {
                0 => took_us.max(1),
                average => moved(average, took_us),
            };
        }
    }

    /// Notes that a request was given up or refused: no answer to it will come.
    pub fn gave_up(&mut self, disk: DiskId, bytes: u64) {
        self.ended(disk, bytes);
    }

    /// Notes a report, which came with an answer or by itself.
    pub fn record_report(&mut self, now_us: u64, disk: DiskId, report: Report) {
        self.make_room(disk);
        let known = self.known.entry(disk).or_default();
        let requests = holder_state::requests(&report);
        known.queue_average = match known.report {
            None => 16 * requests,
            Some(_) => moved(known.queue_average.max(1), 16 * requests),
        };
        known.report = Some(report);
        known.is_mute = false;
        known.heard_us = known.heard_us.max(now_us);
        known.since = [Load::default(); SIZE_CLASSES];
        self.queues.push(requests);
    }

    /// Age of a disk's last report; `None` before the first.
    #[must_use]
    pub fn age_us(&self, now_us: u64, disk: DiskId) -> Option<u64> {
        let known = self.known.get(&disk).filter(|known| known.report.is_some())?;
        Some(now_us.saturating_sub(known.heard_us))
    }

    /// Requests that were sent and have not ended, of all disks.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.known.values().map(|known| u64::from(known.outstanding())).sum()
    }

    /// The number of disks that it remembers.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.known.len()
    }

    fn ended(&mut self, disk: DiskId, bytes: u64) {
        let class = SizeClass::of(bytes) as usize;
        if let Some(known) = self.known.get_mut(&disk) {
            known.outstanding[class].take(bytes);
            if known.since[class].requests > known.outstanding[class].requests {
                known.since[class].take(bytes);
            }
        }
    }

    /// Makes room for one more disk: forgets the one whose report is oldest, of those that owe nothing. If all owe something
    /// it forgets the first; the ends of its requests then change nothing.
    fn make_room(&mut self, disk: DiskId) {
        if self.known.len() < HOLDERS_TRACKED_MAX || self.known.contains_key(&disk) {
            return;
        }
        let idle = self.known.iter().filter(|(_, known)| known.outstanding() == 0);
        let oldest =
            idle.min_by_key(|(disk, known)| (known.heard_us, **disk)).map(|(disk, _)| *disk);
        let forgotten = oldest.or_else(|| self.known.keys().next().copied());
        forgotten.and_then(|disk| self.known.remove(&disk));
        assert!(self.known.len() < HOLDERS_TRACKED_MAX);
    }
}

#[cfg(test)]
mod tests;
