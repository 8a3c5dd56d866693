//! CopyObject and UploadPartCopy: a source is opened, read and put like any other body. Its checksums
//! are computed anew, so that damage on the way cannot pass. A store that can is asked for a link instead, which
//! moves no bytes.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Response};
use larder_objects::{
    BodyDigest, BodyError, ObjectError, Objects, Opened, PutBody, PutDone, PutOptions, ReadBody,
};
use larder_types::limits::PUT_BYTES_MAX;
use larder_types::{Attributes, BucketName, ChecksumAlgorithm, ObjectKey};
use s3s::dto::{CopyObjectResult, CopyPartResult, ETag, ETagCondition, MetadataDirective};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use super::get::last_modified;
use super::upload::part_number;
use crate::answer;
use crate::digest::announced::Announced;
use crate::digest::checksums::{self, kind_name, show_checksum};
use crate::digest::digests::Digests;
use crate::errors::elements::invalid_argument;
use crate::errors::{error, from_store};
use crate::limits::CHANGED_RETRIES_MAX;
use crate::request::attributes::Given;
use crate::request::conditions::{self, ReadConditions};
use crate::request::copy_source::{self, COPY_SOURCE};
use crate::request::encryption::not_applicable;
use crate::request::head::{Line, lines};
use crate::request::names::{EXPECTED_OWNER, check_owner};
use crate::request::range;

/// The source of a copy, and the conditions.
struct Source {
    bucket: BucketName,
    key: ObjectKey,
    conditions: ReadConditions,
}

/// The headers that speak of the source.
#[derive(Default)]
struct SourceHeaders<'r> {
    source: Option<&'r str>,
    range: Option<&'r str>,
    conditions: ReadConditions,
    has_customer_key: bool,
}

impl<'r> SourceHeaders<'r> {
    /// Takes a header, if it is one of these.
    fn take(&mut self, line: &Line<'r>) -> S3Result<bool> {
        let Some(what) = line.name().strip_prefix(COPY_SOURCE) else {
            if line.name() != "x-amz-source-expected-bucket-owner" {
                return Ok(false);
            }
            check_owner(line.read(Some)?)?;
            return Ok(true);
        };
        let conditions = &mut self.conditions;
        match what {
            "" => self.source = line.read(Some)?,
            // An empty one is no range, and must not count as all of the source.
            "-range" => self.range = Some(line.read(Some)?.unwrap_or_default()),
            "-if-match" => conditions.if_match = conditions::of_line(line)?,
            "-if-none-match" => conditions.if_none_match = conditions::of_line(line)?,
            "-if-modified-since" => conditions.if_modified_since = conditions::date_of_line(line)?,
            "-if-unmodified-since" => {
                conditions.if_unmodified_since = conditions::date_of_line(line)?;
            }
            "-server-side-encryption-customer-algorithm"
            | "-server-side-encryption-customer-key" => self.has_customer_key |= line.is_given()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn into_source(self) -> S3Result<Source> {
        if self.has_customer_key {
            return Err(not_applicable());
        }
        let (bucket, key) = copy_source::parse(self.source.unwrap_or_default())?;
        Ok(Source { bucket, key, conditions: self.conditions })
    }
}

/// The headers of a copy.
#[derive(Default)]
struct CopyHeaders<'r> {
    source: SourceHeaders<'r>,
    given: Given,
    algorithm: Option<&'r str>,
    metadata: Option<&'r str>,
    tagging: Option<&'r str>,
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
}

impl<'r> CopyHeaders<'r> {
    fn of(headers: &'r HeaderMap) -> S3Result<Self> {
        let mut read = Self::default();
        for line in lines(headers) {
            match line.name() {
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                "if-match" => read.if_match = conditions::of_line(&line)?,
                "if-none-match" => read.if_none_match = conditions::of_line(&line)?,
                "x-amz-checksum-algorithm" => read.algorithm = line.read(Some)?,
                "x-amz-metadata-directive" => read.metadata = line.read(Some)?,
                "x-amz-tagging-directive" => read.tagging = line.read(Some)?,
                _ => {
                    let _ = read.source.take(&line)? || read.given.take(&line)?;
                }
            }
        }
        Ok(read)
    }
}

impl Source {
    async fn open<O: Objects>(&self, gateway: &Gateway<O>) -> S3Result<Opened> {
        gateway.await_bucket(&self.bucket).await?;
        let opened = gateway.store.open(&self.bucket, &self.key).await.map_err(from_store)?;
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
        gateway: &Gateway<O>,
        opened: &Opened,
        bytes: Range<u64>,
        algorithm: ChecksumAlgorithm,
    ) -> Result<Self, ObjectError> {
        let len = bytes.end - bytes.start;
        let body = match len {
            0 => ReadBody::Whole(Bytes::new()),
            _ => gateway.store.read(opened, bytes).await?,
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
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    request.drop_body().await?;
    let bucket = request.bucket;
    let read = CopyHeaders::of(&request.parts.headers)?;
    let source = read.source.into_source()?;
    let named = read.algorithm.map(checksums::parse_name).transpose()?;
    let condition = conditions::of_write(read.if_match.as_ref(), read.if_none_match.as_ref());
    let taken = Taken::of(read.given, read.metadata, read.tagging)?;
    if source.bucket == bucket && source.key == key && !taken.changes_something() {
        return Err(error(
            S3ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without \
             changing the object's metadata, storage class, website redirect location or \
             encryption attributes.",
        ));
    }
    // Looked at before the source, as S3 does.
    gateway.store.bucket(&bucket).map_err(from_store)?;
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = source.open(gateway).await?;
        let size = opened.metax.size;
        check_source_size(size)?;
        let algorithm = named
            .or(opened.metax.checksum.as_ref().map(|checksum| checksum.algorithm))
            .unwrap_or(checksums::DEFAULT);
        let attributes = taken.attributes(opened.metax.attributes.clone());
        let options = PutOptions { attributes, condition: condition.clone() };
        if keeps_digests(&opened, algorithm) {
            match gateway.store.link(&opened, &bucket, &key, options.clone()).await {
                Ok(Some(done)) => return shown(&done),
                Ok(None) => {}
                Err(ObjectError::Changed) => continue,
                Err(refused) => return Err(from_store(refused)),
            }
        }
        let mut body = match CopyBody::open(gateway, &opened, 0..size, algorithm).await {
            Err(ObjectError::Changed) => continue,
            opened => opened.map_err(from_store)?,
        };
        let result = gateway.store.put(&bucket, &key, options, &mut body).await;
        match Attempt::of(result, &mut body) {
            Attempt::Done(done) => return shown(&done),
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
    fn of(given: Given, metadata: Option<&str>, tagging: Option<&str>) -> S3Result<Self> {
        let replaces = |directive: Option<&str>, what| match directive {
            None | Some(MetadataDirective::COPY) => Ok(false),
            Some(MetadataDirective::REPLACE) => Ok(true),
            Some(other) => {
                let name = format!("x-amz-{what}-directive");
                Err(invalid_argument(format!("Unknown {what} directive."), &name, other))
            }
        };
        let headers = replaces(metadata, "metadata")?;
        let tags = replaces(tagging, "tagging")?;
        let names_class = given.names_class();
        let mut given = given.into_attributes()?;
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

fn shown(done: &PutDone) -> S3Result<Response<Body>> {
    let mut result = CopyObjectResult {
        e_tag: Some(ETag::Strong(done.etag.text())),
        last_modified: Some(last_modified(done.clock)),
        ..Default::default()
    };
    if let Some(checksum) = &done.checksum {
        show_checksum!(result, checksum);
        result.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
    }
    answer::element("CopyObjectResult", &result)
}

pub(crate) async fn part<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    request.drop_body().await?;
    let mut headers = SourceHeaders::default();
    for line in lines(&request.parts.headers) {
        match line.name() {
            EXPECTED_OWNER => check_owner(line.read(Some)?)?,
            _ => {
                let _ = headers.take(&line)?;
            }
        }
    }
    let wanted = headers.range;
    let source = headers.into_source()?;
    let number = part_number(request.parameters())?;
    let id = gateway.upload_of(&request)?;
    let bucket = &request.bucket;
    let row = gateway.store.upload(bucket, &key, id).await.map_err(from_store)?;
    let algorithm = row.checksum.map_or(checksums::DEFAULT, |(algorithm, _)| algorithm);
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = source.open(gateway).await?;
        let size = opened.metax.size;
        let bytes = match wanted {
            Some(header) => range::of_copy_source(header, size)?,
            None => 0..size,
        };
        check_source_size(bytes.end - bytes.start)?;
        let mut body = match CopyBody::open(gateway, &opened, bytes, algorithm).await {
            Err(ObjectError::Changed) => continue,
            opened => opened.map_err(from_store)?,
        };
        let result = gateway.store.put_part(bucket, &key, id, number, &mut body).await;
        match Attempt::of(result, &mut body) {
            Attempt::Done(done) => {
                return part_shown(&done, row.checksum.is_some());
            }
            Attempt::Again => {}
            Attempt::Refused(refused) => return Err(refused),
        }
    }
    Err(from_store(ObjectError::Changed))
}

fn part_shown(done: &PutDone, checksum: bool) -> S3Result<Response<Body>> {
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(done.etag.text())),
        last_modified: Some(last_modified(done.clock)),
        ..Default::default()
    };
    if let Some(checksum) = done.checksum.as_ref().filter(|_| checksum) {
        show_checksum!(result, checksum);
    }
    answer::element("CopyPartResult", &result)
}
