//! Multipart uploads: begin, add parts, complete, abort. Their lists are in [`super::upload_lists`].

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use larder_objects::{BodyError, CompleteOptions, NamedPart, ObjectError, Objects, UploadOptions};
use larder_types::limits::PART_NUMBER_MAX;
use larder_types::{BucketName, ChecksumAlgorithm, ChecksumKind, ObjectKey, UploadId};
use s3s::dto::{
    CompleteMultipartUploadOutput, CreateMultipartUploadOutput, ETag, ETagCondition, Timestamp,
    TimestampFormat,
};
use s3s::{Body, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use super::put::check_length;
use crate::answer;
use crate::body::pulled::RequestBody;
use crate::digest::announced::{Announced, single, verified_given};
use crate::digest::checksums::{self, kind_name, name, show_checksum};
use crate::errors::{elements, error, from_store};
use crate::request::attributes::Given;
use crate::request::bytes_moved::BytesMoved;
use crate::request::conditions;
use crate::request::digests::{DigestHeaders, Values};
use crate::request::encryption::Encryption;
use crate::request::head::{self, Parameters, lines};
use crate::request::names::{self, EXPECTED_OWNER, check_owner, location};
use crate::request::xml::{self, Xml, once};

/// The number of a part that is put.
///
/// # Errors
/// `InvalidArgument` outside S3's range.
pub(crate) fn part_number(parameters: Parameters<'_>) -> S3Result<u16> {
    let number = parameters.part_number("partNumber")?;
    names::part_number(number)
}

pub(crate) async fn create<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    request.drop_body().await?;
    let (mut given, mut algorithm, mut kind) = (Given::default(), None, None);
    for line in lines(&request.parts.headers) {
        match line.name() {
            EXPECTED_OWNER => check_owner(line.read(Some)?)?,
            "x-amz-checksum-algorithm" => algorithm = line.read(Some)?,
            "x-amz-checksum-type" => kind = line.read(Some)?,
            _ => {
                let _ = given.take(&line)?;
            }
        }
    }
    let checksum = chosen(algorithm, kind)?;
    let options = UploadOptions { attributes: given.into_attributes()?, checksum };
    let bucket = &request.bucket;
    let id = gateway.store.create_upload(bucket, &key, options).await.map_err(from_store)?;
    let mut response = answer::document(&CreateMultipartUploadOutput {
        bucket: Some(bucket.as_str().to_owned()),
        key: Some(key.as_str().to_owned()),
        upload_id: Some(id.to_string()),
        ..Default::default()
    })?;
    if let Some((algorithm, kind)) = checksum {
        let headers = response.headers_mut();
        headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(name(algorithm)));
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(kind_name(kind)));
    }
    Ok(response)
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
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let number = part_number(request.parameters())?;
    let headers = &request.parts.headers;
    let (mut digests, mut encryption) = (DigestHeaders::default(), Encryption::default());
    for line in lines(headers) {
        match line.name() {
            EXPECTED_OWNER => check_owner(line.read(Some)?)?,
            _ => {
                let _ = digests.take(&line)? || encryption.take(&line)?;
            }
        }
    }
    encryption.refuse_customer_key()?;
    let announced = digests.announced(headers)?;
    let id = gateway.upload_of(&request)?;
    let row = gateway.store.upload(&request.bucket, &key, id).await.map_err(from_store)?;
    let announced = agreed(announced, row.checksum)?;
    let asked = announced.asked;
    let mut body =
        RequestBody::new(request.body, announced).content_md5(digests.md5)?.of(&request.gate);
    body = body.sent(&request.sent);
    check_length(&body)?;
    let done = match gateway.store.put_part(&request.bucket, &key, id, number, &mut body).await {
        Ok(done) => done,
        Err(refused) => return Err(body.explain(refused)),
    };
    body.note_moved(BytesMoved::Written);
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    answer::set_etag(headers, &done.etag)?;
    if let Some(checksum) = done.checksum.as_ref().filter(|_| asked) {
        let name = HeaderName::from_static(checksums::header(checksum.algorithm));
        answer::set(headers, name, &checksums::text(checksum))?;
    }
    Ok(response)
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
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    // The checksums in its headers are the object's, and one in its trailer is the body's own.
    let announced = Announced::of_trailer(head::text(&request.parts.headers, "x-amz-trailer")?)?;
    let document = request.take_announced(announced).await?;
    let headers = &request.parts.headers;
    let asked = CompleteHeaders::of(headers)?;
    let options = CompleteOptions {
        parts: named_parts(&document)?,
        condition: conditions::of_write(asked.if_match.as_ref(), asked.if_none_match.as_ref()),
        checksum: asked.values.single()?,
        size: asked.size,
    };
    let (bucket, id) = (&request.bucket, gateway.upload_of(&request)?);
    if let Some(kind) = asked.kind {
        check_kind(gateway, bucket, &key, id, kind).await?;
    }
    let done = gateway.store.complete_upload(bucket, &key, id, options).await;
    let done = done.map_err(|refused| match refused {
        ObjectError::Body(BodyError::Incomplete) => error(
            S3ErrorCode::InvalidRequest,
            "The provided 'x-amz-mp-object-size' header does not match what was computed.",
        ),
        ObjectError::InvalidPart { number } | ObjectError::PartTooSmall { number, .. } => {
            let named = etag_named(&document, number).map(|etag| ("ETag", etag));
            elements::with(from_store(refused), named)
        }
        refused => from_store(refused),
    })?;
    let mut output = CompleteMultipartUploadOutput {
        e_tag: Some(ETag::Strong(done.etag.text())),
        location: Some(location(headers, bucket.as_str(), key.as_str())),
        bucket: Some(bucket.as_str().to_owned()),
        key: Some(key.as_str().to_owned()),
        ..Default::default()
    };
    if let Some(checksum) = &done.checksum {
        show_checksum!(output, checksum);
        output.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
    }
    answer::document(&output)
}

/// The headers of a completion.
#[derive(Default)]
struct CompleteHeaders<'r> {
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
    /// Checksums of the whole object.
    values: Values<'r>,
    kind: Option<&'r str>,
    size: Option<u64>,
}

impl<'r> CompleteHeaders<'r> {
    fn of(headers: &'r HeaderMap) -> S3Result<Self> {
        let mut asked = Self::default();
        for line in lines(headers) {
            match line.name() {
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                "if-match" => asked.if_match = conditions::of_line(&line)?,
                "if-none-match" => asked.if_none_match = conditions::of_line(&line)?,
                "x-amz-checksum-type" => asked.kind = line.read(Some)?,
                "x-amz-mp-object-size" => asked.size = line.number()?,
                _ => {
                    let _ = asked.values.take(&line)?;
                }
            }
        }
        if let Some((algorithm, _)) = verified_given(headers)? {
            let name = algorithm.header();
            let message =
                format!("The upload was created using another checksum than that of {name}.");
            return Err(error(S3ErrorCode::InvalidRequest, message));
        }
        Ok(asked)
    }
}

/// A completion may repeat the kind of checksum that was chosen at the beginning. One that comes
/// again, after the upload has gone, is left to the store.
async fn check_kind<O: Objects>(
    gateway: &Gateway<O>,
    bucket: &BucketName,
    key: &ObjectKey,
    id: UploadId,
    kind: &str,
) -> S3Result<()> {
    let chosen = match gateway.store.upload(bucket, key, id).await {
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

/// The parts that a completion's document names.
fn named_parts(document: &[u8]) -> S3Result<Vec<NamedPart>> {
    if document.is_empty() {
        return Err(xml::malformed());
    }
    let parts = xml::read(document, "CompleteMultipartUpload", |xml| {
        let mut parts = Vec::new();
        xml.children(|xml, name| match name {
            "Part" if parts.len() < usize::from(PART_NUMBER_MAX) => {
                parts.push(named_part(xml)?);
                Ok(())
            }
            _ => Err(xml::malformed()),
        })?;
        Ok(parts)
    })?;
    if parts.is_empty() {
        return Err(error(S3ErrorCode::MalformedXML, "You must specify at least one part"));
    }
    Ok(parts)
}

/// The entity tag that a completion's document names for a part.
fn etag_named(document: &[u8], number: u16) -> Option<String> {
    let parts = named_parts(document).ok()?;
    parts.into_iter().find(|part| part.number == number).map(|part| part.etag)
}

fn named_part(xml: &mut Xml<'_>) -> S3Result<NamedPart> {
    let (mut number, mut etag) = (None, None);
    let mut checksums = checksums::ALL.map(|algorithm| (algorithm, None));
    xml.children(|xml, name| {
        let checksum = name.strip_prefix("Checksum");
        let known = checksum.and_then(|name| {
            checksums.iter_mut().find(|(algorithm, _)| checksums::name(*algorithm) == name)
        });
        match (name, known) {
            ("PartNumber", _) => once(&mut number, xml.number::<i64>()?),
            ("ETag", _) => once(&mut etag, xml.etag()?),
            (_, Some((_, value))) => once(value, xml.word()?),
            _ if checksum.is_some() => Err(error(
                S3ErrorCode::InvalidRequest,
                "The checksum of a part is not of the upload's algorithm: uploads have CRC32, CRC32C, CRC64NVME, SHA1 \
                 or SHA256.",
            )),
            _ => Err(xml::malformed()),
        }
    })?;
    let missing = |what| error(S3ErrorCode::MalformedXML, format!("A part has no {what}"));
    let number = number.ok_or_else(|| missing("PartNumber"))?;
    let given = [0, 1, 2, 3, 4].map(|at| (checksums[at].0, checksums[at].1.as_deref()));
    Ok(NamedPart {
        number: names::part_number(u16::try_from(number).ok())?,
        etag: etag.ok_or_else(|| missing("ETag"))?,
        checksum: single(&given)?,
    })
}

pub(crate) async fn abort<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let mut initiated = None;
    for line in lines(&request.parts.headers) {
        match line.name() {
            EXPECTED_OWNER => check_owner(line.read(Some)?)?,
            "x-amz-if-match-initiated-time" => {
                let date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).ok();
                initiated = line.read(date)?;
            }
            _ => {}
        }
    }
    let (bucket, id) = (&request.bucket, gateway.upload_of(&request)?);
    if let Some(time) = initiated {
        let row = gateway.store.upload(bucket, &key, id).await.map_err(from_store)?;
        if conditions::whole_seconds(row.clock) != time {
            return Err(from_store(ObjectError::PreconditionFailed));
        }
    }
    gateway.store.abort_upload(bucket, &key, id).await.map_err(from_store)?;
    Ok(answer::no_content())
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
    fn parts_are_read_whole_or_not_at_all() {
        let read = |parts: &str| {
            let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
            named_parts(document.as_bytes()).map_err(|refused| refused.code().clone())
        };
        let part = |more: &str| {
            format!("<Part><PartNumber> 1\n</PartNumber><ETag>\t\"ab\" </ETag>{more}</Part>")
        };
        let crc = part("<ChecksumCRC32>y/Q5Jg==</ChecksumCRC32>");
        let parts = read(&crc).unwrap();
        assert_eq!((parts[0].number, parts[0].etag.as_str()), (1, "ab"));
        let value = vec![0xcb, 0xf4, 0x39, 0x26];
        assert_eq!(parts[0].checksum, Some((ChecksumAlgorithm::Crc32, value)));
        for (odd, code) in [
            (part("") + &part("").replace("Part>", "part>"), S3ErrorCode::MalformedXML),
            (part("") + "x", S3ErrorCode::MalformedXML),
            (part("<Size>1</Size>"), S3ErrorCode::MalformedXML),
            (part("<ETag>ab</ETag>"), S3ErrorCode::MalformedXML),
            (part("").replace(" 1", "1abc"), S3ErrorCode::MalformedXML),
            (part("").replace("PartNumber", "Number"), S3ErrorCode::MalformedXML),
            ("<Part><PartNumber>1</PartNumber></Part>".to_owned(), S3ErrorCode::MalformedXML),
            (String::new(), S3ErrorCode::MalformedXML),
            (part("").replace(" 1", "0"), S3ErrorCode::InvalidArgument),
            (part("").replace(" 1", "65537"), S3ErrorCode::InvalidArgument),
            (part("<ChecksumMD5>x</ChecksumMD5>"), S3ErrorCode::InvalidRequest),
            (part("<ChecksumCRC32>x</ChecksumCRC32>"), S3ErrorCode::InvalidRequest),
        ] {
            assert_eq!(read(&odd).unwrap_err(), code, "{odd}");
        }
    }
}
