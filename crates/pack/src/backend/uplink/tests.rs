use std::sync::atomic::{AtomicBool, AtomicUsize};

use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder_env::{Disk, OpenMode, SimDisk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::*;
use crate::backend::fakes::Fake;
use crate::backend::url::open_cloud;
use crate::backend::{Backend, BackendClient, Source};
use crate::limits::{BACKEND_REQUESTS_START, PART_BYTES};

const SILENCE: Duration = Duration::from_millis(300);
const PART: usize = 256 * 1024;

/// A way to a cloud that is as slow as it is told, for all connections together.
struct Slow {
    fake: Fake,
    bytes_per_s: f64,
    /// The time at which the next byte may come.
    next: Mutex<Instant>,
    is_dumb: AtomicBool,
    /// Bytes of a request after which its connection is cut.
    cuts_at: AtomicUsize,
}

impl Slow {
    async fn start(bytes_per_s: f64) -> (Arc<Self>, String) {
        let next = Mutex::new(Instant::now());
        let (is_dumb, cuts_at) = (AtomicBool::new(false), AtomicUsize::new(usize::MAX));
        let slow = Self { fake: Fake::default(), bytes_per_s, next, is_dumb, cuts_at };
        let slow = Arc::new(slow);
        let listener = listen();
        let address = listener.local_addr().unwrap();
        let serves = slow.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let slow = serves.clone();
                let service = service_fn(move |request| slow.clone().answer(request));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        (slow, format!("http://{address}"))
    }

    async fn answer(
        self: Arc<Self>,
        request: http::Request<hyper::body::Incoming>,
    ) -> Result<HttpResponse, io::Error> {
        let (head, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let frame = frame.into_data().unwrap_or_default();
            let mut next = self.next.lock().await;
            let took = Duration::from_secs_f64(frame.len() as f64 / self.bytes_per_s);
            *next = (*next).max(Instant::now()) + took;
            tokio::time::sleep_until(*next).await;
            bytes.extend_from_slice(&frame);
            if bytes.len() >= self.cuts_at.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        if self.is_dumb.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(self.fake.answer(&head, bytes.into()))
    }
}

/// Listens with small buffers, so that a sender notices what is not taken.
fn listen() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(16).unwrap()
}

/// Connects to the cloud over sockets, and gets its keys from memory.
#[derive(Debug)]
struct Keyed(Uplink);

#[derive(Debug)]
struct KeyedClient(HttpClient, Fake);

impl HttpConnector for Keyed {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(KeyedClient(self.0.connect(options)?, Fake::default())))
    }
}

#[async_trait]
impl HttpService for KeyedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.uri().host() != Some("127.0.0.1") {
            let (head, _) = request.into_parts();
            return Ok(self.1.answer(&head, Bytes::new()));
        }
        self.0.execute(request).await
    }
}

fn backend(endpoint: &str, request_timeouts: RequestTimeouts) -> Backend {
    let (asked, url) = (BackendClient::new(), format!("gs://bucket?endpoint={endpoint}"));
    Backend::of(
        open_cloud(&url, Keyed(Uplink { request_timeouts }), &asked.scheduler).unwrap(),
        asked,
    )
}

#[tokio::test]
async fn a_slow_uplink_takes_an_upload_that_never_stands_still() {
    let (_slow, endpoint) = Slow::start(1024.0 * 1024.0).await;
    let request_timeouts = RequestTimeouts { silence: SILENCE, bytes_per_s_min: 64 * 1024 };
    let backend = backend(&endpoint, request_timeouts);
    let mut upload = backend.begin("blobs/x").await.unwrap();
    let start = Instant::now();
    for number in 0..8 {
        upload.add(vec![Bytes::from(vec![number; PART])], 4).await.unwrap();
    }
    upload.finish().await.unwrap();
    assert!(start.elapsed() > 4 * SILENCE, "each part took longer than the backend may be silent");
    let last = backend.read("blobs/x", 7 * PART as u64..8 * PART as u64).await.unwrap();
    assert_eq!(last, vec![7; PART]);
    assert!(backend.requests_max() >= BACKEND_REQUESTS_START, "none was given up");
}

#[tokio::test]
async fn an_object_from_a_file_is_one_request_that_may_take_long() {
    let (_slow, endpoint) = Slow::start(4.0 * 1024.0 * 1024.0).await;
    let backend =
        backend(&endpoint, RequestTimeouts { silence: SILENCE, bytes_per_s_min: 64 * 1024 });
    let (source, bytes) = source(5 << 20);
    let start = Instant::now();
    backend.put_from("blobs/x", &source).await.unwrap();
    assert!(start.elapsed() > 2 * SILENCE, "it took longer than the backend may be silent");
    assert_eq!(backend.counters().requests.load().total(), 1);
    let came = backend.read("blobs/x", 0..source.len()).await.unwrap();
    assert_eq!(came, bytes);
}

#[tokio::test]
async fn a_large_request_whose_connection_is_cut_is_not_made_again() {
    let (slow, endpoint) = Slow::start(1e12).await;
    slow.cuts_at.store(PART_BYTES + PART, Ordering::Relaxed);
    let backend =
        backend(&endpoint, RequestTimeouts { silence: SILENCE, bytes_per_s_min: 64 * 1024 });
    let (source, _) = source(3 * PART_BYTES);
    let broken = backend.put_from("blobs/x", &source).await.unwrap_err();
    assert!(broken.sent > PART_BYTES as u64 && broken.sent < source.len(), "{broken:?}");
    assert_eq!(backend.counters().requests.load().total(), 1);
    // Parts are shorter than what is cut.
    let mut upload = backend.begin("blobs/x").await.unwrap();
    for number in 0..3 {
        let part = number * PART_BYTES as u64..(number + 1) * PART_BYTES as u64;
        upload.add(source.read(part).await.unwrap(), 4).await.unwrap();
    }
    upload.finish().await.unwrap();
}

/// So many bytes in a file, and some behind them.
fn source(file_bytes: usize) -> (Source, Vec<u8>) {
    let bytes: Vec<u8> = (0..file_bytes).map(|at| (at / 777) as u8).collect();
    let file = SimDisk::new(1, 1 << 30).open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[io::IoSlice::new(&bytes)]).unwrap();
    let source = Source::new(file, bytes.len() as u64, Bytes::from_static(b"the end"));
    (source, [&bytes[..], b"the end"].concat())
}

fn client(request_timeouts: RequestTimeouts) -> HttpClient {
    Uplink { request_timeouts }.connect(&ClientOptions::new().with_allow_http(true)).unwrap()
}

fn put(endpoint: &str, body: impl Into<HttpRequestBody>) -> HttpRequest {
    let request = http::Request::put(format!("{endpoint}/bucket/x"));
    request.header("authorization", "x").body(body.into()).unwrap()
}

#[tokio::test]
async fn an_upload_that_stands_still_is_given_up() {
    let listener = listen();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let request_timeouts = RequestTimeouts { silence: SILENCE, bytes_per_s_min: 1 << 40 };
    // Nobody reads.
    let error =
        client(request_timeouts).execute(put(&endpoint, vec![0; 32 << 20])).await.unwrap_err();
    assert_eq!(error.kind(), HttpErrorKind::Timeout);
}

#[tokio::test]
async fn a_backend_that_is_silent_after_the_whole_body_times_out() {
    let (slow, endpoint) = Slow::start(1e12).await;
    slow.is_dumb.store(true, Ordering::Relaxed);
    let request_timeouts = RequestTimeouts { silence: SILENCE, bytes_per_s_min: 1 << 40 };
    let error = client(request_timeouts).execute(put(&endpoint, vec![0; PART])).await.unwrap_err();
    assert_eq!(error.kind(), HttpErrorKind::Timeout);
}

#[tokio::test]
async fn a_body_whose_request_was_answered_early_goes_out_no_longer() {
    let listener = listen();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (dropped, is_dropped) = tokio::sync::oneshot::channel::<()>();
    let serves = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut came = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        is_dropped.await.unwrap();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            came += read;
        }
        came
    });
    let request_timeouts = RequestTimeouts { silence: SILENCE, bytes_per_s_min: 1 };
    let body = vec![0; 64 << 20];
    let all = body.len();
    let client = client(request_timeouts);
    let answer = client.execute(put(&endpoint, body)).await.unwrap();
    assert_eq!(answer.status(), 413);
    drop(answer);
    dropped.send(()).unwrap();
    let came = serves.await.unwrap();
    assert!(came < all / 2, "{came} of {all} bytes came");
}

#[tokio::test]
async fn an_answer_that_stops_is_given_up() {
    let listener = listen();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serves = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _some = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345").await.unwrap();
        stream
    });
    let request_timeouts = RequestTimeouts { silence: SILENCE, bytes_per_s_min: 1 << 40 };
    let answer = client(request_timeouts).execute(put(&endpoint, Vec::new())).await.unwrap();
    let error = answer.into_body().bytes().await.unwrap_err();
    assert_eq!(error.kind(), HttpErrorKind::Timeout);
    let _stream = serves.await.unwrap();
}
