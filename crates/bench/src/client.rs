//! An S3 client for measuring others with: one connection, one request at a time, little CPU.
//!
//! # Invariants
//! - What is read is compared with what must be there, to the last byte; a status of 200 alone never
//!   counts as success.
//! - Nothing is retried: every failure is seen by the caller, once.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use larder_types::BucketName;

use crate::connection::{Connection, ContentBody};
use crate::content::{Content, Verifier};
use crate::error::{BenchError, CallError};
use crate::sign::{
    Credentials, EMPTY_PAYLOAD, Signed, Signer, UNSIGNED_PAYLOAD, amz_date, encode_path, hex,
};

/// Most bytes kept of an answer that is not an object: a full page of the longest keys fits.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;

const HOST_HEADER: &str = "host";
const PAYLOAD_HEADER: &str = "x-amz-content-sha256";
const DATE_HEADER: &str = "x-amz-date";
/// Larder's own: the body becomes the end of the object.
const RECORD_HEADER: &str = "x-larder-append";
const RECORD: &str = "record";

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: SocketAddr,
    authority: String,
}

impl Endpoint {
    /// Reads `http://HOST:PORT` and resolves the host.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn resolve(url: &str) -> Result<Self, BenchError> {
        let usage = |reason: String| BenchError::usage("--endpoint", reason);
        let authority = url
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'))
            .filter(|authority| !authority.is_empty())
            .filter(|authority| {
                authority.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b))
            })
            .ok_or_else(|| {
                usage(format!(
                    "{url:?} is not an endpoint: write http://HOST:PORT, without TLS or path"
                ))
            })?;
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let with_port = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let address = with_port
            .to_socket_addrs()
            .map_err(|error| usage(format!("{authority:?} cannot be resolved: {error}")))?
            .next()
            .ok_or_else(|| usage(format!("{authority:?} has no address")))?;
        Ok(Self { address, authority: authority.to_owned() })
    }
}

/// The endpoint and keys that all clients of a run share.
#[derive(Debug)]
pub struct Target {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// Bucket of all objects.
    pub bucket: BucketName,
    /// The keys that sign.
    pub credentials: Credentials,
    /// True if the signature covers the SHA-256 of bodies.
    pub sign_payload: bool,
    /// Time allowed for one request, connecting included.
    pub timeout: Duration,
}

/// The place that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    /// All buckets.
    Service,
    Bucket,
    Key(&'a str),
    /// The end of this object.
    Record(&'a str),
}

/// A client with one connection, made when first needed and again after it broke.
pub struct Client {
    target: Arc<Target>,
    signer: Signer,
    connection: Option<Connection>,
    date: DateText,
}

impl Client {
    /// A client that is not connected yet.
    #[must_use]
    pub fn new(target: Arc<Target>) -> Self {
        let signer = Signer::new(target.credentials.clone());
        Self { target, signer, connection: None, date: DateText::default() }
    }

    /// Makes the bucket unless it is there.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn create_bucket(&mut self) -> Result<(), CallError> {
        match self.call(&Method::PUT, Place::Bucket, "", None, |_| ()).await {
            Err(CallError::Refused { status: StatusCode::CONFLICT, code })
                if code == "BucketAlreadyOwnedByYou" || code == "BucketAlreadyExists" =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Puts an object in one request.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put(&mut self, key: &str, content: Content) -> Result<(), CallError> {
        self.call(&Method::PUT, Place::Key(key), "", Some(content), |_| ()).await.map(drop)
    }

    /// Appends a record to an object, or makes it of one.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn append(&mut self, key: &str, content: Content) -> Result<(), CallError> {
        let place = Place::Record(key);
        self.call(&Method::PUT, place, "", Some(content), |_| ()).await.map(drop)
    }

    /// Reads an object and compares every byte with `content`.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Wrong`] if a byte differs, is missing or too many.
    pub async fn get(&mut self, key: &str, content: Content) -> Result<(), CallError> {
        let mut verifier = Verifier::new(content);
        self.call(&Method::GET, Place::Key(key), "", None, |piece| verifier.accept(piece)).await?;
        match verifier.is_complete() {
            true => Ok(()),
            false => Err(CallError::Wrong("the object has other bytes than were put")),
        }
    }

    /// Asks for an object's head and compares the size in it.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Wrong`] if the object has another size, or none is said.
    pub async fn head(&mut self, key: &str, size: u64) -> Result<(), CallError> {
        let headers = self.call(&Method::HEAD, Place::Key(key), "", None, |_| ()).await?;
        let said = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        match said == Some(size) {
            true => Ok(()),
            false => Err(CallError::Wrong("a head has another size than was put")),
        }
    }

    /// Asks for an object that must not be there.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Wrong`] if it is there.
    pub async fn get_absent(&mut self, key: &str) -> Result<(), CallError> {
        match self.call(&Method::GET, Place::Key(key), "", None, |_| ()).await {
            Err(CallError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
            Ok(_) => Err(CallError::Wrong("a deleted object is still there")),
            Err(other) => Err(other),
        }
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn delete(&mut self, key: &str) -> Result<(), CallError> {
        self.call(&Method::DELETE, Place::Key(key), "", None, |_| ()).await.map(drop)
    }

    /// Asks for the buckets. Returns the answer's text.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_service(&mut self) -> Result<String, CallError> {
        self.query(Place::Service, "").await
    }

    /// Asks the bucket; `query` is in canonical form. Returns the answer's text.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_bucket(&mut self, query: &str) -> Result<String, CallError> {
        self.query(Place::Bucket, query).await
    }

    async fn query(&mut self, place: Place<'_>, query: &str) -> Result<String, CallError> {
        let mut text = Vec::new();
        self.call(&Method::GET, place, query, None, |piece| append_bounded(&mut text, piece))
            .await?;
        String::from_utf8(text).map_err(|_| CallError::Wrong("the answer is not UTF-8"))
    }

    /// One request; `take` gets a successful answer's body. Returns its
    /// headers.
    async fn call(
        &mut self,
        method: &Method,
        place: Place<'_>,
        query: &str,
        body: Option<Content>,
        take: impl FnMut(&[u8]),
    ) -> Result<HeaderMap, CallError> {
        let request = self.request(method, place, query, body);
        let timeout = self.target.timeout;
        tokio::time::timeout(timeout, self.exchange(request, take))
            .await
            .unwrap_or(Err(CallError::TimedOut))
    }

    async fn exchange(
        &mut self,
        request: Request<ContentBody>,
        take: impl FnMut(&[u8]),
    ) -> Result<HeaderMap, CallError> {
        // Taken out, and put back only after a complete answer: a dropped or failed exchange leaves
        // the connection in an unknown state.
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && !connection.is_usable().await
        {
            kept = None;
        }
        let mut connection = match kept {
            Some(connection) => connection,
            None => {
                let address = self.target.endpoint.address;
                Connection::open(address).await.map_err(CallError::Connect)?
            }
        };
        let outcome = transfer(&mut connection, request, take).await;
        if matches!(outcome, Ok(_) | Err(CallError::Refused { .. })) {
            self.connection = Some(connection);
        }
        outcome
    }

    fn request(
        &mut self,
        method: &Method,
        place: Place<'_>,
        query: &str,
        body: Option<Content>,
    ) -> Request<ContentBody> {
        let target = Arc::clone(&self.target);
        let mut uri = String::with_capacity(128);
        uri.push('/');
        if place != Place::Service {
            uri.push_str(target.bucket.as_str());
        }
        if let Place::Key(key) | Place::Record(key) = place {
            uri.push('/');
            encode_path(key, &mut uri);
        }
        let (payload, body) = match body {
            None => (EMPTY_PAYLOAD.to_owned(), ContentBody::new(Content::new("", 0), None)),
            Some(content) if target.sign_payload => {
                let (digest, first) = content.digest();
                (hex(&digest), ContentBody::new(content, Some(first)))
            }
            Some(content) => (UNSIGNED_PAYLOAD.to_owned(), ContentBody::new(content, None)),
        };
        let date = self.date.now();
        let mut signed = vec![
            (HOST_HEADER, &target.endpoint.authority[..]),
            (PAYLOAD_HEADER, &payload[..]),
            (DATE_HEADER, date),
        ];
        let is_record = matches!(place, Place::Record(_));
        signed.extend(is_record.then_some((RECORD_HEADER, RECORD)));
        let authorization = self.signer.authorization(
            date,
            &Signed {
                method: method.as_str(),
                path: &uri,
                query,
                headers: &signed,
                payload: &payload,
            },
        );
        if !query.is_empty() {
            uri.push('?');
            uri.push_str(query);
        }
        let header =
            |text: &str| HeaderValue::from_str(text).expect("its parts were checked to be ASCII");
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in signed {
            request = request.header(name, header(value));
        }
        request
            .header(AUTHORIZATION, header(&authorization))
            .body(body)
            .expect("an encoded path is a URI")
    }
}

/// Sends the request and reads the answer to its end.
async fn transfer(
    connection: &mut Connection,
    request: Request<ContentBody>,
    mut take: impl FnMut(&[u8]),
) -> Result<HeaderMap, CallError> {
    let (head, mut body) = connection.send(request).await.map_err(CallError::Broken)?.into_parts();
    let mut refusal = Vec::new();
    while let Some(piece) = connection.next_piece(&mut body).await.map_err(CallError::Broken)? {
        match head.status.is_success() {
            true => take(&piece),
            false => append_bounded(&mut refusal, &piece),
        }
    }
    match head.status.is_success() {
        true => Ok(head.headers),
        false => Err(CallError::Refused { status: head.status, code: error_code(&refusal) }),
    }
}

fn append_bounded(text: &mut Vec<u8>, piece: &[u8]) {
    let room = TEXT_BYTES_MAX - text.len();
    text.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// The code in an S3 error document.
fn error_code(document: &[u8]) -> String {
    let text = String::from_utf8_lossy(document);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    code.map(|(code, _)| code.to_owned()).unwrap_or_default()
}

/// The current second as `x-amz-date`, written once per second.
#[derive(Default)]
struct DateText {
    second: u64,
    text: String,
}

impl DateText {
    fn now(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = amz_date(now);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_without_tls_and_path_are_taken() {
        let endpoint = Endpoint::resolve("http://127.0.0.1:9000/").unwrap();
        assert_eq!(endpoint.authority, "127.0.0.1:9000");
        assert_eq!(Endpoint::resolve("http://127.0.0.1").unwrap().address.port(), 80);
        for url in ["127.0.0.1:9000", "https://127.0.0.1", "http://", "http://127.0.0.1/path"] {
            let error = Endpoint::resolve(url).expect_err(url).to_string();
            assert!(error.contains("--endpoint") && error.contains("http://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn errors_are_counted_by_status_and_code() {
        let code = error_code(b"<?xml?><Error><Code>SlowDown</Code><Message>m</Message></Error>");
        let refused = CallError::Refused { status: StatusCode::SERVICE_UNAVAILABLE, code };
        assert_eq!(refused.kind(), "503 SlowDown");
        let bare =
            CallError::Refused { status: StatusCode::BAD_GATEWAY, code: error_code(b"oops") };
        assert_eq!(bare.kind(), "502");
    }
}
