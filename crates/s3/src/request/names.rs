//! Names and ids in requests, the addresses of objects, and who owns everything.

use bytes::Bytes;
use http::HeaderMap;
use http::header::HOST;
use larder_types::limits::{KEY_BYTES_MAX, PART_NUMBER_MAX};
use larder_types::{BucketName, ObjectKey};
use s3s::dto::{Initiator, Owner};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::errors::elements::{self, invalid_argument};
use crate::errors::error;
use crate::limits::VERSION_ID_BYTES_MIN;

/// The canonical id of the one user, in the form that S3 gives them: 64 hexadecimal digits.
pub(crate) const OWNER_ID: &str =
    "6c61726465726c61726465726c61726465726c61726465726c6172646572726f";
/// The one user's name.
pub(crate) const OWNER_NAME: &str = "root";

/// The header that says whom a request expects to own its bucket.
pub(crate) const EXPECTED_OWNER: &str = "x-amz-expected-bucket-owner";

/// The one user.
pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER_NAME.to_owned()), id: Some(OWNER_ID.to_owned()) }
}

/// The one user, as who began an upload.
pub(crate) fn initiator() -> Initiator {
    Initiator { display_name: Some(OWNER_NAME.to_owned()), id: Some(OWNER_ID.to_owned()) }
}

/// A bucket's name.
///
/// # Errors
/// `InvalidBucketName` with the rule that is broken.
pub(crate) fn bucket_name(name: &str) -> S3Result<BucketName> {
    BucketName::new(name).map_err(|rule| error(S3ErrorCode::InvalidBucketName, rule.to_string()))
}

/// A request may say whom it expects to own the bucket.
///
/// # Errors
/// `AccessDenied` if that is somebody else.
pub(crate) fn check_owner(expected: Option<&str>) -> S3Result<()> {
    match expected {
        Some(owner) if owner != OWNER_ID => Err(error(S3ErrorCode::AccessDenied, "Access Denied")),
        _ => Ok(()),
    }
}

/// A key.
///
/// # Errors
/// `UserKeyMustBeSpecified` if it is empty, `KeyTooLongError`.
pub(crate) fn key(key: String) -> S3Result<ObjectKey> {
    if key.is_empty() {
        return Err(error(S3ErrorCode::UserKeyMustBeSpecified, "An object's key cannot be empty."));
    }
    let bytes = key.len();
    ObjectKey::try_from(Bytes::from(key)).map_err(|_| key_too_long(bytes))
}

/// A key of so many bytes is refused.
pub(crate) fn key_too_long(bytes: usize) -> S3Error {
    let sizes = [("Size", bytes.to_string()), ("MaxSizeAllowed", KEY_BYTES_MAX.to_string())];
    elements::with(error(S3ErrorCode::KeyTooLongError, "Your key is too long"), sizes)
}

/// A part's number.
///
/// # Errors
/// `InvalidArgument` outside S3's range.
pub(crate) fn part_number(number: Option<u16>) -> S3Result<u16> {
    number.filter(|number| (1..=PART_NUMBER_MAX).contains(number)).ok_or_else(|| {
        error(
            S3ErrorCode::InvalidArgument,
            format!("Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive"),
        )
    })
}

/// Objects of a bucket without versioning have one version, and its id is `null`. The version stands in the parameter or header
/// `argument`.
///
/// # Errors
/// `NoSuchVersion` for an id as stores give them, which a client may bring from another; `InvalidArgument` for anything else.
pub(crate) fn null_version(version: Option<&str>, argument: &str) -> S3Result<()> {
    let message = match version {
        None | Some("null") => return Ok(()),
        Some("") => "Version id cannot be the empty string",
        Some(id) if is_version_id(id) => return Err(no_such_version()),
        Some(_) => "Invalid version id specified",
    };
    Err(invalid_argument(message, argument, version.unwrap_or_default()))
}

/// An object has no such version.
pub(crate) fn no_such_version() -> S3Error {
    error(S3ErrorCode::NoSuchVersion, "The specified version does not exist.")
}

fn is_version_id(id: &str) -> bool {
    let is_of_ids = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    id.len() >= VERSION_ID_BYTES_MIN && id.bytes().all(is_of_ids)
}

/// Where the object can be found: below the host by which the client found us.
pub(crate) fn location(headers: &HeaderMap, bucket: &str, key: &str) -> String {
    let path = key.split('/').map(urlencoding::encode).collect::<Vec<_>>().join("/");
    match headers.get(HOST).and_then(|host| host.to_str().ok()) {
        Some(host) if host.starts_with(&format!("{bucket}.")) => format!("http://{host}/{path}"),
        Some(host) => format!("http://{host}/{bucket}/{path}"),
        None => format!("/{bucket}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_numbers_have_a_range() {
        for number in [None, Some(0), Some(10_001), Some(u16::MAX)] {
            assert!(part_number(number).is_err(), "{number:?}");
        }
        assert_eq!(part_number(Some(10_000)).unwrap(), 10_000);
    }

    #[test]
    fn an_empty_key_is_not_said_to_be_too_long() {
        let code = |name: String| key(name).map_err(|refused| refused.code().clone()).map(drop);
        assert_eq!(code(String::new()), Err(S3ErrorCode::UserKeyMustBeSpecified));
        assert_eq!(code("k".repeat(KEY_BYTES_MAX)), Ok(()));
        assert_eq!(code("k".repeat(KEY_BYTES_MAX + 1)), Err(S3ErrorCode::KeyTooLongError));
    }

    #[test]
    fn what_no_store_gives_as_an_id_is_told_from_a_version_that_is_gone() {
        let code = |id| null_version(Some(id), "versionId").map_err(|it| it.code().clone());
        assert_eq!(code("null"), Ok(()));
        for id in ["3HL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY", "8f0f4a3e-6c1c-4a55-9d5c-2f8f9f0d7b11"] {
            assert_eq!(code(id), Err(S3ErrorCode::NoSuchVersion), "{id}");
        }
        for id in ["", "foo", "NULL", "with a space in it, and long"] {
            assert_eq!(code(id), Err(S3ErrorCode::InvalidArgument), "{id}");
        }
    }

    #[test]
    fn an_object_is_found_where_the_client_found_the_bucket() {
        let mut headers = HeaderMap::new();
        assert_eq!(location(&headers, "b", "k"), "/b/k");
        headers.insert(HOST, "s3.test:9000".parse().unwrap());
        assert_eq!(location(&headers, "b", "a b/k"), "http://s3.test:9000/b/a%20b/k");
        headers.insert(HOST, "b.s3.test".parse().unwrap());
        assert_eq!(location(&headers, "b", "k"), "http://b.s3.test/k");
    }
}
