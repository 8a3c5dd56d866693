//! Compares signatures of version 2 in constant time.
//!
//! The protocol library compares them byte by byte, so that its time could tell how much of a guess is right. Each is looked at
//! here before: the library gets to see only those that are right, and those of other keys, which it refuses by
//! their names.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, Method, Uri};
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha1::Sha1;
use subtle::ConstantTimeEq;

use super::root_keys::RootKeys;
use super::signed::decoded;
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

/// Verifies a form's signature, if it is of version 2 and these keys. The names of its fields are in lower case.
///
/// # Errors
/// `SignatureDoesNotMatch`
pub(crate) fn check_form(fields: &[(String, String)], root: &RootKeys) -> S3Result<()> {
    // The library takes the last of several.
    let field = |wanted: &str| {
        let found = fields.iter().rev().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    if field("x-amz-signature").is_some() {
        return Ok(());
    }
    let secret_key = field("awsaccesskeyid").and_then(|key| root.secret_of(key));
    let Some(secret_key) = secret_key else { return Ok(()) };
    match (field("policy"), field("signature")) {
        (Some(policy), Some(given)) => compare(&secret_key, policy, given),
        _ => Ok(()),
    }
}

/// Verifies the signature of a query, if it is of version 2 and these keys.
///
/// # Errors
/// `SignatureDoesNotMatch`
pub(crate) fn check_url(
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    domains: &Domains,
    root: &RootKeys,
) -> S3Result<()> {
    let query = decoded(uri.query().unwrap_or_default());
    let parameter = |wanted: &str| {
        let found = query.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let Some(given) = parameter("Signature") else { return Ok(()) };
    let secret_key = parameter("AWSAccessKeyId").and_then(|key| root.secret_of(key));
    let Some(secret_key) = secret_key else { return Ok(()) };
    let mut text = format!("{method}\n");
    for line in [
        header(headers, &HeaderName::from_static("content-md5")),
        header(headers, &CONTENT_TYPE),
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
    // The library decodes it once more than the others.
    let given = urlencoding::decode(given).unwrap_or_default();
    compare(&secret_key, &text, &given)
}

/// The value of a header that stands there once.
fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = texts(headers, name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// The values of a header that are text; others are not signed.
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

fn compare(secret_key: &str, text: &str, given: &str) -> S3Result<()> {
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
    use crate::auth::root_keys::Credentials;

    fn root() -> Credentials {
        Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
        }
    }

    fn url(uri: &str, host: &'static str) -> S3Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        headers.append("x-amz-meta-b", " 1 ".parse().unwrap());
        headers.append("x-amz-meta-b", "2".parse().unwrap());
        headers.append("x-amz-meta-a", "3".parse().unwrap());
        let domains = Domains::new(vec!["s3.amazonaws.com".into()]).unwrap();
        check_url((&Method::GET, &uri.parse().unwrap(), &headers), &domains, &root().into())
    }

    fn signed(text: &str) -> String {
        let mut mac = Hmac::<Sha1>::new_from_slice(root().secret_key.as_bytes()).unwrap();
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
        let other_key = keys.replace("AKIA", "AKIB");
        assert!(url(&format!("/b/k?{other_key}x"), "h").is_ok(), "the library refuses it");
        assert!(url("/b/k?X-Amz-Signature=0", "h").is_ok(), "not of version 2");
    }

    #[test]
    fn a_form_is_right_only_with_its_policy() {
        let form = |policy: &str, signature: &str| {
            let fields = [
                ("signature", "an-earlier-one"),
                ("awsaccesskeyid", "AKIAIOSFODNN7EXAMPLE"),
                ("policy", policy),
                ("signature", signature),
            ];
            check_form(&fields.map(|(name, value)| (name.into(), value.into())), &root().into())
        };
        let signature = urlencoding::decode(&signed("cG9saWN5")).unwrap().into_owned();
        assert!(form("cG9saWN5", &signature).is_ok());
        for (policy, signature) in
            [("cG9saWN6", signature.as_str()), ("cG9saWN5", ""), ("cG9saWN5", &signature[1..])]
        {
            let refused = form(policy, signature).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::SignatureDoesNotMatch);
        }
    }
}
