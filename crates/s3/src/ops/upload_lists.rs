//! Lists of open uploads and of their parts.

use http::Response;
use larder_objects::{ListRequest, ListedPart, Objects};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{UploadId, UploadRow};
use s3s::dto::{ETag, ListMultipartUploadsOutput, ListPartsOutput, MultipartUpload, Part};
use s3s::{Body, S3Result};

use super::gateway::{Gateway, Request};
use super::get::last_modified;
use super::list::{Encoding, Split, given, page_size};
use crate::answer;
use crate::digest::checksums::{kind_name, name, show_checksum};
use crate::errors::elements::invalid_argument;
use crate::errors::from_store;
use crate::request::attributes::class;
use crate::request::names::{initiator, owner};

pub(crate) async fn parts<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    request.check_owner()?;
    let parameters = request.parameters();
    let max = page_size(parameters.count("max-parts")?);
    let marker = parameters.count("part-number-marker")?.unwrap_or(0);
    let after = u16::try_from(marker).unwrap_or(u16::MAX);
    let (bucket, id) = (&request.bucket, gateway.upload_of(&request)?);
    let page = gateway.store.list_parts(bucket, &key, id, after, max).await.map_err(from_store)?;
    let last = page.parts.last().map_or(marker, |part| i32::from(part.number));
    let checksum = page.upload.checksum;
    answer::document(&ListPartsOutput {
        bucket: Some(bucket.as_str().to_owned()),
        key: Some(key.as_str().to_owned()),
        upload_id: Some(id.to_string()),
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
    })
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
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    let parameters = request.parameters();
    let encoding = Encoding::of(parameters)?;
    let max = match parameters.count("max-uploads")? {
        Some(0) => LIST_PAGE_MAX,
        asked => page_size(asked),
    };
    let prefix = parameters.one("prefix")?.unwrap_or_default();
    let delimiter = given(parameters.one("delimiter")?);
    let after = given(parameters.one("key-marker")?);
    let upload_marker = given(parameters.one("upload-id-marker")?);
    // Without a key the upload's id means nothing (S3).
    let after_upload = match &upload_marker {
        Some(id) if after.is_some() => {
            let invalid = || invalid_argument("Invalid uploadId marker", "upload-id-marker", id);
            Some(UploadId::parse(id).ok_or_else(invalid)?)
        }
        _ => None,
    };
    let asked = ListRequest {
        prefix: prefix.clone(),
        delimiter: delimiter.clone(),
        after: after.clone(),
        max,
    };
    let bucket = &request.bucket;
    let page = gateway.store.list_uploads(bucket, asked, after_upload).await.map_err(from_store)?;
    let found = Split::of(page, |row: &UploadRow| row.key.as_str());
    let next = found.next().map(|next| encoding.show(next));
    let ends_in_upload = found
        .next()
        .is_some_and(|next| found.entries.last().is_some_and(|row| row.key.as_str() == next));
    let next_id = found.entries.last().filter(|_| ends_in_upload);
    answer::document(&ListMultipartUploadsOutput {
        bucket: Some(bucket.as_str().to_owned()),
        prefix: Some(encoding.show(&prefix)),
        key_marker: Some(encoding.show(&after.unwrap_or_default())),
        upload_id_marker: Some(upload_marker.unwrap_or_default()),
        next_key_marker: next,
        next_upload_id_marker: next_id.map(|row| row.upload.to_string()),
        max_uploads: i32::try_from(max).ok(),
        is_truncated: Some(found.truncated),
        uploads: Some(found.entries.iter().map(|row| show_upload(row, encoding)).collect()),
        common_prefixes: found.prefixes(encoding),
        delimiter: delimiter.map(|delimiter| encoding.show(&delimiter)),
        encoding_type: encoding.name(),
        request_charged: None,
    })
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
