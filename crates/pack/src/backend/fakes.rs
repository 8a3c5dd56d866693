//! Fakes of Google's and Azure's stores in memory, as far as packing uses them. They follow the providers'
//! documentation. They show that our requests conform to it, not that the providers do.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::streamed::Streamed;
use super::url::open_cloud;
use super::{Backend, BackendClient, Unread};
use crate::class::Requests;

/// A cloud in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    parts: BTreeMap<String, Bytes>,
    /// Numbers of parts to refuse, and of those that were sent.
    refused: Vec<String>,
    sent: Vec<String>,
    /// Uploads begun and aborted.
    begun: u32,
    aborted: u32,
    is_forgotten: bool,
    /// Fates of the next requests whose bodies come from files, and how many came.
    fates: VecDeque<Fate>,
    streamed: u32,
    /// Reads of objects that fail next.
    reads_failing: u32,
    /// Of those that were whole, how many told the sum of their bodies.
    sums: u32,
    tokens: u32,
    /// Conditions that requests had, as the cloud words them.
    conditions: Vec<String>,
}

/// Fate of a request whose body comes from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// The connection breaks off once so many bytes came.
    BreaksOff(usize),
    /// It is done, and the answer is lost.
    AnswerLost,
    /// The whole body arrives, and the request is refused with this status.
    Refused(u16),
    /// It is refused with this status before any of its body came.
    RefusedAtOnce(u16),
    /// It is taken for one without a body.
    TakenEmpty,
}

impl HttpConnector for Fake {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Fake {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let streamed = Streamed::of(&request);
        let (head, body) = request.into_parts();
        match streamed {
            Some(streamed) => self.stream(&head, &streamed).await,
            None => Ok(self.answer(&head, body.collect().await.unwrap().to_bytes())),
        }
    }
}

impl Fake {
    /// Refuses the parts of these numbers, as often as they are named.
    pub(crate) fn refuse_parts(&self, numbers: &[&str]) {
        let numbers = numbers.iter().map(|number| (*number).to_owned());
        self.state.lock().refused.extend(numbers);
    }

    /// Numbers of parts that came, refused ones among them.
    pub(crate) fn parts_sent(&self) -> Vec<String> {
        self.state.lock().sent.clone()
    }

    /// Decides on the next requests whose bodies come from files.
    pub(crate) fn will(&self, fates: &[Fate]) {
        self.state.lock().fates.extend(fates);
    }

    /// Requests whose bodies came from files.
    pub(crate) fn streamed(&self) -> u32 {
        self.state.lock().streamed
    }

    /// Fails so many reads of objects that come next.
    pub(crate) fn fail_reads(&self, reads: u32) {
        self.state.lock().reads_failing = reads;
    }

    /// Requests from files that told the sum of their bodies.
    pub(crate) fn sums(&self) -> u32 {
        self.state.lock().sums
    }

    async fn stream(
        &self,
        head: &http::request::Parts,
        streamed: &Streamed,
    ) -> Result<HttpResponse, HttpError> {
        let fate = {
            let mut state = self.state.lock();
            state.streamed += 1;
            state.fates.pop_front().unwrap_or(Fate::Done)
        };
        let refused = |status| {
            let refused = http::Response::builder().status(status);
            Ok(refused.body(HttpResponseBody::from(Bytes::new())).unwrap())
        };
        if let Fate::RefusedAtOnce(status) = fate {
            return refused(status);
        }
        if fate == Fate::TakenEmpty {
            return Ok(self.answer(head, Bytes::new()));
        }
        let (mut pieces, mut body) = (streamed.pieces(), Vec::new());
        let breaks_off = || {
            let error = io::Error::from(io::ErrorKind::ConnectionReset);
            Err(HttpError::new(HttpErrorKind::Interrupted, error))
        };
        while let Some(piece) = pieces.try_next().await.unwrap() {
            body.extend_from_slice(&piece);
            if matches!(fate, Fate::BreaksOff(at) if body.len() >= at) {
                return breaks_off();
            }
        }
        let said = head.headers.get("content-length").and_then(|said| said.to_str().ok());
        assert_eq!(said, Some(body.len().to_string().as_str()));
        if let Fate::Refused(status) = fate {
            return refused(status);
        }
        // Amazon's gets the sum of the body with the signature.
        let sum = head.headers.get("x-amz-content-sha256");
        if let Some(sum) = sum {
            let digest: [u8; 32] = Sha256::digest(&body).into();
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(sum.to_str().unwrap(), hex);
        }
        self.state.lock().sums += u32::from(sum.is_some());
        let answer = self.answer(head, body.into());
        if fate == Fate::AnswerLost { breaks_off() } else { Ok(answer) }
    }

    /// Knows no upload any more that was begun.
    pub(crate) fn forget_uploads(&self) {
        let mut state = self.state.lock();
        state.is_forgotten = true;
        state.parts.clear();
    }

    /// Uploads that were begun, and that were aborted.
    pub(crate) fn uploads(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.begun, state.aborted)
    }

    /// Answers a request, of which all is here.
    pub(crate) fn answer(&self, head: &http::request::Parts, body: Bytes) -> HttpResponse {
        let (status, headers, answer) = self.state.lock().answer(head, body);
        let mut response = http::Response::builder()
            .status(status)
            .header("etag", "\"e\"")
            .header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT");
        for (name, value) in headers {
            response = response.header(name, value);
        }
        response.body(HttpResponseBody::from(answer)).unwrap()
    }
}

type Answer = (u16, Vec<(&'static str, String)>, Bytes);

fn plain(status: u16, answer: impl Into<Bytes>) -> Answer {
    (status, Vec::new(), answer.into())
}

impl State {
    fn answer(&mut self, head: &http::request::Parts, body: Bytes) -> Answer {
        let uri = &head.uri;
        if matches!(uri.host(), Some("metadata.google.internal" | "169.254.169.254")) {
            self.tokens += 1;
            // Amazon asks for the name of a role first, and then for its keys.
            if uri.path().ends_with("/security-credentials/") {
                return plain(200, "role");
            }
            if uri.path().contains("/security-credentials/role") {
                let keys = r#"{"AccessKeyId":"k","SecretAccessKey":"s","Token":"t","Expiration":"2100-01-01T00:00:00Z"}"#;
                return plain(200, keys);
            }
            let token = r#"{"access_token":"t","expires_in":3600,"expires_on":"4102444800","token_type":"Bearer"}"#;
            return plain(200, token);
        }
        assert!(head.headers.contains_key("authorization"), "{uri} is signed");
        let path = decoded(uri.path().trim_start_matches('/'));
        let query: BTreeMap<String, String> = uri
            .query()
            .unwrap_or("")
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (name.to_owned(), decoded(value)))
            .collect();
        let says = |name: &str| query.get(name).map(String::as_str);
        match head.method {
            Method::PUT if says("partNumber").is_some() || says("comp") == Some("block") => {
                let number = says("partNumber").or(says("blockid")).unwrap().to_owned();
                self.sent.push(number.clone());
                if self.is_forgotten {
                    return plain(404, "");
                }
                if let Some(at) = self.refused.iter().position(|refused| *refused == number) {
                    self.refused.swap_remove(at);
                    return plain(400, "");
                }
                self.parts.insert(number, body);
                plain(201, "")
            }
            Method::POST if query.contains_key("uploads") => {
                self.begun += 1;
                self.is_forgotten = false;
                plain(200, "<R><UploadId>u</UploadId></R>")
            }
            Method::POST if says("uploadId").is_some() => {
                self.assemble(path, &body, "PartNumber");
                plain(200, "<R><ETag>\"e\"</ETag></R>")
            }
            Method::PUT if says("comp") == Some("blocklist") => {
                self.assemble(path, &body, "Uncommitted");
                plain(201, "")
            }
            Method::PUT => self.put(path, &head.headers, body),
            Method::GET if says("list-type").is_some() => {
                plain(200, self.listed(&query, google_row))
            }
            Method::GET if says("comp") == Some("list") => {
                plain(200, self.listed(&query, azure_row))
            }
            Method::GET if self.reads_failing > 0 => {
                self.reads_failing -= 1;
                plain(403, "")
            }
            Method::GET | Method::HEAD => self.read(&path, head),
            Method::DELETE if says("uploadId").is_some() => {
                self.aborted += 1;
                plain(204, "")
            }
            Method::DELETE => match self.objects.remove(&path) {
                Some(_) => plain(204, ""),
                None => plain(404, ""),
            },
            _ => panic!("{} {uri}", head.method),
        }
    }

    fn put(&mut self, path: String, headers: &HeaderMap, body: Bytes) -> Answer {
        let conditions = [("if-none-match", "*"), ("x-goog-if-generation-match", "0")];
        for (name, value) in conditions {
            if headers.get(name).is_some_and(|found| found == value) {
                self.conditions.push(format!("{name}: {value}"));
                if self.objects.contains_key(&path) {
                    return plain(if name == "if-none-match" { 409 } else { 412 }, "");
                }
            }
        }
        self.objects.insert(path, body);
        plain(201, "")
    }

    /// Makes an object of the parts that a list names, in its order.
    fn assemble(&mut self, path: String, list: &[u8], named: &str) {
        let list = std::str::from_utf8(list).unwrap();
        let begin = format!("<{named}>");
        let names = list.split(&begin).skip(1);
        let names = names.map(|rest| rest.split_once('<').unwrap().0);
        let parts = names.map(|name| self.parts.remove(name).unwrap()).collect::<Vec<_>>();
        self.objects.insert(path, parts.concat().into());
    }

    fn read(&self, path: &str, head: &http::request::Parts) -> Answer {
        let Some(bytes) = self.objects.get(path) else { return plain(404, "") };
        let range = head.headers.get("range").map(|range| range.to_str().unwrap());
        let Some(range) = range else {
            let length = ("content-length", bytes.len().to_string());
            let body = if head.method == Method::HEAD { Bytes::new() } else { bytes.clone() };
            return (200, vec![length], body);
        };
        let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let piece = bytes.slice(from..=to);
        let said = format!("bytes {from}-{to}/{}", bytes.len());
        let length = ("content-length", piece.len().to_string());
        (206, vec![("content-range", said), length], piece)
    }

    fn listed(&self, query: &BTreeMap<String, String>, row: fn(&str, usize) -> String) -> String {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let mut rows = String::new();
        for (path, bytes) in &self.objects {
            let (_, name) = path.split_once('/').unwrap();
            if name.starts_with(prefix) {
                rows.push_str(&row(name, bytes.len()));
            }
        }
        match query.contains_key("comp") {
            true => format!("<EnumerationResults><Blobs>{rows}</Blobs></EnumerationResults>"),
            false => format!("<ListBucketResult>{rows}</ListBucketResult>"),
        }
    }
}

/// Decodes the bytes behind percent signs, each into one character.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (byte, rest) = part.split_at(2);
        decoded.push(char::from(u8::from_str_radix(byte, 16).unwrap()));
        decoded.push_str(rest);
    }
    decoded
}

fn google_row(name: &str, size: usize) -> String {
    format!(
        "<Contents><Key>{name}</Key><Size>{size}</Size>\
         <LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
    )
}

fn azure_row(name: &str, size: usize) -> String {
    format!(
        "<Blob><Name>{name}</Name><Properties>\
         <Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>\
         <Content-Length>{size}</Content-Length><Content-Type>x</Content-Type>\
         </Properties></Blob>"
    )
}

/// Google's, in memory.
pub(crate) fn google() -> (Backend, Fake) {
    backend("gs://bucket/some/prefix")
}

/// Amazon's, in memory.
pub(crate) fn s3() -> (Backend, Fake) {
    backend("s3://bucket/some/prefix?endpoint=https://s3.test&region=eu-north-1")
}

/// Azure's, in memory.
pub(crate) fn azure() -> (Backend, Fake) {
    backend("az://container/prefix?account=me&endpoint=https://azure.test")
}

fn backend(url: &str) -> (Backend, Fake) {
    let (fake, asked) = (Fake::default(), BackendClient::new());
    (Backend::of(open_cloud(url, fake.clone(), &asked.scheduler).unwrap(), asked), fake)
}

/// All that packing asks of a backend, but for removing.
async fn is_used(backend: &Backend) {
    assert!(backend.put_new("claims/1", Bytes::from_static(b"mine")).await.unwrap());
    assert!(!backend.put_new("claims/1", Bytes::from_static(b"other")).await.unwrap());
    assert_eq!(backend.read("claims/1", 0..4).await.unwrap(), "mine");
    backend.put("blobs/a", Bytes::from_static(b"0123456789")).await.unwrap();
    assert_eq!(backend.read("blobs/a", 3..6).await.unwrap(), "345");
    assert_eq!(backend.size("blobs/a").await.unwrap(), Some(10));
    assert_eq!(backend.size("blobs/none").await.unwrap(), None);
    assert!(matches!(backend.read("blobs/none", 0..1).await, Err(Unread::Missing)));
    let mut upload = backend.begin("blobs/b").await.unwrap();
    upload.add(vec![Bytes::from_static(b"first ")], 2).await.unwrap();
    upload.add(vec![Bytes::from_static(b"second")], 2).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(backend.read("blobs/b", 0..12).await.unwrap(), "first second");
    let names = backend.names("blobs").await.unwrap();
    assert_eq!(names, [("a".to_owned(), 10), ("b".to_owned(), 12)]);
}

#[tokio::test]
async fn google_requests_have_googles_form() {
    let (backend, fake) = google();
    is_used(&backend).await;
    backend.remove("blobs/a").await.unwrap();
    assert_eq!(backend.size("blobs/a").await.unwrap(), None);
    let state = fake.state.lock();
    let absent = "x-goog-if-generation-match: 0";
    assert_eq!(state.conditions, [absent, absent], "a claim is made only if there is none");
    assert!(state.objects.contains_key("bucket/some/prefix/claims/1"));
    assert!(state.tokens > 0);
    // Keys are not on the bill. An upload's beginning and end are puts.
    let bill = Requests { put: 5, part: 2, get: 4, head: 4, list: 1, delete: 1 };
    assert_eq!(backend.counters().requests.load(), bill);
}

#[tokio::test]
async fn azure_requests_have_azures_form() {
    let (backend, fake) = azure();
    is_used(&backend).await;
    let state = fake.state.lock();
    assert_eq!(state.conditions, ["if-none-match: *", "if-none-match: *"]);
    assert!(state.objects.contains_key("container/prefix/claims/1"));
    assert!(state.tokens > 0);
    // An upload begins with its first block.
    let bill = Requests { put: 4, part: 2, get: 4, head: 3, list: 1, delete: 0 };
    assert_eq!(backend.counters().requests.load(), bill);
}
