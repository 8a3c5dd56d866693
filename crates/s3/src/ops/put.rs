//! PutObject, and the object of an HTML form; where a put appends, `append.rs`.

use http::{HeaderMap, Response};
use larder_objects::{AppendAt, AppendOptions, Objects, PutDone, PutOptions};
use larder_types::limits::PUT_BYTES_MAX;
use larder_types::{BucketName, ObjectKey};
use s3s::dto::{PutObjectInput, StreamingBlob, Timestamp, TimestampFormat};
use s3s::{Body, S3ErrorCode, S3Result};

use super::append;
use super::face::{Face, Request};
use crate::answer;
use crate::body::pulled::RequestBody;
use crate::digest::announced::{Announced, given_checksums, verified_given};
use crate::errors::error;
use crate::request::attributes::{Expires, given_attributes};
use crate::request::head::lines;
use crate::request::moved::Moved;
use crate::request::names::check_owner;
use crate::request::{conditions, metadata};

/// PutObject.
pub(crate) async fn object<O: Objects>(
    face: &Face<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    let Wanted { bucket, key, append, options, body, asked } = wanted(face, request)?;
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    if let Some(at) = append {
        let PutOptions { attributes, condition } = options;
        let options = AppendOptions { at, attributes, condition };
        let asked = append::Asked { bucket, key, options, checksum: asked };
        append::object(face, asked, body, headers).await?;
        return Ok(response);
    }
    let done = put(face, (&bucket, &key), options, body).await?;
    answer::set_etag(headers, &done.etag)?;
    if let Some(checksum) = done.checksum.as_ref().filter(|_| asked) {
        answer::set_checksum(headers, checksum)?;
    }
    Ok(response)
}

/// A put as its request asks for it.
struct Wanted {
    bucket: BucketName,
    key: ObjectKey,
    append: Option<AppendAt>,
    options: PutOptions,
    body: RequestBody,
    /// True if the client gets a checksum back.
    asked: bool,
}

/// Of the request nothing is kept but this while the body comes.
fn wanted<O: Objects>(face: &Face<O>, mut request: Request) -> S3Result<Wanted> {
    let key = request.take_key()?;
    let Request { bucket, parts, body, sent, gate, .. } = request;
    let mut input = read(&parts.headers)?;
    check_owner(input.expected_bucket_owner.as_deref())?;
    let append = append::wanted(face, &parts.headers, input.write_offset_bytes)?;
    let options = options(&mut input, Expires::of(&parts.headers, &parts.extensions))?;
    let (body, asked) = announced(&input, &parts.headers, body)?;
    let body = body.of(Some(&gate)).sent(Some(&sent));
    Ok(Wanted { bucket, key, append, options, body, asked })
}

/// Reads the headers of a put.
pub(super) fn read(headers: &HeaderMap) -> S3Result<PutObjectInput> {
    let mut input = PutObjectInput::default();
    for line in lines(headers) {
        match line.name() {
            "cache-control" => input.cache_control = line.joined_text()?,
            "content-disposition" => input.content_disposition = line.utf8()?,
            "content-encoding" => input.content_encoding = line.joined_text()?,
            "content-language" => input.content_language = line.joined_text()?,
            "content-md5" => input.content_md5 = line.text()?,
            "content-type" => input.content_type = line.text()?,
            // It is stored as it came (`Expires`), and must be text.
            "expires" => drop(line.text::<String>()?),
            "if-match" => input.if_match = conditions::of_line(&line)?,
            "if-none-match" => input.if_none_match = conditions::of_line(&line)?,
            "x-amz-acl" => input.acl = line.text()?,
            "x-amz-checksum-algorithm" => input.checksum_algorithm = line.text()?,
            "x-amz-checksum-crc32" => input.checksum_crc32 = line.text()?,
            "x-amz-checksum-crc32c" => input.checksum_crc32c = line.text()?,
            "x-amz-checksum-crc64nvme" => input.checksum_crc64nvme = line.text()?,
            "x-amz-checksum-sha1" => input.checksum_sha1 = line.text()?,
            "x-amz-checksum-sha256" => input.checksum_sha256 = line.text()?,
            "x-amz-expected-bucket-owner" => input.expected_bucket_owner = line.text()?,
            "x-amz-grant-full-control" => input.grant_full_control = line.text()?,
            "x-amz-grant-read" => input.grant_read = line.text()?,
            "x-amz-grant-read-acp" => input.grant_read_acp = line.text()?,
            "x-amz-grant-write-acp" => input.grant_write_acp = line.text()?,
            "x-amz-object-lock-legal-hold" => input.object_lock_legal_hold_status = line.text()?,
            "x-amz-object-lock-mode" => input.object_lock_mode = line.text()?,
            "x-amz-object-lock-retain-until-date" => {
                let date = |text: &str| Timestamp::parse(TimestampFormat::DateTime, text).ok();
                input.object_lock_retain_until_date = line.read(date)?;
            }
            "x-amz-server-side-encryption" => input.server_side_encryption = line.text()?,
            "x-amz-server-side-encryption-aws-kms-key-id" => input.ssekms_key_id = line.text()?,
            "x-amz-server-side-encryption-bucket-key-enabled" => {
                input.bucket_key_enabled = line.read(|text| match text {
                    "true" | "True" => Some(true),
                    "false" | "False" => Some(false),
                    _ => None,
                })?;
            }
            "x-amz-server-side-encryption-context" => {
                input.ssekms_encryption_context = line.text()?;
            }
            "x-amz-server-side-encryption-customer-algorithm" => {
                input.sse_customer_algorithm = line.text()?;
            }
            "x-amz-server-side-encryption-customer-key" => input.sse_customer_key = line.text()?,
            "x-amz-server-side-encryption-customer-key-md5" => {
                input.sse_customer_key_md5 = line.text()?;
            }
            "x-amz-storage-class" => input.storage_class = line.text()?,
            "x-amz-tagging" => input.tagging = line.text()?,
            "x-amz-website-redirect-location" => input.website_redirect_location = line.text()?,
            "x-amz-write-offset-bytes" => input.write_offset_bytes = line.number()?,
            name => {
                let Some(name) = name.strip_prefix(metadata::PREFIX) else { continue };
                if name.is_empty() {
                    continue;
                }
                let value = line.joined();
                let text = std::str::from_utf8(value.as_bytes()).ok().and_then(metadata::decode);
                let text = text.ok_or_else(|| line.invalid(&value))?.into_owned();
                input.metadata.get_or_insert_default().insert(name.to_owned(), text);
            }
        }
    }
    Ok(input)
}

fn options(input: &mut PutObjectInput, expires: Expires<'_>) -> S3Result<PutOptions> {
    let attributes = given_attributes!(input, expires).into_attributes()?;
    let condition = conditions::of_write(input.if_match.as_ref(), input.if_none_match.as_ref());
    Ok(PutOptions { attributes, condition })
}

/// The body with what is announced of it, and true if the client gets a checksum back.
fn announced(
    input: &PutObjectInput,
    headers: &HeaderMap,
    body: Body,
) -> S3Result<(RequestBody, bool)> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let named = header("x-amz-sdk-checksum-algorithm")
        .or(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()));
    let announced = Announced::of(
        &given_checksums!(input),
        verified_given(headers)?,
        named,
        header("x-amz-trailer"),
    )?;
    let asked = announced.asked;
    let body = RequestBody::new(body, announced).content_md5(input.content_md5.as_deref())?;
    check_length(&body)?;
    Ok((body, asked))
}

async fn put<O: Objects>(
    face: &Face<O>,
    (bucket, key): (&BucketName, &ObjectKey),
    options: PutOptions,
    mut body: RequestBody,
) -> S3Result<PutDone> {
    match face.store.put(bucket, key, options, &mut body).await {
        Ok(done) => {
            body.note_moved(Moved::Written);
            Ok(done)
        }
        Err(refused) => Err(body.explain(refused)),
    }
}

/// The body as the library gives it; none is an empty one.
pub(crate) fn stream(body: Option<StreamingBlob>) -> Body {
    body.map(Body::from).unwrap_or_default()
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
