//! Modelled disks.
//!
//! | | hard disk | solid state disk |
//! |---|---|---|
//! | model | HGST Ultrastar 7K4000, 7,200 rpm | Intel DC S4500, SATA |
//! | served at once | 1 | 8: 72,000 reads a second of 110 µs each |
//! | read of 4 KiB | seek, on average 8.2 ms (its specification's table 6), plus rotation, evenly to 8.33 ms, plus transfer | 110 µs ± 20 % (its specification), and one in 500 takes 190 µs more, so that 99.9 % stay near its 300 µs |
//! | write of 4 KiB | as a read: nothing is answered out of a volatile cache | 242 µs ± 20 %: 33,000 a second |
//!
//! A seek takes 1 ms to settle and grows with the root of the way; 1 ms is an assumption, and the factor follows from the
//! mean. Transfer is at 150 MB/s, an assumption too: 27 µs. The queue is first come, first served: no elevator, no cache.

use std::collections::VecDeque;

use larder_protocol::scheduler::Meter;

use super::layout::share;
use larder_bench::workload::Random;

/// Bytes of each request.
pub(super) const BYTES: u64 = 4096;

const SETTLE_US: f64 = 1000.0;
/// The mean of the root of the way between two places drawn evenly is 8/15.
const SEEK_US: f64 = (8200.0 - SETTLE_US) * 15.0 / 8.0;
const ROTATION_US: u64 = 8333;
const HDD_BYTES_PER_US: u64 = 150;
const SSD_LANES: u16 = 8;
const SSD_READ_US: u64 = 110;
const SSD_WRITE_US: u64 = 242;
const SSD_LATE_US: u64 = 190;
const SSD_LATE_ONE_IN: u64 = 500;

/// A kind of disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Hdd,
    Ssd,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hard disks",
            Self::Ssd => "solid state disks",
        }
    }

    fn lanes(self) -> u16 {
        match self {
            Self::Hdd => 1,
            Self::Ssd => SSD_LANES,
        }
    }
}

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Everything takes so many times as long.
    Slow(u64),
    /// It stands still for `for_us` of every `every_us`.
    Stalls {
        for_us: u64,
        every_us: u64,
    },
}

/// A request at a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    /// The group of requests that it belongs to, and who sent it.
    pub(super) work: u64,
    pub(super) writes: bool,
}

/// A disk and its queue.
#[derive(Debug)]
pub(super) struct Disk {
    kind: Kind,
    trouble: Trouble,
    queue: VecDeque<Job>,
    serving: u16,
    /// Where the head is, of 1.
    head: f64,
    pub(super) meter: Meter,
}

impl Disk {
    pub(super) fn new(kind: Kind, trouble: Trouble) -> Self {
        let meter = Meter::new(kind.lanes());
        Self { kind, trouble, queue: VecDeque::new(), serving: 0, head: 0.5, meter }
    }

    /// A request arrives.
    pub(super) fn arrived(&mut self, job: Job) {
        self.meter.arrived(BYTES);
        self.queue.push_back(job);
    }

    /// One has been served.
    pub(super) fn served(&mut self, took_us: u64) {
        self.meter.served(BYTES, took_us);
        self.serving -= 1;
    }

    /// The next that the device takes up, and when it will be done.
    pub(super) fn next(&mut self, now_us: u64, dice: &mut Random) -> Option<(Job, u64)> {
        if self.serving == self.kind.lanes() {
            return None;
        }
        let job = self.queue.pop_front()?;
        self.serving += 1;
        let service_us = self.service_us(job.writes, dice);
        Some((job, self.done_us(now_us, service_us)))
    }

    fn service_us(&mut self, writes: bool, dice: &mut Random) -> u64 {
        match self.kind {
            Kind::Hdd => {
                let place = share(dice);
                let way = (place - self.head).abs();
                self.head = place;
                let seek_us = SETTLE_US + SEEK_US * way.sqrt();
                seek_us as u64 + dice.below(ROTATION_US) + BYTES / HDD_BYTES_PER_US
            }
            Kind::Ssd => {
                let mean = if writes { SSD_WRITE_US } else { SSD_READ_US };
                let late = if dice.below(SSD_LATE_ONE_IN) == 0 { SSD_LATE_US } else { 0 };
                mean * 8 / 10 + dice.below(mean * 4 / 10 + 1) + late
            }
        }
    }

    fn done_us(&self, now_us: u64, service_us: u64) -> u64 {
        match self.trouble {
            Trouble::None => now_us + service_us,
            Trouble::Slow(times) => now_us + service_us * times,
            Trouble::Stalls { for_us, every_us } => {
                // It stands still at the end of each period.
                let works_us = every_us - for_us;
                let begins = if now_us % every_us >= works_us {
                    now_us.next_multiple_of(every_us)
                } else {
                    now_us
                };
                let done = begins + service_us;
                if done % every_us >= works_us || done / every_us > begins / every_us {
                    done + for_us
                } else {
                    done
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_us(kind: Kind, trouble: Trouble, writes: bool) -> u64 {
        let (mut disk, mut dice) = (Disk::new(kind, trouble), Random(1));
        let mut sum = 0;
        for _ in 0..20_000 {
            disk.arrived(Job { work: 0, writes });
            let (_, done_us) = disk.next(0, &mut dice).expect("it is idle");
            disk.served(done_us);
            sum += done_us;
        }
        sum / 20_000
    }

    #[test]
    fn service_times_have_the_means_of_the_specifications() {
        let hdd = mean_us(Kind::Hdd, Trouble::None, false);
        assert!((12_200..12_600).contains(&hdd), "8.2 ms seek, 4.17 ms rotation: {hdd}");
        let ssd = mean_us(Kind::Ssd, Trouble::None, false);
        assert!((108..113).contains(&ssd), "{ssd}");
        let written = mean_us(Kind::Ssd, Trouble::None, true);
        assert!((238..246).contains(&written), "{written}");
        let slow = mean_us(Kind::Ssd, Trouble::Slow(10), false);
        assert!((1080..1130).contains(&slow), "{slow}");
    }

    #[test]
    fn a_disk_serves_as_many_at_once_as_it_has_lanes() {
        for (kind, lanes) in [(Kind::Hdd, 1), (Kind::Ssd, 8)] {
            let (mut disk, mut dice) = (Disk::new(kind, Trouble::None), Random(1));
            (0..20).for_each(|work| disk.arrived(Job { work, writes: false }));
            let begun: Vec<u64> =
                std::iter::from_fn(|| disk.next(0, &mut dice)).map(|(job, _)| job.work).collect();
            assert_eq!(begun, (0..lanes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_ends_while_a_disk_stands_still() {
        let stalls = Trouble::Stalls { for_us: 100, every_us: 1000 };
        let disk = Disk::new(Kind::Hdd, stalls);
        assert_eq!(disk.done_us(0, 899), 899);
        assert_eq!(disk.done_us(0, 900), 1000);
        assert_eq!(disk.done_us(850, 100), 1050);
        assert_eq!(disk.done_us(950, 10), 1010);
        assert_eq!(disk.done_us(1000, 10), 1010);
    }
}
