//! Headers that S3 takes in forms which the protocol library refuses, and bodies that it does not look at. The headers
//! are part of the signature, so that they cannot be changed before the library has checked that.
//!
//! This route steps in between the library's two halves. It is called after the signature was checked, and puts the
//! headers right. Then a second instance of the library, which checks no signature, answers the request. Nothing but this
//! route may reach that instance. The request's gate ([`crate::auth::gate`]) opens before it, once; no byte of the body is read
//! until then, and the body stays the one that is bounded in time.
//!
//! | header | in a form the library refuses |
//! |---|---|
//! | `Range` | ignored |
//! | conditions with a date | obsolete forms of HTTP's dates are read, anything else is ignored |
//! | conditions with entity tags | what is none matches nothing |
//! | `Expires` | kept as it came |

use std::sync::Arc;
use std::time::SystemTime;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use s3s::dto::{ETagCondition, Range, Timestamp, TimestampFormat};
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::digested::payload_hash;
use crate::auth::gate::{Gate, let_in};
use crate::errors;
use crate::limits::XML_BYTES_MAX;
use crate::request::attributes::OddExpires;

/// SHA-256 of no bytes.
const EMPTY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The route, and the instance that answers for it.
pub(crate) struct UnreadRequests {
    unchecked: S3Service,
}

impl UnreadRequests {
    pub(crate) fn new(unchecked: S3Service) -> Self {
        Self { unchecked }
    }
}

/// The form that the library reads a header's value in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Range,
    Date,
    EntityTags,
    Expires,
}

impl Kind {
    /// `None` for headers that this route leaves alone.
    fn of(method: &Method, name: &HeaderName) -> Option<Self> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        Some(match name.as_str() {
            "range" if reads => Self::Range,
            "if-modified-since" | "if-unmodified-since" if reads => Self::Date,
            "x-amz-copy-source-if-modified-since" | "x-amz-copy-source-if-unmodified-since" => {
                Self::Date
            }
            "if-match"
            | "if-none-match"
            | "x-amz-copy-source-if-match"
            | "x-amz-copy-source-if-none-match" => Self::EntityTags,
            "expires" if !reads => Self::Expires,
            _ => return None,
        })
    }

    /// Tells if the library reads the value. An empty one it takes for none.
    fn is_read(self, value: &HeaderValue) -> bool {
        let text = value.to_str();
        let date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
        match self {
            _ if value.is_empty() => true,
            Self::Range => text.is_ok_and(|text| Range::parse(text).is_ok()),
            Self::Date => text.is_ok_and(date),
            Self::EntityTags => ETagCondition::parse_http_header(value.as_bytes()).is_ok(),
            // Bytes that are no text cannot be stored, and are left for the library to refuse.
            Self::Expires => text.map_or(true, date),
        }
    }

    /// The value as the library reads it; `None` to have it ignored.
    fn mended(self, value: &HeaderValue) -> Option<HeaderValue> {
        match self {
            Self::Range | Self::Expires => None,
            Self::Date => {
                let date: SystemTime = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
                HeaderValue::try_from(httpdate::fmt_http_date(date)).ok()
            }
            // In quotes it is read as a list of tags, of which each that is none is no object's.
            Self::EntityTags => {
                let text = value.to_str().unwrap_or_default();
                HeaderValue::try_from(format!("\"{text}\"")).ok()
            }
        }
    }
}

fn unread(method: &Method, name: &HeaderName, value: &HeaderValue) -> Option<Kind> {
    Kind::of(method, name).filter(|kind| !kind.is_read(value))
}

/// Puts right what the library would refuse. A header that stands there twice is left for it to refuse.
fn mend(method: &Method, headers: &mut HeaderMap, extensions: &mut Extensions) {
    let odd = |(name, value)| unread(method, name, value).map(|kind| (name.clone(), kind));
    let odd: Vec<(HeaderName, Kind)> = headers.iter().filter_map(odd).collect();
    for (name, kind) in odd {
        if headers.get_all(&name).iter().nth(1).is_some() {
            continue;
        }
        let Some(value) = headers.remove(&name) else { continue };
        if let (Kind::Expires, Ok(text)) = (kind, value.to_str()) {
            extensions.insert(OddExpires(text.to_owned()));
        }
        if let Some(value) = kind.mended(&value) {
            headers.insert(name, value);
        }
    }
}

/// Tells if the body may differ from what was hashed, and the library does not compare the two before an operation runs.
fn is_unhashed(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    if !matches!(*method, Method::PUT | Method::POST) {
        return false;
    }
    let empty = headers.get(CONTENT_LENGTH).is_none_or(|length| length == "0")
        && !headers.contains_key(TRANSFER_ENCODING);
    let begins = || {
        let query = uri.query().unwrap_or("");
        *method == Method::POST && query.split('&').any(|it| it == "uploads" || it == "uploads=")
    };
    (empty || begins()) && payload_hash(headers).is_some_and(|hash| hash != EMPTY)
}

#[async_trait::async_trait]
impl S3Route for UnreadRequests {
    fn is_match(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        _: &mut Extensions,
    ) -> bool {
        headers.iter().any(|(name, value)| unread(method, name, value).is_some())
            || is_unhashed(method, uri, headers)
    }

    async fn check_access(&self, asked: &mut S3Request<Body>) -> S3Result<()> {
        let gate = asked.extensions.get::<Arc<Gate>>().cloned();
        let user = asked.credentials.as_ref().map(|keys| keys.access_key.as_str());
        let_in(user, gate.as_deref()).await
    }

    async fn call(&self, asked: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut body = asked.input;
        if is_unhashed(&asked.method, &asked.uri, &asked.headers) {
            let read = body.store_all_limited(XML_BYTES_MAX).await;
            read.map_err(|cause| errors::unread_body(&cause))?;
        }
        let mut request = Request::new(body);
        *request.uri_mut() = without_signature(&asked.uri)?;
        *request.headers_mut() = asked.headers;
        *request.extensions_mut() = asked.extensions;
        if let Some(trailers) = asked.trailing_headers {
            request.extensions_mut().insert(trailers);
        }
        let (mut parts, body) = request.into_parts();
        mend(&asked.method, &mut parts.headers, &mut parts.extensions);
        parts.headers.remove(AUTHORIZATION);
        parts.method = asked.method;
        let answer = self.unchecked.call(Request::from_parts(parts, body)).await;
        let answer = answer.map_err(|broken| {
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
        let name = urlencoding::decode(name).unwrap_or_default();
        name.starts_with("X-Amz-") || matches!(&*name, "Signature" | "Expires" | "AWSAccessKeyId")
    };
    let kept: Vec<&str> = uri.query().unwrap_or("").split('&').filter(|p| !signs(p)).collect();
    format!("{}?{}", uri.path(), kept.join("&"))
        .parse()
        .map_err(|_| S3Error::new(S3ErrorCode::InvalidURI))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(method: Method, name: &'static str, value: &'static str) -> (Option<String>, bool) {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        headers.insert(name, value.parse().unwrap());
        mend(&method, &mut headers, &mut extensions);
        let text = headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        (text, extensions.get::<OddExpires>().is_some())
    }

    #[test]
    fn only_what_signs_is_taken_off_an_address() {
        let of = |text: &str| without_signature(&text.parse().unwrap()).unwrap().to_string();
        assert_eq!(of("/b/k%20?partNumber=1&X-Amz-Signature=0&x=y"), "/b/k%20?partNumber=1&x=y");
        assert_eq!(of("/b/k?X%2DAmz-Signatur%65=0&x%2Dy=z"), "/b/k?x%2Dy=z");
        assert_eq!(of("/b/k?Signature=a&Expires=1&AWSAccessKeyId=b"), "/b/k?");
    }

    #[test]
    fn headers_that_can_be_read_are_left_to_the_library() {
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        for (name, value) in [
            ("range", "bytes=0-1"),
            ("range", "bytes=5-"),
            ("range", "bytes=-5"),
            ("if-modified-since", date),
            ("if-match", "\"a\""),
            ("if-match", "*"),
            ("if-none-match", "W/\"a\", \"b\""),
            ("x-amz-copy-source-if-modified-since", ""),
        ] {
            let kept = Some(value.to_owned());
            assert_eq!(mended(Method::GET, name, value), (kept, false), "{name}: {value}");
        }
        for (name, value) in [("expires", date), ("range", "lines=0-1")] {
            assert_eq!(mended(Method::PUT, name, value), (Some(value.into()), false), "{name}");
        }
    }

    #[test]
    fn headers_that_cannot_be_read_are_put_right() {
        for range in ["bytes=0-1,3-4", "bytes=5-1", "lines=0-1", "bytes="] {
            assert_eq!(mended(Method::GET, "range", range), (None, false), "{range}");
        }
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        for form in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(mended(Method::GET, "if-modified-since", form), (date.clone(), false));
        }
        assert_eq!(mended(Method::GET, "if-unmodified-since", "soon"), (None, false));
        assert_eq!(mended(Method::PUT, "expires", "0"), (None, true));
        let quoted = Some("\"a_b, c\"".to_owned());
        assert_eq!(mended(Method::PUT, "if-match", "a_b, c"), (quoted, false));
    }

    #[test]
    fn a_header_that_stands_there_twice_is_left_to_be_refused() {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        headers.append("if-match", "a_b".parse().unwrap());
        headers.append("if-match", "\"c\"".parse().unwrap());
        mend(&Method::GET, &mut headers, &mut extensions);
        assert_eq!(headers.get_all("if-match").iter().count(), 2);
    }

    #[test]
    fn a_body_that_nobody_hashes_is_one_that_is_not_read() {
        let is = |method: Method, uri: &str, length: &'static str, hash: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_LENGTH, length.parse().unwrap());
            headers.insert("x-amz-content-sha256", hash.parse().unwrap());
            is_unhashed(&method, &uri.parse().unwrap(), &headers)
        };
        let (empty, other) = (EMPTY.map(|byte| format!("{byte:02x}")).concat(), "0".repeat(64));
        assert!(is(Method::POST, "/b/k?uploads", "0", &other));
        assert!(is(Method::POST, "/b/k?uploads=", "5", &other));
        assert!(is(Method::PUT, "/b", "0", &other));
        assert!(!is(Method::PUT, "/b", "5", &other), "the library compares it");
        assert!(!is(Method::POST, "/b/k?uploads", "0", &empty));
        assert!(!is(Method::POST, "/b/k?uploads", "0", "UNSIGNED-PAYLOAD"));
        assert!(!is(Method::GET, "/b/k", "0", &other));
    }
}
