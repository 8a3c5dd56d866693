//! Appends: how an object grows by pieces, each a row of its own (ADR 15).
//!
//! # Invariants
//!
//! 1. The pieces of a version follow each other without a gap, from 0 to its size.
//! 2. Bytes of a piece never change: one that reads what was there before an append finds it where it was.
//! 3. Adjacent pieces may become one with the same bytes ([`Coalesce`]), which lies elsewhere. It has the op, the tags and the
//!    stamp of the last of them.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::ids::{BucketId, OpId, PiecesId, Request};
use crate::metax::{Attributes, Body, ETag, HybridClock, Metax, ObjectChecksum, VersionRow};
use crate::name::ObjectKey;

/// The version that an append makes of the key's version, or of nothing. Decided when the op gets its place in the log,
/// so that the order of the log is that of the pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// Where the new bytes begin.
    pub offset: u64,
    /// Bytes of the object with them.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// Its S3 checksum, where it can be known without the bytes.
    pub checksum: Option<ObjectChecksum>,
}

/// An append's METAX. Its bytes are inline, or chunks that are committed before it. So it has no outcome of its own: it
/// is in effect as soon as it is below the commit point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// The request of the appending client.
    pub request: Request,
    /// The key's bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The version that grows; `None` if there is none and it makes one.
    pub onto: Option<OpId>,
    /// The version that it makes.
    pub made: Appended,
    /// Its clock.
    pub clock: HybridClock,
    /// Where its bytes are: inline or a stream.
    pub body: Body,
    /// Attributes of the version, if it makes one.
    pub attributes: Option<Box<Attributes>>,
}

/// Adjacent pieces of a version become one (ADR 65). Without effect unless the version has just these pieces: so many
/// rows, of which the first begins there and the last ends there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalesce {
    /// The request.
    pub request: Request,
    /// The key's bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The version, by the name of its pieces: bytes under one name never change.
    pub pieces: PiecesId,
    /// Where the first of them begins in the object.
    pub start: u64,
    /// Where the last of them ends.
    pub end: u64,
    /// The number of pieces, at least two.
    pub count: u32,
    /// Where their bytes lie from then on: inline or a stream. Without effect it is dropped.
    pub body: Body,
}

/// A piece of an object that was appended to. Its row says where it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRow {
    /// The op that appended it; of the first piece, the op that put the object; of several that became one, that of the last.
    pub op: OpId,
    /// Where it begins in the object.
    pub start: u64,
    /// Where it is.
    pub body: Body,
    /// Entity tag of the object that ends with it.
    pub etag: ETag,
    /// S3 checksum of the object that ends with it.
    pub checksum: Option<ObjectChecksum>,
}

impl PieceRow {
    /// Returns the version that the append that wrote this piece has made. `end` stands in the row's key.
    #[must_use]
    pub fn made(&self, end: u64) -> Appended {
        let (etag, checksum) = (self.etag.clone(), self.checksum.clone());
        Appended { offset: self.start, size: end, etag, checksum }
    }

    /// The piece that a version becomes which had none.
    #[must_use]
    pub fn first(version: VersionRow) -> Self {
        let VersionRow { op, metax: Metax { etag, checksum, .. }, body } = version;
        Self { op, start: 0, body, etag, checksum }
    }
}

impl ETag {
    /// Pieces of which an object with this tag consists, parts of an upload counted each.
    #[must_use]
    pub fn parts(&self) -> u32 {
        match self {
            ETag::Md5(_) => 1,
            ETag::Parts(_, parts) => *parts,
        }
    }

    /// The tag of an object after an append of bytes that have the tag `piece`. It is the MD5 of nothing, as those of
    /// uploads in parts.
    #[must_use]
    pub fn followed_by(&self, piece: &ETag) -> Self {
        let digest = |tag: &ETag| {
            let (ETag::Md5(digest) | ETag::Parts(digest, _)) = tag;
            *digest
        };
        let both = [digest(self), digest(piece)].concat();
        ETag::Parts(xxh3_128(&both).to_be_bytes(), self.parts().saturating_add(1))
    }
}
