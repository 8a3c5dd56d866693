//! The numbers that identify workers, their processes, and what these write.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A worker: the number of its claim to the backend. Later workers have greater numbers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WorkerId(pub u64);

impl WorkerId {
    /// Bits of a number that tell those apart that took over one from the other.
    pub(crate) const TAKE_OVER_BITS: u32 = 16;
    /// These bits.
    pub(crate) const TAKE_OVERS: u64 = (1 << Self::TAKE_OVER_BITS) - 1;

    /// The first of those that took over one from the other.
    pub(crate) fn first(self) -> Self {
        Self((self.0 & !Self::TAKE_OVERS) + 1)
    }

    /// The number that all of those share, and that no other worker of the bucket has.
    pub(crate) fn line(self) -> u64 {
        self.0 >> Self::TAKE_OVER_BITS
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A process of a worker: its number in the backend (`numbering.rs`). Later processes have greater numbers; 0 stands
/// for all processes of releases that had none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ProcessId(u32);

impl ProcessId {
    /// Bits of a number.
    pub(crate) const BITS: u32 = 24;
    /// Stands for all processes of releases that had no numbers.
    pub const UNNUMBERED: Self = Self(0);
    /// The last that a worker may have.
    pub(crate) const LAST: Self = Self((1 << Self::BITS) - 1);

    /// The process with this number; `None` if none may have it.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (number < 1 << Self::BITS).then_some(Self(number as u32))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.0)
    }

    /// The next one; `None` behind the last that a worker may have.
    pub(crate) fn next(self) -> Option<Self> {
        Self::new(self.number() + 1)
    }

    /// A place in a blob or bundle, which is below 2^[`WITH_BITS`](Self::WITH_BITS), with the number in the bits above: how
    /// rows have both that once had the place alone. A greater one, as only a damaged footer gives, is cut.
    pub(crate) fn with(self, place: u64) -> u64 {
        self.number() << Self::WITH_BITS | place.min((1 << Self::WITH_BITS) - 1)
    }

    /// Parts what [`ProcessId::with`] put together.
    pub(crate) fn without(both: u64) -> (Self, u64) {
        (Self((both >> Self::WITH_BITS) as u32), both & ((1 << Self::WITH_BITS) - 1))
    }

    /// Bits of what stands beside a number.
    pub(crate) const WITH_BITS: u32 = u64::BITS - Self::BITS;
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A blob: who made it, and which of its blobs it is. The first is 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct BlobId {
    /// The worker.
    pub worker: WorkerId,
    /// Its number among the worker's blobs.
    pub seq: u64,
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.seq)
    }
}

/// A body that is an object of its own in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StandaloneId {
    /// The worker that wrote it.
    pub worker: WorkerId,
    /// Drawn at the start of that worker's process, so that no two runs give the same name.
    pub run: u64,
    /// Number within the run.
    pub number: u64,
}

/// A backup of the index: who made it, and which of its backups it is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct BackupId {
    /// The worker.
    pub worker: WorkerId,
    /// Grows from backup to backup, about as the milliseconds since 1970 do. No two tries have the same.
    pub number: u64,
}

/// Blobs of a worker that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The worker.
    pub worker: WorkerId,
    /// The number of the first.
    pub first: u64,
    /// The number of the last.
    pub last: u64,
}

impl Run {
    /// Returns true if a blob is one of them.
    #[must_use]
    pub fn has(&self, blob: BlobId) -> bool {
        self.worker == blob.worker && (self.first..=self.last).contains(&blob.seq)
    }
}
