//! Calls of proxies about pieces to coalesce, and the answers to them (ADR 65).

use std::ops::Range;

use larder_types::{BucketId, Epoch, ObjectKey, PiecesId, Request};
use serde::{Deserialize, Serialize};

use super::put::Content;

/// Find pieces of the key's null version that are worth to be coalesced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceRequest {
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: ObjectKey,
    /// Byte of the object at which to begin to look.
    pub from: u64,
}

/// The answer to a [`CoalesceRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalescePlan {
    /// The version, by the name of its pieces.
    pub pieces: PiecesId,
    /// Pieces to be coalesced: bytes of the object, from the beginning of the first to the end of the last. `None` if none of
    /// those looked at are worth it.
    pub window: Option<Range<u64>>,
    /// Nothing before this byte is worth it: the next look is to begin there.
    pub settled: u64,
    /// There are pieces behind those looked at.
    pub goes_on: bool,
    /// There are, and they are to stay for now: repeats may ask for them, other regions may lack them, or they are being
    /// coalesced.
    pub is_held: bool,
}

/// Make adjacent pieces of the key's null version one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceCall {
    /// The request.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Epoch of the bucket's record as the proxy knows it.
    pub epoch: Epoch,
    /// Key.
    pub key: ObjectKey,
    /// The version, by the name of its pieces.
    pub pieces: PiecesId,
    /// Bytes of the object, from the beginning of the first piece to the end of the last.
    pub window: Range<u64>,
    /// These bytes: inline, or the committed chunk of a stream.
    pub content: Content,
}
