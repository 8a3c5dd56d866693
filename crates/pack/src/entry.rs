//! The words of packing: what a change is, and where bytes lie.
//!
//! # Invariant
//!
//! A change says all that it makes true and refers to nothing but bytes: the same changes in the same order give
//! the same index, whether they come from the log or from footers.

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

impl fmt::Display for WorkerId {
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

/// What bytes lie within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Within {
    /// A blob.
    Blob(BlobId),
    /// An object of its own.
    Own(OwnId),
}

/// A run of bytes, and what verifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// What it lies within.
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

/// What became otherwise.
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
        /// What it is.
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
        /// What it is.
        metax: Metax,
        /// Its parts, in ascending order of number.
        parts: Vec<PartRef>,
    },
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
    /// The bucket it is about.
    #[must_use]
    pub fn bucket(&self) -> BucketId {
        match self {
            Self::BucketMade(record) => record.id,
            Self::BucketRemoved(bucket)
            | Self::Put { bucket, .. }
            | Self::Deleted { bucket, .. }
            | Self::UploadBegun { bucket, .. }
            | Self::PartPut { bucket, .. }
            | Self::UploadAborted { bucket, .. }
            | Self::UploadCompleted { bucket, .. } => *bucket,
        }
    }

    /// The run of bytes that it names, if it names one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Put { content: Content::Run(place), .. } | Self::PartPut { place, .. } => {
                Some(place)
            }
            _ => None,
        }
    }
}

impl Place {
    /// Its end, if it lies within this blob.
    #[must_use]
    pub fn end_in(&self, blob: BlobId) -> Option<u64> {
        (self.within == Within::Blob(blob)).then(|| self.offset + self.len)
    }
}
