//! The source of a copy as a header names it: `bucket/key`, percent-encoded, and perhaps a version.

use http::HeaderMap;
use larder_types::{BucketName, ObjectKey};
use s3s::dto::CopySource;
use s3s::{S3Error, S3Result};

use super::address::has_whole_escapes;
use super::names::{self, null_version};
use super::operation::{Operation, S3Operation};
use crate::errors::elements::invalid_argument;
use crate::errors::not_implemented;

/// The header that names the source, and the beginning of those that say more of it.
pub(crate) const COPY_SOURCE: &str = "x-amz-copy-source";

/// Refuses a source of a request that copies nothing. Passed over, a copy that lost its method or a parameter would do
/// something else.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn refuse_of_others(operation: Operation, headers: &HeaderMap) -> S3Result<()> {
    let copies =
        matches!(operation, Operation::S3(S3Operation::CopyObject | S3Operation::UploadPartCopy));
    match headers.get(COPY_SOURCE).filter(|_| !copies) {
        None => Ok(()),
        Some(source) => {
            let source = String::from_utf8_lossy(source.as_bytes());
            let message = "You can only specify a copy source header for copy requests.";
            Err(invalid_argument(message, COPY_SOURCE, &source))
        }
    }
}

/// Reads a source.
///
/// # Errors
/// `InvalidArgument` says what is wrong with it; `NotImplemented` for one that is not in a bucket; as [`null_version`] and
/// [`names::key`].
pub(crate) fn parse(text: &str) -> S3Result<(BucketName, ObjectKey)> {
    let refused =
        |message: &'static str| -> S3Error { invalid_argument(message, COPY_SOURCE, text) };
    let unnamed =
        || refused("Copy Source must mention the source bucket and key: sourcebucket/sourcekey");
    if text.is_empty() {
        return Err(unnamed());
    }
    if !has_whole_escapes(text) || urlencoding::decode(text).is_err() {
        return Err(refused("Invalid copy source encoding"));
    }
    match CopySource::parse(text) {
        Ok(CopySource::Bucket { bucket, key, version_id }) if !key.is_empty() => {
            let bucket =
                BucketName::new(&bucket).map_err(|_| refused("Invalid copy source bucket name"))?;
            null_version(version_id.as_deref(), COPY_SOURCE)?;
            Ok((bucket, names::key(key.into())?))
        }
        Ok(CopySource::Bucket { .. }) => Err(unnamed()),
        Ok(CopySource::AccessPoint { .. } | CopySource::Outpost { .. }) => {
            Err(not_implemented("An access point as copy source"))
        }
        Err(_) => Err(refused(fault(text))),
    }
}

/// The first fault of a source that is none.
fn fault(text: &str) -> &'static str {
    let path = text.strip_prefix('/').unwrap_or(text);
    match path.split_once('/') {
        None => "Invalid copy source object key",
        Some((bucket, _)) if BucketName::new(bucket).is_err() => "Invalid copy source bucket name",
        Some(_) => "Invalid copy source object key",
    }
}

#[cfg(test)]
mod tests {
    use s3s::S3ErrorCode;

    use super::*;

    #[test]
    fn a_source_has_a_bucket_and_a_key() {
        for (text, key) in [
            ("bkt/a%20b", "a b"),
            ("/bkt/a/b", "a/b"),
            ("bkt/k?versionId=null", "k"),
            ("bkt%2Fk", "k"),
        ] {
            let (bucket, found) = parse(text).unwrap();
            assert_eq!((bucket.as_str(), found.as_str()), ("bkt", key), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_source_is_said() {
        for (text, message) in [
            ("", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"),
            ("bkt/", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"),
            ("bkt", "Invalid copy source object key"),
            ("BKT_/k", "Invalid copy source bucket name"),
            ("bkt/%zz", "Invalid copy source encoding"),
            ("bkt/100%", "Invalid copy source encoding"),
            ("bkt/%FF", "Invalid copy source encoding"),
            ("bkt/k?versionId=", "Version id cannot be the empty string"),
            ("bkt/k?versionId=foo", "Invalid version id specified"),
        ] {
            let refused = parse(text).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{text}");
            assert_eq!(refused.message(), Some(message), "{text}");
        }
    }
}
