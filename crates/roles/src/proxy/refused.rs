//! Translates refusals of primaries into errors for the gateway.

use larder_objects::ObjectError;
use larder_protocol::{AppendRefusal, Refusal};
use larder_types::limits::OBJECT_BYTES_MAX;

use super::unavailable;

/// A server of the release before refuses these.
const IN_REGION: &str = "appends in a region by servers of an earlier release: upgrade all";

/// The error that a refusal means to a gateway.
pub(super) fn refused(refusal: Refusal) -> ObjectError {
    match refusal {
        Refusal::StaleBucket => ObjectError::NoSuchBucket,
        Refusal::PreconditionFailed | Refusal::Beaten => ObjectError::PreconditionFailed,
        Refusal::NoRegion => unavailable("this store is in no region: form one first"),
        Refusal::InRegion => ObjectError::Unsupported { what: IN_REGION },
        Refusal::NoSuchKey => ObjectError::NoSuchKey,
        Refusal::NoSuchUpload => ObjectError::NoSuchUpload,
        Refusal::InvalidPart(number) => ObjectError::InvalidPart { number },
        Refusal::Busy => ObjectError::SlowDown,
        Refusal::Full => ObjectError::Full,
        Refusal::NotPrimary => unavailable("the key's placement group has no primary"),
        Refusal::StreamIncomplete => unavailable("a chunk of the object was not stored"),
        Refusal::Finished | Refusal::Revoked => unavailable("the put was revoked"),
        Refusal::TooFewCopies => {
            unavailable("fewer data servers are within reach than the bucket's puts need")
        }
        Refusal::InDoubt => unavailable(
            "what became of a put of the key is not known yet: if that lasts, `larder status` names what it waits for",
        ),
        Refusal::DiskFailed => unavailable("the data disk failed: replace it"),
        Refusal::IndexDamaged => unavailable("the key's placement group has stopped: see the log"),
        Refusal::Append(refusal) => append_refused(refusal),
    }
}

pub(super) fn append_refused(refusal: AppendRefusal) -> ObjectError {
    match refusal {
        AppendRefusal::Offset { size } => ObjectError::WriteOffset { size },
        AppendRefusal::TooManyPieces => ObjectError::TooManyPieces,
        AppendRefusal::TooLarge => {
            ObjectError::TooLarge { what: "the object", limit_bytes: OBJECT_BYTES_MAX }
        }
        AppendRefusal::Attributes => ObjectError::AppendAttributes,
        AppendRefusal::PlaceForgotten => {
            unavailable("the append was done, and its object was replaced or deleted since")
        }
    }
}
