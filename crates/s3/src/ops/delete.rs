//! DeleteObject and DeleteObjects.

use futures::{StreamExt, stream};
use http::{HeaderMap, Response, StatusCode};
use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, Condition, ObjectKey};
use s3s::dto::{
    DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, ETagCondition,
    Error as DeleteFailure, ObjectIdentifier, Timestamp, TimestampFormat,
};
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::{Face, Request};
use crate::errors::{error, from_store, not_implemented};
use crate::limits::{DELETE_CONCURRENCY, DELETE_KEYS_MAX};
use crate::request::conditions::{self, etags};
use crate::request::head::lines;
use crate::request::names::{check_owner, key, null_version};

/// The names that S3 has for the conditions of a delete, single or in a batch.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    if_match: Option<ETagCondition>,
    size: Option<i64>,
    modified: Option<Timestamp>,
}

impl Conditions {
    /// Reads the headers of a single delete. They must let it be done.
    pub(super) fn of(headers: &HeaderMap) -> S3Result<Self> {
        let mut conditions = Self::default();
        for line in lines(headers) {
            match line.name() {
                "if-match" => conditions.if_match = conditions::of_line(&line)?,
                "x-amz-expected-bucket-owner" => check_owner(line.text::<String>()?.as_deref())?,
                "x-amz-if-match-last-modified-time" => {
                    let date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).ok();
                    conditions.modified = line.read(date)?;
                }
                "x-amz-if-match-size" => conditions.size = line.number()?,
                "x-amz-mfa" => refuse_mfa(line.text::<String>()?.as_deref())?,
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
    face: &Face<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let conditions = Conditions::of(&request.parts.headers)?;
    let version = request.parameters().one("versionId")?;
    one(face, &request.bucket, (&key, version.as_deref()), conditions).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

pub(crate) async fn objects<O: Objects>(
    face: &Face<O>,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    refuse_mfa(input.mfa.as_deref())?;
    require_digest(&request.headers)?;
    let (named, quiet) = (input.delete.objects, input.delete.quiet == Some(true));
    if named.is_empty() || named.len() > DELETE_KEYS_MAX {
        return Err(error(
            S3ErrorCode::MalformedXML,
            format!("A batch names 1 to {DELETE_KEYS_MAX} keys"),
        ));
    }
    face.store.bucket(&bucket).map_err(from_store)?;
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    let mut results = stream::iter(named)
        .map(|named| {
            let bucket = &bucket;
            async move {
                let conditions = Conditions {
                    if_match: named.e_tag.as_ref().map(listed_tag),
                    size: named.size,
                    modified: named.last_modified_time.clone(),
                };
                let version = named.version_id.as_deref();
                let result = match key(named.key.clone()) {
                    Ok(key) => one(face, bucket, (&key, version), conditions).await,
                    Err(refused) => Err(refused),
                };
                (named, result)
            }
        })
        .buffered(DELETE_CONCURRENCY);
    while let Some((named, result)) = results.next().await {
        match result {
            Ok(()) if quiet => {}
            Ok(()) => deleted.push(DeletedObject {
                key: Some(named.key),
                version_id: named.version_id,
                ..Default::default()
            }),
            Err(refused) => errors.push(failure(named, &refused)),
        }
    }
    let some = |list: Vec<DeletedObject>| (!list.is_empty()).then_some(list);
    let output = DeleteObjectsOutput {
        deleted: some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

async fn one<O: Objects>(
    face: &Face<O>,
    bucket: &BucketName,
    (key, version): (&ObjectKey, Option<&str>),
    conditions: Conditions,
) -> S3Result<()> {
    null_version(version)?;
    let condition = conditions.into_condition()?;
    match face.store.delete(bucket, key, condition).await {
        // An absent key is as good as a deleted one, also under a condition (S3).
        Err(ObjectError::NoSuchKey) => Ok(()),
        result => result.map_err(from_store),
    }
}

fn listed_tag(tag: &ETag) -> ETagCondition {
    if tag.value() == "*" { ETagCondition::Any } else { ETagCondition::ETag(tag.clone()) }
}

fn failure(named: ObjectIdentifier, refused: &S3Error) -> DeleteFailure {
    DeleteFailure {
        code: Some(refused.code().as_str().to_owned()),
        key: Some(named.key),
        message: refused.message().map(ToOwned::to_owned),
        version_id: named.version_id,
    }
}

fn refuse_mfa(mfa: Option<&str>) -> S3Result<()> {
    if mfa.is_some() { Err(not_implemented("MFA delete")) } else { Ok(()) }
}

/// A batch delete must carry a digest of its body (S3). Whether it is right was checked as the body
/// was read.
fn require_digest(headers: &HeaderMap) -> S3Result<()> {
    let has = |name: &str| name == "content-md5" || name.starts_with("x-amz-checksum-");
    if headers.keys().any(|name| has(name.as_str())) || headers.contains_key("x-amz-trailer") {
        return Ok(());
    }
    Err(error(
        S3ErrorCode::InvalidRequest,
        "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
    ))
}

#[cfg(test)]
impl Conditions {
    /// All that it says, as text.
    pub(super) fn text(self) -> String {
        format!("{:?}", (self.if_match, self.size, self.modified))
    }
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
    fn a_batch_needs_a_digest() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-date", "x".parse().unwrap());
        assert!(require_digest(&headers).is_err());
        headers.insert("x-amz-checksum-crc32", "AAAAAA==".parse().unwrap());
        assert!(require_digest(&headers).is_ok());
    }
}
