//! A `Range` header that cannot be read, or names several ranges, is ignored by S3; the protocol
//! library refuses it, and the header is part of the signature, so that it cannot be taken away
//! before the library has checked that.
//!
//! This route steps in between the library's two halves: it is called after the signature was
//! checked, takes the header away, and has the request answered by a second instance of the library
//! that checks no signature. Nothing but this route may reach that instance.

use std::sync::Arc;

use http::header::{AUTHORIZATION, RANGE};
use http::{Extensions, HeaderMap, Method, Request, Uri};
use s3s::dto::Range;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::gate::{Gate, let_in};

/// The route, and the instance that answers for it.
pub(crate) struct UnreadRange {
    unchecked: S3Service,
}

impl UnreadRange {
    pub(crate) fn new(unchecked: S3Service) -> Self {
        Self { unchecked }
    }
}

fn is_unread(headers: &HeaderMap) -> bool {
    let read = |text: &str| Range::parse(text).is_ok();
    headers.get(RANGE).is_some_and(|range| !range.to_str().is_ok_and(read))
}

#[async_trait::async_trait]
impl S3Route for UnreadRange {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        matches!(*method, Method::GET | Method::HEAD) && is_unread(headers)
    }

    async fn check_access(&self, asked: &mut S3Request<Body>) -> S3Result<()> {
        let gate = asked.extensions.get::<Arc<Gate>>().cloned();
        let_in(asked.credentials.is_some(), gate.as_deref()).await
    }

    async fn call(&self, asked: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = asked.method;
        *request.uri_mut() = without_signature(&asked.uri)?;
        *request.headers_mut() = asked.headers;
        request.headers_mut().remove(RANGE);
        request.headers_mut().remove(AUTHORIZATION);
        let answer = self.unchecked.call(request).await.map_err(|broken| {
            S3Error::with_source(S3ErrorCode::InternalError, s3s::StdError::from(broken))
        })?;
        let (parts, body) = answer.into_parts();
        let mut response = S3Response::with_headers(body, parts.headers);
        response.status = Some(parts.status);
        Ok(response)
    }
}

/// The address without the parameters that sign it.
fn without_signature(uri: &Uri) -> S3Result<Uri> {
    let signs = |parameter: &&str| {
        let name = parameter.split_once('=').map_or(*parameter, |(name, _)| name);
        name.starts_with("X-Amz-") || matches!(name, "Signature" | "Expires" | "AWSAccessKeyId")
    };
    let kept: Vec<&str> = uri.query().unwrap_or("").split('&').filter(|p| !signs(p)).collect();
    format!("{}?{}", uri.path(), kept.join("&"))
        .parse()
        .map_err(|_| S3Error::new(S3ErrorCode::InvalidURI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_signs_is_taken_off_an_address() {
        let of = |text: &str| without_signature(&text.parse().unwrap()).unwrap().to_string();
        assert_eq!(of("/b/k%20?partNumber=1&X-Amz-Signature=0&x=y"), "/b/k%20?partNumber=1&x=y");
        assert_eq!(of("/b/k?Signature=a&Expires=1&AWSAccessKeyId=b"), "/b/k?");
    }

    #[test]
    fn ranges_that_can_be_read_are_left_to_the_library() {
        let unread = |range: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            is_unread(&headers)
        };
        for range in ["bytes=0-1", "bytes=5-", "bytes=-5"] {
            assert!(!unread(range), "{range}");
        }
        for range in ["bytes=0-1,3-4", "bytes=5-1", "lines=0-1", "bytes=", ""] {
            assert!(unread(range), "{range}");
        }
        assert!(!is_unread(&HeaderMap::new()));
    }
}
