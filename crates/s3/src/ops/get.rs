//! GetObject and HeadObject.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use larder_objects::{ObjectError, Objects, Opened, ReadBody, Replication, ReplicationStatus};
use larder_types::{BucketName, HybridClock, Metax, ObjectChecksum, ObjectKey};
use s3s::dto::{Range, StreamingBlob, Timestamp};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{Body, S3Error, S3ErrorCode, S3Result, StdError};

use super::gateway::{Gateway, Request};
use crate::answer;
use crate::errors::{error, from_store, precondition_failed};
use crate::limits::CHANGED_RETRIES_MAX;
use crate::request::attributes::DEFAULT_CONTENT_TYPE;
use crate::request::conditions::{self, ReadConditions, Unmet};
use crate::request::encryption::refuse_reading;
use crate::request::head::{Parameters, lines};
use crate::request::metadata;
use crate::request::names::{EXPECTED_OWNER, check_owner, null_version};
use crate::request::own_headers::REPLICATION_REGIONS;
use crate::request::range::{self, Span};

const STORAGE_CLASS: HeaderName = HeaderName::from_static("x-amz-storage-class");
const WEBSITE_REDIRECT: HeaderName = HeaderName::from_static("x-amz-website-redirect-location");

/// The demands of a read, apart from the object's name.
struct GetRequest<'r> {
    conditions: ReadConditions,
    range: Option<Range>,
    if_range: Option<&'r HeaderValue>,
    part: Option<i32>,
    checksum: bool,
    /// Headers to be shown in place of the object's.
    replaced: HeaderMap,
}

impl<'r> GetRequest<'r> {
    /// Reads the headers and parameters that Get and Head share.
    fn of(headers: &'r HeaderMap, parameters: Parameters<'_>) -> S3Result<Self> {
        let mut conditions = ReadConditions::default();
        let (mut range, mut checksum) = (None, false);
        for line in lines(headers) {
            match line.name() {
                "if-match" => conditions.if_match = conditions::of_line(&line)?,
                "if-none-match" => conditions.if_none_match = conditions::of_line(&line)?,
                "if-modified-since" => {
                    conditions.if_modified_since = conditions::date_of_line(&line)?;
                }
                "if-unmodified-since" => {
                    conditions.if_unmodified_since = conditions::date_of_line(&line)?;
                }
                "range" => range = range::of_line(&line)?,
                "x-amz-checksum-mode" => {
                    checksum = line.text::<String>()?.is_some_and(|mode| mode == "ENABLED");
                }
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                _ => {}
            }
        }
        refuse_reading(headers)?;
        null_version(parameters.one("versionId")?.as_deref(), "versionId")?;
        Ok(Self {
            conditions,
            range,
            if_range: headers.get(header::IF_RANGE),
            part: parameters.part_number("partNumber")?.map(i32::from),
            checksum,
            replaced: replaced(parameters)?,
        })
    }

    /// True if all of the object is wanted, whatever it is by now.
    fn is_all(&self) -> bool {
        self.range.is_none() && self.part.is_none() && self.conditions.are_none()
    }
}

/// An object found, and what of it is to be sent.
struct Found {
    opened: Opened,
    span: Span,
    checksum: Option<ObjectChecksum>,
    parts_count: Option<i32>,
}

pub(crate) async fn object<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let wanted = GetRequest::of(&request.parts.headers, request.parameters())?;
    let (found, body) = read(gateway, &request.bucket, &key, &wanted).await?;
    show(gateway, (&request.bucket, &found), wanted.replaced, body).await
}

pub(crate) async fn head<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let wanted = GetRequest::of(&request.parts.headers, request.parameters())?;
    let found = find(gateway, &request.bucket, &key, &wanted).await?;
    show(gateway, (&request.bucket, &found), wanted.replaced, Body::empty()).await
}

/// The answer that shows an object.
async fn show<O: Objects>(
    gateway: &Gateway<O>,
    (bucket, found): (&BucketName, &Found),
    replaced: HeaderMap,
    body: Body,
) -> S3Result<Response<Body>> {
    let mut response = Response::new(body);
    if describe(response.headers_mut(), found)? {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response.headers_mut().extend(replaced);
    show_replication(response.headers_mut(), gateway, (bucket, &found.opened)).await;
    Ok(response)
}

/// Sets the headers of an object. Returns true if a part of it is sent.
fn describe(headers: &mut HeaderMap, found: &Found) -> S3Result<bool> {
    let metax = &found.opened.metax;
    let attributes = &metax.attributes;
    let content_type = attributes.content_type.as_deref().unwrap_or(DEFAULT_CONTENT_TYPE);
    for (name, text) in [
        (header::CACHE_CONTROL, attributes.cache_control.as_deref()),
        (header::CONTENT_DISPOSITION, attributes.content_disposition.as_deref()),
        (header::CONTENT_ENCODING, attributes.content_encoding.as_deref()),
        (header::CONTENT_LANGUAGE, attributes.content_language.as_deref()),
        (header::CONTENT_TYPE, Some(content_type)),
        (header::EXPIRES, attributes.expires.as_deref()),
        (STORAGE_CLASS, attributes.storage_class.as_deref()),
        (WEBSITE_REDIRECT, attributes.website_redirect.as_deref()),
    ] {
        // Forms of earlier releases stored texts that no header can have.
        if let Some(Ok(value)) = text.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(found.span.len()));
    answer::set_etag(headers, &metax.etag)?;
    answer::set(headers, header::LAST_MODIFIED, &answer::http_date(metax.clock))?;
    if let Some(checksum) = &found.checksum {
        answer::set_checksum(headers, checksum)?;
    }
    show_metadata(headers, &attributes.user);
    if let Some(count) = found.parts_count {
        headers.insert("x-amz-mp-parts-count", HeaderValue::from(count));
    }
    if !attributes.tags.is_empty() {
        headers.insert("x-amz-tagging-count", HeaderValue::from(attributes.tags.len()));
    }
    let range = found.span.content_range(metax.size);
    if let Some(range) = &range {
        answer::set(headers, header::CONTENT_RANGE, range)?;
    }
    Ok(range.is_some())
}

/// Metadata that can be no header, as a form may give, is counted instead (S3).
fn show_metadata(headers: &mut HeaderMap, user: &[(String, String)]) {
    let mut missing = 0_u32;
    for (name, value) in user {
        let name = HeaderName::try_from(format!("{}{name}", metadata::PREFIX));
        match (name, HeaderValue::try_from(&*metadata::encode(value))) {
            (Ok(name), Ok(value)) => drop(headers.insert(name, value)),
            _ => missing += 1,
        }
    }
    if missing > 0 {
        headers.insert("x-amz-missing-meta", HeaderValue::from(missing));
    }
}

/// Shows where the version is, in a store that is one of several regions and knows it now.
async fn show_replication<O: Objects>(
    headers: &mut HeaderMap,
    gateway: &Gateway<O>,
    (bucket, opened): (&BucketName, &Opened),
) {
    let found = gateway.store.replication(bucket, opened).await;
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

/// The headers that a request wants shown in place of the object's.
fn replaced(parameters: Parameters<'_>) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if parameters.are_none() {
        return Ok(headers);
    }
    for (name, parameter) in [
        (header::CACHE_CONTROL, "response-cache-control"),
        (header::CONTENT_DISPOSITION, "response-content-disposition"),
        (header::CONTENT_ENCODING, "response-content-encoding"),
        (header::CONTENT_LANGUAGE, "response-content-language"),
        (header::CONTENT_TYPE, "response-content-type"),
        (header::EXPIRES, "response-expires"),
    ] {
        if let Some(value) = parameters.read(parameter, |text| HeaderValue::try_from(text).ok())? {
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

/// The time at which an object was made, as shown to clients.
pub(crate) fn last_modified(clock: HybridClock) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(clock.ms()))
}

async fn find<O: Objects>(
    gateway: &Gateway<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    wanted: &GetRequest<'_>,
) -> S3Result<Found> {
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = gateway.store.open(bucket, key).await.map_err(from_store)?;
        if let Some(found) = chosen(gateway, opened, wanted).await? {
            return Ok(found);
        }
    }
    Err(from_store(ObjectError::Changed))
}

/// Chooses the part of an object that is to be sent; `None` if the object was replaced meanwhile.
async fn chosen<O: Objects>(
    gateway: &Gateway<O>,
    opened: Opened,
    wanted: &GetRequest<'_>,
) -> S3Result<Option<Found>> {
    wanted.conditions.check(&opened.metax).map_err(|unmet| refusal(unmet, &opened.metax))?;
    let size = opened.metax.size;
    let Some(number) = wanted.part else {
        let named = |if_range| conditions::is_version(if_range, &opened.metax);
        let range = wanted.range.as_ref().filter(|_| wanted.if_range.is_none_or(named));
        let span = range::of_header(range, size)?;
        let whole = wanted.checksum && !span.partial;
        let checksum = if whole { opened.metax.checksum.clone() } else { None };
        return Ok(Some(Found { opened, span, checksum, parts_count: None }));
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
            let part = match gateway.store.part(&opened, number).await {
                Err(ObjectError::Changed) => return Ok(None),
                part => part.map_err(from_store)?,
            };
            let kind = opened.metax.checksum.as_ref().map(|checksum| checksum.kind);
            // The part's own value, said to be of the kind that the whole object has (S3).
            part.metax.checksum.map(|sum| ObjectChecksum { kind: kind.unwrap_or(sum.kind), ..sum })
        }
    };
    Ok(Some(Found { opened, span, checksum, parts_count }))
}

/// Opens and reads, again if the object is replaced in between.
async fn read<O: Objects>(
    gateway: &Gateway<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    wanted: &GetRequest<'_>,
) -> S3Result<(Found, Body)> {
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = match wanted.is_all() {
            true => gateway.store.open_whole(bucket, key).await,
            false => gateway.store.open(bucket, key).await,
        };
        let chosen = chosen(gateway, opened.map_err(from_store)?, wanted).await?;
        let Some(found) = chosen else { continue };
        if found.span.len() == 0 {
            return Ok((found, Body::empty()));
        }
        match gateway.store.read(&found.opened, found.span.bytes.clone()).await {
            Ok(body) => {
                let body = sized(body, found.span.len());
                return Ok((found, body));
            }
            Err(ObjectError::Changed) => {}
            Err(refused) => return Err(from_store(refused)),
        }
    }
    Err(from_store(ObjectError::Changed))
}

fn sized(body: ReadBody, len: u64) -> Body {
    match body {
        ReadBody::Whole(bytes) => {
            assert_eq!(bytes.len() as u64, len, "a read gives the bytes that were asked for");
            Body::from(bytes)
        }
        ReadBody::Stream(pieces) => Body::from(StreamingBlob::new(Sized { pieces, left: len })),
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
    if let Unmet::Failed(header) = unmet {
        return precondition_failed(Some(header));
    }
    let mut refused = S3Error::new(S3ErrorCode::NotModified);
    let mut headers = HeaderMap::with_capacity(4);
    let mut put = |name, value: Option<String>| {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(name, value);
        }
    };
    put(header::ETAG, Some(format!("\"{}\"", metax.etag.text())));
    put(header::CACHE_CONTROL, metax.attributes.cache_control.clone());
    put(header::EXPIRES, metax.attributes.expires.clone());
    put(header::LAST_MODIFIED, Some(answer::http_date(metax.clock)));
    refused.set_headers(headers);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_that_can_be_no_header_is_counted() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut headers = HeaderMap::new();
        show_metadata(&mut headers, &[pair("a", "1"), pair("b", "\u{e4}\n")]);
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-amz-meta-b"], "=?UTF-8?B?w6QK?=");
        show_metadata(&mut headers, &[pair("a b", "1"), pair("", "2"), pair("c\n", "3")]);
        assert_eq!(headers["x-amz-missing-meta"], "2");
        assert_eq!(headers["x-amz-meta-"], "2");
    }
}
