//! DeleteObject and DeleteObjects.

use futures::{StreamExt, stream};
use http::{HeaderMap, Response};
use larder_objects::{ObjectError, Objects};
use larder_types::limits::KEY_BYTES_MAX;
use larder_types::{BucketName, Condition, ObjectKey};
use s3s::dto::{
    DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, Error as DeleteFailure, Timestamp,
    TimestampFormat,
};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use crate::answer;
use crate::errors::{error, from_store, not_implemented};
use crate::limits::{DELETE_CONCURRENCY, DELETE_KEYS_MAX, VERSION_ID_BYTES_MAX};
use crate::request::conditions::{self, etags};
use crate::request::digests::DigestHeaders;
use crate::request::head::{self, lines};
use crate::request::names::{EXPECTED_OWNER, check_owner, key, key_too_long, no_such_version};
use crate::request::xml::{self, Xml, once};

/// The names that S3 has for the conditions of a delete, single or in a batch.
#[derive(Debug, Default)]
struct Conditions {
    if_match: Option<ETagCondition>,
    size: Option<i64>,
    modified: Option<Timestamp>,
}

impl Conditions {
    /// Reads the headers of a single delete. They must let it be done.
    fn of(headers: &HeaderMap) -> S3Result<Self> {
        let mut conditions = Self::default();
        for line in lines(headers) {
            match line.name() {
                "if-match" => conditions.if_match = conditions::of_line(&line)?,
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                "x-amz-if-match-last-modified-time" => {
                    let date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).ok();
                    conditions.modified = line.read(date)?;
                }
                "x-amz-if-match-size" => conditions.size = line.number()?,
                "x-amz-mfa" => refuse_mfa(line.read(Some)?)?,
                _ => {}
            }
        }
        Ok(conditions)
    }

    fn into_condition(self) -> S3Result<Condition> {
        let invalid = |what| error(S3ErrorCode::InvalidArgument, what);
        Ok(Condition {
            if_match: self.if_match.as_ref().map(etags),
            if_none_match: None,
            if_match_size: self
                .size
                .map(u64::try_from)
                .transpose()
                .map_err(|_| invalid("The size must not be negative"))?,
            if_match_modified_s: self
                .modified
                .as_ref()
                .map(seconds)
                .transpose()
                .map_err(|()| invalid("The last modified time is out of range"))?,
        })
    }
}

/// Whole seconds since 1970.
fn seconds(date: &Timestamp) -> Result<u64, ()> {
    let mut text = Vec::new();
    date.format(TimestampFormat::EpochSeconds, &mut text).map_err(|_| ())?;
    let text = String::from_utf8(text).map_err(|_| ())?;
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    whole.parse().map_err(|_| ())
}

pub(crate) async fn object<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let conditions = Conditions::of(&request.parts.headers)?;
    request.check_version()?;
    one(gateway, &request.bucket, &key, conditions).await?;
    Ok(answer::no_content())
}

pub(crate) async fn objects<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    let headers = &request.parts.headers;
    request.check_owner()?;
    refuse_mfa(head::text(headers, "x-amz-mfa")?)?;
    require_digest(headers)?;
    let Batch { named, quiet } = Batch::read(&document)?;
    drop(document);
    let bucket = &request.bucket;
    gateway.store.bucket(bucket).map_err(from_store)?;
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    let mut results = stream::iter(named)
        .map(|named| async move {
            let Named { key: name, version, conditions } = named;
            let result = match (key(name.clone()), version.as_deref()) {
                (Ok(key), None | Some("null")) => one(gateway, bucket, &key, conditions).await,
                (Ok(_), Some(_)) => Err(no_such_version()),
                (Err(refused), _) => Err(refused),
            };
            (name, version, result)
        })
        .buffered(DELETE_CONCURRENCY);
    while let Some((key, version_id, result)) = results.next().await {
        let key = Some(key);
        match result {
            Ok(()) if quiet => {}
            Ok(()) => deleted.push(DeletedObject { key, version_id, ..Default::default() }),
            Err(refused) => errors.push(DeleteFailure {
                code: Some(refused.code().as_str().to_owned()),
                key,
                message: refused.message().map(ToOwned::to_owned),
                version_id,
            }),
        }
    }
    answer::document(&DeleteObjectsOutput {
        deleted: (!deleted.is_empty()).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        ..Default::default()
    })
}

/// The objects that a document names.
struct Batch {
    named: Vec<Named>,
    /// Those that were deleted are not told.
    quiet: bool,
}

struct Named {
    key: String,
    version: Option<String>,
    conditions: Conditions,
}

impl Batch {
    fn read(document: &[u8]) -> S3Result<Self> {
        let (mut named, mut quiet) = (Vec::new(), None);
        xml::read(document, "Delete", |xml| {
            xml.children(|xml, name| match name {
                "Object" if named.len() == DELETE_KEYS_MAX => Err(wrong_number()),
                "Object" => {
                    named.push(Named::read(xml)?);
                    Ok(())
                }
                "Quiet" => once(&mut quiet, xml.boolean()?),
                _ => Err(xml::malformed()),
            })
        })?;
        if named.is_empty() {
            return Err(wrong_number());
        }
        Ok(Self { named, quiet: quiet == Some(true) })
    }
}

impl Named {
    fn read(xml: &mut Xml<'_>) -> S3Result<Self> {
        let (mut key, mut version, mut etag) = (None, None, None);
        let mut conditions = Conditions::default();
        xml.children(|xml, name| match name {
            "Key" => once(&mut key, xml.text()?),
            "VersionId" => once(&mut version, xml.text()?),
            "ETag" => once(&mut etag, xml.etag()?),
            "Size" => once(&mut conditions.size, xml.number()?),
            "LastModifiedTime" => once(&mut conditions.modified, xml.http_date()?),
            _ => Err(xml::malformed()),
        })?;
        let key: String = key.ok_or_else(xml::malformed)?;
        // The answer has these names again: longer ones would let a client choose the memory that it takes.
        if key.len() > KEY_BYTES_MAX {
            return Err(key_too_long(key.len()));
        }
        if version.as_ref().is_some_and(|id: &String| id.len() > VERSION_ID_BYTES_MAX) {
            return Err(xml::malformed());
        }
        conditions.if_match = etag.map(|etag| match etag.as_str() {
            "*" => ETagCondition::Any,
            _ => ETagCondition::ETag(ETag::Strong(etag)),
        });
        Ok(Self { key, version, conditions })
    }
}

fn wrong_number() -> S3Error {
    error(S3ErrorCode::MalformedXML, format!("A batch names 1 to {DELETE_KEYS_MAX} keys"))
}

async fn one<O: Objects>(
    gateway: &Gateway<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    conditions: Conditions,
) -> S3Result<()> {
    let condition = conditions.into_condition()?;
    match gateway.store.delete(bucket, key, condition).await {
        // An absent key is as good as a deleted one, also under a condition (S3).
        Err(ObjectError::NoSuchKey) => Ok(()),
        result => result.map_err(from_store),
    }
}

fn refuse_mfa(mfa: Option<&str>) -> S3Result<()> {
    if mfa.is_some() { Err(not_implemented("MFA delete")) } else { Ok(()) }
}

/// A batch delete must carry a digest of its body (S3): a value, which was compared as the body was read. The name of an
/// algorithm is none.
fn require_digest(headers: &HeaderMap) -> S3Result<()> {
    let digests = DigestHeaders::of(headers)?;
    if digests.md5.is_some() || digests.announced(headers)?.is_verified() {
        return Ok(());
    }
    Err(error(
        S3ErrorCode::InvalidRequest,
        "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn dates_are_cut_to_seconds() {
        let at = |ms| Timestamp::from(UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(seconds(&at(1_700_000_000_999)), Ok(1_700_000_000));
        assert_eq!(seconds(&at(0)), Ok(0));
        assert!(seconds(&Timestamp::from(UNIX_EPOCH - Duration::from_secs(5))).is_err());
    }

    #[test]
    fn a_batch_is_read_whole_or_not_at_all() {
        let read = |objects: &str| {
            Batch::read(format!("<Delete>{objects}</Delete>").as_bytes())
                .map_err(|refused| refused.code().clone())
        };
        let object = |more: &str| format!("<Object><Key> a </Key>{more}</Object>");
        let batch = read(&(object("<Size> 5\n</Size>") + "<Quiet>true</Quiet>")).unwrap();
        assert!(batch.quiet);
        assert_eq!((batch.named[0].key.as_str(), batch.named[0].conditions.size), (" a ", Some(5)));
        let tag = read(&object("<ETag> \"*\"</ETag>")).unwrap();
        assert_eq!(tag.named[0].conditions.if_match, Some(ETagCondition::Any));
        assert_eq!(read(&object("").repeat(1000)).unwrap().named.len(), 1000);
        for odd in [
            String::new(),
            object("").repeat(1001),
            object("") + "<object><Key>b</Key></object>",
            object("") + "b",
            object("<Size>5x</Size>"),
            object("<Key>b</Key>"),
            object("<Version>null</Version>"),
            object("<LastModifiedTime>soon</LastModifiedTime>"),
            "<Object><VersionId>null</VersionId></Object>".to_owned(),
        ] {
            assert_eq!(read(&odd).err(), Some(S3ErrorCode::MalformedXML), "{odd}");
        }
        let version = |bytes| format!("<VersionId>{}</VersionId>", "v".repeat(bytes));
        assert!(read(&object(&version(VERSION_ID_BYTES_MAX))).is_ok());
        let long = read(&object(&version(VERSION_ID_BYTES_MAX + 1)));
        assert_eq!(long.err(), Some(S3ErrorCode::MalformedXML));
        let key = |bytes| format!("<Object><Key>{}</Key></Object>", "k".repeat(bytes));
        assert!(read(&key(KEY_BYTES_MAX)).is_ok());
        assert_eq!(read(&key(KEY_BYTES_MAX + 1)).err(), Some(S3ErrorCode::KeyTooLongError));
    }

    #[test]
    fn a_batch_needs_a_digest() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-date", "x".parse().unwrap());
        assert!(require_digest(&headers).is_err());
        for (name, value) in [("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", "x")] {
            headers.insert(name, value.parse().unwrap());
            assert!(require_digest(&headers).is_err(), "{name} is no digest");
        }
        for (name, value) in [
            ("x-amz-checksum-crc32", "AAAAAA=="),
            ("x-amz-checksum-xxhash64", "AAAAAAAAAAA="),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
            ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ] {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                value.parse::<http::HeaderValue>().unwrap(),
            )]);
            assert!(require_digest(&headers).is_ok(), "{name}");
        }
    }
}
