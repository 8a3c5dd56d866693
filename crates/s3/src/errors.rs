//! Errors as S3 answers them: the one place where [`ObjectError`] gets a code and a status.

pub(crate) mod elements;

use http::StatusCode;
use larder_objects::{BodyError, ObjectError};
use larder_types::limits::PART_BYTES_MIN;
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
        ObjectError::InvalidPart { number } => {
            // The spaces are S3's.
            let message = "One or more of the specified parts could not be found.  The part may not have been \
                           uploaded, or the specified entity tag may not match the part's entity tag.";
            let part = [("PartNumber", number.to_string())];
            elements::with(error(S3ErrorCode::InvalidPart, message), part)
        }
        ObjectError::InvalidPartOrder => error(
            S3ErrorCode::InvalidPartOrder,
            "The list of parts was not in ascending order. Parts must be ordered by part number.",
        ),
        ObjectError::PartTooSmall { number, bytes } => {
            let message = "Your proposed upload is smaller than the minimum allowed size";
            let part = [
                ("ProposedSize", bytes.to_string()),
                ("MinSizeAllowed", PART_BYTES_MIN.to_string()),
                ("PartNumber", number.to_string()),
            ];
            elements::with(error(S3ErrorCode::EntityTooSmall, message), part)
        }
        ObjectError::TooLarge { .. } => error(S3ErrorCode::EntityTooLarge, message),
        ObjectError::WriteOffset { .. } => {
            custom("InvalidWriteOffset", StatusCode::BAD_REQUEST, message)
        }
        ObjectError::TooManyPieces => custom("TooManyParts", StatusCode::BAD_REQUEST, message),
        ObjectError::AppendAttributes | ObjectError::EmptyAppend => {
            error(S3ErrorCode::InvalidRequest, message)
        }
        ObjectError::Unsupported { .. } => error(S3ErrorCode::NotImplemented, message),
        ObjectError::PreconditionFailed => precondition_failed(None),
        ObjectError::Body(body) => from_body(body),
        ObjectError::Changed => error(S3ErrorCode::OperationAborted, message),
        ObjectError::SlowDown => slow_down(),
        ObjectError::Full => {
            custom("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, message)
        }
        ObjectError::Unavailable { .. } => error(S3ErrorCode::ServiceUnavailable, message),
        ObjectError::Damaged | ObjectError::IndexDamaged => {
            error(S3ErrorCode::InternalError, message)
        }
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
            "The Content-MD5 you specified did not match what we received.",
        ),
        BodyError::BadChecksum(algorithm) => error(
            S3ErrorCode::BadDigest,
            format!("The {algorithm} you specified did not match the calculated checksum."),
        ),
        BodyError::Malformed(_) => error(S3ErrorCode::InvalidRequest, message),
    }
}

/// A form lacks a field, most often because it stands behind the file.
pub(crate) fn missing_field(name: &'static str) -> S3Error {
    // The spaces are S3's.
    let message = format!(
        "Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the fields."
    );
    let missing = error(S3ErrorCode::InvalidArgument, message);
    elements::with(missing, [("ArgumentName", name.to_owned())])
}

/// A condition does not hold: the one of this header, if it is known.
pub(crate) fn precondition_failed(condition: Option<&'static str>) -> S3Error {
    let message = "At least one of the pre-conditions you specified did not hold";
    let failed = error(S3ErrorCode::PreconditionFailed, message);
    elements::with(failed, condition.map(|header| ("Condition", header.to_owned())))
}

/// A body is not the one whose hash was signed. Both hashes are in hexadecimal digits.
pub(crate) fn payload_mismatch(signed: &str, computed: &str) -> S3Error {
    let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
    let mismatch = custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, message.to_owned());
    let hashes = [
        ("ClientComputedContentSHA256", signed.to_owned()),
        ("S3ComputedContentSHA256", computed.to_owned()),
    ];
    elements::with(mismatch, hashes)
}

/// A body's MD5 is not the one given.
pub(crate) fn bad_md5(given: &[u8; 16], computed: &[u8; 16]) -> S3Error {
    let text = |md5: &[u8; 16]| base64_simd::STANDARD.encode_to_string(md5);
    let digests = [("ExpectedDigest", text(given)), ("CalculatedDigest", text(computed))];
    elements::with(from_body(BodyError::BadDigest), digests)
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
            (ObjectError::IndexDamaged, 500),
            (ObjectError::PartTooSmall { number: 1, bytes: 1 }, 400),
            (ObjectError::Body(BodyError::BadDigest), 400),
        ] {
            assert_eq!(from_store(refused).status_code().unwrap(), status);
        }
    }
}
