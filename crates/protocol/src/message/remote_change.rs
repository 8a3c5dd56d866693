//! Calls that apply changes of other regions to a PG, and that renew its own.
//!
//! The machine that pulls ([`Pull`](crate::region::Pull)) finds entries that are not here and joins them with those that are.
//! For each result the driver makes one of these calls to the primary of the key's PG. The primary looks again: the key
//! may have changed meanwhile.

use larder_types::{
    Amendments, Appended, Attributes, BucketId, ETag, Epoch, FreedTombstone, ObjectKey, OpId,
    OpSeq, Origin, PartRef, Passed, Request, Stamp,
};
use serde::{Deserialize, Serialize};

use super::put::{Content, PutCall};

/// A change of another region, or a note about journals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteChange {
    /// A version, with its bytes.
    Put(Box<RemotePutCall>),
    /// A purge of every null version up to a stamp.
    Purge {
        /// The request.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch of the bucket's record as the caller knows it.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// The stamp of the purge.
        at: Stamp,
        /// The op that purged it.
        origin: Origin,
    },
    /// Fields that were set on the null version.
    Amend {
        /// The request.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch as known.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// The version's stamp.
        at: Stamp,
        /// All its tags, as of [`Amendments::tags_at`].
        tags: Vec<(String, String)>,
        /// The fields that were set.
        amended: Amendments,
    },
    /// Notes about journals.
    Note {
        /// The request.
        request: Request,
        /// Positions up to which journals of other regions are durable here.
        passed: Vec<Passed>,
        /// Outcomes that this PG forgets: from one op, the first that its journal has, up to another.
        forgotten: Option<(OpSeq, OpSeq)>,
    },
    /// Tombstones of this PG that no region needs any more.
    Free {
        /// The request.
        request: Request,
        /// At most [`REGION_FREED_MAX`](crate::limits::REGION_FREED_MAX).
        tombstones: Vec<FreedTombstone>,
    },
    /// The null version, which becomes a new one with the same content.
    Renew {
        /// The request.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch as known.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// The op of the version's row.
        was: OpId,
    },
    /// The end of a version that was appended to.
    Append(Box<RemoteAppend>),
}

/// The end of a version that another region has, where the rest is here: what was appended to it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAppend {
    /// The request.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Epoch of the bucket's record as the caller knows it.
    pub epoch: Epoch,
    /// Key.
    pub key: ObjectKey,
    /// The stamp of the version that is here: it goes on no other.
    pub onto: Stamp,
    /// The bytes that are not here, as what they make of the version.
    pub made: Appended,
    /// Headers, user metadata and tags of the version.
    pub attributes: Attributes,
    /// Entity tag of the bytes that are not here.
    pub etag: ETag,
    /// These bytes: inline, or the committed chunks of a stream.
    pub content: Content,
    /// The stamp of the version with them.
    pub at: Stamp,
    /// The op that appended last.
    pub origin: Origin,
}

/// A version that another region has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePutCall {
    /// The put, as a client's without a condition.
    pub put: PutCall,
    /// Its stamp.
    pub at: Stamp,
    /// The op that put it.
    pub origin: Origin,
    /// The parts in which it was uploaded.
    pub parts: Vec<PartRef>,
    /// Fields that were set since the put.
    pub amended: Amendments,
}

impl RemoteChange {
    /// Its request.
    #[must_use]
    pub fn request(&self) -> &Request {
        match self {
            Self::Put(version) => &version.put.request,
            Self::Append(append) => &append.request,
            Self::Purge { request, .. }
            | Self::Amend { request, .. }
            | Self::Note { request, .. }
            | Self::Free { request, .. }
            | Self::Renew { request, .. } => request,
        }
    }

    /// The put that it begins, if it is one.
    #[must_use]
    pub fn put(&self) -> Option<&PutCall> {
        if let Self::Put(version) = self { Some(&version.put) } else { None }
    }

    /// The key that it changes, if it is no note.
    #[must_use]
    pub fn key(&self) -> Option<(BucketId, &ObjectKey)> {
        match self {
            Self::Put(version) => Some((version.put.bucket, &version.put.key)),
            Self::Append(append) => Some((append.bucket, &append.key)),
            Self::Purge { bucket, key, .. }
            | Self::Amend { bucket, key, .. }
            | Self::Renew { bucket, key, .. } => Some((*bucket, key)),
            Self::Note { .. } | Self::Free { .. } => None,
        }
    }

    /// Request, bucket and epoch: the caller renews them when the bucket's record has changed.
    pub fn in_bucket(&mut self) -> Option<(&mut Request, BucketId, &mut Epoch)> {
        match self {
            Self::Put(version) => {
                let put = &mut version.put;
                Some((&mut put.request, put.bucket, &mut put.epoch))
            }
            Self::Append(append) => Some((&mut append.request, append.bucket, &mut append.epoch)),
            Self::Purge { request, bucket, epoch, .. }
            | Self::Amend { request, bucket, epoch, .. }
            | Self::Renew { request, bucket, epoch, .. } => Some((request, *bucket, epoch)),
            Self::Note { .. } | Self::Free { .. } => None,
        }
    }

    /// The epoch of the bucket that it changes.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Put(version) => Some(version.put.epoch),
            Self::Append(append) => Some(append.epoch),
            Self::Purge { epoch, .. } | Self::Amend { epoch, .. } | Self::Renew { epoch, .. } => {
                Some(*epoch)
            }
            Self::Note { .. } | Self::Free { .. } => None,
        }
    }

    /// True for a put with data for data servers.
    pub(crate) fn has_data(&self) -> bool {
        self.put().is_some_and(|put| matches!(put.content, Content::Data { .. }))
    }
}
