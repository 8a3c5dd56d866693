//! The reads of one disk, at its data server: so many are at the device, the others wait, and one that nobody wants any
//! more leaves before it touches the device.
//!
//! ```text
//!            room at the device                served
//!  arrive ───────────────────────▶ at the device ──────▶ the next begins
//!     │                                  ▲
//!     └──▶ waits, by urgency, oldest ────┘
//!               first
//!               └──▶ cancelled
//! ```
//!
//! # Invariants
//!
//! 1. At most as many are at the device as it was made with, and none waits while there is room.
//! 2. Of what waits the most urgent begins first, of one urgency the oldest. After [`READS_PASSED_OVER_MAX`] that passed it
//!    over, the oldest of a lesser urgency begins: nothing waits for ever.
//! 3. Each that arrived ends once: it is served, cancelled or turned away. One that was cancelled never touches the device,
//!    and counts as served nowhere.
//! 4. What waits is bounded; one more is turned away.

use std::collections::BTreeMap;

use super::meter::{Meter, Report};
use crate::Planted;
use crate::limits::{READS_PASSED_OVER_MAX, READS_WAITING_MAX};

/// For whom a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A client waits for it.
    Client,
    /// Nobody does: a copy is made.
    Background,
}

/// Number of urgencies.
const URGENCIES: usize = 2;

/// What becomes of a read that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<T> {
    /// It is at the device now.
    Begins(T),
    /// It waits.
    Waits,
    /// There are too many.
    TurnedAway(T),
}

/// What became of all reads so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskCounts {
    /// The device served them.
    pub served: u64,
    /// Cancelled before they touched the device.
    pub cancelled: u64,
    /// Turned away.
    pub turned_away: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    bytes: u64,
    read: T,
}

/// See the module's head. `T` is what the driver needs to carry a read out.
#[derive(Debug)]
pub struct DiskReads<T> {
    meter: Meter,
    /// By urgency, each by number: a number is higher than those that arrived before.
    waiting: [BTreeMap<u64, Waiting<T>>; URGENCIES],
    /// How many may be at the device.
    lanes: u16,
    at_device: u16,
    /// More urgent ones that began since a lesser one waits.
    passed_over: u32,
    last: u64,
    counts: DiskCounts,
    planted: Planted,
}

impl<T> DiskReads<T> {
    /// None, of a disk at which there may be so many at once.
    ///
    /// # Panics
    /// If that is 0.
    #[must_use]
    pub fn new(lanes: u16, planted: Planted) -> Self {
        assert!(lanes > 0, "a disk serves something");
        Self {
            meter: Meter::new(lanes),
            waiting: [BTreeMap::new(), BTreeMap::new()],
            lanes,
            at_device: 0,
            passed_over: 0,
            last: 0,
            counts: DiskCounts::default(),
            planted,
        }
    }

    /// A number for a read that is about to arrive.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A read of so many bytes arrives, under a number that was given out and not used.
    pub fn arrive(&mut self, number: u64, urgency: Urgency, bytes: u64, read: T) -> Arrival<T> {
        assert!(number <= self.last, "numbers are given out");
        if self.at_device < self.lanes {
            self.at_device += 1;
            self.meter.arrived(bytes);
            return Arrival::Begins(read);
        }
        if self.waits() == READS_WAITING_MAX {
            self.counts.turned_away += 1;
            return Arrival::TurnedAway(read);
        }
        self.meter.arrived(bytes);
        let before = self.waiting[urgency as usize].insert(number, Waiting { bytes, read });
        assert!(before.is_none(), "a number names one read");
        Arrival::Waits
    }

    /// The device has served one of so many bytes within so long. Returns the read that begins in its place, with its bytes.
    ///
    /// # Panics
    /// If none is at the device.
    pub fn served(&mut self, bytes: u64, took_us: u64) -> Option<(u64, T)> {
        assert!(self.at_device > 0, "what is served is at the device");
        self.meter.served(bytes, took_us);
        self.counts.served += 1;
        let next = self.next();
        if next.is_none() {
            self.at_device -= 1;
        }
        next.map(|Waiting { bytes, read }| (bytes, read))
    }

    /// Nobody wants this one any more. Returns it if it still waited.
    pub fn cancel(&mut self, number: u64) -> Option<T> {
        let Waiting { bytes, read } =
            self.waiting.iter_mut().find_map(|waiting| waiting.remove(&number))?;
        if self.planted.counts_cancelled_as_served() {
            self.meter.served(bytes, 1);
            self.counts.served += 1;
        } else {
            self.meter.cancelled(bytes);
            self.counts.cancelled += 1;
        }
        Some(read)
    }

    /// A write of so many bytes is under way to the disk: reads wait for it too.
    pub fn write_begins(&mut self, bytes: u64) {
        self.meter.arrived(bytes);
    }

    /// It has ended.
    ///
    /// # Panics
    /// If none has begun.
    pub fn write_ends(&mut self, bytes: u64) {
        self.meter.cancelled(bytes);
    }

    /// What is told of the disk.
    #[must_use]
    pub fn report(&self) -> Report {
        self.meter.report()
    }

    /// What became of all reads.
    #[must_use]
    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// Reads that wait for the device.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.waiting.iter().map(BTreeMap::len).sum()
    }

    fn next(&mut self) -> Option<Waiting<T>> {
        let [clients, background] = &mut self.waiting;
        let is_due = self.passed_over >= READS_PASSED_OVER_MAX || clients.is_empty();
        if is_due && let Some((_, next)) = background.pop_first() {
            self.passed_over = 0;
            return Some(next);
        }
        let next = clients.pop_first().map(|(_, next)| next);
        if !background.is_empty() {
            self.passed_over += 1;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const LANES: u16 = 4;

    /// A disk with as much at the device as there may be.
    fn busy() -> DiskReads<u64> {
        let mut disk = DiskReads::new(LANES, Planted::None);
        for _ in 0..LANES {
            let number = disk.number();
            assert_eq!(arrive(&mut disk, number, Urgency::Client), Arrival::Begins(number));
        }
        disk
    }

    fn arrive(disk: &mut DiskReads<u64>, number: u64, urgency: Urgency) -> Arrival<u64> {
        disk.arrive(number, urgency, 4 * KIB, number)
    }

    fn waits(disk: &mut DiskReads<u64>, urgency: Urgency) -> u64 {
        let number = disk.number();
        assert_eq!(arrive(disk, number, urgency), Arrival::Waits);
        number
    }

    fn next(disk: &mut DiskReads<u64>) -> Option<u64> {
        disk.served(4 * KIB, 100).map(|(_, read)| read)
    }

    #[test]
    fn the_oldest_begins_when_there_is_room_again() {
        let mut disk = busy();
        let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
        assert_eq!((next(&mut disk), next(&mut disk)), (Some(first), Some(second)));
        assert_eq!((next(&mut disk), disk.waits()), (None, 0));
    }

    #[test]
    fn one_that_is_cancelled_before_its_turn_never_begins() {
        let mut disk = busy();
        let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
        assert_eq!(disk.cancel(first), Some(first));
        assert_eq!(disk.cancel(first), None, "it is gone");
        assert_eq!(disk.cancel(1), None, "it is at the device");
        assert_eq!(next(&mut disk), Some(second));
        let counts = DiskCounts { served: 1, cancelled: 1, turned_away: 0 };
        assert_eq!(disk.counts(), counts);
        assert_eq!(disk.report().service_us, [100, 0, 0, 0], "no average is of it");
        assert_eq!(disk.report().waiting[0].requests, u32::from(LANES));
    }

    #[test]
    fn clients_are_served_first_and_background_reads_not_last_for_ever() {
        let mut disk = busy();
        let background = waits(&mut disk, Urgency::Background);
        let clients: Vec<u64> = (0..=2 * READS_PASSED_OVER_MAX)
            .map(|_| waits(&mut disk, Urgency::Client))
            .collect();
        let served: Vec<u64> = std::iter::from_fn(|| next(&mut disk)).collect();
        let at = served.iter().position(|read| *read == background).unwrap();
        assert_eq!(at, READS_PASSED_OVER_MAX as usize);
        assert_eq!(served.len(), clients.len() + 1);
        let of_clients: Vec<u64> = served.into_iter().filter(|read| *read != background).collect();
        assert_eq!(of_clients, clients, "in their order");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut disk = busy();
        (0..READS_WAITING_MAX).for_each(|_| drop(waits(&mut disk, Urgency::Client)));
        let number = disk.number();
        assert_eq!(arrive(&mut disk, number, Urgency::Client), Arrival::TurnedAway(number));
        let requests = READS_WAITING_MAX as u32 + u32::from(LANES);
        assert_eq!(disk.report().waiting[0].requests, requests, "it counts nowhere");
        assert!(next(&mut disk).is_some());
        let number = disk.number();
        assert_eq!(arrive(&mut disk, number, Urgency::Client), Arrival::Waits);
    }

    #[test]
    fn writes_are_told_and_move_no_average() {
        let mut disk: DiskReads<u64> = DiskReads::new(LANES, Planted::None);
        disk.write_begins(100 * KIB);
        assert_eq!(disk.report().waiting[1].requests, 1);
        disk.write_ends(100 * KIB);
        let report = disk.report();
        assert_eq!((report.waiting[1].requests, report.service_us), (0, [0; 4]));
    }
}
