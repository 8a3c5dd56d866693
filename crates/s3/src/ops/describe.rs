//! GetObjectAttributes.

use std::io::Write;

use http::Response;
use http::header::LAST_MODIFIED;
use larder_objects::{ObjectError, Objects, Opened};
use larder_types::{BucketName, ObjectChecksum, ObjectKey};
use s3s::dto::{Checksum, GetObjectAttributesParts, ObjectAttributes, ObjectPart};
use s3s::xml::{SerResult, SerializeContent, Serializer};
use s3s::{Body, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use super::list::page_size;
use crate::answer;
use crate::digest::checksums::{kind_name, show_checksum};
use crate::errors::elements::invalid_argument;
use crate::errors::{error, from_store};
use crate::limits::CHANGED_RETRIES_MAX;
use crate::request::attributes::class;
use crate::request::encryption::refuse_reading;
use crate::request::head::{count, lines};
use crate::request::names::{EXPECTED_OWNER, check_owner};

/// The attributes that a request names, in headers that may each hold a list.
struct RequestedAttributes(Vec<String>);

impl RequestedAttributes {
    fn parse(headers: &[String]) -> S3Result<Self> {
        let all = headers.iter().flat_map(|header| header.split(','));
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
        let message = "Invalid attribute name specified.";
        Err(invalid_argument(message, "x-amz-object-attributes", &headers.join(",")))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|asked| asked == name)
    }
}

pub(crate) async fn object<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    let (mut names, mut max, mut after) = (Vec::new(), None, 0);
    for line in lines(&request.parts.headers) {
        let count = || line.read(Some)?.map(|text| count(line.name(), text)).transpose();
        match line.name() {
            EXPECTED_OWNER => check_owner(line.read(Some)?)?,
            "x-amz-max-parts" => max = count()?,
            "x-amz-object-attributes" => names = line.texts()?,
            "x-amz-part-number-marker" => after = count()?.unwrap_or(0),
            _ => {}
        }
    }
    refuse_reading(&request.parts.headers)?;
    request.check_version()?;
    if names.is_empty() {
        let message = "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty";
        return Err(error(S3ErrorCode::InvalidRequest, message));
    }
    let asked = RequestedAttributes::parse(&names)?;
    let max = page_size(max);
    let wanted = asked.has(ObjectAttributes::OBJECT_PARTS).then_some((after, max));
    let (opened, parts) = find(gateway, (&request.bucket, &key), wanted).await?;
    let metax = &opened.metax;
    let mut shown = AttributesShown {
        etag: asked.has(ObjectAttributes::ETAG).then(|| metax.etag.text()),
        ..Default::default()
    };
    if asked.has(ObjectAttributes::OBJECT_SIZE) {
        shown.size = i64::try_from(metax.size).ok();
    }
    if asked.has(ObjectAttributes::STORAGE_CLASS) {
        shown.class = Some(class(&metax.attributes).to_owned());
    }
    if let Some(checksum) = &metax.checksum
        && asked.has(ObjectAttributes::CHECKSUM)
    {
        let mut value = Checksum::default();
        // Here alone S3 shows a composite one without the number of its parts, which `ObjectParts` has.
        let without_parts = ObjectChecksum { parts: None, ..checksum.clone() };
        show_checksum!(value, &without_parts);
        value.checksum_type = Some(kind_name(checksum.kind).to_owned().into());
        shown.checksum = Some(value);
    }
    shown.parts = parts;
    let mut response = answer::element("GetObjectAttributesResponse", &shown)?;
    let modified = answer::http_date(metax.clock);
    answer::set(response.headers_mut(), LAST_MODIFIED, &modified)?;
    Ok(response)
}

/// The attributes that are shown. In this one answer S3 shows an entity tag without quotes.
#[derive(Default)]
struct AttributesShown {
    checksum: Option<Checksum>,
    etag: Option<String>,
    parts: Option<GetObjectAttributesParts>,
    size: Option<i64>,
    class: Option<String>,
}

impl SerializeContent for AttributesShown {
    fn serialize_content<W: Write>(&self, xml: &mut Serializer<W>) -> SerResult {
        if let Some(checksum) = &self.checksum {
            xml.content("Checksum", checksum)?;
        }
        if let Some(etag) = &self.etag {
            xml.content("ETag", etag)?;
        }
        if let Some(parts) = &self.parts {
            xml.content("ObjectParts", parts)?;
        }
        if let Some(size) = &self.size {
            xml.content("ObjectSize", size)?;
        }
        if let Some(class) = &self.class {
            xml.content("StorageClass", class)?;
        }
        Ok(())
    }
}

/// Finds an object, and so many of its parts behind one if they are wanted: of one version.
async fn find<O: Objects>(
    gateway: &Gateway<O>,
    (bucket, key): (&BucketName, &ObjectKey),
    wanted: Option<(i32, usize)>,
) -> S3Result<(Opened, Option<GetObjectAttributesParts>)> {
    for _ in 0..CHANGED_RETRIES_MAX {
        let opened = gateway.store.open(bucket, key).await.map_err(from_store)?;
        let Some((after, max)) = wanted.filter(|_| !opened.parts().is_empty()) else {
            return Ok((opened, None));
        };
        match parts(gateway, &opened, after, max).await {
            Err(ObjectError::Changed) => {}
            parts => return Ok((opened, Some(parts.map_err(from_store)?))),
        }
    }
    Err(from_store(ObjectError::Changed))
}

async fn parts<O: Objects>(
    gateway: &Gateway<O>,
    opened: &Opened,
    after: i32,
    max: usize,
) -> Result<GetObjectAttributesParts, ObjectError> {
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
            let stored = gateway.store.part(opened, part.number).await?;
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
        let headers =
            |all: &[&str]| -> Vec<String> { all.iter().map(|&text| text.to_owned()).collect() };
        let asked =
            RequestedAttributes::parse(&headers(&["ETag, ObjectSize", "Checksum"])).unwrap();
        assert!(asked.has("ETag") && asked.has("ObjectSize") && asked.has("Checksum"));
        assert!(!asked.has("StorageClass"));
        assert!(RequestedAttributes::parse(&headers(&["ETag,Colour"])).is_err());
    }
}
