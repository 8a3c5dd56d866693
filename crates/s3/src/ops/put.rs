//! PutObject; where it appends, `append.rs`.

use larder_objects::{AppendOptions, Objects, PutOptions};
use larder_types::limits::PUT_BYTES_MAX;
use s3s::dto::{ETag, PutObjectInput, PutObjectOutput, StreamingBlob};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::append;
use super::face::Face;
use crate::body::pulled::RequestBody;
use crate::digest::announced::{Announced, given_checksums, verified_given};
use crate::digest::checksums::{kind_name, show_checksum};
use crate::errors::error;
use crate::request::attributes::{Expires, given_attributes};
use crate::request::conditions;
use crate::request::moved::Moved;
use crate::request::names::key;

pub(crate) async fn object<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let append = append::wanted(face, &request.headers, input.write_offset_bytes)?;
    let expires = Expires::of(&request.headers, &request.extensions);
    let attributes = given_attributes!(input, expires).into_attributes()?;
    let condition = conditions::of_write(input.if_match.as_ref(), input.if_none_match.as_ref());
    let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
    let named = header("x-amz-sdk-checksum-algorithm")
        .or(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()));
    let announced = Announced::of(
        &given_checksums!(input),
        verified_given(&request.headers)?,
        named,
        header("x-amz-trailer"),
    )?;
    let asked = announced.asked;
    let mut body = RequestBody::new(stream(input.body.take()), announced)
        .of(request.extensions.get())
        .content_md5(input.content_md5.as_deref())?
        .sent(request.extensions.get());
    check_length(&body)?;
    let key = key(input.key)?;
    if let Some(at) = append {
        let options = AppendOptions { at, attributes, condition };
        let asked = append::Asked { bucket, key, options, checksum: asked };
        return append::object(face, asked, body).await;
    }
    let options = PutOptions { attributes, condition };
    let done = match face.store.put(&bucket, &key, options, &mut body).await {
        Ok(done) => done,
        Err(refused) => return Err(body.explain(refused)),
    };
    body.note_moved(Moved::Written);
    let mut output =
        PutObjectOutput { e_tag: Some(ETag::Strong(done.etag.text())), ..Default::default() };
    if let Some(checksum) = done.checksum.as_ref().filter(|_| asked) {
        show_checksum!(output, checksum);
        output.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
    }
    Ok(S3Response::new(output))
}

/// The body as the library gives it; none is an empty one.
pub(crate) fn stream(body: Option<StreamingBlob>) -> StreamingBlob {
    body.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()))
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
