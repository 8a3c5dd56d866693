//! GetObjectAttributes.

use larder_objects::{Objects, Opened};
use larder_types::ObjectChecksum;
use s3s::dto::{
    Checksum, ETag, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectAttributes, ObjectPart,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use super::get::last_modified;
use super::list::page_size;
use crate::digest::checksums::{kind_name, show_checksum};
use crate::errors::{error, from_store};
use crate::request::attributes::class;
use crate::request::encryption::refuse_reading;
use crate::request::names::{key, null_version};

/// The attributes that a request names, in headers that may each hold a list.
struct Asked(Vec<String>);

impl Asked {
    fn parse(headers: &[ObjectAttributes]) -> S3Result<Self> {
        let all = headers.iter().flat_map(|header| header.as_str().split(','));
        let all: Vec<String> = all.map(|name| name.trim().to_owned()).collect();
        let known = [
            ObjectAttributes::CHECKSUM,
            ObjectAttributes::ETAG,
            ObjectAttributes::OBJECT_PARTS,
            ObjectAttributes::OBJECT_SIZE,
            ObjectAttributes::STORAGE_CLASS,
        ];
        if all.iter().all(|name| known.contains(&name.as_str())) {
            return Ok(Self(all));
        }
        Err(error(S3ErrorCode::InvalidArgument, "Invalid attribute name specified."))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|asked| asked == name)
    }
}

pub(crate) async fn object<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    refuse_reading(&request.headers)?;
    null_version(input.version_id.as_deref())?;
    let asked = Asked::parse(&input.object_attributes)?;
    let max = page_size(input.max_parts)?;
    let after = input.part_number_marker.unwrap_or(0);
    let opened = face.store.open(&bucket, &key(input.key)?).await.map_err(from_store)?;
    let metax = &opened.metax;
    let mut output = GetObjectAttributesOutput {
        last_modified: Some(last_modified(metax.clock)),
        ..Default::default()
    };
    if asked.has(ObjectAttributes::ETAG) {
        output.e_tag = Some(ETag::Strong(metax.etag.text()));
    }
    if asked.has(ObjectAttributes::OBJECT_SIZE) {
        output.object_size = i64::try_from(metax.size).ok();
    }
    if asked.has(ObjectAttributes::STORAGE_CLASS) {
        output.storage_class = Some(class(&metax.attributes).to_owned().into());
    }
    if let Some(checksum) = &metax.checksum
        && asked.has(ObjectAttributes::CHECKSUM)
    {
        let mut shown = Checksum::default();
        // Here alone S3 shows a composite one without the number of its parts, which `ObjectParts` has.
        let without_parts = ObjectChecksum { parts: None, ..checksum.clone() };
        show_checksum!(shown, &without_parts);
        shown.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
        output.checksum = Some(shown);
    }
    if asked.has(ObjectAttributes::OBJECT_PARTS) && !opened.parts().is_empty() {
        output.object_parts = Some(parts(face, &opened, after, max).await?);
    }
    Ok(S3Response::new(output))
}

async fn parts<O: Objects>(
    face: &Face<O>,
    opened: &Opened,
    after: i32,
    max: usize,
) -> S3Result<GetObjectAttributesParts> {
    let all = opened.parts();
    let left = || all.iter().filter(|part| i32::from(part.number) > after);
    let mut shown = Vec::new();
    for part in left().take(max) {
        let mut object_part = ObjectPart {
            part_number: Some(i32::from(part.number)),
            size: i64::try_from(part.len).ok(),
            ..Default::default()
        };
        if opened.keeps_parts() {
            let stored = face.store.part(opened, part.number).await.map_err(from_store)?;
            if let Some(checksum) = &stored.metax.checksum {
                show_checksum!(object_part, checksum);
            }
        }
        shown.push(object_part);
    }
    let truncated = left().count() > shown.len();
    let last = shown.last().and_then(|part: &ObjectPart| part.part_number).unwrap_or(after);
    Ok(GetObjectAttributesParts {
        is_truncated: Some(truncated),
        max_parts: i32::try_from(max).ok(),
        next_part_number_marker: Some(last),
        part_number_marker: Some(after),
        parts: Some(shown),
        total_parts_count: i32::try_from(all.len()).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_as_lists_in_one_or_more_headers() {
        let headers = |all: &[&'static str]| -> Vec<ObjectAttributes> {
            all.iter().map(|text| ObjectAttributes::from_static(text)).collect()
        };
        let asked = Asked::parse(&headers(&["ETag, ObjectSize", "Checksum"])).unwrap();
        assert!(asked.has("ETag") && asked.has("ObjectSize") && asked.has("Checksum"));
        assert!(!asked.has("StorageClass"));
        assert!(Asked::parse(&headers(&["ETag,Colour"])).is_err());
    }
}
