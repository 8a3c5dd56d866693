//! A bare HTTP client that signs as S3 asks. For tests only.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use larder_s3::{
    Credentials, GatewayOptions, S3Service, ServerHooks, ServerOptions, listen, serve,
};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::memory::Memory;

pub const ACCESS: &str = "AKLARDERTEST";
pub const SECRET: &str = "a-secret-for-tests";
pub const REGION: &str = "us-east-1";

/// A running server and what is known of it.
pub struct Server {
    pub address: std::net::SocketAddr,
    pub store: Arc<Memory>,
    stop: Option<oneshot::Sender<()>>,
    pub ended: Option<tokio::task::JoinHandle<bool>>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(ServerOptions::default(), Arc::new(()), GatewayOptions::default()).await
    }

    pub async fn with<H: ServerHooks>(
        options: ServerOptions,
        hooks: Arc<H>,
        face: GatewayOptions,
    ) -> Self {
        let listener = listen("127.0.0.1:0").await.unwrap();
        Self::at(listener, options, hooks, face, |service| service)
    }

    /// At a socket, of a service that is changed first.
    pub fn at<H: ServerHooks>(
        listener: TcpListener,
        options: ServerOptions,
        hooks: Arc<H>,
        face: GatewayOptions,
        change: impl FnOnce(S3Service) -> S3Service,
    ) -> Self {
        let store = Arc::new(Memory::default());
        let root = Credentials { access_key: ACCESS.into(), secret_key: SECRET.into() };
        let service = change(S3Service::new(Arc::clone(&store), root, face).unwrap());
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap_or(()) };
        let ended = tokio::spawn(serve(listener, service, hooks, options, shutdown));
        Self { address, store, stop: Some(stop), ended: Some(ended) }
    }

    /// One that waits for its store, which the function gives it.
    pub async fn waiting<H: ServerHooks>(hooks: Arc<H>) -> (Self, impl FnOnce()) {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let store = Arc::new(Memory::default());
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap_or(()) };
        let face = GatewayOptions { domains: vec!["s3.test".into()], ..GatewayOptions::default() };
        let server =
            larder_s3::Server::waiting(hooks, ServerOptions::default(), face.clone()).unwrap();
        let ended = tokio::spawn(server.clone().serve(listener, shutdown));
        let served = Arc::clone(&store);
        let begin = move || {
            let root = Credentials { access_key: ACCESS.into(), secret_key: SECRET.into() };
            server.begin(S3Service::new(served, root, face).unwrap());
        };
        (Self { address, store, stop: Some(stop), ended: Some(ended) }, begin)
    }

    /// With a bucket `bkt`.
    pub async fn bucket() -> Self {
        let server = Self::start().await;
        server.put("/bkt", "").await.expect(200);
        server
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub fn ask(&self, method: &str, path: &str) -> Ask {
        Ask {
            address: self.address,
            method: Method::from_bytes(method.as_bytes()).unwrap(),
            path: path.to_owned(),
            headers: Vec::new(),
            unsigned: Vec::new(),
            body: Bytes::new(),
            payload: None,
            sign: Sign::Header,
            access: ACCESS.into(),
            secret: SECRET.into(),
            at: SystemTime::now(),
            rewrite: std::convert::identity,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).send().await
    }

    pub async fn head(&self, path: &str) -> Answer {
        self.ask("HEAD", path).send().await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path).send().await
    }

    pub async fn put(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.ask("PUT", path).body(body).send().await
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    Header,
    Query { expires_s: u64 },
    Not,
}

/// A request to be sent.
#[derive(Clone)]
pub struct Ask {
    pub address: std::net::SocketAddr,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    unsigned: Vec<(String, String)>,
    body: Bytes,
    payload: Option<String>,
    sign: Sign,
    access: String,
    secret: String,
    at: SystemTime,
    rewrite: fn(String) -> String,
}

impl Ask {
    /// Changes the `Authorization` header after it was made.
    pub fn rewrite(mut self, rewrite: fn(String) -> String) -> Self {
        self.rewrite = rewrite;
        self
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// A header that the signature does not cover.
    pub fn unsigned(mut self, name: &str, value: &str) -> Self {
        self.unsigned.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets `x-amz-content-sha256`; by default the body's true hash.
    pub fn payload(mut self, payload: &str) -> Self {
        self.payload = Some(payload.to_owned());
        self
    }

    pub fn sign(mut self, sign: Sign) -> Self {
        self.sign = sign;
        self
    }

    pub fn keys(mut self, access: &str, secret: &str) -> Self {
        (self.access, self.secret) = (access.into(), secret.into());
        self
    }

    pub fn at(mut self, at: SystemTime) -> Self {
        self.at = at;
        self
    }

    pub fn in_future(self, seconds: u64) -> Self {
        self.at(SystemTime::now() + Duration::from_secs(seconds))
    }

    pub fn in_past(self, seconds: u64) -> Self {
        self.at(SystemTime::now() - Duration::from_secs(seconds))
    }

    /// The body as it is sent.
    pub fn sent(&self) -> &Bytes {
        &self.body
    }

    /// Frames the body as aws-chunked, signed chunk by chunk from the request's own signature.
    pub fn signed_chunks(mut self, chunk_bytes: usize, tamper: bool) -> Self {
        let data = std::mem::take(&mut self.body);
        let payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
        let mut ask = self
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", data.len().to_string())
            .payload(payload);
        let (_, _, seed) = ask.signature();
        let (stamp, scope, key) = ask.scope();
        let mut previous = seed;
        let mut framed = Vec::new();
        let empty = hex(&Sha256::digest(b""));
        for piece in data.chunks(chunk_bytes).chain(std::iter::once(&[][..])) {
            let text = format!(
                "AWS4-HMAC-SHA256-PAYLOAD\n{stamp}\n{scope}\n{previous}\n{empty}\n{}",
                hex(&Sha256::digest(piece))
            );
            previous = hex(&hmac(&key, text.as_bytes()));
            let shown = if tamper { "0".repeat(64) } else { previous.clone() };
            let head = format!("{:x};chunk-signature={shown}\r\n", piece.len());
            framed.extend_from_slice(head.as_bytes());
            framed.extend_from_slice(piece);
            framed.extend_from_slice(b"\r\n");
        }
        ask.body = framed.into();
        ask
    }

    /// Frames the body as unsigned chunks with a trailer.
    pub fn unsigned_trailer(mut self, chunk_bytes: usize, name: &str, value: &str) -> Self {
        let data = std::mem::take(&mut self.body);
        let mut framed = Vec::new();
        for piece in data.chunks(chunk_bytes) {
            framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            framed.extend_from_slice(piece);
            framed.extend_from_slice(b"\r\n");
        }
        framed.extend_from_slice(b"0\r\n");
        if !value.is_empty() {
            framed.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
        }
        framed.extend_from_slice(b"\r\n");
        self.header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", data.len().to_string())
            .header("x-amz-trailer", name)
            .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            .body(framed)
    }

    fn scope(&self) -> (String, String, Vec<u8>) {
        let stamp = stamp(self.at);
        let day = &stamp[..8];
        let mut key = hmac(format!("AWS4{}", self.secret).as_bytes(), day.as_bytes());
        for word in [REGION, "s3", "aws4_request"] {
            key = hmac(&key, word.as_bytes());
        }
        let scope = format!("{day}/{REGION}/s3/aws4_request");
        (stamp, scope, key)
    }

    /// All headers to send, the signed ones' names, and the signature.
    fn signature(&self) -> (Vec<(String, String)>, String, String) {
        let (stamp, scope, key) = self.scope();
        let payload = match (&self.payload, self.sign) {
            (Some(payload), _) => payload.clone(),
            (None, Sign::Query { .. }) => "UNSIGNED-PAYLOAD".to_owned(),
            (None, _) => hex(&Sha256::digest(&self.body)),
        };
        let mut headers = self.headers.clone();
        if !headers.iter().any(|(name, _)| name == "host") {
            headers.push(("host".to_owned(), self.address.to_string()));
        }
        if self.sign == Sign::Header {
            headers.push(("x-amz-date".to_owned(), stamp.clone()));
            headers.push(("x-amz-content-sha256".to_owned(), payload.clone()));
        }
        headers.sort();
        let canonical: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let mut pairs: Vec<String> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
            .collect();
        if let Sign::Query { expires_s } = self.sign {
            pairs.extend(self.query_fields(&stamp, &scope, &names, expires_s));
        }
        pairs.sort();
        let query = pairs.join("&");
        let request = format!("{}\n{path}\n{query}\n{canonical}\n{names}\n{payload}", self.method);
        let hashed = hex(&Sha256::digest(request.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}");
        (headers, names, hex(&hmac(&key, text.as_bytes())))
    }

    fn query_fields(&self, stamp: &str, scope: &str, names: &str, expires_s: u64) -> Vec<String> {
        vec![
            "X-Amz-Algorithm=AWS4-HMAC-SHA256".to_owned(),
            format!(
                "X-Amz-Credential={}",
                urlencoding::encode(&format!("{}/{scope}", self.access))
            ),
            format!("X-Amz-Date={stamp}"),
            format!("X-Amz-Expires={expires_s}"),
            format!("X-Amz-SignedHeaders={}", urlencoding::encode(names)),
        ]
    }

    pub fn build(&self) -> Request<Full<Bytes>> {
        let (headers, names, signature) = self.signature();
        let (stamp, scope, _) = self.scope();
        let mut path = self.path.clone();
        if let Sign::Query { expires_s } = self.sign {
            let mut fields = self.query_fields(&stamp, &scope, &names, expires_s);
            fields.push(format!("X-Amz-Signature={signature}"));
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&fields.join("&"));
        }
        let mut request = Request::builder().method(self.method.clone()).uri(path);
        for (name, value) in headers.iter().chain(&self.unsigned) {
            request = request.header(name, value);
        }
        if self.sign == Sign::Header {
            let authorization = format!(
                "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
                self.access
            );
            request = request.header("authorization", (self.rewrite)(authorization));
        }
        request.body(Full::new(self.body.clone())).unwrap()
    }

    pub async fn send(self) -> Answer {
        self.send_spelled(str::to_owned).await
    }

    /// Sends it with another spelling of the address that was signed.
    pub async fn send_spelled(self, spell: impl FnOnce(&str) -> String) -> Answer {
        let mut request = self.build();
        *request.uri_mut() = spell(&request.uri().to_string()).parse().unwrap();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let driver = tokio::spawn(connection);
        let answer = Answer::of(sender.send_request(request).await.unwrap()).await;
        drop(sender);
        let _ = driver.await;
        answer
    }
}

/// An HTML form that uploads a file, signed by version 4.
pub struct Form {
    fields: Vec<(String, String)>,
    file: Vec<u8>,
}

impl Form {
    pub fn of(server: &Server, bucket: &str, key: &str) -> Self {
        let (stamp, scope, signing) = server.ask("POST", "/").scope();
        let credential = format!("{ACCESS}/{scope}");
        let policy = format!(
            "{{\"expiration\":\"2099-01-01T00:00:00.000Z\",\"conditions\":[{{\"bucket\":\"{bucket}\"}},\
             [\"starts-with\",\"$key\",\"\"],{{\"x-amz-algorithm\":\"AWS4-HMAC-SHA256\"}},\
             {{\"x-amz-credential\":\"{credential}\"}},{{\"x-amz-date\":\"{stamp}\"}}]}}"
        );
        let policy = base64_simd::STANDARD.encode_to_string(policy);
        let signature = hex(&hmac(&signing, policy.as_bytes()));
        let fields = [
            ("key", key),
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", &credential),
            ("x-amz-date", &stamp),
            ("policy", &policy),
            ("x-amz-signature", &signature),
        ];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { fields: fields.into_iter().map(owned).collect(), file: Vec::new() }
    }

    pub fn set(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(known, _)| known != name);
        self
    }

    pub fn file(mut self, file: &[u8]) -> Self {
        self.file = file.to_owned();
        self
    }

    /// The body, whose boundary is `edge`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.fields {
            let field = format!(
                "--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            );
            bytes.extend_from_slice(field.as_bytes());
        }
        let file =
            "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
        bytes.extend_from_slice(file.as_bytes());
        bytes.extend_from_slice(&self.file);
        bytes.extend_from_slice(b"\r\n--edge--\r\n");
        bytes
    }

    pub fn head(path: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=edge\r\n\
             content-length: {length}\r\n\r\n"
        )
    }

    /// Posts it in pieces of that many bytes, and returns the answer.
    pub async fn send(&self, server: &Server, path: &str, piece: usize) -> String {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let bytes = self.bytes();
        stream.write_all(Self::head(path, bytes.len()).as_bytes()).await.unwrap();
        // The head of the form alone is cut small.
        let (small, rest) = bytes.split_at(bytes.len().min(2000));
        for piece in small.chunks(piece).chain(rest.chunks(piece.max(50_000))) {
            stream.write_all(piece).await.unwrap();
        }
        crate::wire::read_answer(&mut stream).await.expect("an answer")
    }
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub async fn of(response: Response<hyper::body::Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the answer is whole").to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        self
    }

    /// Asserts an error by status and code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        let answer = self.expect(status);
        assert_eq!(answer.tag("Code").as_deref(), Some(code), "{}", answer.text());
        answer
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The first element of that name.
    pub fn tag(&self, name: &str) -> Option<String> {
        self.tags(name).into_iter().next()
    }

    /// All elements of that name.
    pub fn tags(&self, name: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let inside = |rest: &str| Some(rest.split_once(close.as_str())?.0.to_owned());
        text.split(&open).skip(1).filter_map(inside).collect()
    }
}

/// The signature of version 2 over a text.
pub fn sign_v2(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    base64_simd::STANDARD.encode_to_string(mac.finalize().into_bytes())
}

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `20060102T150405Z`.
fn stamp(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date by the proleptic Gregorian calendar, with years that begin in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}
