//! Ops and rows of a store that is a region (ADR 42, ADR 43). They are changes with their stamps and origins, the
//! journal of outcomes, and positions in the journals of other regions.
//!
//! # Invariants
//!
//! 1. A store that is in no region writes none of these: releases that do not know them read all that it has.
//! 2. A row of the journal is written in the batch of the index that shows its outcome.

use serde::{Deserialize, Serialize};

use crate::append::Append;
use crate::codec::{self, CodecError};
use crate::ids::{BucketId, OpId, OpSeq, PgId, RegionId, Request};
use crate::metax::{ETag, HybridClock, ObjectChecksum, PartRef};
use crate::name::ObjectKey;
use crate::put::Put;
use crate::stamp::{Origin, Stamp};
use crate::version::Amendments;

const JOURNAL: &str = "journal row";
const TOKEN: &str = "token row";

/// A put that another region took. Its METAX has the stamp that it has everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePut {
    /// METAX.
    pub put: Put,
    /// Replicas that must have its data before it is answered; 0: all that are to be given it.
    pub required_copies: u8,
    /// The op that put it, in its region.
    pub origin: Origin,
    /// The parts in which it was uploaded there.
    pub parts: Vec<PartRef>,
    /// Fields that were set since the put.
    pub amended: Amendments,
}

/// A key's null version ends, and a tombstone says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purge {
    /// The request.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: ObjectKey,
    /// The purge's stamp: every null version up to it is gone.
    pub at: Stamp,
    /// The op that purged it, if another region did.
    pub origin: Option<Origin>,
}

/// Something is set on a key's null version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amend {
    /// The request.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: ObjectKey,
    /// The version, by its stamp as it is told. Without effect on another.
    pub put_at: Stamp,
    /// All tags it has from now on, unless those that it has were set later.
    pub tags: Vec<(String, String)>,
    /// The time at which tags were set, and everything else that is set.
    pub amended: Amendments,
}

/// A key's null version becomes a new one with the same content: other regions take it as a change that they never had (ADR 49).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The request.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: ObjectKey,
    /// The op of the version's row. Without effect on another.
    pub was: OpId,
    /// Its stamp from then on.
    pub at: Stamp,
}

/// A key's null version grows, or begins, in a store of several regions. It is a new version then, with a stamp of its own (ADR 53).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grow {
    /// The append. If it has attributes, they are the version's from then on, whether or not it makes it.
    pub append: Append,
    /// The version's stamp from then on. Its clock is the append's.
    pub at: Stamp,
    /// The op that appended last, if another region did. That region may have appended more than once.
    pub origin: Option<Origin>,
    /// Entity tag of the bytes that come along.
    pub etag: ETag,
    /// S3 checksum of these bytes.
    pub checksum: Option<ObjectChecksum>,
}

/// Tombstones that no region needs any more go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// The request.
    pub request: Request,
    /// The tombstones: each goes if it is of this stamp still.
    pub tombstones: Vec<FreedTombstone>,
}

/// The tombstone of a key's null version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedTombstone {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The stamp of the purge.
    pub at: Stamp,
}

/// A PG's clock does not go back below this, whatever it has forgotten: the row of table `F`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFloor {
    /// The op that made the row.
    pub op: OpId,
    /// The greatest clock of a tombstone that was freed.
    pub clock: HybridClock,
}

/// A position in the journal of another region's PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Passed {
    /// The region.
    pub region: RegionId,
    /// The PG, among those of that region.
    pub pg: PgId,
    /// All outcomes up to this op are durable here.
    pub through: OpSeq,
}

/// Notes of a PG about journals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The request.
    pub request: Request,
    /// Those of other regions.
    pub passed: Vec<Passed>,
    /// Outcomes of the PG's own journal from one op on, the first that it has, up to another are forgotten.
    pub forgotten: Option<(OpSeq, OpSeq)>,
}

/// An outcome, as other regions are told of it: a row of table `J`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRow {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The stamp of the null version's put; once it is purged, of the purge.
    pub at: Stamp,
    /// The op that put or purged it.
    pub origin: Origin,
    /// True for a purge.
    pub is_purged: bool,
    /// Bytes of its content.
    pub bytes: u64,
    /// A hash of all that is known of it: equal where equal things are known.
    pub print: u128,
}

/// The beginning of a journal: the row of table `J` before all outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHead {
    /// The op that forgot last.
    pub op: OpId,
    /// The last outcome that is forgotten.
    pub forgotten: OpSeq,
}

impl JournalRow {
    /// The value of its row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`JournalRow::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(JOURNAL, bytes)
    }
}

impl JournalHead {
    /// The value of its row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`JournalHead::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(JOURNAL, bytes)
    }
}

impl Passed {
    /// The value of its row, a row of table `R`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`Passed::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(TOKEN, bytes)
    }
}
