//! Calls of proxies about appends, and the answers to them.

use larder_types::{Appended, BucketId, Condition, Epoch, HybridClock, ObjectKey, OpId, Request};
use serde::{Deserialize, Serialize};

use super::put::{Content, Description};

/// Append bytes to the key's null version, or make it of them if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendCall {
    /// The request of the appending client.
    pub request: Request,
    /// Bucket.
    pub bucket: BucketId,
    /// Epoch of the bucket's record as the proxy knows it.
    pub epoch: Epoch,
    /// Key.
    pub key: ObjectKey,
    /// Where the bytes must begin; `None` if they may begin wherever the version ends.
    pub offset: Option<u64>,
    /// The appended bytes: their size, digests, and the attributes of a version that they make.
    pub description: Description,
    /// Its bytes: inline, or the committed chunks of a stream.
    pub content: Content,
    /// The condition on the key.
    pub condition: Condition,
}

/// An append is in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendDone {
    /// The op.
    pub op: OpId,
    /// Its clock.
    pub clock: HybridClock,
    /// The version that it made.
    pub made: Appended,
}

/// The reasons for which an append is refused, besides those for which any call is: all of them mean to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendRefusal {
    /// The object does not end where the bytes were to begin. An object that is not there has no bytes.
    Offset {
        /// Its size.
        size: u64,
    },
    /// The object has as many pieces as it may.
    TooManyPieces,
    /// The object would be too large.
    TooLarge,
    /// User metadata or tags came with an append to an object that is there.
    Attributes,
    /// It was done before, and the object is gone since, and with it the knowledge where.
    PlaceForgotten,
}
