//! The words of packing: what a change is, and where bytes lie.
//!
//! # Invariant
//!
//! A change says all that it makes true and refers to nothing but bytes. So the same changes in the
//! same order give the same index, whether they come from the log or from footers.

use larder_types::{
    BucketId, BucketRecord, HybridClock, Metax, ObjectKey, OpId, OpSeq, PartRef, UploadId,
    UploadRow, View,
};
use serde::{Deserialize, Serialize};

use crate::ids::{BackupId, BlobId, Run, StandaloneId, WorkerId};

/// The object of the backend that bytes lie within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Container {
    /// A blob.
    Blob(BlobId),
    /// An object of its own.
    Own(StandaloneId),
}

/// A run of bytes, and what verifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The object that it lies within.
    pub container: Container,
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
    pub fn is_relogged(&self) -> bool {
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

impl Place {
    /// Its end, if it lies within this.
    #[must_use]
    pub fn end_in(&self, container: Container) -> Option<u64> {
        if self.container == container { self.offset.checked_add(self.len) } else { None }
    }
}
