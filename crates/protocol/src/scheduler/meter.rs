//! A data server's report on a disk, which each answer carries: the queue there, and the time that a read takes.
//!
//! Reads that the page cache answers do not queue and take no time, and an asker cannot know which they are. The service time
//! in the report is therefore the device's, times the share of reads that reach the device. With it, an asker's estimates
//! of the queue's time and of the read's own are right on average.
//!
//! # Invariants
//!
//! 1. A request that arrived and has not ended is counted, whether it waits or is being served.
//! 2. An average moves by one part in [`AVERAGE_PART`] with each request that was served. One that was cancelled before
//!    it touched the disk moves none.
//! 3. The device's time counts as at least one part in [`OLDEST_PART`] of the age of the oldest read there. A device that hangs
//!    serves no read, so its average alone would never show that.

use serde::{Deserialize, Serialize};

use crate::limits::{AVERAGE_PART, MISSED_PART, OLDEST_PART};

/// Requests of about one size: their service times are comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeClass {
    /// Up to 16 KiB: nearly all of the time is the fixed cost of a read.
    Small,
    /// Up to 128 KiB.
    Medium,
    /// Up to 1 MiB.
    Large,
    /// Above 1 MiB, up to a chunk.
    Huge,
}

/// Number of classes.
pub const SIZE_CLASSES: usize = 4;

impl SizeClass {
    /// All of them, in order.
    pub const ALL: [Self; SIZE_CLASSES] = [Self::Small, Self::Medium, Self::Large, Self::Huge];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "16KiB",
            Self::Medium => "128KiB",
            Self::Large => "1MiB",
            Self::Huge => "chunk",
        }
    }

    /// The class of a request for so many bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        match bytes {
            0..=0x4000 => Self::Small,
            0x4001..=0x2_0000 => Self::Medium,
            0x2_0001..=0x10_0000 => Self::Large,
            _ => Self::Huge,
        }
    }
}

/// Requests of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Load {
    /// Number of requests.
    pub requests: u32,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Load {
    /// Adds a request.
    pub(super) fn add(&mut self, bytes: u64) {
        self.requests = self.requests.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Takes away a request that was added.
    pub(super) fn take(&mut self, bytes: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = if self.requests == 0 { 0 } else { self.bytes.saturating_sub(bytes) };
    }
}

/// The report of a data server on one disk. It comes from a peer, so its user must expect any numbers in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Requests that are at the disk, by class.
    pub waiting: [Load; SIZE_CLASSES],
    /// Expected microseconds of a read, by class: the device's time, times the share of reads that the page cache does not
    /// answer; 0 if the device has served none yet.
    pub service_us: [u32; SIZE_CLASSES],
    /// Requests that the device serves at once; 0 counts as 1.
    pub lanes: u16,
}

/// The share of all reads.
const WHOLE: u32 = 1 << 16;

/// The numbers of which a disk's report is made.
#[derive(Debug)]
pub struct Meter {
    waiting: [Load; SIZE_CLASSES],
    /// Average microseconds that the device takes; 0 if it has served none yet.
    device_us: [u32; SIZE_CLASSES],
    /// The share of clients' reads that reach the device, in parts of [`WHOLE`].
    missed: [u32; SIZE_CLASSES],
    lanes: u16,
}

impl Meter {
    /// The meter of a disk that serves so many requests at once.
    #[must_use]
    pub fn new(lanes: u16) -> Self {
        let (waiting, device_us) = Default::default();
        Self { waiting, device_us, missed: [WHOLE; SIZE_CLASSES], lanes }
    }

    /// Counts a request for so many bytes.
    pub fn arrived(&mut self, bytes: u64) {
        self.waiting[SizeClass::of(bytes) as usize].add(bytes);
    }

    /// Ends the count of a request that the device has served, and moves the average by its time.
    ///
    /// # Panics
    /// If none of its size has arrived.
    pub fn served(&mut self, bytes: u64, took_us: u64) {
        self.cancelled(bytes);
        let average = &mut self.device_us[SizeClass::of(bytes) as usize];
        let took = u32::try_from(took_us).unwrap_or(u32::MAX).max(1);
        *average = if *average == 0 { took } else { moved(u64::from(*average), took_us) as u32 };
    }

    /// Ends the count of a request without moving the average: it was cancelled or failed, or is a write.
    ///
    /// # Panics
    /// If none of its size has arrived.
    pub fn cancelled(&mut self, bytes: u64) {
        let waiting = &mut self.waiting[SizeClass::of(bytes) as usize];
        assert!(waiting.requests > 0, "what ends at a disk has arrived there");
        waiting.take(bytes);
    }

    /// Moves the share of reads that reach the device, by a client's read that the page cache could answer or not.
    pub fn looked_up(&mut self, bytes: u64, is_cached: bool) {
        let missed = &mut self.missed[SizeClass::of(bytes) as usize];
        match is_cached {
            true => *missed -= missed.div_ceil(MISSED_PART),
            false => *missed += (WHOLE - *missed).div_ceil(MISSED_PART),
        }
    }

    /// The report now. `oldest_us` has the age of the oldest read at the device by class; 0 if there is none.
    #[must_use]
    pub fn report(&self, oldest_us: [u64; SIZE_CLASSES]) -> Report {
        let service_us = |class: usize| {
            let oldest_us = u32::try_from(oldest_us[class] / OLDEST_PART).unwrap_or(u32::MAX);
            let device_us = u64::from(self.device_us[class].max(oldest_us));
            let expected_us = device_us * u64::from(self.missed[class]) / u64::from(WHOLE);
            (expected_us as u32).max(u32::from(device_us > 0))
        };
        let service_us = std::array::from_fn(service_us);
        Report { waiting: self.waiting, service_us, lanes: self.lanes }
    }
}

/// An average moved one step towards a value; repeated steps reach the value.
pub(super) fn moved(average: u64, value: u64) -> u64 {
    let value = value.clamp(1, u64::from(u32::MAX));
    match value > average {
        true => average + (value - average).div_ceil(AVERAGE_PART),
        false => average - (average - value).div_ceil(AVERAGE_PART),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; SIZE_CLASSES] = [0; SIZE_CLASSES];

    #[test]
    fn size_classes_are_chosen_by_bytes() {
        let kib = 1024;
        for (bytes, class) in [
            (0, SizeClass::Small),
            (16 * kib, SizeClass::Small),
            (16 * kib + 1, SizeClass::Medium),
            (128 * kib, SizeClass::Medium),
            (1024 * kib, SizeClass::Large),
            (1024 * kib + 1, SizeClass::Huge),
            (u64::MAX, SizeClass::Huge),
        ] {
            assert_eq!(SizeClass::of(bytes), class, "{bytes}");
        }
        assert_eq!(SizeClass::Huge as usize + 1, SIZE_CLASSES);
    }

    #[test]
    fn what_arrived_and_has_not_ended_is_reported() {
        let mut meter = Meter::new(8);
        meter.arrived(4096);
        meter.arrived(100);
        meter.arrived(1 << 20);
        meter.served(100, 90);
        let report = meter.report(NONE);
        assert_eq!(report.waiting[0], Load { requests: 1, bytes: 4096 });
        assert_eq!(report.waiting[2], Load { requests: 1, bytes: 1 << 20 });
        assert_eq!((report.lanes, report.service_us), (8, [90, 0, 0, 0]));
    }

    #[test]
    fn one_that_is_cancelled_moves_no_average() {
        let mut meter = Meter::new(1);
        meter.arrived(4096);
        meter.cancelled(4096);
        assert_eq!(meter.report(NONE), Report { lanes: 1, ..Report::default() });
    }

    #[test]
    fn averages_follow_a_disk_that_becomes_slow_and_one_that_recovers() {
        let mut meter = Meter::new(1);
        let mut serve = |took_us, times| {
            for _ in 0..times {
                meter.arrived(4096);
                meter.served(4096, took_us);
            }
            meter.report(NONE).service_us[0]
        };
        assert_eq!(serve(100, 1), 100, "the first says all that is known");
        assert_eq!(serve(900, 1), 200);
        assert_eq!(serve(900, 100), 900);
        assert_eq!(serve(100, 100), 100);
    }

    /// A disk that takes 6.4 ms, so many of whose next reads of each hundred the page cache answers.
    fn cached(percent: u32) -> Meter {
        let mut meter = Meter::new(1);
        meter.arrived(4096);
        meter.served(4096, 6_400);
        for at in 0..1000 {
            meter.looked_up(4096, at * 37 % 100 < percent);
        }
        meter
    }

    #[test]
    fn a_read_takes_as_long_as_the_share_that_gets_to_the_device() {
        for (percent, expected_us) in
            [(0, 6_400..6_401), (50, 2_900..3_500), (90, 400..900), (100, 1..3)]
        {
            let reported = cached(percent).report(NONE).service_us[0];
            assert!(expected_us.contains(&reported), "{percent} %: {reported}");
        }
    }

    #[test]
    fn what_the_cache_answers_says_nothing_of_a_device_that_served_nothing() {
        let mut meter = Meter::new(1);
        (0..100).for_each(|_| meter.looked_up(4096, true));
        assert_eq!(meter.report(NONE).service_us, [0; 4], "that is not quick, but unknown");
    }

    #[test]
    fn a_hanging_read_is_reported_despite_a_warm_cache() {
        let mut meter = cached(50);
        let reported = |meter: &Meter, oldest_us| meter.report([oldest_us, 0, 0, 0]).service_us[0];
        assert_eq!(
            reported(&meter, 4 * 6_400),
            reported(&meter, 0),
            "the oldest of many may be that old"
        );
        assert!(reported(&meter, 1_000_000) > 10 * reported(&meter, 0));
        (0..1000).for_each(|_| meter.looked_up(4096, false));
        assert_eq!(reported(&meter, u64::MAX), u32::MAX, "no number overflows");
    }

    #[test]
    #[should_panic(expected = "has arrived there")]
    fn nothing_ends_that_has_not_arrived() {
        Meter::new(1).cancelled(1);
    }
}
