//! PutObject, and the object of an HTML form; where a put appends, `append.rs`.

use http::{HeaderMap, Response};
use larder_objects::{AppendAt, AppendOptions, Objects, PutDone, PutOptions};
use larder_types::limits::PUT_BYTES_MAX;
use larder_types::{BucketName, ObjectKey};
use s3s::dto::ETagCondition;
use s3s::{Body, S3ErrorCode, S3Result};

use super::append;
use super::gateway::{Gateway, Request};
use crate::answer;
use crate::body::pulled::RequestBody;
use crate::errors::error;
use crate::request::attributes::Given;
use crate::request::bytes_moved::BytesMoved;
use crate::request::conditions;
use crate::request::digests::DigestHeaders;
use crate::request::head::lines;
use crate::request::names::{EXPECTED_OWNER, check_owner};

/// PutObject.
pub(crate) async fn object<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    let PutRequest { bucket, key, append, options, body, asked } = wanted(gateway, request)?;
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    if let Some(at) = append {
        let PutOptions { attributes, condition } = options;
        let options = AppendOptions { at, attributes, condition };
        let asked = append::AppendRequest { bucket, key, options, checksum: asked };
        append::object(gateway, asked, body, headers).await?;
        return Ok(response);
    }
    let failing = conditions::only(&options.condition);
    let done = put(gateway, (&bucket, &key), options, body).await;
    let done = done.map_err(|refused| conditions::named(refused, failing))?;
    answer::set_etag(headers, &done.etag)?;
    if let Some(checksum) = done.checksum.as_ref().filter(|_| asked) {
        answer::set_checksum(headers, checksum)?;
    }
    Ok(response)
}

/// A put as its request asks for it.
struct PutRequest {
    bucket: BucketName,
    key: ObjectKey,
    append: Option<AppendAt>,
    options: PutOptions,
    body: RequestBody,
    /// True if the client gets a checksum back.
    asked: bool,
}

/// Of the request nothing is kept but this while the body comes.
fn wanted<O: Objects>(gateway: &Gateway<O>, mut request: Request) -> S3Result<PutRequest> {
    let key = request.take_key()?;
    let Request { bucket, parts, body, sent, gate, .. } = request;
    let headers = &parts.headers;
    let read = PutHeaders::of(headers)?;
    let append = append::wanted(gateway, headers, read.offset)?;
    let announced = read.digests.announced(headers)?;
    let asked = announced.asked;
    let body = RequestBody::new(body, announced).content_md5(read.digests.md5)?;
    let body = body.of(&gate).sent(&sent);
    check_length(&body)?;
    let condition = conditions::of_write(read.if_match.as_ref(), read.if_none_match.as_ref());
    let options = PutOptions { attributes: read.given.into_attributes()?, condition };
    Ok(PutRequest { bucket, key, append, options, body, asked })
}

/// The headers of a put.
#[derive(Default)]
struct PutHeaders<'r> {
    given: Given,
    digests: DigestHeaders<'r>,
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
    offset: Option<i64>,
}

impl<'r> PutHeaders<'r> {
    fn of(headers: &'r HeaderMap) -> S3Result<Self> {
        let mut read = Self::default();
        for line in lines(headers) {
            match line.name() {
                "if-match" => read.if_match = conditions::of_line(&line)?,
                "if-none-match" => read.if_none_match = conditions::of_line(&line)?,
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                "x-amz-write-offset-bytes" => read.offset = line.number()?,
                _ => {
                    let _ = read.digests.take(&line)? || read.given.take(&line)?;
                }
            }
        }
        Ok(read)
    }
}

async fn put<O: Objects>(
    gateway: &Gateway<O>,
    (bucket, key): (&BucketName, &ObjectKey),
    options: PutOptions,
    mut body: RequestBody,
) -> S3Result<PutDone> {
    match gateway.store.put(bucket, key, options, &mut body).await {
        Ok(done) => {
            body.note_moved(BytesMoved::Written);
            Ok(done)
        }
        Err(refused) => Err(body.explain(refused)),
    }
}

/// Refuses a body before it is read if it is announced to be too long.
///
/// # Errors
/// `EntityTooLarge`.
pub(crate) fn check_length(body: &RequestBody) -> S3Result<()> {
    match body.announced_len() {
        Some(len) if len > PUT_BYTES_MAX => Err(error(
            S3ErrorCode::EntityTooLarge,
            format!(
                "Your proposed upload exceeds the maximum allowed size of {PUT_BYTES_MAX} bytes"
            ),
        )),
        _ => Ok(()),
    }
}
