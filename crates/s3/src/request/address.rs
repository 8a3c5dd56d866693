//! The address of a request: its one spelling, and the bucket and key that it names. A signature covers the decoded path and
//! query, so that a request whose names are spelled with other escapes than the signed one still verifies. Names are
//! compared as they stand, so it is respelled before anybody looks.
//!
//! # Invariants
//!
//! 1. After [`respell`] no parameter's name has an escape that an unreserved character could have without one, and no
//!    separator of the path is escaped. What is decoded, and so what was signed, is as before.
//! 2. A query that is not UTF-8 when decoded goes no further: it would be read otherwise than it came.

use std::borrow::Cow;

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use larder_types::BucketName;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::names::bucket_name;
use crate::errors::error;
use crate::options::Domains;

/// Respells the address of a request, if it needs to be.
///
/// # Errors
/// `InvalidURI` for a query that is not UTF-8.
pub(crate) fn respell(uri: &mut Uri) -> Result<(), S3Error> {
    let path = plain_path(uri.path());
    let query = uri.query().map(plain_query).transpose()?;
    if matches!((&path, &query), (Cow::Borrowed(_), None | Some(Cow::Borrowed(_)))) {
        return Ok(());
    }
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let respelled = format!("{path}{query}");
    replace(uri, &respelled)
}

/// The bucket and the key that an address names. The key is empty if it names none.
///
/// # Errors
/// `InvalidURI` for a path that is not UTF-8 when decoded, `InvalidRequest` for a host that is no text;
/// `InvalidBucketName`.
pub(crate) fn named(
    uri: &Uri,
    headers: &HeaderMap,
    domains: &Domains,
) -> S3Result<(BucketName, String)> {
    let invalid = || error(S3ErrorCode::InvalidURI, "Couldn't parse the specified URI.");
    let path = urlencoding::decode(uri.path()).map_err(|_| invalid())?;
    let path = path.strip_prefix('/').ok_or_else(invalid)?;
    let host = headers.get(HOST).map(|host| host.to_str()).transpose();
    let host =
        host.map_err(|_| error(S3ErrorCode::InvalidRequest, "The header Host is not text."))?;
    let (bucket, key) = match host.and_then(|host| domains.bucket_of(host)) {
        Some(bucket) => (bucket, path),
        None => path.split_once('/').unwrap_or((path, "")),
    };
    Ok((bucket_name(bucket)?, key.to_owned()))
}

fn replace(uri: &mut Uri, path_and_query: &str) -> Result<(), S3Error> {
    let replaced = PathAndQuery::try_from(path_and_query).map_err(|_| invalid())?;
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(replaced);
    *uri = Uri::from_parts(parts).map_err(|_| invalid())?;
    Ok(())
}

fn invalid() -> S3Error {
    error(S3ErrorCode::InvalidURI, "The query of the address must be UTF-8 once it is decoded.")
}

/// True if each percent sign begins an escape.
pub(crate) fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// The path with all its separators plain.
fn plain_path(path: &str) -> Cow<'_, str> {
    if path.contains("%2F") || path.contains("%2f") {
        Cow::Owned(path.replace("%2F", "/").replace("%2f", "/"))
    } else {
        Cow::Borrowed(path)
    }
}

/// The query with its names as they are spelled most plainly.
fn plain_query(query: &str) -> Result<Cow<'_, str>, S3Error> {
    if !query.contains(['%', '+']) {
        return Ok(Cow::Borrowed(query));
    }
    let mut is_plain = true;
    let mut plain = Vec::new();
    for parameter in query.split('&') {
        let (name, value) = match parameter.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (parameter, None),
        };
        if let Some(value) = value {
            urlencoding::decode(value).map_err(|_| invalid())?;
        }
        if !name.contains(['%', '+']) {
            plain.push(Cow::Borrowed(parameter));
            continue;
        }
        let spaced = name.replace('+', " ");
        let decoded = urlencoding::decode(&spaced).map_err(|_| invalid())?;
        let name = urlencoding::encode(&decoded);
        is_plain = false;
        plain.push(match value {
            Some(value) => Cow::Owned(format!("{name}={value}")),
            None => Cow::Owned(name.into_owned()),
        });
    }
    Ok(if is_plain { Cow::Borrowed(query) } else { Cow::Owned(plain.join("&")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respelled(uri: &str) -> String {
        let mut uri = uri.parse().unwrap();
        respell(&mut uri).unwrap();
        uri.to_string()
    }

    #[test]
    fn names_are_spelled_plainly_and_values_stay() {
        for (came, plain) in [
            ("/b/k?tagging", "/b/k?tagging"),
            ("/b/k?taggin%67=", "/b/k?tagging="),
            ("/b?delet%65", "/b?delete"),
            (
                "/b/k?%78-amz-copy-source=%2Fa%2Fb&X-Amz-Signatur%65=0",
                "/b/k?x-amz-copy-source=%2Fa%2Fb&X-Amz-Signature=0",
            ),
            ("/b/k?a%26b=1&c+d=2", "/b/k?a%26b=1&c%20d=2"),
            ("/b/k?prefix=a%2Fb+c", "/b/k?prefix=a%2Fb+c"),
        ] {
            assert_eq!(respelled(came), plain);
        }
    }

    #[test]
    fn an_address_names_bucket_and_key() {
        let domains = Domains::new(vec!["s3.test".into()]).unwrap();
        let named = |host: &[u8], uri: &str| {
            let headers =
                HeaderMap::from_iter([(HOST, http::HeaderValue::from_bytes(host).unwrap())]);
            let named = super::named(&uri.parse().unwrap(), &headers, &domains);
            named.map(|(bucket, key)| format!("{} {key}", bucket.as_str()))
        };
        for (host, uri, expected) in [
            ("h", "/bkt/a%20b/", "bkt a b/"),
            ("h", "/bkt//k", "bkt /k"),
            ("h", "/bkt/", "bkt "),
            ("bkt.s3.test:9000", "/bkt/k", "bkt bkt/k"),
            ("127.0.0.1:9000", "http://bkt.s3.test/bkt/k%2520", "bkt k%20"),
        ] {
            assert_eq!(named(host.as_bytes(), uri).unwrap(), expected, "{host} {uri}");
        }
        for (host, uri, code) in [
            (&b"h"[..], "/bkt/%FF", S3ErrorCode::InvalidURI),
            (b"h", "*", S3ErrorCode::InvalidURI),
            (b"\xff", "/bkt/k", S3ErrorCode::InvalidRequest),
            (b"h", "//k", S3ErrorCode::InvalidBucketName),
            (b"BKT.s3.test", "/k", S3ErrorCode::InvalidBucketName),
        ] {
            assert_eq!(named(host, uri).unwrap_err().code(), &code, "{uri}");
        }
    }

    #[test]
    fn separators_of_a_path_are_plain() {
        assert_eq!(respelled("/b%2Fk%20x%2fy?acl"), "/b/k%20x/y?acl");
        assert_eq!(respelled("/b/k%252F"), "/b/k%252F", "an escaped escape is a name's own");
        assert_eq!(respelled("http://h:1/b%2Fk"), "http://h:1/b/k");
    }

    #[test]
    fn a_query_that_is_not_utf_8_is_refused() {
        for uri in ["/b?prefix=%FF", "/b?%FF=1"] {
            let refused = respell(&mut uri.parse().unwrap()).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidURI, "{uri}");
        }
    }
}
