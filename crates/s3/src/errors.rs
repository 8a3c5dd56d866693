//! Errors as S3 answers them: the one place where [`ObjectError`] gets a code and a status.

use http::StatusCode;
use larder_objects::{BodyError, ObjectError};
use s3s::{S3Error, S3ErrorCode};

/// An error with a code and a message.
pub(crate) fn error(
    code: S3ErrorCode,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> S3Error {
    S3Error::with_message(code, message)
}

/// An error whose code the library's types do not have.
pub(crate) fn custom(code: &'static str, status: StatusCode, message: String) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// The server is at its limit.
pub(crate) fn slow_down() -> S3Error {
    error(S3ErrorCode::SlowDown, "Please reduce your request rate.")
}

/// A request asks for what Larder does not have.
pub(crate) fn not_implemented(what: &str) -> S3Error {
    error(S3ErrorCode::NotImplemented, format!("{what} is not implemented."))
}

/// The answer of S3 to a refusal by the store.
pub(crate) fn from_store(refused: ObjectError) -> S3Error {
    let message = refused.to_string();
    match refused {
        ObjectError::NoSuchBucket => {
            error(S3ErrorCode::NoSuchBucket, "The specified bucket does not exist")
        }
        ObjectError::BucketExists => error(
            S3ErrorCode::BucketAlreadyOwnedByYou,
            "Your previous request to create the named bucket succeeded and you already own it.",
        ),
        ObjectError::BucketNotEmpty => {
            error(S3ErrorCode::BucketNotEmpty, "The bucket you tried to delete is not empty")
        }
        ObjectError::HasHome => custom("InvalidBucketState", StatusCode::CONFLICT, message),
        ObjectError::TooMuchCors => error(S3ErrorCode::InvalidRequest, message),
        ObjectError::TooManyBuckets => error(S3ErrorCode::TooManyBuckets, message),
        ObjectError::NoSuchKey => {
            error(S3ErrorCode::NoSuchKey, "The specified key does not exist.")
        }
        ObjectError::NoSuchUpload => error(
            S3ErrorCode::NoSuchUpload,
            "The specified upload does not exist. The upload ID may be invalid, or the upload may \
             have been aborted or completed.",
        ),
        ObjectError::InvalidPart { .. } => error(S3ErrorCode::InvalidPart, message),
        ObjectError::InvalidPartOrder => error(S3ErrorCode::InvalidPartOrder, message),
        ObjectError::PartTooSmall { .. } => error(S3ErrorCode::EntityTooSmall, message),
        ObjectError::TooLarge { .. } => error(S3ErrorCode::EntityTooLarge, message),
        ObjectError::WriteOffset { .. } => {
            custom("InvalidWriteOffset", StatusCode::BAD_REQUEST, message)
        }
        ObjectError::TooManyPieces => custom("TooManyParts", StatusCode::BAD_REQUEST, message),
        ObjectError::AppendAttributes | ObjectError::EmptyAppend => {
            error(S3ErrorCode::InvalidRequest, message)
        }
        ObjectError::Unsupported { .. } => error(S3ErrorCode::NotImplemented, message),
        ObjectError::PreconditionFailed => error(
            S3ErrorCode::PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold",
        ),
        ObjectError::Body(body) => from_body(body),
        ObjectError::Changed => error(S3ErrorCode::OperationAborted, message),
        ObjectError::SlowDown => slow_down(),
        ObjectError::Full => {
            custom("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, message)
        }
        ObjectError::Unavailable { .. } => error(S3ErrorCode::ServiceUnavailable, message),
        ObjectError::Damaged => error(S3ErrorCode::InternalError, message),
    }
}

/// The answer of S3 to a body that is not as announced.
pub(crate) fn from_body(refused: BodyError) -> S3Error {
    let message = refused.to_string();
    match refused {
        BodyError::Incomplete => error(
            S3ErrorCode::IncompleteBody,
            "You did not provide the number of bytes specified by the Content-Length HTTP header",
        ),
        BodyError::BadDigest => error(
            S3ErrorCode::BadDigest,
            "The Content-MD5 or checksum you specified did not match what we received.",
        ),
        BodyError::BadChecksum(_) => error(S3ErrorCode::BadDigest, message),
        BodyError::Malformed(_) => error(S3ErrorCode::InvalidRequest, message),
    }
}

/// A body is not the one whose hash was signed.
pub(crate) fn payload_mismatch() -> S3Error {
    let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
    custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_errors_have_the_status_that_tells_clients_what_to_do() {
        for (refused, status) in [
            (ObjectError::NoSuchKey, 404),
            (ObjectError::BucketExists, 409),
            (ObjectError::PreconditionFailed, 412),
            (ObjectError::Full, 507),
            (ObjectError::SlowDown, 503),
            (ObjectError::Unavailable { reason: "x".into() }, 503),
            (ObjectError::Damaged, 500),
            (ObjectError::PartTooSmall { number: 1, bytes: 1 }, 400),
            (ObjectError::Body(BodyError::BadDigest), 400),
        ] {
            assert_eq!(from_store(refused).status_code().unwrap(), status);
        }
    }
}
