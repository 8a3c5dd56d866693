//! Reasons for which calls are refused.

use serde::{Deserialize, Serialize};

use super::append::AppendRefusal;

/// The reason for which a call was refused, sorted by what the caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Ask another server, or later: this is not the PG's primary, or its view is not active.
    NotPrimary,
    /// Fetch the bucket's record and retry, or give up if the bucket was deleted.
    StaleBucket,
    /// Give up: the condition does not hold.
    PreconditionFailed,
    /// Give up: there is no such object.
    NoSuchKey,
    /// Give up: there is no such upload.
    NoSuchUpload,
    /// Give up: the part is not what the proxy saw, or is not there.
    InvalidPart(u16),
    /// Give up: a chunk of the stream is missing.
    StreamIncomplete,
    /// Give up: the request is finished or its session closed.
    Finished,
    /// Give up: the put did not become durable and never will.
    Revoked,
    /// Slow down and retry.
    Busy,
    /// No space for new data.
    Full,
    /// The disks that had the space failed.
    DiskFailed,
    /// The index cannot be read.
    IndexDamaged,
    /// Wait for servers to come back: no volume within reach has as many replicas as the put needs.
    TooFewCopies,
    /// Give up: what only an append is refused for.
    Append(AppendRefusal),
    /// Wait for servers to come back: a put of the same row has had no outcome for long.
    InDoubt,
    /// Give up: what is here of what another region tells is the same, or newer.
    Beaten,
    /// Form regions first: this store has no number among regions.
    NoRegion,
    /// Give up: a member of an earlier release takes no append in a store among regions. This one never refuses so.
    InRegion,
}
