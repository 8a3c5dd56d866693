//! The words of packing: what a change is, and where bytes lie.
//!
//! # Invariant
//!
//! A change says all that it makes true and refers to nothing but bytes. So the same changes in the
//! same order give the same index, whether they come from the log or from footers.

use std::fmt;

use larder_types::{
    BucketId, BucketRecord, HybridClock, Metax, ObjectKey, OpId, OpSeq, PartRef, UploadId,
    UploadRow, View,
};
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
pub struct OwnId {
    /// The worker that wrote it.
    pub worker: WorkerId,
    /// Drawn at the start of that worker's process, so that no two runs give the same name.
    pub run: u64,
    /// Number within the run.
    pub number: u64,
}

/// The object of the backend that bytes lie within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Within {
    /// A blob.
    Blob(BlobId),
    /// An object of its own.
    Own(OwnId),
}

/// A run of bytes, and what verifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The object that it lies within.
    pub within: Within,
    /// Its first byte there.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Seed of its sums; no other body has it.
    pub seed: u64,
    /// Bytes that each sum but the last covers.
    pub sum_bytes: u32,
    /// A sum for each of these begun.
    pub sums: Vec<u64>,
}

/// An object's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// In one run.
    Run(Place),
    /// In the parts of an upload, in ascending order of number.
    Parts {
        /// The upload.
        upload: UploadId,
        /// Its parts.
        parts: Vec<PartRef>,
    },
}

/// A change of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A bucket was made.
    BucketMade(BucketRecord),
    /// A bucket was removed, with its open uploads.
    BucketRemoved(BucketId),
    /// A key has a new version.
    Put {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// Its metadata.
        metax: Metax,
        /// Where it is: also in blobs before this one, after a copy or a change of tags.
        content: Content,
    },
    /// A key has no version any more.
    Deleted {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
    },
    /// An upload was begun.
    UploadBegun {
        /// Bucket.
        bucket: BucketId,
        /// The upload.
        row: UploadRow,
    },
    /// A part was put; it replaces an earlier one of that number.
    PartPut {
        /// Bucket.
        bucket: BucketId,
        /// Its upload.
        upload: UploadId,
        /// Part number.
        number: u16,
        /// Size, etag, checksum and clock.
        metax: Metax,
        /// Where it is.
        place: Place,
    },
    /// An upload was given up, with its parts.
    UploadAborted {
        /// Bucket.
        bucket: BucketId,
        /// Key of the object that it would have become.
        key: ObjectKey,
        /// The upload.
        upload: UploadId,
    },
    /// An upload became its key's version; parts that are not named are gone.
    UploadCompleted {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// The upload.
        upload: UploadId,
        /// Its metadata.
        metax: Metax,
        /// Its parts, in ascending order of number.
        parts: Vec<PartRef>,
    },
    /// A key has no version any more of those up to `upto`. Later ones stay: it may come late, when the blob in
    /// which it first stood was repacked.
    Gone {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// The first change that made the key what it deletes: no blob with older ones needs it.
        since: OpId,
        /// The delete.
        upto: OpId,
    },
    /// A version that is there already, re-logged: its bytes lie elsewhere, or the blob that said
    /// it goes.
    Moved {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// The change that put it.
        op: OpId,
        /// Its metadata.
        metax: Metax,
        /// Where it is now.
        content: Content,
    },
    /// A part that is there already, re-logged.
    PartMoved {
        /// Bucket.
        bucket: BucketId,
        /// Its upload.
        upload: UploadId,
        /// Part number.
        number: u16,
        /// The change that put it.
        op: OpId,
        /// Size, etag, checksum and clock.
        metax: Metax,
        /// Where it is now.
        place: Place,
    },
    /// An upload that ended, and of which nothing is left, re-logged.
    UploadGone {
        /// Bucket.
        bucket: BucketId,
        /// Key of the object that it would have become.
        key: ObjectKey,
        /// The upload.
        upload: UploadId,
        /// The change that ended it.
        upto: OpId,
    },
    /// The removal of a bucket, re-logged.
    BucketGone {
        /// Bucket.
        bucket: BucketId,
        /// The change that removed it.
        upto: OpId,
    },
    /// Blobs of which nothing is needed any more: whatever they have that is still true, other blobs tell. They may
    /// be missing, and are not read if they are not.
    Retired {
        /// The blobs.
        run: Run,
        /// The backups for which that holds too, of those made before: others may need what was not carried on.
        backups: Vec<BackupId>,
    },
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

/// A change with its place in the order of its worker's changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place: grows from change to change.
    pub seq: OpSeq,
    /// Its time: grows from change to change, also from one worker to the next.
    pub clock: HybridClock,
    /// The change.
    pub change: Change,
}

impl Entry {
    /// Its place among the changes of all workers.
    #[must_use]
    pub fn op(&self, worker: WorkerId) -> OpId {
        OpId { view: View(worker.0), seq: self.seq }
    }
}

impl Change {
    /// The bucket it is about, if it is about one.
    #[must_use]
    pub fn bucket(&self) -> Option<BucketId> {
        Some(match self {
            Self::Retired { .. } => return None,
            Self::BucketMade(record) => record.id,
            Self::BucketRemoved(bucket)
            | Self::Put { bucket, .. }
            | Self::Deleted { bucket, .. }
            | Self::UploadBegun { bucket, .. }
            | Self::PartPut { bucket, .. }
            | Self::UploadAborted { bucket, .. }
            | Self::UploadCompleted { bucket, .. }
            | Self::Gone { bucket, .. }
            | Self::Moved { bucket, .. }
            | Self::PartMoved { bucket, .. }
            | Self::UploadGone { bucket, .. }
            | Self::BucketGone { bucket, .. } => *bucket,
        })
    }

    /// Returns true if it only re-logs what was said before, as a blob with that is to go.
    #[must_use]
    pub fn is_told_anew(&self) -> bool {
        matches!(
            self,
            Self::Moved { .. }
                | Self::PartMoved { .. }
                | Self::UploadGone { .. }
                | Self::BucketGone { .. }
                | Self::Retired { .. }
        )
    }

    /// The run of bytes that it names, if it names one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Put { content: Content::Run(place), .. }
            | Self::Moved { content: Content::Run(place), .. }
            | Self::PartPut { place, .. }
            | Self::PartMoved { place, .. } => Some(place),
            _ => None,
        }
    }
}

impl Run {
    /// Returns true if a blob is one of them.
    #[must_use]
    pub fn has(&self, blob: BlobId) -> bool {
        self.worker == blob.worker && (self.first..=self.last).contains(&blob.seq)
    }
}

impl Place {
    /// Its end, if it lies within this.
    #[must_use]
    pub fn end_in(&self, within: Within) -> Option<u64> {
        if self.within == within { self.offset.checked_add(self.len) } else { None }
    }
}
