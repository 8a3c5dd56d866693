//! A put as a proxy requests it: the description of an object, and the bytes that it stores.

use bytes::Bytes;
use larder_types::{
    Attributes, BucketId, Condition, ETag, Epoch, ObjectChecksum, ObjectKey, Request, StreamId,
    Target,
};
use serde::{Deserialize, Serialize};

/// The bytes that a put is going to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// The bytes themselves, at most `INLINE_BYTES_MAX`.
    Inline(Bytes),
    /// Bytes to be written to data servers once space is granted.
    Data {
        /// Number of bytes; at most `CHUNK_BYTES_MAX`.
        len: u32,
        /// Seed of the sums.
        seed: u64,
        /// A checksum per 64 KiB.
        sums: Vec<u64>,
    },
    /// The committed chunks of a stream, all of them.
    Stream {
        /// The stream.
        stream: StreamId,
        /// Number of chunks.
        chunks: u32,
        /// Bytes of each but the last.
        chunk_bytes: u32,
    },
}

/// The description of an object, before its primary has given it a clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Bytes.
    pub size: u64,
    /// Entity tag.
    pub etag: ETag,
    /// S3 checksum.
    pub checksum: Option<ObjectChecksum>,
    /// Headers, user metadata, tags.
    pub attributes: Attributes,
}

/// `Prepare` of a put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutCall {
    /// The request of the client that puts it.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Epoch of the bucket's record as the proxy knows it.
    pub epoch: Epoch,
    /// Key.
    pub key: ObjectKey,
    /// The thing that it becomes.
    pub target: Target,
    /// The description of the object.
    pub description: Description,
    /// The bytes that it holds.
    pub content: Content,
    /// The condition on the key.
    pub condition: Condition,
    /// The number of replicas that must have the data before the client is answered; 0: all of the volume.
    pub required_copies: u8,
}
