//! Reads a client's headers, user metadata and tags for a new object, and refuses those that Larder does not have.

use http::StatusCode;
use larder_types::Attributes;
use larder_types::limits::{ATTRIBUTE_BYTES_MAX, USER_METADATA_BYTES_MAX};
use s3s::dto::{StorageClass, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};

use super::acl::Acl;
use super::encryption::Encryption;
use super::head::Line;
use super::{metadata, tags};
use crate::errors::{custom, elements, error, not_implemented};
use crate::limits::REDIRECT_BYTES_MAX;

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

/// The headers that puts, copies and uploads share.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Given {
    cache_control: Option<String>,
    content_disposition: Option<String>,
    content_encoding: Option<String>,
    content_language: Option<String>,
    content_type: Option<String>,
    /// It is kept as it came: S3 takes what is no date, too.
    expires: Option<String>,
    metadata: Vec<(String, String)>,
    storage_class: Option<String>,
    tagging: Option<String>,
    website_redirect: Option<String>,
    acl: Acl,
    encryption: Encryption,
    locks: bool,
}

impl Given {
    /// Takes a header, if it is one of these.
    ///
    /// # Errors
    /// As [`Line::text`]; `InvalidArgument` for metadata that is no text.
    pub(crate) fn take(&mut self, line: &Line<'_>) -> S3Result<bool> {
        match line.name() {
            "cache-control" => self.cache_control = line.joined_text()?,
            "content-disposition" => self.content_disposition = line.utf8()?,
            "content-encoding" => self.content_encoding = line.joined_text()?,
            "content-language" => self.content_language = line.joined_text()?,
            "content-type" => self.content_type = line.text()?,
            "expires" => self.expires = line.text()?,
            "x-amz-object-lock-legal-hold" | "x-amz-object-lock-mode" => {
                self.locks |= line.is_given()?;
            }
            "x-amz-object-lock-retain-until-date" => {
                let date = |text: &str| Timestamp::parse(TimestampFormat::DateTime, text).ok();
                self.locks |= line.read(date)?.is_some();
            }
            "x-amz-storage-class" => self.storage_class = line.text()?,
            "x-amz-tagging" => self.tagging = line.text()?,
            "x-amz-website-redirect-location" => self.website_redirect = line.text()?,
            name => match name.strip_prefix(metadata::PREFIX) {
                Some(name) => self.take_metadata(name, line)?,
                None => return Ok(self.acl.take(line)? || self.encryption.take(line)?),
            },
        }
        Ok(true)
    }

    fn take_metadata(&mut self, name: &str, line: &Line<'_>) -> S3Result<()> {
        if name.is_empty() {
            return Ok(());
        }
        let value = line.joined();
        let text = std::str::from_utf8(value.as_bytes()).ok().and_then(metadata::decode);
        let text = text.ok_or_else(|| line.invalid(&value))?.into_owned();
        self.metadata.push((name.to_owned(), text));
        Ok(())
    }

    /// True if a storage class is named.
    pub(crate) fn names_class(&self) -> bool {
        self.storage_class.is_some()
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
            storage_class: self.storage_class.filter(|class| class != StorageClass::STANDARD),
            user: user_metadata(self.metadata)?,
            tags: self.tagging.as_deref().map(tags::parse_header).transpose()?.unwrap_or_default(),
        };
        check_size(&attributes)?;
        Ok(attributes)
    }

    /// Refuses what would otherwise be silently ignored.
    ///
    /// # Errors
    /// `NotImplemented`, `InvalidStorageClass`, as [`Acl::check`], or `InvalidRedirectLocation`.
    fn refuse_absent_features(&self) -> S3Result<()> {
        self.acl.check()?;
        self.encryption.refuse()?;
        if self.locks {
            return Err(not_implemented("Object lock"));
        }
        self.website_redirect.as_deref().map_or(Ok(()), check_redirect)?;
        match self.storage_class.as_deref() {
            None | Some(StorageClass::STANDARD) => Ok(()),
            Some(class) if CLASSES.contains(&class) => Ok(()),
            Some(class) => {
                let message = "The storage class you specified is not valid";
                let invalid = error(S3ErrorCode::InvalidStorageClass, message);
                Err(elements::with(invalid, [("StorageClassRequested", class.to_owned())]))
            }
        }
    }
}

/// A redirect of a website names a page of the same bucket or of another site. Larder keeps and shows it.
fn check_redirect(location: &str) -> S3Result<()> {
    let custom = |message: &str| {
        Err(custom("InvalidRedirectLocation", StatusCode::BAD_REQUEST, message.to_owned()))
    };
    if !["/", "http://", "https://"].iter().any(|start| location.starts_with(start)) {
        return custom(
            "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.",
        );
    }
    if location.len() > REDIRECT_BYTES_MAX {
        return custom("The length of website redirect location cannot exceed 2,048 characters.");
    }
    Ok(())
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

/// Sorted by name.
fn user_metadata(mut metadata: Vec<(String, String)>) -> S3Result<Vec<(String, String)>> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        let message = "Your metadata headers exceed the maximum allowed metadata size";
        let sizes =
            [("Size", bytes.to_string()), ("MaxSizeAllowed", USER_METADATA_BYTES_MAX.to_string())];
        return Err(elements::with(error(S3ErrorCode::MetadataTooLarge, message), sizes));
    }
    metadata.sort_unstable();
    Ok(metadata)
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
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::request::head::lines;

    fn put(headers: &[(&str, &str)]) -> S3Result<Attributes> {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        let mut given = Given::default();
        for line in lines(&headers) {
            assert!(given.take(&line)?, "{}", line.name());
        }
        given.into_attributes()
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
        let stored = put(&[("x-amz-meta-b", "2"), ("x-amz-meta-a", "1")]).unwrap();
        assert_eq!(stored.user, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert!(put(&[("x-amz-meta-k", &"v".repeat(2047))]).is_ok());
        let refused = put(&[("x-amz-meta-k", &"v".repeat(2048))]);
        assert_eq!(code(refused), S3ErrorCode::MetadataTooLarge);
        let long = "d".repeat(ATTRIBUTE_BYTES_MAX + 1);
        let refused = put(&[("content-disposition", &long)]);
        assert_eq!(code(refused), S3ErrorCode::MetadataTooLarge);
    }

    #[test]
    fn a_header_is_stored_as_it_came() {
        let stored = put(&[("expires", "0"), ("cache-control", "no-store")]).unwrap();
        assert_eq!(stored.expires.as_deref(), Some("0"));
        assert_eq!(stored.cache_control.as_deref(), Some("no-store"));
    }

    #[test]
    fn a_redirect_is_an_address_or_a_path() {
        let to = |to: &str| put(&[("x-amz-website-redirect-location", to)]);
        for place in ["/", "/a b", "http://x", "https://x/y"] {
            assert_eq!(to(place).unwrap().website_redirect.as_deref(), Some(place));
        }
        let longest = format!("/{}", "a".repeat(REDIRECT_BYTES_MAX - 1));
        assert!(to(&longest).is_ok());
        for place in ["nonsense", "ftp://x", "HTTP://x", &format!("{longest}a")] {
            assert_eq!(code(to(place)).as_str(), "InvalidRedirectLocation", "{place}");
        }
    }

    #[test]
    fn what_larder_does_not_have_is_refused() {
        let refused = put(&[("x-amz-server-side-encryption", "AES256")]);
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        let refused = put(&[("x-amz-object-lock-mode", "GOVERNANCE")]);
        assert_eq!(code(refused), S3ErrorCode::NotImplemented);
        for (name, value) in [("x-amz-acl", "public-read"), ("x-amz-grant-write-acp", "id=x")] {
            let refused = put(&[(name, value)]);
            assert_eq!(code(refused).as_str(), "AccessControlListNotSupported");
        }
        let refused = put(&[("x-amz-storage-class", "GLACIER")]);
        assert_eq!(code(refused), S3ErrorCode::InvalidStorageClass);
        for class in CLASSES {
            let taken = put(&[("x-amz-storage-class", class)]).unwrap();
            assert_eq!(taken.storage_class.as_deref(), Some(class));
        }
        let taken = put(&[("x-amz-storage-class", "STANDARD"), ("x-amz-acl", "private")]);
        assert_eq!(taken.unwrap(), Attributes::default());
    }
}
