//! Counts of operations by size and of requests by kind, to be broken down as Tables 4 to 6 of the paper on GFS do.
//!
//! # Invariants
//!
//! 1. To count is some relaxed adds: it takes no lock, no memory and no clock.
//! 2. All counts only grow while the process runs. Each is read by itself: sums of several may differ by what is under way.
//! 3. Counts share no cache line with what stands beside them: all cores write counts, and mostly read the rest.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_env::clock::uptime_ms;
use larder_types::codec::decode;
use serde::{Deserialize, Serialize};

use crate::limits::{COUNT_NAME_BYTES_MAX, COUNTS_REPORT_BYTES_MAX, COUNTS_REPORTED_MAX};

/// A class of operations by their bytes, as in Tables 4 and 5 of that paper. A class begins with its lower bound: 1,024 bytes are
/// of `1K..8K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpSize(usize);

/// Bytes with which each class but the first begins.
const BEGINS: [u64; OpSize::COUNT - 1] =
    [1, 1 << 10, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

const NAMES: [&str; OpSize::COUNT] = [
    "0",
    "1B..1K",
    "1K..8K",
    "8K..64K",
    "64K..128K",
    "128K..256K",
    "256K..512K",
    "512K..1M",
    "1M..inf",
];

impl OpSize {
    /// Number of classes.
    pub const COUNT: usize = 9;

    /// The class of an operation of so many bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self(BEGINS.iter().filter(|begins| bytes >= **begins).count())
    }

    /// All classes, the smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its name, as a label and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self.0]
    }
}

#[derive(Debug, Default)]
struct Cell {
    ops: AtomicU64,
    bytes: AtomicU64,
    waited_us: AtomicU64,
    served_us: AtomicU64,
}

/// Operations of one kind, by size. Two lines, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct BySize([Cell; OpSize::COUNT]);

/// Counts of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// Operations.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Microseconds for which they waited before they were served, where that is measured.
    pub waited_us: u64,
    /// Microseconds for which they were served, where that is measured.
    pub served_us: u64,
}

impl BySize {
    /// Counts an operation of so many bytes.
    pub fn note(&self, bytes: u64) {
        let cell = &self.0[OpSize::of(bytes).0];
        cell.ops.fetch_add(1, Ordering::Relaxed);
        add(&cell.bytes, bytes);
    }

    /// Adds the time of an operation of so many bytes, which is counted by itself: microseconds.
    pub fn note_time(&self, bytes: u64, waited_us: u64, served_us: u64) {
        let cell = &self.0[OpSize::of(bytes).0];
        add(&cell.waited_us, waited_us);
        add(&cell.served_us, served_us);
    }

    /// The counts of each class, the smallest first.
    pub fn sums(&self) -> impl Iterator<Item = (OpSize, Sum)> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OpSize::all().zip(&self.0).map(move |(size, cell)| {
            let sum = Sum {
                ops: load(&cell.ops),
                bytes: load(&cell.bytes),
                waited_us: load(&cell.waited_us),
                served_us: load(&cell.served_us),
            };
            (size, sum)
        })
    }
}

/// Nothing has no part in a sum, and need not lock its line.
fn add(sum: &AtomicU64, more: u64) {
    if more > 0 {
        sum.fetch_add(more, Ordering::Relaxed);
    }
}

/// The beginning of some counts, in steady milliseconds: servers make them as they start.
#[derive(Debug)]
struct Since(u64);

impl Default for Since {
    fn default() -> Self {
        Self(uptime_ms())
    }
}

impl Since {
    fn age_s(&self) -> u64 {
        uptime_ms().saturating_sub(self.0) / 1000
    }
}

/// Operations of clients on the bytes of objects, at a process that serves them.
#[derive(Debug, Default)]
pub struct ClientOps {
    since: Since,
    /// Gets: of each the bytes that were sent, 0 of one whose object was not there. One that broke off is none.
    pub read: BySize,
    /// Puts of objects and parts: of each the bytes that became part of the object.
    pub write: BySize,
    /// Appends at an offset, and records.
    pub append: BySize,
}

impl ClientOps {
    /// Its kinds by name.
    #[must_use]
    pub fn kinds(&self) -> [(&'static str, &BySize); 3] {
        [("read", &self.read), ("write", &self.write), ("append", &self.append)]
    }

    /// The counts, for those that add them up.
    #[must_use]
    pub fn now(&self) -> CountsStatus {
        let mut now = CountsStatus { age_s: self.since.age_s(), counts: Vec::new() };
        now.add(CLIENT_TABLE, &self.kinds());
        now
    }
}

/// Operations of a data server on its disk that succeeded. Bytes are those that it read or wrote: reads are of whole
/// checksummed pieces.
#[derive(Debug, Default)]
pub struct DiskOps {
    since: Since,
    /// Reads that the page cache answered.
    pub read_cached: BySize,
    /// Reads that went to the device.
    pub read: BySize,
    /// Reads of pieces that are copied elsewhere.
    pub read_copy: BySize,
    /// Copies that were compared with their checksums.
    pub verify: BySize,
    /// Writes of puts, and of copies.
    pub write: BySize,
}

impl DiskOps {
    /// Its kinds by name.
    #[must_use]
    pub fn kinds(&self) -> [(&'static str, &BySize); 5] {
        [
            ("read_cached", &self.read_cached),
            ("read", &self.read),
            ("read_copy", &self.read_copy),
            ("verify", &self.verify),
            ("write", &self.write),
        ]
    }

    /// The counts, for those that add them up.
    #[must_use]
    pub fn now(&self) -> CountsStatus {
        let mut now = CountsStatus { age_s: self.since.age_s(), counts: Vec::new() };
        now.add(DISK_TABLE, &self.kinds());
        now
    }
}

/// Requests to a role by kind, of `N` kinds.
#[derive(Debug)]
#[repr(align(128))]
pub struct ByKind<const N: usize> {
    since: Since,
    requests: [AtomicU64; N],
    served_ms: [AtomicU64; N],
}

impl<const N: usize> Default for ByKind<N> {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { since: Since::default(), requests: none(), served_ms: none() }
    }
}

impl<const N: usize> ByKind<N> {
    pub(crate) fn note(&self, kind: usize) {
        self.requests[kind].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_time(&self, kind: usize, served_ms: u64) {
        add(&self.served_ms[kind], served_ms);
    }

    /// Seconds since it began to count.
    pub(crate) fn age_s(&self) -> u64 {
        self.since.age_s()
    }

    /// Requests of a kind, and the milliseconds in which they were served where that is measured.
    #[must_use]
    pub fn of(&self, kind: usize) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.requests[kind]), load(&self.served_ms[kind]))
    }
}

/// The table of [`CountStatus`] that has [`ClientOps`].
pub const CLIENT_TABLE: &str = "client";
/// The same of [`DiskOps`].
pub const DISK_TABLE: &str = "disk";
/// The same of requests to a meta server.
pub const META_TABLE: &str = "meta";

/// The counts of a server since its start, for those that add them up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CountsStatus {
    /// Seconds since it began: the age of the server.
    pub age_s: u64,
    /// Those that are not 0, at most [`COUNTS_REPORTED_MAX`].
    pub counts: Vec<CountStatus>,
}

/// One of them. Tables, kinds and sizes are told by name, so that another release may count others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountStatus {
    /// Table that it is of.
    pub table: String,
    /// Kind of operation or request.
    pub kind: String,
    /// Class by size; empty where there are none.
    pub size: String,
    /// Operations or requests.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Microseconds for which they waited, where that is measured.
    pub waited_us: u64,
    /// Microseconds for which they were served, where that is measured.
    pub served_us: u64,
}

impl CountsStatus {
    /// Adds operations by size.
    pub fn add(&mut self, table: &str, kinds: &[(&str, &BySize)]) {
        for (kind, by_size) in kinds {
            for (size, sum) in by_size.sums().filter(|(_, sum)| *sum != Sum::default()) {
                self.counts.push(count_of(table, kind, size.name(), sum));
            }
        }
    }

    /// Adds requests of a kind, with the milliseconds in which they were served.
    pub(crate) fn add_requests(&mut self, table: &str, kind: &str, (ops, ms): (u64, u64)) {
        if ops > 0 {
            let sum = Sum { ops, served_us: ms.saturating_mul(1000), ..Sum::default() };
            self.counts.push(count_of(table, kind, "", sum));
        }
    }

    /// Decodes a server's counts, if they are within the limits of a report. They are measured before they are decoded:
    /// a count takes many times the bytes in memory.
    #[must_use]
    pub fn decode(reported: &[u8]) -> Option<Self> {
        if reported.len() > COUNTS_REPORT_BYTES_MAX {
            return None;
        }
        decode::<Self>("counts of a server", reported).ok().filter(Self::is_sound)
    }

    /// Returns true if it is as a server may tell it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_name = |name: &str| {
            let is_plain = |byte: u8| byte.is_ascii_graphic();
            name.len() <= COUNT_NAME_BYTES_MAX && name.bytes().all(is_plain)
        };
        let are_names =
            |it: &CountStatus| is_name(&it.table) && is_name(&it.kind) && is_name(&it.size);
        self.counts.len() <= COUNTS_REPORTED_MAX && self.counts.iter().all(are_names)
    }
}

fn count_of(table: &str, kind: &str, size: &str, sum: Sum) -> CountStatus {
    let Sum { ops, bytes, waited_us, served_us } = sum;
    let [table, kind, size] = [table, kind, size].map(str::to_owned);
    CountStatus { table, kind, size, ops, bytes, waited_us, served_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_begins_with_its_lower_bound() {
        for (bytes, name) in [
            (0, "0"),
            (1, "1B..1K"),
            (1023, "1B..1K"),
            (1024, "1K..8K"),
            (8 * 1024 - 1, "1K..8K"),
            (8 * 1024, "8K..64K"),
            (64 * 1024 - 1, "8K..64K"),
            (64 * 1024, "64K..128K"),
            (128 * 1024 - 1, "64K..128K"),
            (128 * 1024, "128K..256K"),
            (256 * 1024 - 1, "128K..256K"),
            (256 * 1024, "256K..512K"),
            (512 * 1024 - 1, "256K..512K"),
            (512 * 1024, "512K..1M"),
            (1024 * 1024 - 1, "512K..1M"),
            (1024 * 1024, "1M..inf"),
            (u64::MAX, "1M..inf"),
        ] {
            assert_eq!(OpSize::of(bytes).name(), name, "{bytes} bytes");
        }
        assert!(BEGINS.is_sorted() && OpSize::all().count() == NAMES.len());
    }

    #[test]
    fn an_operation_is_in_the_cell_of_its_size_and_in_no_other() {
        let ops = ClientOps::default();
        ops.write.note(1024);
        ops.write.note_time(1024, 3, 40);
        ops.write.note(0);
        let mut reported = CountsStatus::default();
        reported.add(CLIENT_TABLE, &ops.kinds());
        let (none, one) = (
            Sum { ops: 1, ..Sum::default() },
            Sum { ops: 1, bytes: 1024, waited_us: 3, served_us: 40 },
        );
        let expected =
            [count_of("client", "write", "0", none), count_of("client", "write", "1K..8K", one)];
        assert_eq!(reported.counts, expected);
    }

    #[test]
    fn counts_share_no_line_with_their_neighbours() {
        for (size, align) in [
            (size_of::<BySize>(), align_of::<BySize>()),
            (size_of::<ByKind<21>>(), align_of::<ByKind<21>>()),
        ] {
            assert!(size.is_multiple_of(128) && align == 128, "{size} bytes at {align}");
        }
    }

    #[test]
    fn impossible_counts_are_refused() {
        let one = || count_of("meta", "put", "", Sum::default());
        let many = |count| CountsStatus { age_s: 1, counts: vec![one(); count] };
        assert!(many(COUNTS_REPORTED_MAX).is_sound() && !many(COUNTS_REPORTED_MAX + 1).is_sound());
        for kind in ["a\n", "two words", "\u{1b}[2J", &*"k".repeat(COUNT_NAME_BYTES_MAX + 1)] {
            let named = CountStatus { kind: kind.to_owned(), ..one() };
            assert!(!CountsStatus { age_s: 1, counts: vec![named] }.is_sound(), "{kind:?}");
        }
    }

    #[test]
    fn the_longest_counts_fit_their_bound() {
        let name = || "k".repeat(COUNT_NAME_BYTES_MAX);
        let most = u64::MAX;
        let sum = Sum { ops: most, bytes: most, waited_us: most, served_us: most };
        let longest = count_of(&name(), &name(), &name(), sum);
        let counts = CountsStatus { age_s: most, counts: vec![longest; COUNTS_REPORTED_MAX] };
        assert!(counts.is_sound());
        let reported = larder_types::codec::encode(&counts);
        assert_eq!(CountsStatus::decode(&reported), Some(counts));
        let too_long = [reported, vec![0; COUNTS_REPORT_BYTES_MAX]].concat();
        assert_eq!(CountsStatus::decode(&too_long), None);
    }
}
