//! Signatures of version 2: the text that is signed, and its signature. They are compared in constant time.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, Method, Uri};
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha1::Sha1;
use subtle::ConstantTimeEq;

use crate::options::Domains;

/// Parameters of a query that version 2 signs, in the order in which it does.
const SIGNED: [&str; 35] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "select",
    "select-type",
    "storageClass",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Verifies the signature of a request in its query, of which `query` has the decoded parameters.
///
/// # Errors
/// `SignatureDoesNotMatch`
pub(crate) fn check_url(
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    query: &[(String, String)],
    domains: &Domains,
    secret_key: &str,
) -> S3Result<()> {
    let parameter = |wanted: &str| {
        let found = query.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let given = parameter("Signature").unwrap_or_default();
    let mut text = format!("{method}\n");
    for line in [
        header(headers, &HeaderName::from_static("content-md5"))?,
        header(headers, &CONTENT_TYPE)?,
        parameter("Expires"),
    ] {
        text.push_str(line.unwrap_or_default());
        text.push('\n');
    }
    push_amz_headers(&mut text, headers);
    if let Some(bucket) = bucket_of(headers, domains) {
        text.push('/');
        text.push_str(bucket);
    }
    text.push_str(uri.path());
    let mut mark = '?';
    for name in SIGNED {
        let Some(value) = parameter(name) else { continue };
        text.push(mark);
        text.push_str(name);
        if !value.is_empty() {
            text.push('=');
            text.push_str(value);
        }
        mark = '&';
    }
    // Some clients encode it once more than the others.
    let given = urlencoding::decode(given).unwrap_or_default();
    compare(secret_key, &text, &given)
}

/// The value of a header, which may not stand there twice: two would be signed as none.
fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> S3Result<Option<&'h str>> {
    let mut values = texts(headers, name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(S3Error::new(S3ErrorCode::SignatureDoesNotMatch)),
    }
}

/// The values of a header, all of which are text: `signed::find` refuses others.
fn texts<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
}

fn push_amz_headers(text: &mut String, headers: &HeaderMap) {
    let mut names: Vec<&HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-amz-")).collect();
    names.sort_by_key(|name| name.as_str());
    for name in names {
        let values: Vec<&str> = texts(headers, name).map(str::trim).collect();
        if !values.is_empty() {
            text.push_str(&format!("{name}:{}\n", values.join(",")));
        }
    }
}

/// The bucket that the host names.
fn bucket_of<'h>(headers: &'h HeaderMap, domains: &Domains) -> Option<&'h str> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
    domains.bucket_of(host).filter(|_| !is_address)
}

/// Compares a signature with that of a text.
///
/// # Errors
/// `SignatureDoesNotMatch`
pub(crate) fn compare(secret_key: &str, text: &str, given: &str) -> S3Result<()> {
    let mac = Hmac::<Sha1>::new_from_slice(secret_key.as_bytes());
    let mut mac = mac.expect("a key may have any length");
    mac.update(text.as_bytes());
    let right = base64_simd::STANDARD.encode_to_string(mac.finalize().into_bytes());
    match bool::from(right.as_bytes().ct_eq(given.as_bytes())) {
        true => Ok(()),
        false => Err(S3Error::new(S3ErrorCode::SignatureDoesNotMatch)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::signed::decoded;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn url(uri: &str, host: &'static str) -> S3Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        headers.append("x-amz-meta-b", " 1 ".parse().unwrap());
        headers.append("x-amz-meta-b", "2".parse().unwrap());
        headers.append("x-amz-meta-a", "3".parse().unwrap());
        let domains = Domains::new(vec!["s3.amazonaws.com".into()]).unwrap();
        let uri: Uri = uri.parse().unwrap();
        let query = decoded(uri.query().unwrap_or_default());
        check_url((&Method::GET, &uri, &headers), &query, &domains, SECRET)
    }

    fn signed(text: &str) -> String {
        let mut mac = Hmac::<Sha1>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        urlencoding::encode(&base64_simd::STANDARD.encode_to_string(mac.finalize().into_bytes()))
            .into_owned()
    }

    #[test]
    fn a_url_is_right_only_with_all_that_it_signs() {
        let amz = "x-amz-meta-a:3\nx-amz-meta-b:1,2\n";
        let signature = signed(&format!("GET\n\n\n9\n{amz}/b/k?acl&versionId=7"));
        let keys = "Expires=9&AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=";
        let of = |uri: &str| url(&format!("{uri}&{keys}{signature}"), "10.0.0.1:9000");
        assert!(of("/b/k?versionId=7&prefix=unsigned&acl").is_ok());
        for other in ["/b/k?versionId=8&acl", "/b/j?versionId=7&acl", "/b/k?versionId=7"] {
            assert_eq!(of(other).unwrap_err().code(), &S3ErrorCode::SignatureDoesNotMatch);
        }
        let virtual_host =
            url(&format!("/k?versionId=7&acl&{keys}{signature}"), "b.s3.amazonaws.com");
        assert!(virtual_host.is_ok());
    }

    #[test]
    fn a_form_is_right_only_with_its_policy() {
        let signature = urlencoding::decode(&signed("cG9saWN5")).unwrap().into_owned();
        assert!(compare(SECRET, "cG9saWN5", &signature).is_ok());
        for (policy, signature) in
            [("cG9saWN6", signature.as_str()), ("cG9saWN5", ""), ("cG9saWN5", &signature[1..])]
        {
            let refused = compare(SECRET, policy, signature).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::SignatureDoesNotMatch);
        }
    }
}
