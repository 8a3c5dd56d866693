//! Commands: changes requested by clients, repacking and sharing.

use bytes::Bytes;
use larder_objects::{CompleteOptions, PutDone, UploadOptions};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, Condition, ETag, ObjectChecksum, ObjectKey,
    OpId, UploadId,
};

use crate::commit::in_flight::InFlightUpload;
use crate::format::entry::{Change, Content, Place};
use crate::format::sums::BodySums;
use crate::ids::{BackupId, BlobId, Run};

/// The bytes of a put.
#[derive(Debug)]
pub(crate) enum Body {
    /// To be packed.
    Packed { pieces: Vec<Bytes>, sums: BodySums },
    /// In the backend already. It is not taken for one that nobody wants while this is held.
    There { place: Place, _under_way: InFlightUpload },
}

/// A version whose bytes another is to be made of.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) bucket: BucketId,
    /// Its name and key.
    pub(crate) target: Target,
    /// The version: if it is another by now, nothing is done.
    pub(crate) op: OpId,
}

/// The description of a body.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) etag: ETag,
    pub(crate) checksum: Option<ObjectChecksum>,
    pub(crate) attributes: Attributes,
}

/// A change that somebody wants.
#[derive(Debug)]
pub(crate) enum Command {
    MakeBucket {
        name: BucketName,
        location: Option<String>,
    },
    RemoveBucket {
        name: BucketName,
    },
    Put {
        target: Target,
        description: Description,
        condition: Condition,
        body: Body,
    },
    /// A version of bytes that another key has.
    Link {
        target: Target,
        description: Description,
        condition: Condition,
        source: Source,
    },
    Tag {
        target: Target,
        tags: Vec<(String, String)>,
    },
    Delete {
        target: Target,
        condition: Condition,
    },
    /// A delete where several workers share the bucket: a version in the bucket `tombstones`.
    PutTombstone {
        target: Target,
        tombstones: BucketName,
        condition: Condition,
    },
    /// Gives up a superseded version here, as another worker has a newer one, if it is this version
    /// still.
    Yield {
        target: Target,
        op: OpId,
    },
    BeginUpload {
        target: Target,
        options: UploadOptions,
    },
    PutPart {
        target: Target,
        upload: UploadId,
        number: u16,
        description: Description,
        body: Body,
    },
    Complete {
        target: Target,
        upload: UploadId,
        options: CompleteOptions,
    },
    Abort {
        target: Target,
        upload: UploadId,
    },
    /// Re-logs something that a blob says which is to go.
    Relocate {
        /// Name of its bucket, if it is about one.
        bucket: Option<BucketName>,
        carry: Relocate,
    },
}

/// A key of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) bucket: BucketName,
    pub(crate) key: ObjectKey,
}

/// The result of a change.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Bucket(BucketRecord),
    Put(PutDone),
    Upload(UploadId),
    /// It was re-logged; the place of its bytes, if they were moved.
    Carried(Option<Place>),
}

/// A part of the index that a command looks at, beside bucket records. Commands that share one are not
/// decided side by side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// A key's version.
    Key(Target),
    /// One part.
    Part(UploadId, u16),
    /// More than that.
    Everything,
}

impl Command {
    pub(crate) fn scopes(&self) -> Vec<Scope> {
        match self {
            Self::Put { target, .. }
            | Self::Tag { target, .. }
            | Self::Delete { target, .. }
            | Self::BeginUpload { target, .. } => vec![Scope::Key(target.clone())],
            Self::PutTombstone { target, tombstones, .. } => {
                let tombstone = Target { bucket: tombstones.clone(), key: target.key.clone() };
                vec![Scope::Key(target.clone()), Scope::Key(tombstone)]
            }
            Self::Yield { target, .. } => vec![Scope::Key(target.clone())],
            Self::Link { target, source, .. } => {
                vec![Scope::Key(target.clone()), Scope::Key(source.target.clone())]
            }
            Self::PutPart { upload, number, .. } => vec![Scope::Part(*upload, *number)],
            Self::Relocate { bucket, carry } => carry.scopes(bucket.as_ref()),
            _ => vec![Scope::Everything],
        }
    }

    /// Bytes that are to be packed.
    pub(crate) fn body_bytes(&self) -> u64 {
        match self {
            Self::Put { body: Body::Packed { sums, .. }, .. }
            | Self::PutPart { body: Body::Packed { sums, .. }, .. } => sums.len,
            Self::Relocate { carry, .. } => carry.body_bytes(),
            _ => 0,
        }
    }

    /// The bucket and key whose bytes are to be packed, as far as that is known.
    pub(crate) fn packed_for(&self) -> Option<(&BucketName, &ObjectKey)> {
        match self {
            Self::Put { target, body: Body::Packed { .. }, .. }
            | Self::PutPart { target, body: Body::Packed { .. }, .. } => {
                Some((&target.bucket, &target.key))
            }
            Self::Relocate { bucket: Some(bucket), carry: Relocate::Version { key, .. } } => {
                Some((bucket, key))
            }
            _ => None,
        }
    }

    /// Returns true if it may end a key's version, and with that the parts which the version has.
    pub(crate) fn may_end_parts(&self) -> bool {
        matches!(
            self,
            Self::Put { .. } | Self::Link { .. } | Self::Delete { .. } | Self::Yield { .. }
        )
    }

    /// Returns true if it moves a part, which may be a version's.
    pub(crate) fn moves_part(&self) -> bool {
        matches!(self, Self::Relocate { carry: Relocate::Part { .. }, .. })
    }

    /// Returns true if it only ends something: it is taken when there is room for nothing else.
    pub(crate) fn only_ends(&self) -> bool {
        matches!(
            self,
            Self::Delete { .. }
                | Self::PutTombstone { .. }
                | Self::Yield { .. }
                | Self::Abort { .. }
                | Self::RemoveBucket { .. }
        )
    }
}

/// Where bytes are to be.
#[derive(Debug, Clone)]
pub(crate) enum RelocateTo {
    /// Where they are.
    Same,
    /// Where another version has them by now.
    There(Place),
    /// In the blob of the change.
    Packed { pieces: Vec<Bytes>, sums: BodySums },
}

/// Something to be re-logged.
#[derive(Debug, Clone)]
pub(crate) enum Relocate {
    /// A version, if it is still this one.
    Version { bucket: BucketId, key: ObjectKey, op: OpId, from: Content, to: RelocateTo },
    /// A part, if it is still this one.
    Part { bucket: BucketId, upload: UploadId, number: u16, op: OpId, from: Place, to: RelocateTo },
    /// A bucket, if it is there.
    Bucket(BucketId),
    /// An open upload, if it is still open.
    Upload { bucket: BucketId, key: ObjectKey, upload: UploadId },
    /// That something was removed: always true.
    Removal(Box<Change>),
    /// That a blob is not needed any more, if nothing has bytes in it.
    Retire { blob: BlobId, run: Run, backups: Vec<BackupId> },
}

impl Relocate {
    pub(crate) fn scopes(&self, name: Option<&BucketName>) -> Vec<Scope> {
        match (self, name) {
            (Self::Version { key, .. }, Some(name)) => {
                vec![Scope::Key(Target { bucket: name.clone(), key: key.clone() })]
            }
            (Self::Part { upload, number, .. }, _) => vec![Scope::Part(*upload, *number)],
            // Buckets and uploads change in groups of their own; a removal looks at nothing.
            (Self::Bucket(_) | Self::Upload { .. } | Self::Removal(_), _) => Vec::new(),
            _ => vec![Scope::Everything],
        }
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        match self {
            Self::Version { to: RelocateTo::Packed { sums, .. }, .. }
            | Self::Part { to: RelocateTo::Packed { sums, .. }, .. } => sums.len,
            _ => 0,
        }
    }
}
