//! The choice of the holder that serves a read: what was heard of disks, and policies that choose by it.
//!
//! One who asks (a primary or a proxy) has one of these. It knows what it sent itself and what came with answers, and
//! that others ask too, of whom it hears nothing.
//!
//! | policy | asks |
//! |---|---|
//! | `primary-first` | the first holder |
//! | `random` | any |
//! | `round-robin` | by turns |
//! | `parallel` | the one with the least queue: requests reported, and those sent since (Shi et al., 2019) |
//! | `c3` | the least `R − s + q³ · s` (Suresh et al., NSDI 2015), without its rate control. R is the response time, s the service time, q the queue, in which own requests count once for each asker |
//! | `prequal` | of those whose queue is not among the longest sixth of what was heard lately the fastest, else the one with the least queue (Wydrowski et al., NSDI 2024). Reports that come with answers stand in place of probes |
//! | `earliest-finish` | the one that would be done first: what waits and the request itself, each as long as the disk takes for it |
//!
//! # Invariants
//!
//! 1. The choice is among the holders that were given, and depends on nothing but what was heard, the time and the number
//!    drawn for it.
//! 2. Holders that are about equal are taken at random: askers that heard the same do not run in a herd. A near one goes
//!    before others as good: a read there takes no trip over the network.
//! 3. A report loses its weight. What it says of the queue fades within the time in which that queue would be served. It
//!    fades to the mean of the holders, or to what that disk has on average if that is less. The report itself ends when it
//!    is so many times older than that time, and at the latest after [`STALE_US_MAX`]. Then its disk counts as one that was
//!    never heard: as good as the best. **So no disk starves on account of an old report**: of n holders it is taken with a
//!    chance of 1/n at least. If it is far and others are near, that holds whenever the near ones are worse than the far
//!    ones on average.
//! 4. A disk that owes an answer does not count as unheard for being silent. The driver says of each request that was
//!    sent how it ended, so a silent disk is asked again when it has answered or was given up.
//! 5. Some disks answer and do not say how long they take: those of an older release, or whose device has served
//!    nothing yet. Such a disk counts as like the mean of the others.
//! 6. What is remembered is bounded: of those that owe nothing, the one that was heard longest ago is forgotten.

use std::collections::BTreeMap;

use larder_types::DiskId;
use serde::Deserialize;

use super::meter::{Load, Report, SIZE_CLASSES, SizeClass, moved};
use crate::limits::{
    CHOICES_MAX, HOLDERS_HEARD_MAX, STALE_AFTER_FINISHES, STALE_US_MAX, STALE_US_MIN,
};

mod score;
mod seen;

/// The rule by which a holder is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// See the module's head, also for the others.
    PrimaryFirst,
    /// At random.
    Random,
    /// By turns.
    RoundRobin,
    /// By C3's score.
    C3,
    /// By Prequal's rule.
    Prequal,
    /// By the time at which it would be done.
    #[default]
    EarliestFinish,
    /// By the queue.
    Parallel,
}

impl Policy {
    /// All of them.
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

/// The knowledge of a disk.
#[derive(Debug, Default)]
struct Known {
    report: Option<Report>,
    /// Its last answer had no report.
    is_mute: bool,
    /// The time at which the report came.
    heard_us: u64,
    /// Average of the requests that reports tell of, in sixteenths.
    queue_average: u64,
    /// Average time from sending a request to its answer; 0 before the first.
    response_us: u64,
    /// Sent and not ended.
    owed: [Load; SIZE_CLASSES],
    /// Of these, sent since the report came.
    since: [Load; SIZE_CLASSES],
    /// Since when it owes an answer and gives none.
    silent_since_us: u64,
}

impl Known {
    fn owes(&self) -> u32 {
        self.owed.iter().map(|load| load.requests).sum()
    }

    /// Returns true if what was heard says anything yet.
    fn is_heard(&self, now_us: u64) -> bool {
        self.report.is_some_and(|report| {
            let stale_us = seen::finish_us(&report).saturating_mul(STALE_AFTER_FINISHES);
            let age_us = now_us.saturating_sub(self.heard_us);
            age_us < stale_us.clamp(STALE_US_MIN, STALE_US_MAX)
        })
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Balance {
    policy: Policy,
    /// Askers of the cluster, by an estimate: C3 counts what it has sent itself once for each.
    askers: u32,
    known: BTreeMap<DiskId, Known>,
    /// The queues that were last reported, whose ever.
    queues: score::Recent,
    turn: u64,
}

impl Balance {
    /// Nothing was heard yet. There are about so many askers.
    #[must_use]
    pub fn new(policy: Policy, askers: u32) -> Self {
        let queues = score::Recent::default();
        Self { policy, askers, known: BTreeMap::new(), queues, turn: 0 }
    }

    /// Sets the estimate of how many ask.
    pub fn set_askers(&mut self, askers: u32) {
        self.askers = askers.max(1);
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Another policy from now on; what was heard stays.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The holder to ask for so many bytes: one of `holders`, which begin with the primary's own, and of which the first
    /// [`CHOICES_MAX`] count. `draw` is a number drawn at random for this choice. `None` if there is no holder.
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

    /// Begins the next turn: by turns, requests of one turn begin at the same place.
    pub fn take_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// As [`choose`](Self::choose), where the holders at whose places `far` has a bit are reached over the network.
    /// Policies that hear take a near one unless a far one is better by more than the trip; turns are taken among near
    /// ones.
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

    /// A request for so many bytes was sent to a disk, by this chooser's choice or another's.
    pub fn sent(&mut self, now_us: u64, disk: DiskId, bytes: u64) {
        self.make_room(disk);
        let known = self.known.entry(disk).or_default();
        if known.owes() == 0 {
            known.silent_since_us = now_us;
        }
        let class = SizeClass::of(bytes) as usize;
        known.owed[class].add(bytes);
        known.since[class].add(bytes);
    }

    /// It was answered so long after it was sent, with a report if the release of its server gives one.
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
            self.heard(now_us, disk, report);
        }
        if let Some(known) = self.known.get_mut(&disk) {
            // A report of its server, of a time when it ran a newer release, says nothing of now.
            known.report = report;
            known.is_mute = report.is_none();
            known.silent_since_us = now_us;
            known.response_us = match known.response_us {
                0 => took_us.max(1),
                average => moved(average, took_us),
            };
        }
    }

    /// It was given up, or refused: the asker that cancelled it has the disk's answer no more.
    pub fn gave_up(&mut self, disk: DiskId, bytes: u64) {
        self.ended(disk, bytes);
    }

    /// A report came, with an answer or by itself.
    pub fn heard(&mut self, now_us: u64, disk: DiskId, report: Report) {
        self.make_room(disk);
        let known = self.known.entry(disk).or_default();
        let requests = seen::requests(&report);
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
    pub fn owed(&self) -> u64 {
        self.known.values().map(|known| u64::from(known.owes())).sum()
    }

    /// Disks of which something is remembered.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.known.len()
    }

    fn ended(&mut self, disk: DiskId, bytes: u64) {
        let class = SizeClass::of(bytes) as usize;
        if let Some(known) = self.known.get_mut(&disk) {
            known.owed[class].take(bytes);
            if known.since[class].requests > known.owed[class].requests {
                known.since[class].take(bytes);
            }
        }
    }

    /// Room for one disk more; none if all owe something, which they will not for long.
    fn make_room(&mut self, disk: DiskId) {
        if self.known.len() < HOLDERS_HEARD_MAX || self.known.contains_key(&disk) {
            return;
        }
        let idle = self.known.iter().filter(|(_, known)| known.owes() == 0);
        let oldest =
            idle.min_by_key(|(disk, known)| (known.heard_us, **disk)).map(|(disk, _)| *disk);
        let forgotten = oldest.or_else(|| self.known.keys().next().copied());
        forgotten.and_then(|disk| self.known.remove(&disk));
        assert!(self.known.len() < HOLDERS_HEARD_MAX);
    }
}

#[cfg(test)]
mod tests;
