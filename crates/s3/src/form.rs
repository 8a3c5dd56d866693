//! Fields of HTML forms that the protocol library passes over: an object would be made without its tags, under rules
//! that nobody keeps, or with a checksum that nobody verified.
//!
//! [`FormHead`] stands in front of the library, which reads the body in its own way, and reads the fields before the file
//! a second time. What is malformed is left for the library to refuse.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Extensions, HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use s3s::dto::{PutObjectInput, Tagging};
use s3s::xml::{Deserialize, Deserializer};
use s3s::{S3ErrorCode, S3Result};

use crate::attributes::check_acl;
use crate::checksums::{self, PREFIX};
use crate::errors::error;
use crate::limits::FORM_FIELDS_BYTES_MAX;
use crate::tags::{self, Tags};
use crate::upload;

/// The fields before a form's file, names in lower case; set as soon as the file begins.
pub(crate) type Fields = Arc<OnceLock<Vec<(String, String)>>>;

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
        for (name, value) in fields.get().into_iter().flatten() {
            match name.as_str() {
                "acl" => check_acl(Some(value), false)?,
                "tagging" => input.tagging = Some(tags::header(&parse_tags(value)?)),
                name => check_checksum(name, value)?,
            }
        }
        let location = upload::location(headers, &input.bucket, &input.key);
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

/// A form's body, with the fields before its file read.
pub(crate) struct FormHead<B> {
    inner: B,
    /// The bytes that came, until the file begins.
    head: Option<Vec<u8>>,
    delimiter: Vec<u8>,
    fields: Fields,
}

impl<B> FormHead<B> {
    /// Has the operation find the form's fields among the request's extensions.
    pub(crate) fn watch(request: Request<B>) -> Request<Self> {
        let (mut parts, inner) = request.into_parts();
        let fields = Fields::default();
        parts.extensions.insert(Arc::clone(&fields));
        let delimiter = boundary(&parts.headers).map(|boundary| format!("\r\n--{boundary}\r\n"));
        let head = delimiter.is_some().then(|| b"\r\n".to_vec());
        let delimiter = delimiter.unwrap_or_default().into_bytes();
        Request::from_parts(parts, Self { inner, head, delimiter, fields })
    }

    fn read(&mut self, data: &[u8]) {
        let Some(head) = &mut self.head else { return };
        if head.len() + data.len() > FORM_FIELDS_BYTES_MAX {
            // The library refuses such a form.
            self.head = None;
            return;
        }
        head.extend_from_slice(data);
        if let Some(found) = parse(head, &self.delimiter) {
            let _ = self.fields.set(found);
            self.head = None;
        }
    }
}

/// The boundary that a form's type names.
fn boundary(headers: &HeaderMap) -> Option<&str> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    kind.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"'))
    })
}

fn find(data: &[u8], what: &[u8]) -> Option<usize> {
    data.windows(what.len()).position(|window| window == what)
}

/// The fields of a head that begins with a line end, as every delimiter does; `None` until the file begins.
fn parse(head: &[u8], delimiter: &[u8]) -> Option<Vec<(String, String)>> {
    let mut rest = head.strip_prefix(b"\r\n\r\n").map_or(head, |_| &head[2..]);
    rest = rest.strip_prefix(delimiter)?;
    let mut fields = Vec::new();
    loop {
        let end = find(rest, b"\r\n\r\n")?;
        let (headers, value) = (&rest[..end], &rest[end + 4..]);
        let name = name_of(headers).unwrap_or_default();
        if name.eq_ignore_ascii_case("file") {
            return Some(fields);
        }
        let end = find(value, delimiter)?;
        let text = String::from_utf8_lossy(&value[..end]).into_owned();
        fields.push((name.to_ascii_lowercase(), text));
        rest = &value[end + delimiter.len()..];
    }
}

fn name_of(headers: &[u8]) -> Option<&str> {
    std::str::from_utf8(headers).ok()?.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let value = value.trim_start().strip_prefix("form-data; name=\"")?;
        name.eq_ignore_ascii_case("content-disposition").then(|| value.split('"').next())?
    })
}

impl<B: Body<Data = Bytes> + Unpin> Body for FormHead<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = std::task::ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.read(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--xx\r\nContent-Disposition: form-data; name=\"ACL\"\r\n\r\nprivate\r\n\
        --xx\r\nContent-Type: text/xml\r\ncontent-disposition: form-data; name=\"empty\"\r\n\r\n\r\n\
        --xx\r\nContent-Disposition: form-data; name=\"v\"\r\n\r\nname=\"file\"\r\n\r\n--xxy\r\n\
        --xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n\
        --xx\r\nContent-Disposition: form-data; name=\"late\"\r\n\r\n1\r\n--xx--\r\n";

    fn fields(kind: &str, pieces: &[&str]) -> Option<Vec<(String, String)>> {
        let request = Request::builder().header(CONTENT_TYPE, kind).body(()).unwrap();
        let mut watched = FormHead::watch(request);
        for piece in pieces {
            watched.body_mut().read(piece.as_bytes());
        }
        watched.extensions().get::<Fields>().unwrap().get().cloned()
    }

    #[test]
    fn the_fields_before_the_file_are_read_wherever_the_body_is_cut() {
        let expected = [("acl", "private"), ("empty", ""), ("v", "name=\"file\"\r\n\r\n--xxy")];
        let expected: Vec<_> =
            expected.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        for at in 0..FORM.len() {
            let pieces = [&FORM[..at], &FORM[at..]];
            let found = fields("multipart/form-data; boundary=\"xx\"", &pieces);
            assert_eq!(found.as_deref(), Some(&expected[..]), "{at}");
        }
        let led = format!("\r\n{FORM}");
        let found = fields("multipart/form-data;Boundary=xx", &[&led]);
        assert_eq!(found.as_deref(), Some(&expected[..]));
    }

    #[test]
    fn a_form_that_cannot_be_read_has_no_fields() {
        assert_eq!(fields("multipart/form-data", &[FORM]), None);
        assert_eq!(fields("multipart/form-data; boundary=yy", &[FORM]), None);
        let long = "x".repeat(FORM_FIELDS_BYTES_MAX + 1);
        assert_eq!(fields("multipart/form-data; boundary=xx", &[&long, FORM]), None);
    }
}
