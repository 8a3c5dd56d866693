//! Puts right, on the finished answer, what the protocol library answers otherwise than S3.
//!
//! Each repair names the difference. They touch answers without a body of any size, and are the only
//! place that looks into the library's XML.

use std::fmt::Write;

use http::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use s3s::Body;

use super::xml;
use crate::auth::authorization::BUCKET_REGION;
use crate::request::ids::RequestId;
use crate::request::shape::{ADMIN_INFO, ADMIN_METRICS, ADMIN_STATUS};

/// The request that is being answered.
pub(crate) struct Asked<'r> {
    pub(crate) op: &'static str,
    pub(crate) path: &'r str,
    pub(crate) id: RequestId,
}

/// The answer to a client that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// S3's code; empty if the answer has none.
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Puts an answer right. Returns what a client was told that is refused.
pub(crate) fn repair(asked: &Asked<'_>, answer: &mut Response<Body>) -> Option<Failure> {
    let status = answer.status();
    if status.is_client_error() || status.is_server_error() {
        let failure = repair_failure(asked, answer);
        xml::escape(answer.body_mut());
        return Some(failure);
    }
    match asked.op {
        // The library knows 206 as an answer to Get only.
        "HeadObject" if answer.headers().contains_key(CONTENT_RANGE) => {
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        "GetObjectAttributes" => unquote_etag(answer.body_mut()),
        "CopyObject" => add_namespace(answer.body_mut(), "CopyObjectResult"),
        "UploadPartCopy" => add_namespace(answer.body_mut(), "CopyPartResult"),
        _ if status == StatusCode::NOT_MODIFIED => {
            answer.headers_mut().remove(CONTENT_TYPE);
            *answer.body_mut() = Body::empty();
        }
        _ => {}
    }
    // An object's own bytes are no XML of ours; only they come with a word about ranges. Nor is JSON, or a text of metrics.
    if ![ADMIN_STATUS, ADMIN_INFO, ADMIN_METRICS, "GetObject"].contains(&asked.op)
        && !answer.headers().contains_key(ACCEPT_RANGES)
    {
        xml::escape(answer.body_mut());
    }
    None
}

/// The library leaves the namespace out of these answers alone.
fn add_namespace(body: &mut Body, root: &str) {
    let Some(bytes) = body.bytes() else { return };
    let text = String::from_utf8_lossy(&bytes);
    let with = format!("<{root} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    *body = Body::from(text.replacen(&format!("<{root}>"), &with, 1));
}

fn repair_failure(asked: &Asked<'_>, answer: &mut Response<Body>) -> Failure {
    if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    let region = answer.headers().get(BUCKET_REGION).and_then(|it| it.to_str().ok());
    let region = region.map(|region| format!("<Region>{region}</Region>")).unwrap_or_default();
    complete_error(answer.body_mut(), asked.path, (&region, asked.id))
}

/// In this one answer S3 shows an entity tag without quotes.
fn unquote_etag(body: &mut Body) {
    let Some(bytes) = body.bytes() else { return };
    let text = String::from_utf8_lossy(&bytes);
    *body = Body::from(text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>"));
}

const END: &str = "</Error>";

/// Adds to an error's XML what the library leaves out. That is a message where it has none, the resource and the request's
/// id, and the region to sign for, if that was wrong. Returns code and message.
fn complete_error(
    body: &mut s3s::Body,
    resource: &str,
    (region, id): (&str, RequestId),
) -> Failure {
    let unknown = || Failure { code: String::new(), message: String::new() };
    let Some(bytes) = body.bytes() else { return unknown() };
    let came = String::from_utf8_lossy(&bytes);
    let Some(open) = came.strip_suffix(END) else { return unknown() };
    let code = inside(open, "Code").unwrap_or("");
    let mut text = String::with_capacity(came.len() + resource.len() + 128);
    text.push_str(open);
    let message = match inside(open, "Message") {
        Some(message) => message.to_owned(),
        None => {
            let message = default_message(code);
            let _ = write!(text, "<Message>{message}</Message>");
            message.to_owned()
        }
    };
    text.push_str(region);
    text.push_str("<Resource>");
    xml::push_escaped(&mut text, resource);
    let _ = write!(text, "</Resource><RequestId>{id}</RequestId>{END}");
    let code = code.to_owned();
    *body = s3s::Body::from(text);
    Failure { code, message }
}

fn inside<'x>(xml: &'x str, tag: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

/// S3's words for errors that the protocol library makes without any.
fn default_message(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "EntityTooLarge" => "Your proposed upload exceeds the maximum allowed size",
        "IncompleteBody" => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header"
        }
        "InvalidBucketName" => {
            "The specified bucket is not valid. A name has 3 to 63 characters of a-z, 0-9, '.' and '-'. \
             To have it in the host name, the server needs the setting `domains`."
        }
        "InvalidURI" => "Couldn't parse the specified URI.",
        "KeyTooLongError" => "Your key is too long",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published \
             schema"
        }
        "MaxMessageLengthExceeded" => "Your request was too big.",
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request body is empty",
        "NotImplemented" => {
            "A header or query you provided implies functionality that is not implemented"
        }
        "SignatureDoesNotMatch" => {
            "The request signature we calculated does not match the signature you provided. \
             Check your key and signing method."
        }
        _ => "The request was refused.",
    }
}

#[cfg(test)]
mod tests {
    use s3s::{S3Error, S3ErrorCode};

    use super::*;
    use crate::errors::response;
    use crate::request::ids::RequestIds;

    fn asked(op: &'static str) -> Asked<'static> {
        Asked { op, path: "/b/k", id: RequestIds::new().next() }
    }

    #[test]
    fn an_error_names_resource_and_request() {
        let id = RequestIds::new().next();
        let mut body = response(S3Error::new(S3ErrorCode::SignatureDoesNotMatch)).into_body();
        let failure = complete_error(&mut body, "/b/<k>&", ("", id));
        assert_eq!(failure.code, "SignatureDoesNotMatch");
        assert!(failure.message.contains("does not match the signature"));
        let xml = String::from_utf8(body.bytes().unwrap().to_vec()).unwrap();
        assert!(xml.contains("<Code>SignatureDoesNotMatch</Code><Message>The request signature"));
        assert!(xml.ends_with(&format!(
            "<Resource>/b/&lt;k&gt;&amp;</Resource><RequestId>{id}</RequestId></Error>"
        )));
    }

    #[test]
    fn an_answer_304_has_no_body() {
        let mut answer = response(S3Error::new(S3ErrorCode::NotModified));
        assert_eq!(repair(&asked("GetObject"), &mut answer), None);
        assert!(answer.body().bytes().unwrap().is_empty());
        assert!(!answer.headers().contains_key(CONTENT_TYPE));
    }

    #[test]
    fn attributes_show_the_tag_without_quotes() {
        let mut answer = Response::new(Body::from("<ETag>\"ab-2\"</ETag>".to_owned()));
        repair(&asked("GetObjectAttributes"), &mut answer);
        assert_eq!(answer.body().bytes().unwrap(), "<ETag>ab-2</ETag>");
    }
}
