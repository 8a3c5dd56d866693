//! Lists of open uploads and of their parts.

use larder_objects::{ListRequest, ListedPart, Objects};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{UploadId, UploadRow};
use s3s::dto::{
    ETag, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput,
    MultipartUpload, Part,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use super::get::last_modified;
use super::list::{Encoding, Split, given, page_size};
use crate::digest::checksums::{kind_name, name, show_checksum};
use crate::errors::{error, from_store};
use crate::request::attributes::class;
use crate::request::names::{initiator, key, owner};

pub(crate) async fn parts<O: Objects>(
    face: &Face<O>,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let (name_of, id) = (key(input.key.clone())?, face.upload_id(&bucket, &input.upload_id)?);
    let max = page_size(input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u16::try_from(marker.min(i32::from(u16::MAX))).map_err(|_| {
        error(S3ErrorCode::InvalidArgument, "Argument part-number-marker must not be negative")
    })?;
    let page =
        face.store.list_parts(&bucket, &name_of, id, after, max).await.map_err(from_store)?;
    let last = page.parts.last().map_or(marker, |part| i32::from(part.number));
    let checksum = page.upload.checksum;
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(last),
        max_parts: i32::try_from(max).ok(),
        is_truncated: Some(page.truncated),
        parts: Some(page.parts.iter().map(show_part).collect()),
        initiator: Some(initiator()),
        owner: Some(owner()),
        storage_class: Some(class(&page.upload.attributes).to_owned().into()),
        checksum_algorithm: checksum.map(|(algorithm, _)| name(algorithm).to_owned().into()),
        checksum_type: checksum.map(|(_, kind)| kind_name(kind).to_owned().into()),
        ..Default::default()
    }))
}

fn show_part(listed: &ListedPart) -> Part {
    let mut part = Part {
        e_tag: Some(ETag::Strong(listed.metax.etag.text())),
        last_modified: Some(last_modified(listed.metax.clock)),
        part_number: Some(i32::from(listed.number)),
        size: i64::try_from(listed.metax.size).ok(),
        ..Default::default()
    };
    if let Some(checksum) = &listed.metax.checksum {
        show_checksum!(part, checksum);
    }
    part
}

pub(crate) async fn uploads<O: Objects>(
    face: &Face<O>,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    let max = match input.max_uploads {
        Some(0) => LIST_PAGE_MAX,
        asked => page_size(asked)?,
    };
    let (prefix, delimiter) = (input.prefix.unwrap_or_default(), given(input.delimiter));
    let after = given(input.key_marker.clone());
    // Without a key the upload's id means nothing (S3).
    let after_upload = match given(input.upload_id_marker.clone()) {
        Some(id) if after.is_some() => Some(
            UploadId::parse(&id)
                .ok_or_else(|| error(S3ErrorCode::InvalidArgument, "Invalid uploadId marker"))?,
        ),
        _ => None,
    };
    let asked = ListRequest { prefix: prefix.clone(), delimiter: delimiter.clone(), after, max };
    let page = face.store.list_uploads(&bucket, asked, after_upload).await.map_err(from_store)?;
    let found = Split::of(page, |row: &UploadRow| row.key.as_str());
    let next = found.next().map(|next| encoding.show(next));
    let ends_in_upload = found
        .next()
        .is_some_and(|next| found.entries.last().is_some_and(|row| row.key.as_str() == next));
    let next_id = found.entries.last().filter(|_| ends_in_upload);
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: Some(encoding.show(&prefix)),
        key_marker: Some(encoding.show(&input.key_marker.unwrap_or_default())),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        next_key_marker: next,
        next_upload_id_marker: next_id.map(|row| row.upload.to_string()),
        max_uploads: i32::try_from(max).ok(),
        is_truncated: Some(found.truncated),
        uploads: Some(found.entries.iter().map(|row| show_upload(row, encoding)).collect()),
        common_prefixes: found.prefixes(encoding),
        delimiter: delimiter.map(|delimiter| encoding.show(&delimiter)),
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

fn show_upload(row: &UploadRow, encoding: Encoding) -> MultipartUpload {
    MultipartUpload {
        checksum_algorithm: row.checksum.map(|(algorithm, _)| name(algorithm).to_owned().into()),
        checksum_type: row.checksum.map(|(_, kind)| kind_name(kind).to_owned().into()),
        initiated: Some(last_modified(row.clock)),
        initiator: Some(initiator()),
        key: Some(encoding.show(row.key.as_str())),
        owner: Some(owner()),
        storage_class: Some(class(&row.attributes).to_owned().into()),
        upload_id: Some(row.upload.to_string()),
    }
}
