//! The entries of a PG's log.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::append::{Append, Coalesce};
use crate::ids::{
    BootId, BucketId, Grant, LvId, OpId, OpSeq, Request, ServerId, SessionId, StreamId, UploadId,
};
use crate::metax::{Body, Extent, Holders, HybridClock, Metax, PartRef, UploadRow};
use crate::name::ObjectKey;
use crate::put::{Outcome, Put};
use crate::remote_change::{Amend, Freed, Grow, Noted, Purge, RemotePut, Renew};

/// An entry of a PG's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A view begins: the first op of its primary.
    ViewStart {
        /// Members, primary first.
        members: Vec<ServerId>,
        /// The primary's run.
        boot: BootId,
    },
    /// METAX of a put.
    Put(Box<Put>),
    /// RE-DATA: the open put at `put` has new extents; the earlier grant is void.
    Regrant {
        /// The put.
        put: OpSeq,
        /// Its new place and attempt; without holders.
        body: Body,
    },
    /// The outcome of the put at `put`.
    Outcome {
        /// The put.
        put: OpSeq,
        /// The outcome.
        outcome: Outcome,
    },
    /// The key's null version ends.
    Delete {
        /// The request of the client that deletes it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// Clock of the deletion.
        clock: HybridClock,
    },
    /// An upload begins; its id is this op.
    CreateUpload {
        /// The request of the client that creates it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// The row to be kept.
        row: Box<UploadRow>,
    },
    /// An upload becomes the key's null version. Parts not named are freed.
    CompleteUpload {
        /// The request of the client that completes it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// Upload.
        upload: UploadId,
        /// The description of the object.
        metax: Box<Metax>,
        /// The parts it has.
        parts: Vec<PartRef>,
    },
    /// An upload ends and its parts are freed.
    AbortUpload {
        /// The request of the client that aborts it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// Upload.
        upload: UploadId,
    },
    /// The tags of the key's null version are replaced.
    SetTags {
        /// The request of the client that sets them.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// All tags it has from now on.
        tags: Vec<(String, String)>,
    },
    /// A stream ends without a parent: its chunks are freed.
    DropStream {
        /// Bucket of its key.
        bucket: BucketId,
        /// Stream.
        stream: StreamId,
    },
    /// This member's alone, at the place of a snapshot: all of its log before is void, and its rows are
    /// about to be replaced by those of the snapshot.
    SnapshotBegin,
    /// This member's alone: what the snapshot's primary remembered of a session.
    SnapshotSession(SessionMemory),
    /// This member's alone, at the place of a snapshot: its rows are there, durable, and the puts that
    /// were open then stand before this record.
    SnapshotEnd {
        /// Open puts that will make nothing when they are committed.
        superseded: Vec<OpSeq>,
    },
    /// Copies of chunks were made or given up.
    Holders {
        /// The chunks.
        changes: Vec<HoldersChange>,
    },
    /// METAX of a put with data whose client is answered once so many replicas have it, at least 1. The client of an
    /// [`Op::Put`] is answered only when all have it that were to be given it.
    PutEnough {
        /// METAX.
        put: Box<Put>,
        /// The number of replicas that are enough.
        required_copies: u8,
    },
    /// The key's null version grows, or begins.
    Append(Box<Append>),
    /// Changes nothing: here every member sums the PG's rows, to be compared.
    Digest,
    /// Chunks lie elsewhere from here on. Each has the grant of this op from then on, with its place in the list for
    /// an attempt: no other chunk ever had it.
    Moved {
        /// The chunks.
        moves: Vec<ChunkMove>,
    },
    /// A put that another region took. In all else as [`Op::PutEnough`].
    RemoteChange(Box<RemotePut>),
    /// The key's null version ends in a store of several regions.
    Purge(Box<Purge>),
    /// Something is set on the key's null version in a store of several regions.
    Amend(Box<Amend>),
    /// The positions up to which journals are here, and up to which the group's own is kept.
    Noted(Box<Noted>),
    /// Tombstones that no region needs any more go.
    Freed(Box<Freed>),
    /// The key's null version becomes a new one with the same content in a store of several regions.
    Renew(Box<Renew>),
    /// The key's null version grows, or begins, in a store of several regions.
    Grow(Box<Grow>),
    /// Some rows of the PG's garbage go. From the first such op on, an op that ends an object leaves rows to these.
    Reap {
        /// Rows that this op removes, and each from now on, at most; at least 1.
        rows_max: u32,
    },
    /// Adjacent pieces of a version that was appended to become one, with the same bytes.
    Coalesce(Box<Coalesce>),
}

impl Op {
    /// METAX of a put; with `enough` 0 every replica must have its data before its client is answered.
    #[must_use]
    pub fn of_put(put: Put, required_copies: u8) -> Self {
        let put = Box::new(put);
        if required_copies == 0 { Self::Put(put) } else { Self::PutEnough { put, required_copies } }
    }

    /// METAX, if the op is a put.
    #[must_use]
    pub fn put(&self) -> Option<&Put> {
        match self {
            Self::Put(put) | Self::PutEnough { put, .. } => Some(put),
            Self::RemoteChange(change) => Some(&change.put),
            _ => None,
        }
    }

    /// The same op with other METAX, if it is a put.
    #[must_use]
    pub fn with_put(&self, put: Put) -> Self {
        match self {
            Self::RemoteChange(change) => {
                Self::RemoteChange(Box::new(RemotePut { put, ..(**change).clone() }))
            }
            op => Self::of_put(put, op.required_copies()),
        }
    }

    /// The append, if the op is one.
    #[must_use]
    pub fn append(&self) -> Option<&Append> {
        match self {
            Self::Append(append) => Some(append),
            Self::Grow(grow) => Some(&grow.append),
            _ => None,
        }
    }

    /// A put of another region.
    #[must_use]
    pub fn remote_put(&self) -> Option<&RemotePut> {
        if let Self::RemoteChange(change) = self { Some(change) } else { None }
    }

    /// Returns the number of replicas that must have a put's data before its client is answered; 0: all that were to be
    /// given it.
    #[must_use]
    pub fn required_copies(&self) -> u8 {
        match self {
            Self::PutEnough { required_copies, .. } => *required_copies,
            Self::RemoteChange(change) => change.required_copies,
            _ => 0,
        }
    }
}

/// Replicas of an LV that have a chunk by now, or are not to have it any more. Without effect on a row that has
/// another chunk by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersChange {
    /// Row of the index that has the chunk.
    pub row: Bytes,
    /// The chunk's grant.
    pub grant: Grant,
    /// Replicas that acknowledged a copy.
    pub gained: Holders,
    /// Replicas of which the copy is given up.
    pub lost: Holders,
}

/// A chunk's new place, where its copies are durable. If the row has another chunk by then, nothing changes, and the
/// new place is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkMove {
    /// Row of the index that has the chunk.
    pub row: Bytes,
    /// The chunk's grant, which says where it lies as well: each place has one of its own.
    pub grant: Grant,
    /// LV of the new place.
    pub lv: LvId,
    /// Runs of blocks of the new place, in the order of the data.
    pub extents: Vec<Extent>,
    /// Replicas that acknowledged a copy there: all that it was written to.
    pub holders: Holders,
}

/// The memory of a proxy's session, by which its repeats get the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMemory {
    /// The session.
    pub session: SessionId,
    /// Every number below it is finished.
    pub floor: u64,
    /// Requests from the floor on that became ops.
    pub requests: Vec<(u64, Remembered)>,
}

/// The op that a request became.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The op.
    pub op: OpId,
    /// Its clock.
    pub clock: HybridClock,
    /// True if it is a put that was revoked.
    pub revoked: bool,
}
