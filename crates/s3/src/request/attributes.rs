//! Reads a client's headers, user metadata and tags for a new object, and refuses those that Larder does not have.

use http::header::EXPIRES;
use http::{Extensions, HeaderMap};
use larder_types::Attributes;
use larder_types::limits::{ATTRIBUTE_BYTES_MAX, USER_METADATA_BYTES_MAX};
use s3s::dto::{Metadata, StorageClass, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};

use super::encryption::Encryption;
use super::tags;
use crate::errors::{error, not_implemented};

/// Storage classes whose objects S3 reads at once, as Larder reads all. They are kept and shown, and change nothing.
const CLASSES: [&str; 5] = [
    StorageClass::GLACIER_IR,
    StorageClass::INTELLIGENT_TIERING,
    StorageClass::ONEZONE_IA,
    StorageClass::REDUCED_REDUNDANCY,
    StorageClass::STANDARD_IA,
];

/// The content type of objects put without one (S3).
pub(crate) const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// The fields that puts, copies and uploads share. Made by [`given_attributes`].
pub(crate) struct Given {
    pub(crate) cache_control: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) expires: Option<String>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) storage_class: Option<StorageClass>,
    pub(crate) tagging: Option<String>,
    pub(crate) website_redirect: Option<String>,
    pub(crate) acl: Option<String>,
    pub(crate) grants: bool,
    pub(crate) encryption: Encryption,
    pub(crate) locks: bool,
}

/// `Expires` in a form that the library refuses, for the operation that stores it.
#[derive(Debug, Clone)]
pub(crate) struct OddExpires(pub(crate) String);

/// A request's `Expires` as it came.
#[derive(Clone, Copy)]
pub(crate) struct Expires<'r>(Option<&'r str>);

impl<'r> Expires<'r> {
    pub(crate) fn of(headers: &'r HeaderMap, extensions: &'r Extensions) -> Self {
        let read = || headers.get(EXPIRES).and_then(|value| value.to_str().ok());
        Self(extensions.get::<OddExpires>().map(|OddExpires(text)| text.as_str()).or_else(read))
    }

    /// The text to store: a form's, which the protocol library has read, is written anew.
    pub(crate) fn text(self, read: Option<Timestamp>) -> Option<String> {
        match self.0.filter(|text| !text.is_empty()) {
            Some(text) => Some(text.to_owned()),
            None => read.and_then(|date| http_date(&date).ok()),
        }
    }
}

/// Takes the attributes out of a request's input.
macro_rules! given_attributes {
    ($input:expr, $expires:expr) => {
        $crate::request::attributes::Given {
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $input.content_encoding.take(),
            content_language: $input.content_language.take(),
            content_type: $input.content_type.take(),
            expires: $expires.text($input.expires.take()),
            metadata: $input.metadata.take(),
            storage_class: $input.storage_class.take(),
            tagging: $input.tagging.take(),
            website_redirect: $input.website_redirect_location.take(),
            acl: $input.acl.as_ref().map(|acl| acl.as_str().to_owned()),
            grants: $input.grant_full_control.is_some()
                || $input.grant_read.is_some()
                || $input.grant_read_acp.is_some()
                || $input.grant_write_acp.is_some(),
            encryption: $crate::request::encryption::given_encryption!($input),
            locks: $input.object_lock_mode.is_some()
                || $input.object_lock_legal_hold_status.is_some()
                || $input.object_lock_retain_until_date.is_some(),
        }
    };
}
pub(crate) use given_attributes;

/// Refuses access rules other than "the owner alone", which is what every object has.
///
/// # Errors
/// `NotImplemented`.
pub(crate) fn check_acl(canned: Option<&str>, grants: bool) -> S3Result<()> {
    match canned {
        None | Some("private" | "bucket-owner-full-control" | "bucket-owner-read") if !grants => {
            Ok(())
        }
        _ => Err(not_implemented("An access control list other than 'private'")),
    }
}

impl Given {
    /// Attributes to store.
    ///
    /// # Errors
    /// `NotImplemented` for what Larder does not have, else what S3 says of the field at fault.
    pub(crate) fn into_attributes(self) -> S3Result<Attributes> {
        self.refuse_absent_features()?;
        let attributes = Attributes {
            content_type: self.content_type,
            cache_control: self.cache_control,
            content_disposition: self.content_disposition,
            content_encoding: self.content_encoding.and_then(without_aws_chunked),
            content_language: self.content_language,
            expires: self.expires,
            website_redirect: self.website_redirect,
            storage_class: self
                .storage_class
                .map(|class| class.as_str().to_owned())
                .filter(|class| class != StorageClass::STANDARD),
            user: self.metadata.map(user_metadata).transpose()?.unwrap_or_default(),
            tags: self.tagging.as_deref().map(tags::parse_header).transpose()?.unwrap_or_default(),
        };
        check_size(&attributes)?;
        Ok(attributes)
    }

    /// Refuses what would otherwise be silently ignored.
    ///
    /// # Errors
    /// `NotImplemented`, or `InvalidStorageClass`.
    pub(crate) fn refuse_absent_features(&self) -> S3Result<()> {
        check_acl(self.acl.as_deref(), self.grants)?;
        self.encryption.refuse()?;
        if self.locks {
            return Err(not_implemented("Object lock"));
        }
        match self.storage_class.as_ref().map(StorageClass::as_str) {
            None | Some(StorageClass::STANDARD) => Ok(()),
            Some(class) if CLASSES.contains(&class) => Ok(()),
            Some(_) => Err(error(
                S3ErrorCode::InvalidStorageClass,
                format!(
                    "The storage class you specified is not valid: there are STANDARD and, which mean the same here, \
                     {}.",
                    CLASSES.join(", ")
                ),
            )),
        }
    }
}

/// An object's storage class as S3 names it.
pub(crate) fn class(attributes: &Attributes) -> &str {
    attributes.storage_class.as_deref().unwrap_or(StorageClass::STANDARD)
}

/// `aws-chunked` describes the transfer, not the object.
fn without_aws_chunked(encoding: String) -> Option<String> {
    if !encoding.contains("aws-chunked") {
        return Some(encoding);
    }
    let kept = encoding.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked");
    let kept = kept.collect::<Vec<_>>().join(",");
    (!kept.is_empty()).then_some(kept)
}

/// A date as a header has it.
///
/// # Errors
/// `InvalidArgument`.
fn http_date(date: &Timestamp) -> S3Result<String> {
    let mut text = Vec::new();
    date.format(TimestampFormat::HttpDate, &mut text)
        .map_err(|_| error(S3ErrorCode::InvalidArgument, "Expires is not a date"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Sorted by name, as the library's map has no order.
fn user_metadata(metadata: Metadata) -> S3Result<Vec<(String, String)>> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        return Err(error(
            S3ErrorCode::MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size",
        ));
    }
    let lower = |(name, value): (String, String)| (name.to_ascii_lowercase(), value);
    let mut user: Vec<_> = metadata.into_iter().map(lower).collect();
    user.sort_unstable();
    Ok(user)
}

fn check_size(attributes: &Attributes) -> S3Result<()> {
    let Attributes {
        content_type,
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        expires,
        website_redirect,
        storage_class,
        user,
        tags,
    } = attributes;
    let headers = [
        content_type,
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        expires,
        website_redirect,
        storage_class,
    ];
    let headers: usize = headers.into_iter().flatten().map(String::len).sum();
    let pairs: usize = user.iter().chain(tags).map(|(name, value)| name.len() + value.len()).sum();
    if headers + pairs > ATTRIBUTE_BYTES_MAX {
        return Err(error(
            S3ErrorCode::MetadataTooLarge,
            format!("An object's headers, metadata and tags may have {ATTRIBUTE_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use s3s::dto::PutObjectInput;

    use super::*;

    fn put(change: impl FnOnce(&mut PutObjectInput)) -> S3Result<Attributes> {
        let mut input = PutObjectInput::default();
        change(&mut input);
        given_attributes!(input, Expires(None)).into_attributes()
    }

    fn code(refused: S3Result<Attributes>) -> S3ErrorCode {
        refused.unwrap_err().code().clone()
    }

    #[test]
    fn the_transfer_coding_is_not_stored() {
        let stored = |text: &str| without_aws_chunked(text.to_owned());
        assert_eq!(stored("aws-chunked"), None);
        assert_eq!(stored("aws-chunked,gzip"), Some("gzip".to_owned()));
        assert_eq!(stored("br, aws-chunked , gzip"), Some("br,gzip".to_owned()));
        assert_eq!(stored("deflate, gzip"), Some("deflate, gzip".to_owned()));
    }

    #[test]
    fn user_metadata_is_bounded_and_ordered() {
        let with = |pairs: Vec<(String, String)>| {
            put(|input| input.metadata = Some(pairs.into_iter().collect()))
        };
        let stored = with(vec![("b".into(), "2".into()), ("a".into(), "1".into())]).unwrap();
        assert_eq!(stored.user, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert!(with(vec![("k".into(), "v".repeat(2047))]).is_ok());
        assert_eq!(code(with(vec![("k".into(), "v".repeat(2048))])), S3ErrorCode::MetadataTooLarge);
        let long = "d".repeat(ATTRIBUTE_BYTES_MAX + 1);
        let refused = put(|input| input.content_disposition = Some(long));
        assert_eq!(code(refused), S3ErrorCode::MetadataTooLarge);
    }

    #[test]
    fn what_larder_does_not_have_is_refused() {
        let refused = put(|input| input.server_side_encryption = Some("AES256".to_owned().into()));
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        let refused = put(|input| input.object_lock_mode = Some("GOVERNANCE".to_owned().into()));
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        let refused = put(|input| input.acl = Some("public-read".to_owned().into()));
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        let refused = put(|input| input.grant_read = Some("id=x".to_owned()));
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        let refused = put(|input| input.storage_class = Some("GLACIER".to_owned().into()));
        assert_eq!(code(refused), S3ErrorCode::InvalidStorageClass);
        for class in CLASSES {
            let taken = put(|input| input.storage_class = Some(class.to_owned().into())).unwrap();
            assert_eq!(taken.storage_class.as_deref(), Some(class));
        }
        let taken = put(|input| {
            input.storage_class = Some("STANDARD".to_owned().into());
            input.acl = Some("private".to_owned().into());
        });
        assert_eq!(taken.unwrap(), Attributes::default());
    }
}
