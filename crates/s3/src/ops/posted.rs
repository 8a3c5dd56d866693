//! The object of an HTML form: fields that the protocol library passes over. It would be made without its tags, under
//! rules that nobody keeps, or with a checksum that nobody verified.

use http::{Extensions, HeaderMap};
use s3s::dto::{PutObjectInput, Tagging};
use s3s::xml::{Deserialize, Deserializer};
use s3s::{S3ErrorCode, S3Result};

use crate::digest::checksums::{self, PREFIX};
use crate::errors::error;
use crate::forms::fields::Fields;
use crate::request::attributes::check_acl;
use crate::request::names::location;
use crate::request::tags::{self, Tags};

/// The address and entity tag of a form's object, for the answer.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub(crate) location: String,
    /// Known when the object is put.
    pub(crate) etag: String,
}

impl Posted {
    /// `None` for a put. Has a form's tags put with its object.
    ///
    /// # Errors
    /// `NotImplemented` for access rules; `InvalidRequest` for a checksum that is not stored; `MalformedXML` or
    /// `InvalidTag`.
    pub(crate) fn of(
        headers: &HeaderMap,
        extensions: &Extensions,
        input: &mut PutObjectInput,
    ) -> S3Result<Option<Self>> {
        let Some(fields) = extensions.get::<Fields>() else { return Ok(None) };
        for (name, value) in fields.all() {
            match name.as_str() {
                "acl" => check_acl(Some(value), false)?,
                "tagging" => input.tagging = Some(tags::header(&parse_tags(value)?)),
                name => check_checksum(name, value)?,
            }
        }
        let location = location(headers, &input.bucket, &input.key);
        Ok(Some(Self { location, etag: String::new() }))
    }
}

fn check_checksum(name: &str, value: &str) -> S3Result<()> {
    if name == "x-amz-checksum-algorithm" {
        return checksums::parse_name(value).map(drop);
    }
    let stored =
        || checksums::ALL.into_iter().any(|algorithm| checksums::header(algorithm) == name);
    if name.starts_with(PREFIX) && name != "x-amz-checksum-type" && !stored() {
        let message = format!("The form field {name} is not supported.");
        return Err(error(S3ErrorCode::InvalidRequest, message));
    }
    Ok(())
}

fn parse_tags(xml: &str) -> S3Result<Tags> {
    let malformed =
        |_| error(S3ErrorCode::MalformedXML, "The field tagging is not a Tagging document.");
    let mut xml = Deserializer::new(xml.trim().as_bytes());
    let tagging = Tagging::deserialize(&mut xml).map_err(malformed)?;
    xml.expect_eof().map_err(malformed)?;
    tags::of_xml(tagging)
}
