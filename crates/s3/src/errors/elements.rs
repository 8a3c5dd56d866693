//! Further elements of errors, which S3 writes beside code and message and some clients read.
//!
//! The code that refuses a request adds what it knows ([`with`]). What the request's address says is added to every error by
//! one table ([`with_names`]).
//!
//! # Invariants
//!
//! 1. An element stands once: what the refusing code says of it comes before what the address says.
//! 2. Elements may repeat a signature that a client sent, and are not printed with an error.

use std::borrow::Cow;
use std::fmt;

use s3s::{S3Error, S3ErrorCode};

use super::error;

/// The elements of an error, which has them as its source.
#[derive(Default, Clone)]
struct Elements(Vec<Element>);

/// Name and text of one.
pub(crate) type Element = (&'static str, String);

impl fmt::Debug for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Elements {}

/// The elements that an error has.
pub(crate) fn of(refused: &S3Error) -> &[Element] {
    let elements = refused.source().and_then(|source| source.downcast_ref::<Elements>());
    elements.map_or(&[], |Elements(all)| all)
}

/// The error with more elements. Of those that it has already the first stay.
pub(crate) fn with(
    mut refused: S3Error,
    more: impl IntoIterator<Item = (&'static str, String)>,
) -> S3Error {
    let mut all = of(&refused).to_vec();
    for element in more {
        if all.iter().all(|(name, _)| *name != element.0) {
            all.push(element);
        }
    }
    let is_other = refused.source().is_some_and(|source| !source.is::<Elements>());
    if !all.is_empty() && !is_other {
        refused.set_source(Box::new(Elements(all)));
    }
    refused
}

/// `InvalidArgument` about a header or a parameter.
pub(crate) fn invalid_argument(
    message: impl Into<Cow<'static, str>>,
    name: &str,
    value: &str,
) -> S3Error {
    let elements = [("ArgumentName", name.to_owned()), ("ArgumentValue", value.to_owned())];
    with(error(S3ErrorCode::InvalidArgument, message), elements)
}

/// The names in a request's address.
#[derive(Default)]
pub(crate) struct Names<'r> {
    pub(crate) bucket: Option<Cow<'r, str>>,
    pub(crate) key: Option<Cow<'r, str>>,
    pub(crate) upload: Option<String>,
    pub(crate) version: Option<String>,
}

/// The elements that each code has of the address.
fn named_by(code: &str) -> &'static [&'static str] {
    match code {
        "BucketAlreadyExists"
        | "BucketAlreadyOwnedByYou"
        | "BucketNotEmpty"
        | "InvalidBucketName"
        | "NoSuchBucket"
        | "NoSuchBucketPolicy"
        | "NoSuchCORSConfiguration"
        | "NoSuchLifecycleConfiguration"
        | "NoSuchPublicAccessBlockConfiguration"
        | "NoSuchTagSet"
        | "NoSuchWebsiteConfiguration"
        | "ObjectLockConfigurationNotFoundError"
        | "ReplicationConfigurationNotFoundError"
        | "ServerSideEncryptionConfigurationNotFoundError" => &["BucketName"],
        "NoSuchKey" => &["Key"],
        "NoSuchVersion" => &["Key", "VersionId"],
        "EntityTooSmall" | "InvalidPart" | "InvalidPartOrder" | "NoSuchUpload" => &["UploadId"],
        _ => &[],
    }
}

/// The error with what the request's address says of it.
pub(crate) fn with_names(refused: S3Error, names: Names<'_>) -> S3Error {
    let wanted = named_by(refused.code().as_str());
    let known = [
        ("BucketName", names.bucket),
        ("Key", names.key),
        ("UploadId", names.upload.map(Cow::Owned)),
        ("VersionId", names.version.map(Cow::Owned)),
    ];
    let known = known.into_iter().filter(|(name, _)| wanted.contains(name));
    with(refused, known.filter_map(|(name, text)| Some((name, text?.into_owned()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names<'static> {
        Names { bucket: Some("b".into()), key: Some("k".into()), ..Names::default() }
    }

    #[test]
    fn an_error_has_the_elements_of_its_code() {
        let of_code = |code| of(&with_names(S3Error::new(code), names())).to_vec();
        assert_eq!(of_code(S3ErrorCode::NoSuchBucket), [("BucketName", "b".to_owned())]);
        assert_eq!(of_code(S3ErrorCode::NoSuchKey), [("Key", "k".to_owned())]);
        assert_eq!(of_code(S3ErrorCode::NoSuchUpload), []);
        assert_eq!(of_code(S3ErrorCode::AccessDenied), []);
    }

    #[test]
    fn what_is_said_with_an_error_comes_before_what_its_address_says() {
        let missing = with(S3Error::new(S3ErrorCode::NoSuchKey), [("Key", "source".to_owned())]);
        assert_eq!(of(&with_names(missing, names())), [("Key", "source".to_owned())]);
    }

    #[test]
    fn elements_are_not_printed() {
        let refused = invalid_argument("no", "a", "secret");
        assert!(!format!("{refused:?} {refused}").contains("secret"));
    }
}
