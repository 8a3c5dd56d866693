//! Answers as S3 writes them: headers, XML and refusals.
//!
//! The protocol library's types write their XML with keys as they came. A parser reads a raw carriage return as
//! a line feed, so that the key it finds is another one. Other control characters, U+FFFE and U+FFFF are no characters of XML
//! 1.0 at all. S3 writes all of them as numeric references, and so does this. Strict parsers still refuse references to the
//! latter: a client that has such keys lists with `encoding-type=url`.
//!
//! # Invariants
//!
//! 1. An answer of this module needs no repair: a refusal has message, resource, id, the elements of its error, and the
//!    region to sign for if that was wrong.
//! 2. A refusal has the form that its client reads: clients of other services read another than S3's.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{CONTENT_TYPE, ETAG, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use larder_types::{ETag, HybridClock, ObjectChecksum};
use s3s::xml::{SerResult, Serialize, SerializeContent, Serializer};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use crate::auth::authorization::BUCKET_REGION;
use crate::auth::other_services::OtherService;
use crate::digest::checksums::{self, kind_name};
use crate::errors::{elements, error};
use crate::request::ids::RequestId;

/// The type of all documents.
const XML: HeaderValue = HeaderValue::from_static("application/xml");
/// The namespace of all documents.
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
const CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");
/// Seconds since 1970 of the last date that HTTP's form has.
const DATE_S_MAX: u64 = 253_402_300_799;
/// Bytes of an item of a list, at a guess: a buffer that grows is copied.
const LISTED_BYTES: usize = 320;
/// Bytes that are looked at together: the loop over them has no branch.
const BLOCK_BYTES: usize = 64;

/// The request that is answered.
pub(crate) struct RequestInfo<'r> {
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

/// Sets a header to a text of a client's.
///
/// # Errors
/// `InternalError` if it cannot be a header: it came from where that was no condition.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, text: &str) -> S3Result<()> {
    match HeaderValue::try_from(text) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(_) => {
            let message = format!("the object's {name} cannot be sent as a header");
            return Err(error(S3ErrorCode::InternalError, message));
        }
    }
    Ok(())
}

/// Sets `ETag`.
///
/// # Errors
/// As [`set`].
pub(crate) fn set_etag(headers: &mut HeaderMap, etag: &ETag) -> S3Result<()> {
    set(headers, ETAG, &format!("\"{}\"", etag.text()))
}

/// Sets the headers of a checksum.
///
/// # Errors
/// As [`set`].
pub(crate) fn set_checksum(headers: &mut HeaderMap, checksum: &ObjectChecksum) -> S3Result<()> {
    let name = HeaderName::from_static(checksums::header(checksum.algorithm));
    headers.insert(CHECKSUM_TYPE, HeaderValue::from_static(kind_name(checksum.kind)));
    set(headers, name, &checksums::text(checksum))
}

/// The date at which a version was made, in HTTP's form.
pub(crate) fn http_date(clock: HybridClock) -> String {
    let seconds = (clock.ms() / 1000).min(DATE_S_MAX);
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds);
    httpdate::fmt_http_date(time)
}

/// An answer that has nothing to say.
pub(crate) fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// An answer of a document.
///
/// # Errors
/// `InternalError` if it cannot be written.
pub(crate) fn document<T: Serialize>(value: &T) -> S3Result<Response<Body>> {
    written(0, |xml| value.serialize(xml))
}

/// An answer of a document that lists so many items.
///
/// # Errors
/// As [`document`].
pub(crate) fn list<T: Serialize>(value: &T, items: usize) -> S3Result<Response<Body>> {
    written(items, |xml| value.serialize(xml))
}

/// An answer of an element that the library's types do not name.
///
/// # Errors
/// As [`document`].
pub(crate) fn element<T: SerializeContent>(name: &str, content: &T) -> S3Result<Response<Body>> {
    written(0, |xml| xml.content_with_ns(name, NAMESPACE, content))
}

fn written(
    items: usize,
    write: impl FnOnce(&mut Serializer<&mut Vec<u8>>) -> SerResult,
) -> S3Result<Response<Body>> {
    let mut text = Vec::with_capacity(1024 + items * LISTED_BYTES);
    let mut xml = Serializer::new(&mut text);
    xml.decl().and_then(|()| write(&mut xml)).map_err(S3Error::internal_error)?;
    let mut response = Response::new(Body::from(escaped(text)?));
    response.headers_mut().insert(CONTENT_TYPE, XML);
    Ok(response)
}

/// A document in which what XML cannot carry is a reference. It is looked through whole: the library writes it in pieces of
/// some bytes, and there are many.
fn escaped(xml: Vec<u8>) -> S3Result<Vec<u8>> {
    if !is_suspicious(&xml) {
        return Ok(xml);
    }
    let text = String::from_utf8(xml).map_err(S3Error::internal_error)?;
    let (mut escaped, mut rest) = (String::with_capacity(text.len() + BLOCK_BYTES), &*text);
    while let Some(at) = rest.find(must_be_escaped) {
        let (before, odd) = rest.split_at(at);
        escaped.push_str(before);
        let mut characters = odd.chars();
        characters.next().into_iter().for_each(|odd| push_character(&mut escaped, odd));
        rest = characters.as_str();
    }
    escaped.push_str(rest);
    Ok(escaped.into_bytes())
}

/// The answer to a request that is refused, and what its client is told. Not to send again what the client has is no
/// refusal.
pub(crate) fn refusal(
    refused: &S3Error,
    asked: &RequestInfo<'_>,
) -> (Response<Body>, Option<Failure>) {
    let status = refused.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if let Some(headers) = refused.headers() {
        *response.headers_mut() = headers.clone();
    }
    if status == StatusCode::NOT_MODIFIED {
        return (response, None);
    }
    let headers = response.headers_mut();
    headers.entry(CONTENT_TYPE).or_insert(XML);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    let code = refused.code().as_str();
    let message = refused.message().unwrap_or_else(|| default_message(code));
    let failure = Failure { code: code.to_owned(), message: message.to_owned() };
    if let Some(service) = OtherService::of_error(refused) {
        *response.body_mut() = Body::from(of_other_service(service, &failure, asked.id));
        return (response, Some(failure));
    }
    let mut xml = String::with_capacity(256 + message.len() + asked.path.len());
    xml.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error>");
    push_element(&mut xml, "Code", code);
    push_element(&mut xml, "Message", message);
    if let Some(region) = headers.get(BUCKET_REGION).and_then(|region| region.to_str().ok()) {
        push_element(&mut xml, "Region", region);
    }
    for (name, text) in elements::of(refused) {
        // Parsers refuse a whole document for such a reference: then nobody reads the code.
        if !text.contains(must_be_escaped) {
            push_element(&mut xml, name, text);
        }
    }
    push_element(&mut xml, "Resource", asked.path);
    let _ = write!(xml, "<RequestId>{}</RequestId></Error>", asked.id);
    *response.body_mut() = Body::from(xml);
    (response, Some(failure))
}

/// A refusal as clients of services with queries read it.
fn of_other_service(service: OtherService, failure: &Failure, id: RequestId) -> String {
    let mut xml = format!("<ErrorResponse xmlns=\"{}\"><Error>", service.namespace());
    push_element(&mut xml, "Type", "Sender");
    push_element(&mut xml, "Code", &failure.code);
    push_element(&mut xml, "Message", &failure.message);
    let _ = write!(xml, "</Error><RequestId>{id}</RequestId></ErrorResponse>");
    xml
}

fn push_element(xml: &mut String, tag: &str, text: &str) {
    let _ = write!(xml, "<{tag}>");
    push_text(xml, text);
    let _ = write!(xml, "</{tag}>");
}

/// Adds text to XML.
pub(crate) fn push_text(xml: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '&' => xml.push_str("&amp;"),
            '"' => xml.push_str("&quot;"),
            other => push_character(xml, other),
        }
    }
}

fn push_character(xml: &mut String, character: char) {
    match character {
        '\r' => xml.push_str("&#13;"),
        odd if must_be_escaped(odd) => {
            let _ = write!(xml, "&#x{:x};", u32::from(odd));
        }
        other => xml.push(other),
    }
}

/// Tells if there may be something to escape. U+FFFE and U+FFFF begin with 0xEF, as other characters do.
fn is_suspicious(bytes: &[u8]) -> bool {
    let byte = |byte: u8| (byte < 0x20) & (byte != b'\t') & (byte != b'\n') | (byte == 0xef);
    bytes.chunks(BLOCK_BYTES).any(|block| block.iter().fold(false, |any, it| any | byte(*it)))
}

fn must_be_escaped(character: char) -> bool {
    matches!(character, '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// S3's words for errors that are made without any.
pub(crate) fn default_message(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "EntityTooLarge" => "Your proposed upload exceeds the maximum allowed size",
        "IncompleteBody" => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header"
        }
        "InvalidBucketName" => "The specified bucket is not valid.",
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
    use super::*;
    use crate::request::ids::RequestIds;

    fn text(body: &Body) -> String {
        String::from_utf8(body.bytes().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn a_refusal_names_message_resource_and_request() {
        let asked = RequestInfo { path: "/b/<k>&\r", id: RequestIds::new().next() };
        let (response, failure) =
            refusal(&S3Error::new(S3ErrorCode::SignatureDoesNotMatch), &asked);
        let failure = failure.unwrap();
        assert_eq!(failure.code, "SignatureDoesNotMatch");
        assert!(failure.message.contains("does not match the signature"));
        assert_eq!((response.status().as_u16(), &response.headers()[CONTENT_TYPE]), (403, &XML));
        assert_eq!(
            text(response.body()),
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SignatureDoesNotMatch</Code><Message>{}</Message>\
                 <Resource>/b/&lt;k&gt;&amp;&#13;</Resource><RequestId>{}</RequestId></Error>",
                failure.message, asked.id
            )
        );
        let mut region = error(S3ErrorCode::AuthorizationHeaderMalformed, "a \"b\"");
        region.set_headers(HeaderMap::from_iter([(BUCKET_REGION, HeaderValue::from_static("r"))]));
        let (response, _) = refusal(&region, &asked);
        let xml = text(response.body());
        assert!(xml.contains("<Message>a &quot;b&quot;</Message><Region>r</Region>"), "{xml}");
        assert_eq!(response.headers()[BUCKET_REGION], "r");
    }

    #[test]
    fn a_refusal_has_the_elements_of_its_error() {
        let asked = RequestInfo { path: "/b/k", id: RequestIds::new().next() };
        let refused = elements::invalid_argument("no", "max-keys", "<a>");
        let (response, _) = refusal(&refused, &asked);
        let xml = text(response.body());
        let expected = "<Message>no</Message><ArgumentName>max-keys</ArgumentName>\
                    <ArgumentValue>&lt;a&gt;</ArgumentValue><Resource>";
        assert!(xml.contains(expected), "{xml}");
    }

    #[test]
    fn a_refusal_is_read_whatever_it_is_about() {
        let asked = RequestInfo { path: "/b/%01", id: RequestIds::new().next() };
        let absent = elements::with(
            error(S3ErrorCode::NoSuchKey, "no"),
            [("Key", "a\u{1}".to_owned()), ("BucketName", "b".to_owned())],
        );
        let (response, _) = refusal(&absent, &asked);
        let xml = text(response.body());
        assert!(!xml.contains("&#x1;") && !xml.contains("<Key>"), "{xml}");
        assert!(xml.contains("<BucketName>b</BucketName>"), "{xml}");
    }

    #[test]
    fn a_client_of_a_busy_server_gets_slow_down() {
        let asked = RequestInfo { path: "/", id: RequestIds::new().next() };
        let (response, failure) = refusal(&crate::errors::slow_down(), &asked);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(failure.unwrap().code, "SlowDown");
    }

    #[test]
    fn an_answer_304_has_no_body() {
        let asked = RequestInfo { path: "/", id: RequestIds::new().next() };
        let (response, failure) = refusal(&S3Error::new(S3ErrorCode::NotModified), &asked);
        assert_eq!((response.status().as_u16(), failure), (304, None));
        assert!(response.body().bytes().unwrap().is_empty());
        assert!(!response.headers().contains_key(CONTENT_TYPE));
    }

    #[test]
    fn dates_are_those_that_have_a_form() {
        assert_eq!(http_date(HybridClock::at_ms(1_000_900)), "Thu, 01 Jan 1970 00:16:40 GMT");
        let last = "Fri, 31 Dec 9999 23:59:59 GMT";
        assert_eq!(http_date(HybridClock::at_ms(DATE_S_MAX * 1000 + 1_000_000)), last);
    }

    fn escaped(text: &str) -> String {
        String::from_utf8(super::escaped(text.into()).unwrap()).unwrap()
    }

    #[test]
    fn what_xml_cannot_carry_becomes_a_reference() {
        let all = "a&#13;b&#x0;&#x1f;&#xfffe;c&#xffff;";
        assert_eq!(escaped("a\rb\0\u{1f}\u{fffe}c\u{ffff}"), all);
        for at in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 1000] {
            let text = "x".repeat(at);
            assert_eq!(escaped(&format!("{text}\r")), format!("{text}&#13;"), "{at}");
        }
    }

    #[test]
    fn what_xml_carries_stays() {
        let all =
            "<a>\t\n&amp; ~\u{7f}\u{80}\u{85}\u{2028}\u{d7ff}\u{e000}\u{ff01}\u{fffd}\u{10ffff}";
        assert_eq!(escaped(all), all);
        assert_eq!(escaped(""), "");
    }
}
