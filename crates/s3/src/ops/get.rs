//! GetObject and HeadObject.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, header};
use larder_objects::{ObjectError, Objects, Opened, ReadBody, Replication, ReplicationStatus};
use larder_types::{BucketName, ETag as StoredETag, HybridClock, Metax, ObjectChecksum, ObjectKey};
use s3s::dto::{
    ETag, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, StreamingBlob,
    Timestamp, TimestampFormat,
};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, StdError};

use super::face::Face;
use crate::digest::checksums::{kind_name, show_checksum};
use crate::errors::{error, from_store};
use crate::limits::CHANGED_RETRIES_MAX;
use crate::request::attributes::{DEFAULT_CONTENT_TYPE, http_date};
use crate::request::conditions::{self, ReadConditions, Unmet};
use crate::request::encryption::refuse_reading;
use crate::request::names::{key, null_version};
use crate::request::own_headers::REPLICATION_REGIONS;
use crate::request::range::{self, Span};

/// The demands of a read, apart from the object's name.
struct Wanted<'r> {
    conditions: ReadConditions,
    range: Option<s3s::dto::Range>,
    if_range: Option<&'r HeaderValue>,
    part: Option<i32>,
    checksum: bool,
}

impl Wanted<'_> {
    /// True if all of the object is wanted, whatever it is by now.
    fn is_all(&self) -> bool {
        self.range.is_none() && self.part.is_none() && self.conditions.are_none()
    }
}

/// Takes the fields that Get and Head share.
macro_rules! wanted {
    ($input:expr, $headers:expr) => {{
        refuse_reading($headers)?;
        null_version($input.version_id.as_deref())?;
        Wanted {
            conditions: ReadConditions {
                if_match: $input.if_match.take(),
                if_none_match: $input.if_none_match.take(),
                if_modified_since: $input.if_modified_since.take(),
                if_unmodified_since: $input.if_unmodified_since.take(),
            },
            range: $input.range.take(),
            if_range: $headers.get(header::IF_RANGE),
            part: $input.part_number,
            checksum: $input.checksum_mode.as_ref().is_some_and(|mode| mode.as_str() == "ENABLED"),
        }
    }};
}

/// An object found, and what of it is to be sent.
struct Found {
    opened: Opened,
    span: Span,
    checksum: Option<ObjectChecksum>,
    parts_count: Option<i32>,
}

/// Fills the headers that Get and Head share.
macro_rules! describe {
    ($output:expr, $found:expr) => {{
        let metax = &$found.opened.metax;
        let attributes = &metax.attributes;
        $output.accept_ranges = Some("bytes".to_owned());
        $output.cache_control = attributes.cache_control.clone();
        $output.content_disposition = attributes.content_disposition.clone();
        $output.content_encoding = attributes.content_encoding.clone();
        $output.content_language = attributes.content_language.clone();
        $output.content_length = i64::try_from($found.span.len()).ok();
        $output.content_range = $found.span.content_range(metax.size);
        let content_type = attributes.content_type.as_deref().unwrap_or(DEFAULT_CONTENT_TYPE);
        $output.content_type = Some(content_type.to_owned());
        $output.e_tag = Some(ETag::Strong(metax.etag.text()));
        $output.last_modified = Some(last_modified(metax.clock));
        if !attributes.user.is_empty() {
            $output.metadata = Some(attributes.user.iter().cloned().collect());
        }
        $output.parts_count = $found.parts_count;
        $output.storage_class = attributes.storage_class.clone().map(Into::into);
        $output.website_redirect_location = attributes.website_redirect.clone();
        if let Some(checksum) = &$found.checksum {
            show_checksum!($output, checksum);
            $output.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
        }
    }};
}

pub(crate) async fn object<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let wanted = wanted!(input, &request.headers);
    let key = key(input.key)?;
    let (found, body) = read(face, &bucket, &key, &wanted).await?;
    let mut output = GetObjectOutput { body: Some(body), ..Default::default() };
    describe!(output, found);
    let tags = found.opened.metax.attributes.tags.len();
    output.tag_count = i32::try_from(tags).ok().filter(|count| *count > 0);
    let mut response = S3Response::new(output);
    if input.response_expires.is_none() {
        show_expires(&mut response.headers, &found);
    }
    show_replication(&mut response.headers, face, (&bucket, &found.opened)).await;
    Ok(response)
}

pub(crate) async fn head<O: Objects>(
    face: &Face<O>,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let wanted = wanted!(input, &request.headers);
    let replaced = replaced(&mut input)?;
    let found = find(face, &bucket, &key(input.key)?, &wanted).await?;
    let mut output = HeadObjectOutput::default();
    describe!(output, found);
    let mut response = S3Response::with_headers(output, replaced);
    show_expires(&mut response.headers, &found);
    show_replication(&mut response.headers, face, (&bucket, &found.opened)).await;
    let tags = found.opened.metax.attributes.tags.len();
    if tags > 0 {
        // The library has no field for it here.
        response.headers.insert("x-amz-tagging-count", HeaderValue::from(tags));
    }
    Ok(response)
}

/// Shows where the version is, in a store that is one of several regions and knows it now.
async fn show_replication<O: Objects>(
    headers: &mut HeaderMap,
    face: &Face<O>,
    (bucket, opened): (&BucketName, &Opened),
) {
    let found = face.store.replication(bucket, opened).await;
    let Ok(Some(Replication { status, regions })) = found else { return };
    let status = match status {
        ReplicationStatus::Pending => "PENDING",
        ReplicationStatus::Completed => "COMPLETED",
        ReplicationStatus::Replica => "REPLICA",
    };
    headers.insert("x-amz-replication-status", HeaderValue::from_static(status));
    let numbers: Vec<String> = regions.iter().map(ToString::to_string).collect();
    if let Ok(value) = HeaderValue::try_from(numbers.join(",")) {
        headers.insert(REPLICATION_REGIONS, value);
    }
}

/// Shows `Expires` as it was put, unless the request wants another: the library would show no more than a date.
fn show_expires(headers: &mut HeaderMap, found: &Found) {
    let Some(text) = &found.opened.metax.attributes.expires else { return };
    if let Ok(value) = HeaderValue::try_from(text.as_str()) {
        headers.entry(header::EXPIRES).or_insert(value);
    }
}

/// The headers that the request wants shown in place of the object's. Of a Get the library sees to
/// it.
fn replaced(input: &mut HeadObjectInput) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, wanted) in [
        (header::CACHE_CONTROL, input.response_cache_control.take()),
        (header::CONTENT_DISPOSITION, input.response_content_disposition.take()),
        (header::CONTENT_ENCODING, input.response_content_encoding.take()),
        (header::CONTENT_LANGUAGE, input.response_content_language.take()),
        (header::CONTENT_TYPE, input.response_content_type.take()),
        (header::EXPIRES, input.response_expires.as_ref().map(http_date).transpose()?),
    ] {
        let Some(wanted) = wanted else { continue };
        let value = HeaderValue::try_from(wanted).map_err(|_| {
            let reason = format!("response-{name} is not what a header may have.");
            error(S3ErrorCode::InvalidArgument, reason)
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// The time at which an object was made, as shown to clients.
pub(crate) fn last_modified(clock: HybridClock) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(clock.ms()))
}

async fn find<O: Objects>(
    face: &Face<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    wanted: &Wanted<'_>,
) -> S3Result<Found> {
    let opened = face.store.open(bucket, key).await.map_err(from_store)?;
    chosen(face, opened, wanted).await
}

/// Chooses the part of an object that is to be sent.
async fn chosen<O: Objects>(
    face: &Face<O>,
    opened: Opened,
    wanted: &Wanted<'_>,
) -> S3Result<Found> {
    wanted.conditions.check(&opened.metax).map_err(|unmet| refusal(unmet, &opened.metax))?;
    let size = opened.metax.size;
    let Some(number) = wanted.part else {
        let named = |if_range| conditions::is_version(if_range, &opened.metax);
        let range = wanted.range.as_ref().filter(|_| wanted.if_range.is_none_or(named));
        let span = range::of_header(range, size)?;
        let whole = wanted.checksum && !span.partial;
        let checksum = if whole { opened.metax.checksum.clone() } else { None };
        return Ok(Found { opened, span, checksum, parts_count: None });
    };
    if wanted.range.is_some() {
        return Err(error(
            S3ErrorCode::InvalidRequest,
            "Cannot specify both Range header and partNumber query parameter",
        ));
    }
    let span = range::of_part(opened.parts(), size, number)?;
    let parts_count = i32::try_from(opened.parts().len()).ok().filter(|count| *count > 0);
    let checksum = match (wanted.checksum, parts_count, u16::try_from(number)) {
        (false, ..) | (_, _, Err(_)) => None,
        (true, None, _) => opened.metax.checksum.clone(),
        (true, Some(_), Ok(_)) if !opened.keeps_parts() => None,
        (true, Some(_), Ok(number)) => {
            let part = face.store.part(&opened, number).await.map_err(from_store)?;
            let kind = opened.metax.checksum.as_ref().map(|checksum| checksum.kind);
            // The part's own value, said to be of the kind that the whole object has (S3).
            part.metax.checksum.map(|sum| ObjectChecksum { kind: kind.unwrap_or(sum.kind), ..sum })
        }
    };
    Ok(Found { opened, span, checksum, parts_count })
}

/// Opens and reads, again if the object is replaced in between.
async fn read<O: Objects>(
    face: &Face<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    wanted: &Wanted<'_>,
) -> S3Result<(Found, StreamingBlob)> {
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = match wanted.is_all() {
            true => face.store.open_whole(bucket, key).await,
            false => face.store.open(bucket, key).await,
        };
        let found = chosen(face, opened.map_err(from_store)?, wanted).await?;
        if found.span.len() == 0 {
            return Ok((found, StreamingBlob::from(s3s::Body::empty())));
        }
        match face.store.read(&found.opened, found.span.bytes.clone()).await {
            Ok(body) => {
                let body = blob(body, found.span.len());
                return Ok((found, body));
            }
            Err(ObjectError::Changed) => {}
            Err(refused) => return Err(from_store(refused)),
        }
    }
    Err(from_store(ObjectError::Changed))
}

fn blob(body: ReadBody, len: u64) -> StreamingBlob {
    match body {
        ReadBody::Whole(bytes) => {
            assert_eq!(bytes.len() as u64, len, "a read gives the bytes that were asked for");
            StreamingBlob::from(s3s::Body::from(bytes))
        }
        ReadBody::Stream(pieces) => StreamingBlob::new(Sized { pieces, left: len }),
    }
}

/// A stream of pieces whose length is known. It ends in an error, never early.
struct Sized {
    pieces: larder_objects::PieceStream,
    left: u64,
}

impl Stream for Sized {
    type Item = Result<Bytes, StdError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let this = &mut *self;
        std::task::Poll::Ready(match std::task::ready!(this.pieces.poll_next_unpin(cx)) {
            Some(Ok(piece)) => {
                let len = piece.len() as u64;
                assert!(len <= this.left, "a read gives no more bytes than were asked for");
                this.left -= len;
                Some(Ok(piece))
            }
            Some(Err(broken)) => Some(Err(Box::new(broken))),
            None if this.left > 0 => Some(Err("the store ended a read early".into())),
            None => None,
        })
    }
}

impl ByteStream for Sized {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.left).map_or(RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

/// The answer to a read whose conditions do not hold. 304 carries what a cache needs.
fn refusal(unmet: Unmet, metax: &Metax) -> S3Error {
    if unmet == Unmet::Failed {
        return from_store(ObjectError::PreconditionFailed);
    }
    let mut refused = S3Error::new(S3ErrorCode::NotModified);
    let mut headers = HeaderMap::with_capacity(4);
    let mut put = |name, value: Option<String>| {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(name, value);
        }
    };
    put(header::ETAG, Some(quoted(&metax.etag)));
    put(header::CACHE_CONTROL, metax.attributes.cache_control.clone());
    put(header::EXPIRES, metax.attributes.expires.clone());
    let mut date = Vec::new();
    let shown = last_modified(metax.clock).format(TimestampFormat::HttpDate, &mut date);
    put(header::LAST_MODIFIED, shown.ok().and_then(|()| String::from_utf8(date).ok()));
    refused.set_headers(headers);
    refused
}

fn quoted(etag: &StoredETag) -> String {
    format!("\"{}\"", etag.text())
}
