//! The outcome of a change that a bucket's home decided for another region, and the response with it.

use larder_link::{ChangeAnswer, UploadAnswer, UploadRefusal};
use larder_objects::{AppendDone, BodyError, ObjectError, PutDone};
use larder_protocol::AppendRefusal;
use larder_types::{Appended, HybridClock};

use super::refused::append_refused;
use super::unavailable;

pub(super) const OTHER_ANSWER: &str = "the home of the bucket answers unsoundly";

/// A change that the home of a bucket has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeChange {
    /// A put, with its clock.
    Put(HybridClock),
    /// An append.
    Appended(AppendDone),
    /// A delete, tags, or the end of an upload.
    Changed,
    /// Another step of an upload in parts.
    Uploaded(UploadAnswer),
}

/// The answer of a region, or of the gateway, to a change that ended so.
pub(crate) fn answer_of(made: Result<HomeChange, ObjectError>) -> ChangeAnswer {
    match made {
        Ok(HomeChange::Put(clock)) => ChangeAnswer::Made(Some(clock)),
        Ok(HomeChange::Changed) => ChangeAnswer::Made(None),
        Ok(HomeChange::Uploaded(answer)) => ChangeAnswer::Upload(answer),
        Ok(HomeChange::Appended(AppendDone { offset, object })) => {
            let PutDone { etag, checksum, clock, size } = object;
            ChangeAnswer::Appended(Appended { offset, size, etag, checksum }, clock)
        }
        Err(ObjectError::WriteOffset { size }) => {
            ChangeAnswer::AppendRefused(AppendRefusal::Offset { size })
        }
        Err(ObjectError::TooManyPieces) => {
            ChangeAnswer::AppendRefused(AppendRefusal::TooManyPieces)
        }
        Err(ObjectError::AppendAttributes) => {
            ChangeAnswer::AppendRefused(AppendRefusal::Attributes)
        }
        Err(ObjectError::TooLarge { .. }) => ChangeAnswer::AppendRefused(AppendRefusal::TooLarge),
        Err(ObjectError::PreconditionFailed) => ChangeAnswer::ConditionFailed,
        Err(ObjectError::NoSuchKey) => ChangeAnswer::NoSuchKey,
        Err(ObjectError::NoSuchBucket) => ChangeAnswer::NoSuchBucket,
        Err(ObjectError::Full) => ChangeAnswer::Full,
        Err(ObjectError::SlowDown) => ChangeAnswer::SlowDown,
        Err(error) => {
            upload_refusal(&error).unwrap_or_else(|| ChangeAnswer::Unavailable(error.into_reason()))
        }
    }
}

/// The end of a change that was answered so.
pub(crate) fn made_of(answer: ChangeAnswer) -> Result<HomeChange, ObjectError> {
    match answer {
        ChangeAnswer::Made(clock) => Ok(clock.map_or(HomeChange::Changed, HomeChange::Put)),
        ChangeAnswer::Appended(Appended { offset, size, etag, checksum }, clock) => {
            Ok(HomeChange::Appended(AppendDone {
                offset,
                object: PutDone { etag, checksum, clock, size },
            }))
        }
        ChangeAnswer::Upload(UploadAnswer::Refused(refusal)) => Err(upload_refused(refusal)),
        ChangeAnswer::Upload(answer) => Ok(HomeChange::Uploaded(answer)),
        ChangeAnswer::AppendRefused(refusal) => Err(append_refused(refusal)),
        ChangeAnswer::ConditionFailed => Err(ObjectError::PreconditionFailed),
        ChangeAnswer::NoSuchKey => Err(ObjectError::NoSuchKey),
        ChangeAnswer::NoSuchBucket => Err(ObjectError::NoSuchBucket),
        ChangeAnswer::Full => Err(ObjectError::Full),
        ChangeAnswer::SlowDown => Err(ObjectError::SlowDown),
        ChangeAnswer::Unavailable(reason) => Err(ObjectError::Unavailable { reason }),
        ChangeAnswer::NotHome(_) => {
            Err(unavailable("it says that the home has moved, or is moving: try again"))
        }
    }
}

/// The answer to a step of an upload that is refused for this.
fn upload_refusal(error: &ObjectError) -> Option<ChangeAnswer> {
    let refusal = match error {
        ObjectError::NoSuchUpload => UploadRefusal::NoSuchUpload,
        ObjectError::InvalidPart { number } => UploadRefusal::Part { number: *number },
        ObjectError::InvalidPartOrder => UploadRefusal::Order,
        ObjectError::PartTooSmall { number, bytes } => {
            UploadRefusal::TooSmall { number: *number, bytes: *bytes }
        }
        ObjectError::Body(BodyError::Incomplete) => UploadRefusal::Size,
        ObjectError::Body(BodyError::BadChecksum(_)) => UploadRefusal::Checksum,
        _ => return None,
    };
    Some(ChangeAnswer::Upload(UploadAnswer::Refused(refusal)))
}

/// The error of a step that was refused so.
fn upload_refused(refusal: UploadRefusal) -> ObjectError {
    match refusal {
        UploadRefusal::NoSuchUpload => ObjectError::NoSuchUpload,
        UploadRefusal::Part { number } => ObjectError::InvalidPart { number },
        UploadRefusal::Order => ObjectError::InvalidPartOrder,
        UploadRefusal::TooSmall { number, bytes } => ObjectError::PartTooSmall { number, bytes },
        UploadRefusal::Size => BodyError::Incomplete.into(),
        UploadRefusal::Checksum => BodyError::BadChecksum("checksum of the whole object").into(),
    }
}
