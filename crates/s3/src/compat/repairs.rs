//! Puts right, on the finished answer, what the protocol library answers otherwise than S3.
//!
//! Each repair names the difference. They touch answers without a body of any size, and are the only
//! place that looks into the library's XML. What Larder answers by itself is complete (`answer.rs`).

use std::fmt::Write;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use s3s::Body;

use crate::answer::{Asked, Failure, default_message, escape, push_text};
use crate::auth::authorization::BUCKET_REGION;
use crate::request::ids::RequestId;

/// Puts an answer right. Returns what a client was told that is refused.
pub(crate) fn repair(op: &str, asked: &Asked<'_>, answer: &mut Response<Body>) -> Option<Failure> {
    let status = answer.status();
    if status.is_client_error() || status.is_server_error() {
        let failure = repair_failure(asked, answer);
        escape(answer.body_mut());
        return Some(failure);
    }
    match op {
        "GetObjectAttributes" => unquote_etag(answer.body_mut()),
        "CopyObject" => add_namespace(answer.body_mut(), "CopyObjectResult"),
        "UploadPartCopy" => add_namespace(answer.body_mut(), "CopyPartResult"),
        _ => {}
    }
    escape(answer.body_mut());
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
    let text = String::from_utf8_lossy(&bytes);
    let Some(open) = text.strip_suffix(END) else { return unknown() };
    let code = inside(open, "Code").unwrap_or("");
    let mut xml = String::with_capacity(text.len() + resource.len() + 128);
    xml.push_str(open);
    let message = match inside(open, "Message") {
        Some(message) => message.to_owned(),
        None => {
            let message = default_message(code);
            let _ = write!(xml, "<Message>{message}</Message>");
            message.to_owned()
        }
    };
    xml.push_str(region);
    xml.push_str("<Resource>");
    push_text(&mut xml, resource);
    let _ = write!(xml, "</Resource><RequestId>{id}</RequestId>{END}");
    let code = code.to_owned();
    *body = s3s::Body::from(xml);
    Failure { code, message }
}

fn inside<'x>(xml: &'x str, tag: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

#[cfg(test)]
mod tests {
    use s3s::{S3Error, S3ErrorCode};

    use super::*;
    use crate::errors::response;
    use crate::request::ids::RequestIds;

    fn asked() -> Asked<'static> {
        Asked { path: "/b/k", id: RequestIds::new().next() }
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
    fn attributes_show_the_tag_without_quotes() {
        let mut answer = Response::new(Body::from("<ETag>\"ab-2\"</ETag>".to_owned()));
        repair("GetObjectAttributes", &asked(), &mut answer);
        assert_eq!(answer.body().bytes().unwrap(), "<ETag>ab-2</ETag>");
    }
}
