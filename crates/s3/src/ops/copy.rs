//! CopyObject and UploadPartCopy: a source is opened, read and put like any other body. Its checksums
//! are computed anew, so that damage on the way cannot pass. A store that can is asked for a link instead, which
//! moves no bytes.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use larder_objects::{
    BodyDigest, BodyError, ObjectError, Objects, Opened, PutBody, PutDone, PutOptions, ReadBody,
};
use larder_types::limits::PUT_BYTES_MAX;
use larder_types::{Attributes, BucketName, ChecksumAlgorithm, ObjectKey};
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource, ETag,
    ETagCondition, MetadataDirective, TaggingDirective, UploadPartCopyInput, UploadPartCopyOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use super::get::last_modified;
use super::upload::part_number;
use crate::digest::announced::Announced;
use crate::digest::checksums::{self, kind_name, show_checksum};
use crate::digest::digests::Digests;
use crate::errors::{error, from_store, not_implemented};
use crate::limits::CHANGED_RETRIES_MAX;
use crate::request::attributes::{Expires, given_attributes};
use crate::request::conditions::{self, ReadConditions};
use crate::request::encryption::not_applicable;
use crate::request::names::{key, null_version};
use crate::request::range;

/// The source of a copy, and the conditions.
struct Source {
    bucket: BucketName,
    key: ObjectKey,
    conditions: ReadConditions,
}

/// Takes the source out of an input.
macro_rules! source {
    ($face:expr, $input:expr) => {{
        if $input.copy_source_sse_customer_algorithm.is_some()
            || $input.copy_source_sse_customer_key.is_some()
        {
            return Err(not_applicable());
        }
        let (bucket, name) = named(&$input.copy_source)?;
        Source {
            bucket: $face.bucket(bucket, $input.expected_source_bucket_owner.as_deref())?,
            key: key(name.to_owned())?,
            conditions: ReadConditions {
                if_match: $input.copy_source_if_match.take(),
                if_none_match: $input.copy_source_if_none_match.take(),
                if_modified_since: $input.copy_source_if_modified_since.take(),
                if_unmodified_since: $input.copy_source_if_unmodified_since.take(),
            },
        }
    }};
}

fn named(source: &CopySource) -> S3Result<(&str, &str)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            null_version(version_id.as_deref())?;
            Ok((bucket, key))
        }
        CopySource::AccessPoint { .. } | CopySource::Outpost { .. } => {
            Err(not_implemented("An access point as copy source"))
        }
    }
}

impl Source {
    async fn open<O: Objects>(&self, face: &Face<O>) -> S3Result<Opened> {
        let opened = face.store.open(&self.bucket, &self.key).await.map_err(from_store)?;
        match self.conditions.check(&opened.metax) {
            Ok(()) => Ok(opened),
            Err(_) => Err(from_store(ObjectError::PreconditionFailed)),
        }
    }
}

/// The bytes of a source on their way to its copy.
struct CopyBody {
    body: ReadBody,
    len: u64,
    left: u64,
    digests: Option<Digests>,
    failure: Option<ObjectError>,
}

impl CopyBody {
    async fn open<O: Objects>(
        face: &Face<O>,
        opened: &Opened,
        bytes: Range<u64>,
        algorithm: ChecksumAlgorithm,
    ) -> Result<Self, ObjectError> {
        let len = bytes.end - bytes.start;
        let body = match len {
            0 => ReadBody::Whole(Bytes::new()),
            _ => face.store.read(opened, bytes).await?,
        };
        let digests = Digests::new(&Announced { algorithm, ..Announced::nothing() });
        Ok(Self { body, len, left: len, digests: Some(digests), failure: None })
    }

    async fn piece(&mut self) -> Option<Result<Bytes, ObjectError>> {
        match &mut self.body {
            ReadBody::Whole(bytes) if bytes.is_empty() => None,
            ReadBody::Whole(bytes) => Some(Ok(std::mem::take(bytes))),
            ReadBody::Stream(pieces) => pieces.next().await,
        }
    }
}

impl PutBody for &mut CopyBody {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        match self.piece().await? {
            Ok(piece) => {
                let left = self.left.checked_sub(piece.len() as u64);
                self.left = left.expect("a read gives no more bytes than were asked for");
                if let Some(digests) = &mut self.digests {
                    digests.update(&piece);
                }
                Some(Ok(piece))
            }
            Err(broken) => {
                self.failure = Some(broken);
                Some(Err(BodyError::Incomplete))
            }
        }
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        let digests = self.digests.take().filter(|_| self.left == 0);
        Ok(digests.ok_or(BodyError::Incomplete)?.finish().digest)
    }
}

/// The result of one attempt to copy.
enum Attempt {
    Done(PutDone),
    /// The source changed under the copy: start again.
    Again,
    Refused(S3Error),
}

impl Attempt {
    fn of(result: Result<PutDone, ObjectError>, body: &mut CopyBody) -> Self {
        match (result, body.failure.take()) {
            (Ok(done), _) => Self::Done(done),
            (Err(_), Some(ObjectError::Changed)) => Self::Again,
            (Err(_), Some(broken)) => Self::Refused(from_store(broken)),
            (Err(refused), None) => Self::Refused(from_store(refused)),
        }
    }
}

pub(crate) async fn object<O: Objects>(
    face: &Face<O>,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let source = source!(face, input);
    let named = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str());
    let named = named.map(checksums::parse_name).transpose()?;
    let condition = target_condition(&request.headers)?;
    let taken = Taken::of(&mut input, Expires::of(&request.headers, &request.extensions))?;
    let key = key(input.key)?;
    if source.bucket == bucket && source.key == key && !taken.changes_something() {
        return Err(error(
            S3ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without \
             changing the object's metadata, storage class, website redirect location or \
             encryption attributes.",
        ));
    }
    // Looked at before the source, as S3 does.
    face.store.bucket(&bucket).map_err(from_store)?;
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = source.open(face).await?;
        let size = opened.metax.size;
        check_source_size(size)?;
        let algorithm = named
            .or(opened.metax.checksum.as_ref().map(|checksum| checksum.algorithm))
            .unwrap_or(checksums::DEFAULT);
        let attributes = taken.attributes(opened.metax.attributes.clone());
        let options = PutOptions { attributes, condition: condition.clone() };
        if keeps_digests(&opened, algorithm) {
            match face.store.link(&opened, &bucket, &key, options.clone()).await {
                Ok(Some(done)) => return Ok(S3Response::new(shown(&done))),
                Ok(None) => {}
                Err(ObjectError::Changed) => continue,
                Err(refused) => return Err(from_store(refused)),
            }
        }
        let mut body = match CopyBody::open(face, &opened, 0..size, algorithm).await {
            Err(ObjectError::Changed) => continue,
            opened => opened.map_err(from_store)?,
        };
        let result = face.store.put(&bucket, &key, options, &mut body).await;
        match Attempt::of(result, &mut body) {
            Attempt::Done(done) => return Ok(S3Response::new(shown(&done))),
            Attempt::Again => {}
            Attempt::Refused(refused) => return Err(refused),
        }
    }
    Err(from_store(ObjectError::Changed))
}

/// True if a copy has the etag and checksum of its source: it was not put in parts, and has the checksum wanted.
fn keeps_digests(source: &Opened, wanted: ChecksumAlgorithm) -> bool {
    let checksum = source.metax.checksum.as_ref();
    source.parts().is_empty() && checksum.is_some_and(|checksum| checksum.algorithm == wanted)
}

/// The attributes that a copy takes from the request; `None` is taken from the source.
struct Taken {
    headers: Option<Attributes>,
    tags: Option<crate::request::tags::Tags>,
    website_redirect: Option<String>,
    names_class: bool,
    storage_class: Option<String>,
}

impl Taken {
    fn of(input: &mut CopyObjectInput, expires: Expires<'_>) -> S3Result<Self> {
        let replaces = |directive: Option<&str>, what| match directive {
            None | Some(MetadataDirective::COPY) => Ok(false),
            Some(MetadataDirective::REPLACE) => Ok(true),
            Some(_) => {
                Err(error(S3ErrorCode::InvalidArgument, format!("Unknown {what} directive.")))
            }
        };
        let directive = input.metadata_directive.as_ref().map(MetadataDirective::as_str);
        let headers = replaces(directive, "metadata")?;
        let directive = input.tagging_directive.as_ref().map(TaggingDirective::as_str);
        let tags = replaces(directive, "tagging")?;
        let names_class = input.storage_class.is_some();
        let mut given = given_attributes!(input, expires).into_attributes()?;
        Ok(Self {
            website_redirect: given.website_redirect.take(),
            names_class,
            storage_class: given.storage_class.take(),
            tags: tags.then(|| std::mem::take(&mut given.tags)),
            headers: headers.then_some(given),
        })
    }

    fn changes_something(&self) -> bool {
        self.headers.is_some() || self.website_redirect.is_some() || self.names_class
    }

    fn attributes(&self, source: Attributes) -> Attributes {
        let tags = self.tags.clone().unwrap_or_else(|| source.tags.clone());
        let headers = self.headers.clone().unwrap_or(source);
        // A redirect belongs to the object's name, and a class to its bytes: neither is ever copied (S3).
        Attributes {
            tags,
            website_redirect: self.website_redirect.clone(),
            storage_class: self.storage_class.clone(),
            ..headers
        }
    }
}

/// The library does not read these headers of a copy.
fn target_condition(headers: &HeaderMap) -> S3Result<larder_types::Condition> {
    let tag = |name: http::HeaderName| -> S3Result<Option<ETagCondition>> {
        let Some(value) = headers.get(&name) else { return Ok(None) };
        let parsed = ETagCondition::parse_http_header(value.as_bytes());
        parsed.map(Some).map_err(|_| {
            error(S3ErrorCode::InvalidArgument, format!("{name} is not a list of entity tags"))
        })
    };
    let (if_match, if_none_match) =
        (tag(http::header::IF_MATCH)?, tag(http::header::IF_NONE_MATCH)?);
    Ok(conditions::of_write(if_match.as_ref(), if_none_match.as_ref()))
}

fn check_source_size(size: u64) -> S3Result<()> {
    if size <= PUT_BYTES_MAX {
        return Ok(());
    }
    Err(error(
        S3ErrorCode::InvalidRequest,
        format!(
            "The specified copy source is larger than the maximum allowable size for a copy \
             source: {PUT_BYTES_MAX}"
        ),
    ))
}

fn shown(done: &PutDone) -> CopyObjectOutput {
    let mut result = CopyObjectResult {
        e_tag: Some(ETag::Strong(done.etag.text())),
        last_modified: Some(last_modified(done.clock)),
        ..Default::default()
    };
    if let Some(checksum) = &done.checksum {
        show_checksum!(result, checksum);
        result.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
    }
    CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }
}

pub(crate) async fn part<O: Objects>(
    face: &Face<O>,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let source = source!(face, input);
    let number = part_number(input.part_number)?;
    let (key, id) = (key(input.key)?, face.upload_id(&bucket, &input.upload_id)?);
    let row = face.store.upload(&bucket, &key, id).await.map_err(from_store)?;
    let algorithm = row.checksum.map_or(checksums::DEFAULT, |(algorithm, _)| algorithm);
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = source.open(face).await?;
        let size = opened.metax.size;
        let bytes = match &input.copy_source_range {
            Some(header) => range::of_copy_source(header, size)?,
            None => 0..size,
        };
        check_source_size(bytes.end - bytes.start)?;
        let mut body = match CopyBody::open(face, &opened, bytes, algorithm).await {
            Err(ObjectError::Changed) => continue,
            opened => opened.map_err(from_store)?,
        };
        let result = face.store.put_part(&bucket, &key, id, number, &mut body).await;
        match Attempt::of(result, &mut body) {
            Attempt::Done(done) => {
                return Ok(S3Response::new(part_shown(&done, row.checksum.is_some())));
            }
            Attempt::Again => {}
            Attempt::Refused(refused) => return Err(refused),
        }
    }
    Err(from_store(ObjectError::Changed))
}

fn part_shown(done: &PutDone, checksum: bool) -> UploadPartCopyOutput {
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(done.etag.text())),
        last_modified: Some(last_modified(done.clock)),
        ..Default::default()
    };
    if let Some(checksum) = done.checksum.as_ref().filter(|_| checksum) {
        show_checksum!(result, checksum);
    }
    UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }
}
