//! Version 4 of the messages between workers: calls of `larder-net`, which `docs/formats/workers.md` gives byte by
//! byte. The enums grow by variants at their ends. Earlier versions were HTTP and are not supported.

use bytes::Bytes;
use larder_identity::Role;
use larder_net::Service;
use larder_types::{HybridClock, OpSeq};
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::format::rows::BlobRow;
use crate::ids::{ProcessId, WorkerId};
use crate::limits::FEED_BYTES_MAX;

/// Header of an answer to what was handed on: the clock of the last change that the worker had made by then.
pub(crate) const CLOCK: &str = "x-larder-clock";

/// The service of a worker to the others.
pub(crate) struct WorkerService;

impl Service for WorkerService {
    const ROLE: Role = Role::Worker;
    type Request = FeedRequest;
    type Answer = FeedReply;
    type Message = Message;
}

/// Workers send no messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {}

/// From where on a worker's changes are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FeedPosition {
    pub(crate) blob: u64,
    /// Bytes of the blob's entries that are known.
    pub(crate) from: u64,
    /// Number and clock of the entry that ends there. No two processes give both alike: one that has the entry too has
    /// told all before it.
    pub(crate) last: Option<(OpSeq, HybridClock)>,
}

/// A call to the worker with a claim. One with another claim does not answer in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FeedRequest {
    /// Changes. If there are none, the answer waits for some.
    Changes { worker: WorkerId, asked: FeedPosition },
    /// Bytes of the bodies in a blob that waits, or in one of its bundles.
    Body { worker: WorkerId, blob: u64, unit: u8, from: u64, to: u64 },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FeedReply {
    /// Entries of a blob that waits, from this byte on, at most as many as one answer has. They are the payload.
    Entries {
        blob: u64,
        from: u64,
        /// True if these are the last of it.
        is_whole: bool,
        /// Bytes of entries behind these that wait, in this blob and later ones.
        behind: u64,
    },
    /// The blob is in the bucket.
    Uploaded { blob: u64, row: BlobRow },
    /// There is nothing to tell of it.
    Nothing { blob: u64 },
    /// The bytes of bodies that were asked for. They are the payload.
    Body,
    /// The bundle is in the bucket, uploaded by this process.
    BundleUploaded(ProcessId),
    /// It tells nothing.
    Refused(Refusal),
}

/// The reason for which a worker tells nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    /// Look in the bucket: another process has the claim's place, or this one never had it.
    #[error("it does not answer for that claim")]
    OtherClaim,
    /// Learn of that blob from the bucket.
    #[error(
        "another process, on a copy of its directory, announced the changes that were received"
    )]
    Diverged,
    /// There is no such blob or bundle.
    #[error("it has no such blob or bundle")]
    Absent,
    /// Ask for less, or for what there is.
    #[error("there are no such bytes")]
    Range,
    /// Its own disk or index failed.
    #[error("it cannot read that")]
    Failed,
}

/// An answer about changes as it was heard of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeedUpdate {
    Entries { blob: u64, from: u64, bytes: Bytes, is_whole: bool },
    Uploaded { blob: u64, row: BlobRow },
    Nothing { blob: u64 },
}

impl FeedUpdate {
    pub(crate) fn blob(&self) -> u64 {
        match self {
            Self::Entries { blob, .. } | Self::Uploaded { blob, .. } | Self::Nothing { blob } => {
                *blob
            }
        }
    }

    /// Reads an answer about changes; and how many bytes wait behind it.
    ///
    /// # Errors
    /// [`PackError::Deferred`] if it tells nothing, [`PackError::Damaged`] if it is none.
    pub(crate) fn read(reported: FeedReply, payload: Bytes) -> Result<(Self, u64), PackError> {
        let damaged = |reason| PackError::damaged("a worker's answer", reason);
        match reported {
            FeedReply::Entries { .. } if payload.len() > FEED_BYTES_MAX => {
                Err(damaged("it has more entries than an answer may"))
            }
            FeedReply::Entries { blob, from, is_whole, behind } => {
                Ok((Self::Entries { blob, from, bytes: payload, is_whole }, behind))
            }
            FeedReply::Uploaded { blob, row } => Ok((Self::Uploaded { blob, row }, 0)),
            FeedReply::Nothing { blob } => Ok((Self::Nothing { blob }, 0)),
            FeedReply::Refused(why) => Err(PackError::Deferred { reason: why.to_string() }),
            FeedReply::Body | FeedReply::BundleUploaded(_) => {
                Err(damaged("it is not about changes"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_about_changes_is_heard_as_one() {
        let reported = FeedReply::Entries { blob: 7, from: 300, is_whole: true, behind: 5 };
        let bytes = Bytes::from_static(&[1, 2, 3]);
        let received =
            FeedUpdate::Entries { blob: 7, from: 300, bytes: bytes.clone(), is_whole: true };
        assert_eq!(FeedUpdate::read(reported.clone(), bytes).unwrap(), (received, 5));
        let long = Bytes::from(vec![0; FEED_BYTES_MAX + 1]);
        assert!(matches!(FeedUpdate::read(reported, long), Err(PackError::Damaged { .. })));
        let refused = FeedUpdate::read(FeedReply::Refused(Refusal::Diverged), Bytes::new());
        assert!(matches!(refused, Err(PackError::Deferred { .. })), "{refused:?}");
        let other = FeedUpdate::read(FeedReply::Body, Bytes::new());
        assert!(matches!(other, Err(PackError::Damaged { .. })), "{other:?}");
    }
}
