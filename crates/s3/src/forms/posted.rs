//! The object of an HTML form is put as any other. Fields become the headers of a put, and the answer is the put's, in the form that
//! the page's author chose.
//!
//! # Invariants
//!
//! 1. No field is passed over that says something of the object: what a put does not know it refuses.
//! 2. The object has the key that the policy was checked with.

use std::fmt::Write;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use larder_types::limits::KEY_BYTES_MAX;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::fields::Fields;
use crate::answer::push_text;
use crate::digest::checksums;
use crate::errors::{error, missing_field};
use crate::request::acl::Acl;
use crate::request::names::{key_too_long, location};
use crate::request::own_headers;
use crate::request::tags;

/// Stands in a key for the name of the client's file.
const FILE_NAME: &str = "${filename}";
/// Fields whose names are those of a put's headers.
const HEADERS: [&str; 16] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-none-match",
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
];
/// So are all that begin like this.
const PREFIXES: [&str; 5] = [
    "x-amz-checksum-",
    "x-amz-grant-",
    "x-amz-meta-",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
];
/// Fields that sign a form.
const SIGNING: [&str; 5] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-signature",
];

/// Has the key name the client's file, if it asks for that: before the policy is looked at, which is of the key that the object gets.
///
/// # Errors
/// `InvalidArgument` without a key, `KeyTooLongError`.
pub(crate) fn expand(fields: Fields, file_name: &str) -> S3Result<Fields> {
    let Some(key) = fields.value("key").filter(|key| !key.is_empty()) else {
        return Err(missing_field("key"));
    };
    // Before it is made: a head has room for thousands of them.
    let bytes = key.len() + key.matches(FILE_NAME).count() * file_name.len();
    if bytes > KEY_BYTES_MAX + key.len() {
        return Err(key_too_long(bytes));
    }
    let key = key.replace(FILE_NAME, file_name);
    if key.is_empty() {
        let message = "The form's key is that of its file, and the file has no name.";
        return Err(error(S3ErrorCode::InvalidArgument, message));
    }
    Ok(fields.with("key", key))
}

/// A form whose object is to be put, for its answer.
#[derive(Debug)]
pub(crate) struct Posted {
    bucket: String,
    key: String,
    location: String,
    redirect: Option<String>,
    status: StatusCode,
}

impl Posted {
    /// The form's answer, and the head of the put that it asks for, with a file of so many bytes.
    ///
    /// # Errors
    /// `NotImplemented` for access rules; `InvalidArgument` for what no header can have; `MalformedXML` or `InvalidTag`.
    pub(crate) fn of(
        mut parts: Parts,
        fields: &Fields,
        bucket: &str,
        bytes: usize,
    ) -> S3Result<(Self, Parts)> {
        let key = fields.value("key").unwrap_or_default().to_owned();
        let mut headers = HeaderMap::new();
        if let Some(host) = parts.headers.remove(HOST) {
            headers.insert(HOST, host);
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
        for (name, value) in fields.all() {
            if let Some((name, value)) = header(name, value)? {
                headers.insert(name, value);
            }
        }
        let posted = Self {
            location: location(&headers, bucket, &key),
            redirect: redirect(fields, bucket, &key),
            status: match fields.value("success_action_status") {
                Some("200") => StatusCode::OK,
                Some("201") => StatusCode::CREATED,
                _ => StatusCode::NO_CONTENT,
            },
            bucket: bucket.to_owned(),
            key,
        };
        // Nobody signed its parameters.
        (parts.method, parts.uri, parts.headers) = (Method::PUT, Uri::default(), headers);
        Ok((posted, parts))
    }

    /// The key of its object.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The answer to the form by that to the put.
    pub(crate) fn answer(self, mut put: Response<s3s::Body>) -> Response<s3s::Body> {
        let etag = put.headers().get(http::header::ETAG).and_then(|it| it.to_str().ok());
        let etag = etag.unwrap_or_default().to_owned();
        let to =
            self.redirect.as_ref().map(|to| to.replace(ETAG_HERE, &query(etag.trim_matches('"'))));
        *put.status_mut() = if to.is_some() { StatusCode::SEE_OTHER } else { self.status };
        *put.body_mut() = s3s::Body::empty();
        put.headers_mut().remove(CONTENT_LENGTH);
        if to.is_none() && self.status == StatusCode::CREATED {
            put.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            *put.body_mut() = s3s::Body::from(self.xml(&etag));
        }
        if let Ok(to) = HeaderValue::try_from(to.unwrap_or(self.location)) {
            put.headers_mut().insert(LOCATION, to);
        }
        put
    }

    fn xml(&self, etag: &str) -> String {
        let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
            <PostResponse xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            .to_owned();
        let elements = [
            ("Location", self.location.as_str()),
            ("Bucket", &self.bucket),
            ("Key", &self.key),
            ("ETag", etag),
        ];
        for (name, content) in elements {
            let _ = write!(text, "<{name}>");
            push_text(&mut text, content);
            let _ = write!(text, "</{name}>");
        }
        text.push_str("</PostResponse>");
        text
    }
}

/// Stands in a redirect for the entity tag, which is known when the object is put. No address has these characters.
const ETAG_HERE: &str = "<etag>";

/// The page that the client is to go on to, with the object's names. S3 ignores what is no address.
fn redirect(fields: &Fields, bucket: &str, key: &str) -> Option<String> {
    let to = fields.value("success_action_redirect").or(fields.value("redirect"))?;
    let is_address = to.starts_with("http://") || to.starts_with("https://");
    let parsed: Uri = to.parse().ok().filter(|_| is_address)?;
    parsed.host().filter(|host| !host.is_empty())?;
    let (to, fragment) = to.split_once('#').map_or((to, None), |(to, it)| (to, Some(it)));
    let join = if parsed.query().is_some() { '&' } else { '?' };
    let mut to = format!("{to}{join}bucket={}&key={}&etag={ETAG_HERE}", query(bucket), query(key));
    if let Some(fragment) = fragment {
        let _ = write!(to, "#{fragment}");
    }
    HeaderValue::try_from(&to).is_ok().then_some(to)
}

/// A text as a form writes it into a query.
fn query(text: &str) -> String {
    urlencoding::encode(text).replace("%20", "+")
}

/// The header of a put that a field stands for; `None` for one that says nothing of the object.
fn header(name: &str, value: &str) -> S3Result<Option<(HeaderName, HeaderValue)>> {
    let value = match name {
        "acl" | "x-amz-acl" => {
            return Acl::canned(value).check().map(|()| None);
        }
        "x-amz-checksum-algorithm" => return checksums::parse_name(value).map(|_known| None),
        "tagging" => return Ok(Some(tagging(value)?)),
        name if SIGNING.contains(&name) => return Ok(None),
        name if HEADERS.contains(&name) || PREFIXES.iter().any(|it| name.starts_with(it)) => value,
        // As headers they could make another request of the put: a copy, a body in chunks, an append.
        name if name.starts_with("x-amz-") || name.starts_with(own_headers::PREFIX) => {
            let message = format!("The form field {name} is not supported.");
            return Err(error(S3ErrorCode::InvalidArgument, message));
        }
        _ => return Ok(None),
    };
    let both = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
    let (name, value) = both.ok_or_else(|| no_header(name))?;
    Ok(Some((name, value)))
}

fn no_header(name: &str) -> S3Error {
    let message = format!("The form field {name} has characters that no header can have.");
    error(S3ErrorCode::InvalidArgument, message)
}

fn tagging(xml: &str) -> S3Result<(HeaderName, HeaderValue)> {
    let tags = HeaderValue::try_from(tags::header(&tags::of_document(xml.trim().as_bytes())?));
    Ok((HeaderName::from_static("x-amz-tagging"), tags.map_err(|_| no_header("tagging"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_the_clients_file_and_is_bounded_before_it_is_made() {
        let expand = |key: &str, file: &str| {
            let fields = Fields::checked(vec![("key".to_owned(), key.to_owned())], "r").unwrap();
            let expanded = expand(fields, file);
            expanded.map(|it| it.value("key").unwrap().to_owned()).map_err(|it| it.code().clone())
        };
        assert_eq!(expand("k", "f"), Ok("k".to_owned()));
        assert_eq!(expand("u/${filename}.${filename}", "f"), Ok("u/f.f".to_owned()));
        for key in ["", "${filename}"] {
            assert_eq!(expand(key, ""), Err(S3ErrorCode::InvalidArgument), "{key}");
        }
        let (many, long) = ("${filename}".repeat(3000), "f".repeat(30_000));
        assert_eq!(expand(&many, &long), Err(S3ErrorCode::KeyTooLongError));
    }
}
