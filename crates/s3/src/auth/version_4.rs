//! Signatures of version 4: the text of a request that is signed, and the signature of a text.
//!
//! # Invariants
//!
//! 1. Nothing here knows the time or keeps a secret: keys come from [`super::root_keys`].
//! 2. Signatures are compared in constant time.

use std::borrow::Cow;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The service that S3's requests are signed for.
const SERVICE: &str = "s3";
/// Payload of a request whose body is not signed.
pub(crate) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The key of one day, region and service, made from a secret.
#[derive(Clone)]
pub(crate) struct SigningKey(Hmac<Sha256>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").finish_non_exhaustive()
    }
}

impl SigningKey {
    /// The key for a day (`YYYYMMDD`) and a region.
    pub(crate) fn new(secret: &str, day: &str, region: &str) -> Self {
        let mut key = mac_of(keyed(format!("AWS4{secret}").as_bytes()), day.as_bytes());
        for part in [region, SERVICE, "aws4_request"] {
            key = mac_of(keyed(&key), part.as_bytes());
        }
        Self(keyed(&key))
    }

    /// Signs a text.
    pub(crate) fn sign(&self, text: &[u8]) -> Signature {
        Signature(hex(mac_of(self.0.clone(), text)))
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key may have any length")
}

fn mac_of(mut mac: Hmac<Sha256>, text: &[u8]) -> [u8; 32] {
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// A signature, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature(Hex);

impl Signature {
    /// True if this is the one given, which is compared in constant time.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        self.0.0.ct_eq(given).into()
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The signature that is written so.
    #[cfg(test)]
    pub(crate) fn of(digits: &str) -> Self {
        Self(Hex(digits.as_bytes().try_into().unwrap()))
    }
}

/// A hash in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hex([u8; 64]);

impl Hex {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits are text")
    }
}

/// Writes a hash in lower-case hexadecimal digits.
pub(crate) fn hex(hash: [u8; 32]) -> Hex {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(hash) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    Hex(text)
}

/// The SHA-256 of a text, in hexadecimal digits.
pub(crate) fn sha256(text: &[u8]) -> Hex {
    hex(Sha256::digest(text).into())
}

/// The time and the scope that a signature names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'s> {
    /// The time, as `YYYYMMDDTHHMMSSZ`.
    pub(crate) time: &'s str,
    /// The day, as `YYYYMMDD`.
    pub(crate) day: &'s str,
    pub(crate) region: &'s str,
}

impl Scope<'_> {
    /// The first lines of all texts that are signed, of this kind.
    pub(crate) fn lines(&self, kind: &str) -> String {
        let Self { time, day, region } = self;
        format!("{kind}\n{time}\n{day}/{region}/{SERVICE}/aws4_request\n")
    }

    /// The text that a request's signature signs.
    pub(crate) fn text_of(&self, canonical: &str) -> String {
        let mut text = self.lines("AWS4-HMAC-SHA256");
        text.push_str(sha256(canonical.as_bytes()).as_str());
        text
    }
}

/// The parts of a request that are signed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signable<'r> {
    pub(crate) method: &'r Method,
    pub(crate) uri: &'r Uri,
    pub(crate) headers: &'r HeaderMap,
    /// The names of headers that are signed, in the order in which they are.
    pub(crate) names: &'r [&'r str],
    /// The word for its body.
    pub(crate) payload: &'r str,
}

impl Signable<'_> {
    /// The canonical request, with the path in its canonical spelling.
    pub(crate) fn canonical(&self) -> String {
        let path = urlencoding::decode_binary(self.uri.path().as_bytes());
        let mut spelled = String::with_capacity(path.len());
        push_encoded(&mut spelled, &path, true);
        self.with_path(&spelled)
    }

    /// The canonical request with the path as it came, if that differs. Some clients sign their path before they spell it,
    /// and leave characters as they are that have a canonical escape.
    pub(crate) fn canonical_as_it_came(&self) -> Option<String> {
        let path = self.uri.path();
        let is_canonical = |byte: u8| is_plain(byte) || matches!(byte, b'/' | b'%');
        (!path.bytes().all(is_canonical)).then(|| self.with_path(path))
    }

    fn with_path(&self, path: &str) -> String {
        let mut text = String::with_capacity(512);
        text.push_str(self.method.as_str());
        text.push('\n');
        text.push_str(path);
        text.push('\n');
        push_query(&mut text, self.uri.query().unwrap_or_default());
        text.push('\n');
        let names = || self.names.iter().filter(|name| **name != "authorization");
        for name in names() {
            push_header(&mut text, self.headers, name);
        }
        for (index, name) in names().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ";" });
            text.push_str(name);
        }
        text.push('\n');
        text.push_str(self.payload);
        text
    }
}

/// Writes a header's line. The request has the header, and all of it is text: [`super::signed::find`] refuses others.
fn push_header(text: &mut String, headers: &HeaderMap, name: &str) {
    text.push_str(name);
    text.push(':');
    for (index, line) in headers.get_all(name).iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        push_words(text, std::str::from_utf8(line.as_bytes()).unwrap_or("\u{fffd}"));
    }
    text.push('\n');
}

/// Writes a value with one space in place of each run of them.
fn push_words(text: &mut String, value: &str) {
    if !value.bytes().any(|byte| matches!(byte, b' ' | b'\t') || !byte.is_ascii()) {
        return text.push_str(value);
    }
    for (index, word) in value.split_whitespace().enumerate() {
        text.push_str(if index == 0 { "" } else { " " });
        text.push_str(word);
    }
}

/// Writes a query's parameters in canonical order and spelling, without the signature itself.
fn push_query(text: &mut String, query: &str) {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let mut spelled: Vec<(String, String)> = parameters
        .map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (respelled(name), respelled(value))
        })
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    spelled.sort();
    for (index, (name, value)) in spelled.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "&" });
        text.push_str(name);
        text.push('=');
        text.push_str(value);
    }
}

/// A name or value of a query in its canonical spelling.
fn respelled(part: &str) -> String {
    let spaced = if part.contains('+') { Cow::Owned(part.replace('+', " ")) } else { part.into() };
    let decoded = urlencoding::decode_binary(spaced.as_bytes());
    let mut spelled = String::with_capacity(decoded.len());
    push_encoded(&mut spelled, &decoded, false);
    spelled
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

fn push_encoded(text: &mut String, bytes: &[u8], is_path: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        if is_plain(*byte) || is_path && *byte == b'/' {
            text.push(char::from(*byte));
        } else {
            let (high, low) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
            text.extend(['%', char::from(high), char::from(low)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const SCOPE: Scope<'static> =
        Scope { time: "20130524T000000Z", day: "20130524", region: "us-east-1" };

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn signed(canonical: &str) -> String {
        let key = SigningKey::new(SECRET, SCOPE.day, SCOPE.region);
        key.sign(SCOPE.text_of(canonical).as_bytes()).as_str().to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_published_examples() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let get = |uri: &'static str, more: &[(&'static str, &'static str)], names: &[&str]| {
            let mut lines = vec![
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", empty),
                ("x-amz-date", SCOPE.time),
            ];
            lines.extend(more);
            let (method, uri, headers) = (Method::GET, uri.parse().unwrap(), headers(&lines));
            let (method, uri, headers) = (&method, &uri, &headers);
            signed(&Signable { method, uri, headers, names, payload: empty }.canonical())
        };
        assert_eq!(
            get(
                "/test.txt",
                &[("range", "bytes=0-9")],
                &["host", "range", "x-amz-content-sha256", "x-amz-date"]
            ),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let names = ["host", "x-amz-content-sha256", "x-amz-date"];
        assert_eq!(
            get("/?lifecycle", &[], &names),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            get("/?max-keys=2&prefix=J", &[], &names),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn a_presigned_url_is_that_of_the_published_example() {
        let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1\
            %2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host";
        let uri = format!("/test.txt?X-Amz-Signature=00&{query}").parse().unwrap();
        let headers = headers(&[("host", "examplebucket.s3.amazonaws.com")]);
        let signable = Signable {
            method: &Method::GET,
            uri: &uri,
            headers: &headers,
            names: &["host"],
            payload: UNSIGNED,
        };
        let expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        assert_eq!(signed(&signable.canonical()), expected);
    }

    #[test]
    fn a_canonical_request_does_not_depend_on_its_spelling() {
        let of = |uri: &'static str, lines: &[(&'static str, &'static str)]| {
            let (uri, headers) = (uri.parse().unwrap(), headers(lines));
            let names = &["host", "x-amz-meta-a"][..];
            let (method, uri, headers) = (&Method::GET, &uri, &headers);
            let signable = Signable { method, uri, headers, names, payload: "p" };
            (signable.canonical(), signable.canonical_as_it_came())
        };
        let lines = [("host", "h"), ("x-amz-meta-a", " 1  2 "), ("x-amz-meta-a", "3")];
        let (canonical, as_it_came) = of("/b/a%7e%20b?c=%2f&&b+d=2&b+d=1&e", &lines);
        let query = "b%20d=1&b%20d=2&c=%2F&e=";
        let expected =
            format!("GET\n/b/a~%20b\n{query}\nhost:h\nx-amz-meta-a:1 2,3\n\nhost;x-amz-meta-a\np");
        assert_eq!((canonical, as_it_came), (expected, None));
        let (canonical, as_it_came) = of("/b/a(b)", &lines);
        assert!(canonical.starts_with("GET\n/b/a%28b%29\n"));
        assert!(as_it_came.unwrap().starts_with("GET\n/b/a(b)\n"));
    }

    #[test]
    fn a_signature_is_distinguished_from_a_prefix_of_it() {
        let key = SigningKey::new(SECRET, SCOPE.day, SCOPE.region);
        let signature = key.sign(b"text");
        assert!(signature.is(signature.as_str().as_bytes()));
        assert!(!signature.is(&signature.as_str().as_bytes()[1..]) && !signature.is(b""));
        assert!(!signature.is(key.sign(b"texts").as_str().as_bytes()));
        assert!(!format!("{key:?}").contains("AWS4"));
    }
}
