//! What S3 asks of a signature and the protocol library does not check: the scheme, and that every
//! header S3 acts upon is signed.
//!
//! Signatures of version 2 are refused in headers, where nothing bounds their age. In a query they
//! carry their own expiry, and some clients presign so unless told otherwise: the library takes them.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use s3s::{S3Error, S3ErrorCode};

use crate::append::RECORD_HEADER;
use crate::limits::PRESIGNED_S_MAX;

/// Refuses requests that the library would take and S3 would not. The signature itself is checked
/// by the library, after this; a request without any is left to it, too.
///
/// # Errors
/// What S3 answers.
pub(crate) fn check(headers: &HeaderMap, query: Option<&str>) -> Result<(), S3Error> {
    if let Some(authorization) = headers.get(AUTHORIZATION) {
        let authorization = authorization.as_bytes();
        if authorization.starts_with(b"AWS ") {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidRequest,
                "The authorization mechanism you have provided is not supported. \
                 Please use AWS4-HMAC-SHA256.",
            ));
        }
        let Some(list) = between(authorization, b"SignedHeaders=", b',') else { return Ok(()) };
        return all_signed(headers, list, b";");
    }
    let parameter = |name: &[u8]| query.and_then(|query| between(query.as_bytes(), name, b'&'));
    if let Some(seconds) = parameter(b"X-Amz-Expires=") {
        presigned_for(seconds)?;
    }
    let list = parameter(b"X-Amz-SignedHeaders=");
    match list {
        Some(list) if list.contains(&b'%') => all_signed(headers, list, b"%3B"),
        Some(list) => all_signed(headers, list, b";"),
        None => Ok(()),
    }
}

/// A presigned request is good for a week at most.
fn presigned_for(seconds: &[u8]) -> Result<(), S3Error> {
    let seconds = std::str::from_utf8(seconds).ok().and_then(|text| text.parse::<u64>().ok());
    match seconds {
        Some(1..=PRESIGNED_S_MAX) => Ok(()),
        _ => Err(S3Error::with_message(
            S3ErrorCode::AuthorizationQueryParametersError,
            format!("X-Amz-Expires must be a number of seconds from 1 to {PRESIGNED_S_MAX}"),
        )),
    }
}

/// Refuses digests that are given as nothing, which the library takes for not given.
///
/// # Errors
/// What S3 answers.
pub(crate) fn check_digests(headers: &HeaderMap) -> Result<(), S3Error> {
    for (name, value) in headers {
        if !value.is_empty() {
            continue;
        }
        if name == "content-md5" {
            let message = "The Content-MD5 you specified is not valid.";
            return Err(S3Error::with_message(S3ErrorCode::InvalidDigest, message));
        }
        let checksum = name.as_str().strip_prefix("x-amz-checksum-");
        if checksum.is_some_and(|what| what.starts_with("crc") || what.starts_with("sha")) {
            let message = format!("Value for {name} header is invalid.");
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
        }
    }
    Ok(())
}

fn between<'t>(text: &'t [u8], start: &[u8], end: u8) -> Option<&'t [u8]> {
    let at = text.windows(start.len()).position(|window| window == start)? + start.len();
    let rest = &text[at..];
    let len = rest.iter().position(|byte| *byte == end).unwrap_or(rest.len());
    Some(rest[..len].trim_ascii())
}

fn all_signed(headers: &HeaderMap, list: &[u8], separator: &[u8]) -> Result<(), S3Error> {
    let signed =
        |name: &[u8]| split(list, separator).any(|listed| listed.eq_ignore_ascii_case(name));
    let must = |name: &str| name == "host" || name.starts_with("x-amz-") || name == RECORD_HEADER;
    let missing =
        headers.keys().find(|name| must(name.as_str()) && !signed(name.as_str().as_bytes()));
    match missing {
        None => Ok(()),
        Some(name) => Err(S3Error::with_message(
            S3ErrorCode::AccessDenied,
            format!("There were headers present in the request which were not signed: {name}"),
        )),
    }
}

fn split<'t>(mut text: &'t [u8], separator: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let at = text.windows(separator.len()).position(|w| w.eq_ignore_ascii_case(separator));
        let (item, rest) = match at {
            Some(at) => (&text[..at], &text[at + separator.len()..]),
            None => {
                done = true;
                (text, &[][..])
            }
        };
        text = rest;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(list: &str, extra: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-date", "d".parse().unwrap());
        headers.insert(extra, "v".parse().unwrap());
        let value = format!("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders={list}, Signature=00");
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn headers_that_s3_acts_upon_must_be_signed() {
        assert!(check(&request("host;x-amz-date", "range"), None).is_ok());
        assert!(check(&request("host;x-amz-date;x-amz-acl", "x-amz-acl"), None).is_ok());
        for (list, extra) in [
            ("host;x-amz-date", "x-amz-acl"),
            ("host;x-amz-date", "x-larder-append"),
            ("x-amz-date", "range"),
            ("host;x-amz-dates", "a"),
        ] {
            let refused = check(&request(list, extra), None).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::AccessDenied, "{list}");
        }
    }

    #[test]
    fn a_presigned_request_lists_them_in_the_query() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-acl", "private".parse().unwrap());
        for list in ["host%3Bx-amz-acl", "host%3bx-amz-acl", "host;x-amz-acl"] {
            let query = format!("a=b&X-Amz-SignedHeaders={list}&X-Amz-Signature=00");
            assert!(check(&headers, Some(&query)).is_ok(), "{list}");
        }
        assert!(check(&headers, Some("X-Amz-SignedHeaders=host")).is_err());
        assert!(
            check(&headers, Some("prefix=x")).is_ok(),
            "not signed at all: left to the library"
        );
    }

    #[test]
    fn a_presigned_request_is_good_for_a_week_at_most() {
        let headers = HeaderMap::new();
        for good in ["1", "604800"] {
            assert!(check(&headers, Some(&format!("X-Amz-Expires={good}"))).is_ok(), "{good}");
        }
        for bad in ["0", "604801", "-1", "", "soon"] {
            let refused = check(&headers, Some(&format!("a&X-Amz-Expires={bad}"))).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::AuthorizationQueryParametersError, "{bad}");
        }
    }

    #[test]
    fn a_digest_given_as_nothing_is_refused() {
        for name in ["content-md5", "x-amz-checksum-crc32", "x-amz-checksum-sha256"] {
            let mut headers = HeaderMap::new();
            headers.insert(name, "AAAA".parse().unwrap());
            assert!(check_digests(&headers).is_ok());
            headers.insert(name, "".parse().unwrap());
            assert!(check_digests(&headers).is_err(), "{name}");
        }
    }

    #[test]
    fn version_2_headers_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "AWS key:signature".parse().unwrap());
        assert_eq!(check(&headers, None).unwrap_err().code(), &S3ErrorCode::InvalidRequest);
    }
}
