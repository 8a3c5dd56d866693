//! METAX: everything known about one put. Written atomically, as part of one op.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::checksum::BlockSums;
use crate::ids::{Grant, LvId, OpId, PiecesId, RegionId, StreamId, UploadId};
use crate::limits::BLOCK_BYTES;
use crate::name::ObjectKey;

/// A run of blocks inside an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extent {
    /// First block.
    pub first: u32,
    /// Number of blocks; never 0.
    pub blocks: u32,
}

impl Extent {
    /// The block after the last.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.first + self.blocks
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(BLOCK_BYTES)
    }
}

/// Milliseconds since 1970 in the upper 48 bits, a counter in the lower 16: grows with every version
/// of a PG, whatever the machine's clock does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct HybridClock(pub u64);

impl HybridClock {
    /// The first clock of a millisecond.
    #[must_use]
    pub fn at_ms(ms: u64) -> Self {
        Self(ms << 16)
    }

    /// Its milliseconds since 1970.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.0 >> 16
    }

    /// The clock of a new version: that of `now_ms`, or just above this one if time stood still.
    #[must_use]
    pub fn advance(self, now_ms: u64) -> Self {
        Self::at_ms(now_ms).max(Self(self.0 + 1))
    }
}

/// An S3 entity tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ETag {
    /// MD5 of the content.
    Md5([u8; 16]),
    /// MD5 of the parts' MD5s, and the number of parts.
    Parts([u8; 16], u32),
}

impl ETag {
    /// As S3 shows it, without quotes.
    #[must_use]
    pub fn text(&self) -> String {
        use std::fmt::Write;
        let (ETag::Md5(digest) | ETag::Parts(digest, _)) = self;
        let mut text = String::with_capacity(38);
        // One number: a list writes thousands of digests.
        let _ = write!(text, "{:032x}", u128::from_be_bytes(*digest));
        if let ETag::Parts(_, parts) = self {
            let _ = write!(text, "-{parts}");
        }
        text
    }
}

/// Replicas of an LV, by index, as a set.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, PartialOrd, Ord, Hash,
)]
pub struct Holders(pub u16);

impl Holders {
    /// The set with replica `index` added.
    #[must_use]
    pub fn with(self, index: usize) -> Self {
        Self(self.0 | 1 << index)
    }

    /// Those of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of both sets.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in the other set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if replica `index` is in it.
    #[must_use]
    pub fn has(self, index: usize) -> bool {
        // There are sixteen; a number from a peer may be any.
        index < 16 && self.0 >> index & 1 == 1
    }

    /// Returns the number of replicas in it.
    #[must_use]
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Indices in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |index| self.has(*index))
    }
}

/// Up to 8 MiB of data under one grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The grant under which it was written.
    pub grant: Grant,
    /// Seed of its checksums, from the request ([`crate::checksum::seed_of`]).
    pub seed: u64,
    /// Where.
    pub lv: LvId,
    /// Runs of blocks, in the order of the data. The last block is padded with zeros.
    pub extents: Vec<Extent>,
    /// Bytes of data.
    pub len: u32,
    /// A checksum per 64 KiB begun.
    pub sums: BlockSums,
    /// Replicas known to have it; in the op of a put, those that are to be given it.
    pub holders: Holders,
}

/// One part named by a completed multipart upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRef {
    /// The client's part number.
    pub number: u16,
    /// Bytes of the part.
    pub len: u64,
}

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// In METAX itself.
    Inline(Bytes),
    /// One chunk.
    Chunk(Chunk),
    /// `chunks` rows of a stream; all but the last are `chunk_bytes` long.
    Stream {
        /// The rows' stream.
        stream: StreamId,
        /// Number of rows.
        chunks: u32,
        /// Bytes of every row but the last.
        chunk_bytes: u32,
    },
    /// The parts of a completed upload, whose rows stay where they are.
    Parts {
        /// The rows' upload.
        upload: UploadId,
        /// Parts in ascending order of number.
        parts: Vec<PartRef>,
    },
    /// Bytes that appends made: pieces that follow each other.
    Pieces {
        /// The rows' pieces.
        pieces: PiecesId,
        /// Number of rows.
        rows: u32,
    },
}

/// S3's checksum algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumAlgorithm {
    /// CRC-32.
    Crc32,
    /// CRC-32C.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

/// The bytes that a checksum of several parts covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// All bytes.
    FullObject,
    /// The parts' checksums.
    Composite,
}

/// An S3 checksum, stored beside Larder's own and returned when asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChecksum {
    /// Algorithm.
    pub algorithm: ChecksumAlgorithm,
    /// The bytes that it covers.
    pub kind: ChecksumKind,
    /// The value, big-endian as S3 encodes it before base64.
    pub value: Vec<u8>,
    /// For a composite one, the number of parts.
    pub parts: Option<u32>,
}

/// The client's description of an object: headers, user metadata, tags. Values are kept as sent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Content-Encoding`, without `aws-chunked`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Expires`.
    pub expires: Option<String>,
    /// `x-amz-website-redirect-location`.
    pub website_redirect: Option<String>,
    /// `x-amz-storage-class`.
    pub storage_class: Option<String>,
    /// `x-amz-meta-*`, names in lower case without the prefix, in the order sent.
    pub user: Vec<(String, String)>,
    /// Tags.
    pub tags: Vec<(String, String)>,
}

/// The encryption of a body's bytes. No release writes it yet; version 1 has room for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionEnvelope {
    /// Names the key that wraps the data key.
    pub key_name: String,
    /// The wrapped data key.
    pub wrapped_key: Vec<u8>,
    /// Cipher and framing, by number.
    pub scheme: u8,
}

/// Object lock. No release writes it yet; version 1 has room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Milliseconds since 1970 until which the version is kept.
    pub until_ms: u64,
    /// True if root may shorten it (governance), false if nobody may (compliance).
    pub governance: bool,
    /// Legal hold.
    pub legal_hold: bool,
}

/// The description of an object: everything but the place of its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metax {
    /// Bytes of the object.
    pub size: u64,
    /// Given by the primary: grows within the PG.
    pub clock: HybridClock,
    /// Region that took the put.
    pub region: RegionId,
    /// Entity tag.
    pub etag: ETag,
    /// S3 checksum that the client sent or asked for.
    pub checksum: Option<ObjectChecksum>,
    /// Headers, user metadata and tags.
    pub attributes: Attributes,
    /// Milliseconds since 1970 at which it expires.
    pub expires_ms: Option<u64>,
    /// Encryption of the body.
    pub encryption: Option<EncryptionEnvelope>,
    /// Object lock.
    pub retention: Option<Retention>,
}

impl Metax {
    /// The description of an object that was put in this region, and of which nothing else is said.
    #[must_use]
    pub fn new(size: u64, clock: HybridClock, etag: ETag) -> Self {
        Self {
            size,
            clock,
            region: RegionId::OWN,
            etag,
            checksum: None,
            attributes: Attributes::default(),
            expires_ms: None,
            encryption: None,
            retention: None,
        }
    }
}

/// A committed version, as the KV keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// The op that put it: the later op wins, whatever the order of the outcomes.
    pub op: OpId,
    /// The description of the object.
    pub metax: Metax,
    /// Where it is.
    pub body: Body,
}

/// A committed part of an open or completed upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRow {
    /// The op that put it; the later one wins.
    pub op: OpId,
    /// Size, etag, checksum and clock of the part; its attributes are empty.
    pub metax: Metax,
    /// Where it is.
    pub body: Body,
}

/// An open multipart upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadRow {
    /// Its id.
    pub upload: UploadId,
    /// The object it will become.
    pub key: ObjectKey,
    /// The time at which it was created.
    pub clock: HybridClock,
    /// Attributes of the object to be.
    pub attributes: Attributes,
    /// Checksum algorithm and kind chosen at creation.
    pub checksum: Option<(ChecksumAlgorithm, ChecksumKind)>,
}

/// With which snapshot a PG's rows came to this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRow {
    /// The op that the snapshot showed last.
    pub at: OpId,
    /// True if all of its rows are there; if not, the PG's rows have no meaning.
    pub is_whole: bool,
}

/// High-water marks of a PG's volumes, as of an applied position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWaterRow {
    /// The applied position with which they were written: beside any other they mean nothing.
    pub op: OpId,
    /// With each volume, in order, the block from which on no row of the PG names any. Of one that is not listed none is
    /// named.
    pub marks: Vec<(LvId, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_stands_still() {
        let clock = HybridClock::at_ms(1000);
        assert_eq!(clock.advance(1001).ms(), 1001);
        assert!(clock.advance(1000) > clock);
        assert!(clock.advance(1) > clock);
        assert_eq!(clock.advance(1).ms(), 1000);
    }

    #[test]
    fn etags_read_as_s3_writes_them() {
        assert_eq!(ETag::Md5([0xab; 16]).text(), "ab".repeat(16));
        assert_eq!(ETag::Parts([0; 16], 12).text(), format!("{}-12", "00".repeat(16)));
    }
}
