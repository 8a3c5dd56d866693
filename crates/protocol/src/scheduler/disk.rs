//! The reads of one disk, at its data server: some are at the device, the others wait, and one that is cancelled while it
//! waits never touches the device.
//!
//! ```text
//!            room at the device                served
//!  arrive ───────────────────────▶ at the device ──────▶
//!     │                                  ▲
//!     └──▶ waits, by urgency, oldest ────┘
//!               first
//!               ├──▶ cancelled
//!               └──▶ late: its asker waits no longer
//! ```
//!
//! Writes have a queue of their own, in the order in which they came, on which floors rely. Here they are only
//! counted, for the report. The report says what a client's read would wait for, so reads of lesser urgency count
//! while they are at the device, and not while they wait.
//!
//! # Invariants
//!
//! 1. At most [`READS_AT_DEVICE`] reads are at the device, and of each urgency at most its share. None waits while there is
//!    room for its urgency, once the driver has called [`next`](DiskReads::next) until it returns `None`.
//! 2. Of waiting reads the most urgent begins first, of one urgency the oldest. Once [`READS_PASSED_OVER_MAX`] of greater
//!    urgency have begun while some of a lesser one waited for room, the oldest of these begins: no urgency starves.
//! 3. Each read that arrived ends once: it is served, cancelled, late or turned away; [`ActiveRead`] is handed back by value.
//!    Only a served read has touched the device, and only one that succeeded moves an average.
//! 4. The reads that wait are bounded for each urgency by itself; one more is turned away. A read whose asker waits no
//!    longer leaves when the driver [sheds](DiskReads::shed) it, so a disk that hangs has no long queue.

use std::collections::{BTreeMap, BTreeSet};

use super::meter::{Meter, Report, SIZE_CLASSES, SizeClass};
use crate::limits::{
    CLIENT_READS_WAITING_MAX, READS_AT_DEVICE, READS_PASSED_OVER_MAX, REPAIR_READS_WAITING_MAX,
    REPAIRS_AT_DEVICE, SCRUB_READS_WAITING_MAX, SCRUBS_AT_DEVICE,
};

/// The purpose of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A client's get.
    Client,
    /// The making of a copy that is missing or moves.
    Repair,
    /// The verification of a copy.
    Scrub,
}

/// Number of urgencies.
const URGENCIES: usize = 3;

/// Reads of each urgency that may be at the device.
const SHARES: [u16; URGENCIES] = [READS_AT_DEVICE, REPAIRS_AT_DEVICE, SCRUBS_AT_DEVICE];

/// Reads of each urgency that may wait.
const WAITING_MAX: [usize; URGENCIES] =
    [CLIENT_READS_WAITING_MAX, REPAIR_READS_WAITING_MAX, SCRUB_READS_WAITING_MAX];

impl Urgency {
    /// All urgencies, the most urgent first.
    const ALL: [Self; URGENCIES] = [Self::Client, Self::Repair, Self::Scrub];
}

/// A read that is at the device. [`DiskReads::served`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "when it ends, others have room"]
pub struct ActiveRead {
    number: u64,
    urgency: Urgency,
    bytes: u64,
    since_us: u64,
}

impl ActiveRead {
    /// The driver's time at which it went to the device, in microseconds.
    #[must_use]
    pub fn since_us(&self) -> u64 {
        self.since_us
    }
}

/// The result of a read's arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<T> {
    /// It is at the device now.
    Begins(ActiveRead, T),
    /// It waits.
    Waits,
    /// Too many wait.
    TurnedAway(T),
}

/// The result of a read's wait.
#[derive(Debug, PartialEq, Eq)]
pub enum DiskTurn<T> {
    /// It is at the device now.
    Begins(ActiveRead, T),
    /// It waited too long.
    Late(T),
}

/// Reads since the start, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskCounts {
    /// Reads that the device served.
    pub served: u64,
    /// Reads that were cancelled before they touched the device.
    pub cancelled: u64,
    /// Reads that waited too long.
    pub late: u64,
    /// Reads for which there was no room.
    pub turned_away: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    bytes: u64,
    until_us: u64,
    read: T,
}

/// The reads of one disk. `T` is what the driver needs to carry a read out.
#[derive(Debug)]
pub struct DiskReads<T> {
    meter: Meter,
    /// Waiting reads by urgency and number. Numbers grow in the order in which they were given out.
    waiting: [BTreeMap<u64, Waiting<T>>; URGENCIES],
    at_device: [u16; URGENCIES],
    /// The reads at the device by size class, each with the time at which it went there. Those of scrubs are left out: they
    /// read a copy piece by piece, so their time is no measure.
    since_us: [BTreeSet<(u64, u64)>; SIZE_CLASSES],
    /// More urgent reads that began while the oldest read of an urgency waited.
    passed_over: [u32; URGENCIES],
    last: u64,
    counts: DiskCounts,
}

impl<T> Default for DiskReads<T> {
    fn default() -> Self {
        Self {
            meter: Meter::new(READS_AT_DEVICE),
            waiting: Default::default(),
            at_device: [0; URGENCIES],
            since_us: Default::default(),
            passed_over: [0; URGENCIES],
            last: 0,
            counts: DiskCounts::default(),
        }
    }
}

impl<T> DiskReads<T> {
    /// Gives out the number for a read that is about to arrive.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes that the page cache answered a client's read of so many bytes.
    pub fn answered_by_cache(&mut self, bytes: u64) {
        self.meter.looked_up(bytes, true);
    }

    /// Takes a read of so many bytes, under a number that was given out for it. It may wait until `until_us`.
    pub fn arrive(
        &mut self,
        now_us: u64,
        number: u64,
        (urgency, bytes): (Urgency, u64),
        until_us: u64,
        read: T,
    ) -> Arrival<T> {
        assert!(number <= self.last, "numbers are given out");
        if urgency == Urgency::Client {
            self.meter.looked_up(bytes, false);
        }
        if self.has_room(urgency as usize) && self.waiting[urgency as usize].is_empty() {
            self.meter.arrived(bytes);
            return Arrival::Begins(self.begin(now_us, number, (urgency, bytes)), read);
        }
        if self.waiting[urgency as usize].len() == WAITING_MAX[urgency as usize] {
            self.counts.turned_away += 1;
            return Arrival::TurnedAway(read);
        }
        if urgency == Urgency::Client {
            self.meter.arrived(bytes);
        }
        let waiting = Waiting { bytes, until_us, read };
        let before = self.waiting[urgency as usize].insert(number, waiting);
        assert!(before.is_none(), "a number names one read");
        Arrival::Waits
    }

    /// Notes that the device has served a read, so that the [`next`](Self::next) one has room. Its time moves the average if
    /// `is_measure`: not if it failed, perhaps at once, or differs from clients' reads.
    ///
    /// # Panics
    /// If none of its urgency is at the device.
    pub fn served(&mut self, now_us: u64, begun: ActiveRead, is_measure: bool) {
        let ActiveRead { number, urgency, bytes, since_us } = begun;
        let at_device = &mut self.at_device[urgency as usize];
        assert!(*at_device > 0, "what is served is at the device");
        *at_device -= 1;
        self.since_us[SizeClass::of(bytes) as usize].remove(&(since_us, number));
        match is_measure {
            true => self.meter.served(bytes, now_us.saturating_sub(since_us)),
            false => self.meter.cancelled(bytes),
        }
        self.counts.served += 1;
    }

    /// Takes out the reads whose askers wait no longer, also while the device serves nothing.
    pub fn shed(&mut self, now_us: u64) -> Vec<T> {
        let mut late = Vec::new();
        for urgency in Urgency::ALL {
            let first = |disk: &Self| {
                disk.waiting[urgency as usize].first_key_value().map(|it| it.1.until_us)
            };
            while first(self).is_some_and(|until_us| until_us < now_us)
                && let Some((_, waiting)) = self.waiting[urgency as usize].pop_first()
            {
                late.push(self.is_late(urgency, waiting));
            }
        }
        late
    }

    /// Takes a read out of the queue: the next that begins, or one that is late. `None` if all reads in it have to wait.
    pub fn next(&mut self, now_us: u64) -> Option<DiskTurn<T>> {
        let can = |at: &usize| !self.waiting[*at].is_empty() && self.has_room(*at);
        let is_due = |at: &usize| self.passed_over[*at] >= READS_PASSED_OVER_MAX;
        let mut able = (0..URGENCIES).filter(can);
        let chosen = able.clone().rfind(is_due).or_else(|| able.next())?;
        let urgency = Urgency::ALL[chosen];
        let (number, waiting) = self.waiting[chosen].pop_first()?;
        if now_us > waiting.until_us {
            return Some(DiskTurn::Late(self.is_late(urgency, waiting)));
        }
        for lesser in chosen + 1..URGENCIES {
            let waits = !self.waiting[lesser].is_empty();
            self.passed_over[lesser] =
                if waits { self.passed_over[lesser].saturating_add(1) } else { 0 };
        }
        self.passed_over[chosen] = 0;
        let Waiting { bytes, read, .. } = waiting;
        if urgency != Urgency::Client {
            self.meter.arrived(bytes);
        }
        Some(DiskTurn::Begins(self.begin(now_us, number, (urgency, bytes)), read))
    }

    /// Cancels a read. Returns it if it still waited; else it is at the device or has ended.
    pub fn cancel(&mut self, number: u64) -> Option<T> {
        let of =
            |urgency: Urgency| Some((urgency, self.waiting[urgency as usize].remove(&number)?));
        let (urgency, waiting) = Urgency::ALL.into_iter().find_map(of)?;
        self.counts.cancelled += 1;
        Some(self.waits_no_more(urgency, waiting))
    }

    /// Counts a write of so many bytes that is under way to the disk: reads wait for it too.
    pub fn write_begins(&mut self, bytes: u64) {
        self.meter.arrived(bytes);
    }

    /// Ends the count of a write.
    ///
    /// # Panics
    /// If none of its size has begun.
    pub fn write_ends(&mut self, bytes: u64) {
        self.meter.cancelled(bytes);
    }

    /// The report on the disk, for an answer.
    #[must_use]
    pub fn report(&self, now_us: u64) -> Report {
        let oldest_us = |since_us: &BTreeSet<(u64, u64)>| {
            since_us.first().map_or(0, |(since_us, _)| now_us.saturating_sub(*since_us))
        };
        self.meter.report(self.since_us.each_ref().map(oldest_us))
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// Reads that wait for the device.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.waiting.iter().map(BTreeMap::len).sum()
    }

    /// Counts a read as at the device.
    fn begin(&mut self, now_us: u64, number: u64, (urgency, bytes): (Urgency, u64)) -> ActiveRead {
        self.at_device[urgency as usize] += 1;
        if urgency != Urgency::Scrub {
            self.since_us[SizeClass::of(bytes) as usize].insert((now_us, number));
        }
        ActiveRead { number, urgency, bytes, since_us: now_us }
    }

    fn is_late(&mut self, urgency: Urgency, waiting: Waiting<T>) -> T {
        self.counts.late += 1;
        self.waits_no_more(urgency, waiting)
    }

    fn waits_no_more(&mut self, urgency: Urgency, waiting: Waiting<T>) -> T {
        if urgency == Urgency::Client {
            self.meter.cancelled(waiting.bytes);
        }
        waiting.read
    }

    fn has_room(&self, urgency: usize) -> bool {
        let all: u16 = self.at_device.iter().sum();
        all < READS_AT_DEVICE && self.at_device[urgency] < SHARES[urgency]
    }
}

#[cfg(test)]
mod tests;
