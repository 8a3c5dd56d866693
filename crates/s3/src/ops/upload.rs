//! Multipart uploads: begin, add parts, complete, abort. Their lists are in [`super::upload_lists`].

use larder_objects::{BodyError, CompleteOptions, NamedPart, ObjectError, Objects, UploadOptions};
use larder_types::limits::PART_NUMBER_MAX;
use larder_types::{BucketName, ChecksumAlgorithm, ChecksumKind, ObjectKey, UploadId};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CompletedPart, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, ETag, UploadPartInput, UploadPartOutput,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use super::put::{check_length, stream};
use crate::body::pulled::RequestBody;
use crate::digest::announced::{Announced, given_checksums, single, verified_given};
use crate::digest::checksums::{self, kind_name, name, show_checksum};
use crate::errors::{error, from_store};
use crate::request::attributes::{Expires, given_attributes};
use crate::request::conditions;
use crate::request::encryption::not_applicable;
use crate::request::moved::Moved;
use crate::request::names::{key, location};

/// A part's number.
///
/// # Errors
/// `InvalidArgument` outside S3's range.
pub(crate) fn part_number(number: i32) -> S3Result<u16> {
    match u16::try_from(number) {
        Ok(number @ 1..=PART_NUMBER_MAX) => Ok(number),
        _ => Err(error(
            S3ErrorCode::InvalidArgument,
            format!("Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive"),
        )),
    }
}

pub(crate) async fn create<O: Objects>(
    face: &Face<O>,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let checksum = chosen(
        input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()),
        input.checksum_type.as_ref().map(|kind| kind.as_str()),
    )?;
    let expires = Expires::of(&request.headers, &request.extensions);
    let attributes = given_attributes!(input, expires).into_attributes()?;
    let options = UploadOptions { attributes, checksum };
    let key = key(input.key.clone())?;
    let id = face.store.create_upload(&bucket, &key, options).await.map_err(from_store)?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id.to_string()),
        checksum_algorithm: checksum.map(|(algorithm, _)| name(algorithm).to_owned().into()),
        checksum_type: checksum.map(|(_, kind)| kind_name(kind).to_owned().into()),
        ..Default::default()
    }))
}

/// Algorithm and kind for the whole object. CRCs of parts can be joined to that of the whole, hashes
/// cannot; the CRC-64 is never composite (S3).
fn chosen(
    algorithm: Option<&str>,
    kind: Option<&str>,
) -> S3Result<Option<(ChecksumAlgorithm, ChecksumKind)>> {
    let invalid = |message: String| Err(error(S3ErrorCode::InvalidRequest, message));
    let Some(algorithm) = algorithm.map(checksums::parse_name).transpose()? else {
        return match kind {
            None => Ok(None),
            Some(_) => invalid(
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm \
                 header."
                    .to_owned(),
            ),
        };
    };
    let (default, other) = match algorithm {
        ChecksumAlgorithm::Crc64Nvme => (ChecksumKind::FullObject, None),
        ChecksumAlgorithm::Crc32 | ChecksumAlgorithm::Crc32c => {
            (ChecksumKind::Composite, Some(ChecksumKind::FullObject))
        }
        ChecksumAlgorithm::Sha1 | ChecksumAlgorithm::Sha256 => (ChecksumKind::Composite, None),
    };
    let kind = match kind {
        None => default,
        Some(kind) if kind == kind_name(default) => default,
        Some(kind) => match other {
            Some(other) if kind == kind_name(other) => other,
            _ => {
                let name = name(algorithm).to_lowercase();
                return invalid(format!(
                    "The {kind} checksum type cannot be used with the {name} checksum algorithm."
                ));
            }
        },
    };
    Ok(Some((algorithm, kind)))
}

pub(crate) async fn part<O: Objects>(
    face: &Face<O>,
    request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let mut input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    if input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some() {
        return Err(not_applicable());
    }
    let number = part_number(input.part_number)?;
    let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
    let named = header("x-amz-sdk-checksum-algorithm")
        .or(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()));
    let announced = Announced::of(
        &given_checksums!(input),
        verified_given(&request.headers)?,
        named,
        header("x-amz-trailer"),
    )?;
    let (key, id) = (key(input.key)?, face.upload_id(&bucket, &input.upload_id)?);
    let row = face.store.upload(&bucket, &key, id).await.map_err(from_store)?;
    let announced = agreed(announced, row.checksum)?;
    let asked = announced.asked;
    let mut body = RequestBody::new(stream(input.body.take()), announced)
        .of(request.extensions.get())
        .content_md5(input.content_md5.as_deref())?
        .sent(request.extensions.get());
    check_length(&body)?;
    let done = match face.store.put_part(&bucket, &key, id, number, &mut body).await {
        Ok(done) => done,
        Err(refused) => return Err(body.explain(refused)),
    };
    body.note_moved(Moved::Written);
    let mut output =
        UploadPartOutput { e_tag: Some(ETag::Strong(done.etag.text())), ..Default::default() };
    if let Some(checksum) = done.checksum.as_ref().filter(|_| asked) {
        show_checksum!(output, checksum);
    }
    Ok(S3Response::new(output))
}

/// The checksum of a part, given that of its upload. A client that says nothing of a checksum of the whole object gets
/// the upload's; where each part's is kept, it must say it (S3).
fn agreed(
    announced: Announced,
    of_upload: Option<(ChecksumAlgorithm, ChecksumKind)>,
) -> S3Result<Announced> {
    let Some((algorithm, kind)) = of_upload else { return Ok(announced) };
    let actual = match &announced.verified {
        Some((verified, _)) => verified.name().to_lowercase(),
        None if announced.asked && announced.algorithm == algorithm => return Ok(announced),
        None if announced.asked => name(announced.algorithm).to_lowercase(),
        None if kind == ChecksumKind::FullObject => {
            return Ok(Announced { algorithm, ..announced });
        }
        None => "null".to_owned(),
    };
    Err(error(
        S3ErrorCode::InvalidRequest,
        format!(
            "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {actual}",
            name(algorithm).to_lowercase(),
        ),
    ))
}

pub(crate) async fn complete<O: Objects>(
    face: &Face<O>,
    request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let checksum = single(&given_checksums!(input))?;
    if let Some((algorithm, _)) = verified_given(&request.headers)? {
        let name = algorithm.header();
        let message = format!("The upload was created using another checksum than that of {name}.");
        return Err(error(S3ErrorCode::InvalidRequest, message));
    }
    let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    if parts.is_empty() {
        return Err(error(S3ErrorCode::MalformedXML, "You must specify at least one part"));
    }
    let size = match input.mpu_object_size.map(u64::try_from) {
        None => None,
        Some(Ok(size)) => Some(size),
        Some(Err(_)) => {
            return Err(error(
                S3ErrorCode::InvalidArgument,
                "The object size must not be negative",
            ));
        }
    };
    let options = CompleteOptions {
        parts: parts.into_iter().map(named_part).collect::<S3Result<_>>()?,
        condition: conditions::of_write(input.if_match.as_ref(), input.if_none_match.as_ref()),
        checksum,
        size,
    };
    let (name, id) = (key(input.key.clone())?, face.upload_id(&bucket, &input.upload_id)?);
    if let Some(kind) = &input.checksum_type {
        check_kind(face, &bucket, &name, id, kind.as_str()).await?;
    }
    let done = face.store.complete_upload(&bucket, &name, id, options).await;
    let done = done.map_err(|refused| match refused {
        ObjectError::Body(BodyError::Incomplete) => error(
            S3ErrorCode::InvalidRequest,
            "The provided 'x-amz-mp-object-size' header does not match what was computed.",
        ),
        refused => from_store(refused),
    })?;
    let mut output = CompleteMultipartUploadOutput {
        e_tag: Some(ETag::Strong(done.etag.text())),
        location: Some(location(&request.headers, &input.bucket, &input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        ..Default::default()
    };
    if let Some(checksum) = &done.checksum {
        show_checksum!(output, checksum);
        output.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
    }
    Ok(S3Response::new(output))
}

/// A completion may repeat the kind of checksum that was chosen at the beginning. One that comes
/// again, after the upload has gone, is left to the store.
async fn check_kind<O: Objects>(
    face: &Face<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    id: UploadId,
    kind: &str,
) -> S3Result<()> {
    let chosen = match face.store.upload(bucket, key, id).await {
        Ok(row) => row.checksum.map_or(ChecksumKind::FullObject, |(_, kind)| kind),
        Err(ObjectError::NoSuchUpload) => return Ok(()),
        Err(refused) => return Err(from_store(refused)),
    };
    if kind == kind_name(chosen) {
        return Ok(());
    }
    let chosen = kind_name(chosen);
    Err(error(
        S3ErrorCode::InvalidRequest,
        format!("The upload was created using the {chosen} checksum type, not {kind}."),
    ))
}

fn named_part(part: CompletedPart) -> S3Result<NamedPart> {
    let checksum = single(&given_checksums!(part))?;
    let missing = |what| error(S3ErrorCode::MalformedXML, format!("A part has no {what}"));
    Ok(NamedPart {
        number: part_number(part.part_number.ok_or_else(|| missing("PartNumber"))?)?,
        etag: part.e_tag.ok_or_else(|| missing("ETag"))?.into_value(),
        checksum,
    })
}

pub(crate) async fn abort<O: Objects>(
    face: &Face<O>,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let (key, id) = (key(input.key)?, face.upload_id(&bucket, &input.upload_id)?);
    if let Some(time) = input.if_match_initiated_time {
        let row = face.store.upload(&bucket, &key, id).await.map_err(from_store)?;
        if conditions::whole_seconds(row.clock) != time {
            return Err(from_store(ObjectError::PreconditionFailed));
        }
    }
    face.store.abort_upload(&bucket, &key, id).await.map_err(from_store)?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crcs_can_cover_the_whole_object() {
        use ChecksumAlgorithm::{Crc32, Crc64Nvme, Sha256};
        use ChecksumKind::{Composite, FullObject};
        let of = |algorithm, kind| chosen(Some(algorithm), kind).ok().flatten();
        assert_eq!(of("CRC64NVME", None), Some((Crc64Nvme, FullObject)));
        assert_eq!(of("CRC32", None), Some((Crc32, Composite)));
        assert_eq!(of("CRC32", Some("FULL_OBJECT")), Some((Crc32, FullObject)));
        assert_eq!(of("SHA256", Some("COMPOSITE")), Some((Sha256, Composite)));
        assert_eq!(of("SHA256", Some("FULL_OBJECT")), None);
        assert_eq!(of("CRC64NVME", Some("COMPOSITE")), None);
        assert_eq!(of("CRC32", Some("HALF")), None);
        assert!(chosen(None, Some("COMPOSITE")).is_err());
        assert_eq!(chosen(None, None).unwrap(), None);
    }

    #[test]
    fn a_part_has_the_checksum_of_its_upload() {
        use ChecksumAlgorithm::{Crc32, Sha1};
        use ChecksumKind::{Composite, FullObject};
        let crc = Announced { algorithm: Crc32, ..Announced::nothing() };
        let silent = agreed(Announced::nothing(), Some((Crc32, FullObject))).unwrap();
        assert_eq!(silent, crc);
        let asked = Announced { algorithm: Sha1, asked: true, ..Announced::nothing() };
        assert_eq!(agreed(asked.clone(), None).unwrap(), asked);
        assert_eq!(agreed(asked.clone(), Some((Sha1, Composite))).unwrap(), asked);
        assert!(agreed(asked, Some((Crc32, FullObject))).is_err());
        assert!(agreed(Announced::nothing(), Some((Sha1, Composite))).is_err(), "silent");
        let md5 = crate::digest::verified::Verified::Md5;
        let verified = || Announced {
            verified: Some((md5, crate::digest::announced::Expected::Trailer)),
            ..Announced::nothing()
        };
        assert!(agreed(verified(), None).is_ok());
        assert!(agreed(verified(), Some((Crc32, FullObject))).is_err());
    }

    #[test]
    fn part_numbers_have_a_range() {
        for number in [-1, 0, 10_001, i32::MAX] {
            assert!(part_number(number).is_err(), "{number}");
        }
        assert_eq!(part_number(10_000).unwrap(), 10_000);
    }
}
