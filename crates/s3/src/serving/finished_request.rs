//! A request that has ended, for counts and for a log of accesses.
//!
//! # Invariants
//!
//! 1. Nothing here comes of a query or of a header that signs: no signature can be told.
//! 2. What a client chooses is bounded: a name by what an object's key may have, `X-Forwarded-For` by
//!    [`FORWARDED_BYTES_MAX`].

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use larder_types::limits::KEY_BYTES_MAX;

use crate::limits::FORWARDED_BYTES_MAX;
use crate::options::Domains;
use crate::request::bytes_moved::BytesMoved;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A request that has ended, however it ended. It cannot be printed as a whole: its address may hold a signature.
pub struct FinishedRequest<'r> {
    /// Its id, as the client got it.
    pub id: Cow<'r, str>,
    /// S3's name of the operation.
    pub op: &'static str,
    /// HTTP status; 0 if the client went away before there was one.
    pub status: u16,
    /// S3's code of an error, if it was answered one.
    pub code: Option<&'r str>,
    /// From its head to the last byte that was handed to the connection.
    pub took: Duration,
    /// Body bytes received of the client; of a body that was refused, those that were read before.
    pub bytes_in: u64,
    /// Body bytes sent to the client.
    pub bytes_out: u64,
    /// Bytes of an object that it moved, if it did what it asked for; without those that frame a body. A get did that once
    /// the last of them was handed to the connection.
    pub moved: Option<BytesMoved>,
    /// Access key by which the request was signed; `None` unless its signature was verified.
    pub user: Option<&'r str>,
    pub(crate) caller: &'r Caller,
    pub(crate) target: &'r Target,
}

impl FinishedRequest<'_> {
    /// The other end of the connection; `None` for a request that another server has handed on, and tells of itself.
    #[must_use]
    pub fn client(&self) -> Option<SocketAddr> {
        self.caller.client
    }

    /// The end of `X-Forwarded-For`, its lines joined: balancers append to it. What stands before is the client's choice.
    #[must_use]
    pub fn forwarded_for(&self) -> Option<String> {
        self.caller.forwarded_for()
    }

    /// The bucket that the request names.
    #[must_use]
    pub fn bucket(&self) -> Option<Cow<'_, str>> {
        self.target.bucket()
    }

    /// The key that its address names. Bytes that are not UTF-8 are replaced, and a longer one than an object can have is
    /// cut.
    #[must_use]
    pub fn key(&self) -> Option<Cow<'_, str>> {
        self.target.key()
    }
}

/// The sender of a request.
pub(crate) struct Caller {
    pub(crate) client: Option<SocketAddr>,
    /// Each line of the header.
    forwarded_for: Vec<HeaderValue>,
}

impl Caller {
    pub(crate) fn of(client: Option<SocketAddr>, headers: &HeaderMap) -> Self {
        let forwarded_for = headers.get_all(X_FORWARDED_FOR).iter().cloned().collect();
        Self { client, forwarded_for }
    }

    fn forwarded_for(&self) -> Option<String> {
        let lines: Vec<&[u8]> = self.forwarded_for.iter().map(HeaderValue::as_bytes).collect();
        let all = lines.join(&b", "[..]);
        let end = &all[all.len().saturating_sub(FORWARDED_BYTES_MAX)..];
        (!lines.is_empty()).then(|| String::from_utf8_lossy(end).into_owned())
    }
}

/// The bucket and the key that a request's address names.
pub(crate) struct Target {
    uri: Uri,
    host: Option<HeaderValue>,
    bucket_of_host: Option<String>,
}

impl Target {
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap, domains: &Domains) -> Self {
        let host = headers.get(HOST);
        let text = host.and_then(|host| host.to_str().ok());
        let bucket_of_host = text.and_then(|host| domains.bucket_of(host)).map(str::to_owned);
        Self { uri: uri.clone(), host: host.cloned(), bucket_of_host }
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    /// The query, which may hold a signature: for the client's answer alone.
    pub(crate) fn query(&self) -> &str {
        self.uri.query().unwrap_or("")
    }

    /// The first label of a host that is below no domain of the service, and no address.
    pub(crate) fn label_of_host(&self) -> Option<&str> {
        let host = self.host.as_ref().filter(|_| self.bucket_of_host.is_none())?.to_str().ok()?;
        let (label, rest) = host.split_once('.')?;
        rest.bytes().any(|byte| byte.is_ascii_alphabetic()).then_some(label)
    }

    pub(crate) fn bucket(&self) -> Option<Cow<'_, str>> {
        match &self.bucket_of_host {
            Some(bucket) => Some(bounded(bucket.as_bytes(), KEY_BYTES_MAX)),
            None => named(self.split().0),
        }
    }

    pub(crate) fn key(&self) -> Option<Cow<'_, str>> {
        named(self.split().1)
    }

    /// Bucket and key as the path spells them.
    fn split(&self) -> (&str, &str) {
        let path = self.uri.path();
        let path = path.strip_prefix('/').unwrap_or(path);
        match &self.bucket_of_host {
            Some(_) => ("", path),
            None => path.split_once('/').unwrap_or((path, "")),
        }
    }
}

/// A part of the path as a name.
fn named(spelled: &str) -> Option<Cow<'_, str>> {
    if spelled.is_empty() {
        return None;
    }
    Some(match urlencoding::decode_binary(spelled.as_bytes()) {
        Cow::Borrowed(bytes) => bounded(bytes, KEY_BYTES_MAX),
        Cow::Owned(bytes) => Cow::Owned(bounded(&bytes, KEY_BYTES_MAX).into_owned()),
    })
}

/// The beginning of a text that others have chosen.
fn bounded(bytes: &[u8], bytes_max: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(bytes_max)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, uri: &str) -> Target {
        let domains = Domains::new(vec!["s3.example.org".to_owned()]).unwrap();
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())]);
        Target::of(&uri.parse().unwrap(), &headers, &domains)
    }

    #[test]
    fn a_request_names_its_bucket_and_key() {
        for (host, uri, bucket, key) in [
            ("h", "/", None, None),
            ("h", "/photos", Some("photos"), None),
            ("h", "/photos/?list-type=2", Some("photos"), None),
            ("h", "/photos//a%20b%22%0A", Some("photos"), Some("/a b\"\n")),
            ("h", "/photos/a+b/?X-Amz-Signature=1", Some("photos"), Some("a+b/")),
            ("h", "/photos/%FF", Some("photos"), Some("\u{FFFD}")),
            ("photos.s3.example.org:9000", "/a/b", Some("photos"), Some("a/b")),
            ("photos.s3.example.org", "/", Some("photos"), None),
        ] {
            let target = target(host, uri);
            assert_eq!(target.bucket().as_deref(), bucket, "{host}{uri}");
            assert_eq!(target.key().as_deref(), key, "{host}{uri}");
        }
    }

    #[test]
    fn a_host_that_may_name_a_bucket_is_distinguished_from_addresses_and_domains() {
        for (host, label) in [
            ("photos.s3.local:9000", Some("photos")),
            ("photos.s3.example.org", None),
            ("127.0.0.1:9000", None),
            ("localhost", None),
        ] {
            assert_eq!(target(host, "/k").label_of_host(), label, "{host}");
        }
    }

    #[test]
    fn a_key_is_logged_up_to_the_maximum_length() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        for more in ["", "more"] {
            let target = target("h", &format!("/b/{longest}{more}"));
            assert_eq!(target.key().as_deref(), Some(longest.as_str()));
        }
    }

    fn forwarded_for(lines: &[&str]) -> Option<String> {
        let lines = lines.iter().map(|it| (X_FORWARDED_FOR, HeaderValue::try_from(*it).unwrap()));
        Caller::of(None, &lines.collect()).forwarded_for()
    }

    #[test]
    fn the_balancers_address_is_logged_whatever_the_client_sends() {
        assert_eq!(forwarded_for(&[]), None);
        assert_eq!(forwarded_for(&["192.0.2.1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(forwarded_for(&["6.6.6.6", "192.0.2.1"]).as_deref(), Some("6.6.6.6, 192.0.2.1"));
        let long = "1".repeat(300);
        for lines in [&[&*format!("{long}, 192.0.2.1")][..], &[&*long, "192.0.2.1"]] {
            let reported = forwarded_for(lines).unwrap();
            assert!(
                reported.ends_with("1, 192.0.2.1") && reported.len() == FORWARDED_BYTES_MAX,
                "{reported}"
            );
        }
    }
}
