//! The HTTP server itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_s3::{ClusterHealth, FinishedRequest, GatewayOptions, ServerHooks, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use crate::client::{ACCESS, Ask, Server, Sign};
use crate::wire::{head, read_answer};

/// Sends a request without its body, with more header lines, over a connection of its own.
async fn send_head(server: &Server, ask: Ask, more: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head(&ask, more).as_bytes()).await.unwrap();
    stream
}

/// A put of `hello` that is under way: the server has asked for the body.
async fn put_in_flight(server: &Server) -> TcpStream {
    let ask = server.ask("PUT", "/bkt/k").body("hello");
    let mut stream = send_head(server, ask, "content-length: 5\r\nexpect: 100-continue\r\n").await;
    let mut goes_on = [0; 25];
    stream.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// A client that waits for `100 Continue` and is refused may send its body all the same, or its next request at once: only
/// a new connection tells the two apart.
#[tokio::test]
async fn a_refusal_in_place_of_100_continue_closes_the_connection() {
    let server = Server::start().await;
    let ask = server.ask("PUT", "/no-such-bucket/k").body("hello");
    let mut stream = send_head(&server, ask, "content-length: 5\r\nexpect: 100-continue\r\n").await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert!(head.contains("connection: close"), "{head}");
    assert!(body.contains("NoSuchBucket"), "{body}");
}

/// The same for a body without bytes, for which the server sends no `100 Continue` though the put is done.
#[tokio::test]
async fn an_answer_to_an_empty_put_that_waits_for_100_continue_closes_the_connection() {
    let server = Server::bucket().await;
    let ask = server.ask("PUT", "/bkt/empty");
    let mut stream = send_head(&server, ask, "content-length: 0\r\nexpect: 100-continue\r\n").await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[derive(Default)]
struct Hooks {
    ready: AtomicBool,
    done: Mutex<Vec<(&'static str, u16, u64, u64)>>,
    one_is_done: Notify,
}

impl Hooks {
    /// The requests that have ended, once there are so many.
    async fn done(&self, count: usize) -> Vec<(&'static str, u16, u64, u64)> {
        loop {
            let done = self.done.lock().unwrap().clone();
            if done.len() >= count {
                return done;
            }
            self.one_is_done.notified().await;
        }
    }
}

impl ServerHooks for Hooks {
    fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn done(&self, ended: &FinishedRequest<'_>) {
        let FinishedRequest { op, status, bytes_in, bytes_out, .. } = *ended;
        self.done.lock().unwrap().push((op, status, bytes_in, bytes_out));
        self.one_is_done.notify_one();
    }
}

#[tokio::test]
async fn health_is_reported_without_credentials() {
    let hooks = Arc::new(Hooks::default());
    let server =
        Server::with(ServerOptions::default(), Arc::clone(&hooks), GatewayOptions::default()).await;
    let ask = |path: &str| server.ask("GET", path).sign(Sign::Not).send();
    let of_ready = [
        "/readyz",
        "/minio/health/ready",
        "/healthz/cluster",
        "/minio/health/cluster",
        "/minio/health/cluster/read",
    ];
    for path in ["/healthz", "/minio/health/live"] {
        ask(path).await.expect(200);
    }
    for path in of_ready {
        ask(path).await.expect(503);
    }
    hooks.ready.store(true, Ordering::Relaxed);
    for path in of_ready {
        ask(path).await.expect(200);
    }
    for path in ["/healthz/cluster", "/minio/health/cluster"] {
        let alone = ask(&format!("{path}?maintenance=true")).await;
        assert_eq!(alone.status, 412, "nothing is left without the only server");
        assert_eq!(alone.headers["x-minio-write-quorum"], "1");
        ask(&format!("{path}?maintenance=false")).await.expect(200);
    }
    server.put("/minio", "").await.expect(200);
    server.put("/minio/health/live", "a key").await.expect(200);
    assert_eq!(server.get("/minio/health/live").await.expect(200).text(), "a key");
    server.put("/healthz", "").await.refused(400, "InvalidBucketName");
    server.put("/metrics", "").await.refused(400, "InvalidBucketName");
}

#[tokio::test]
async fn a_server_without_a_store_answers_probes_and_sends_all_others_away() {
    let hooks = Arc::new(Hooks::default());
    // Other roles of the process are ready.
    hooks.ready.store(true, Ordering::Relaxed);
    let (server, begin) = Server::waiting(Arc::clone(&hooks)).await;
    let ask = |path: &str| server.ask("GET", path).sign(Sign::Not).send();
    ask("/healthz").await.expect(200);
    ask("/readyz").await.expect(503);
    ask("/healthz/cluster").await.expect(503);
    ask("/healthz/cluster?maintenance=true").await.expect(412);
    // A key of a bucket that its host names.
    let key = server.ask("GET", "/healthz").header("host", "bkt.s3.test").sign(Sign::Not);
    key.send().await.refused(503, "ServiceUnavailable");
    hooks.done.lock().unwrap().clear();
    let refused = server.put("/bkt", "").await;
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(refused.headers.contains_key("x-amz-request-id"));
    refused.refused(503, "ServiceUnavailable");
    // More than is dropped as it comes.
    let large = vec![7; larder_s3::limits::UNREAD_BYTES_MAX as usize + 1];
    server.put("/bkt/key", large).await.refused(503, "ServiceUnavailable");
    assert_eq!(server.head("/bkt/key").await.status, 503);
    let done = hooks.done(3).await;
    let ops: Vec<_> = done.iter().map(|(op, status, ..)| (*op, *status)).collect();
    assert_eq!(ops, [("CreateBucket", 503), ("PutObject", 503), ("HeadObject", 503)]);
    begin();
    ask("/readyz").await.expect(200);
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/key", "content").await.expect(200);
}

/// A store that is read and not changed.
struct ReadOnly;

impl ServerHooks for ReadOnly {
    fn caveat(&self) -> Option<&'static str> {
        Some("read-only: it says why")
    }
}

#[tokio::test]
async fn a_server_that_is_ready_says_what_it_does_not_do() {
    let hooks = Arc::new(ReadOnly);
    let server = Server::with(ServerOptions::default(), hooks, GatewayOptions::default()).await;
    let ready = server.ask("GET", "/readyz").sign(Sign::Not).send().await;
    assert_eq!(ready.expect(200).text(), "OK\nread-only: it says why\n");
    let alive = server.ask("GET", "/healthz").sign(Sign::Not).send().await;
    assert_eq!(alive.expect(200).text(), "OK\n");
}

/// A cluster in a state that is set.
struct OfCluster(Mutex<ClusterHealth>);

impl ServerHooks for OfCluster {
    fn cluster(&self) -> ClusterHealth {
        *self.0.lock().unwrap()
    }
}

#[tokio::test]
async fn whoever_takes_a_machine_away_is_told_if_the_cluster_can_spare_it() {
    let health = ClusterHealth { takes_writes: true, can_spare_this: true, write_quorum: 2 };
    let hooks = Arc::new(OfCluster(Mutex::new(health)));
    let (options, face) = (ServerOptions::default(), GatewayOptions::default());
    let server = Server::with(options, Arc::clone(&hooks), face).await;
    for (takes_writes, can_spare_this, now, without) in
        [(true, true, 200, 200), (true, false, 200, 412), (false, true, 503, 412)]
    {
        *hooks.0.lock().unwrap() = ClusterHealth { takes_writes, can_spare_this, ..health };
        for (path, status) in [("", now), ("?maintenance=true", without)] {
            let path = format!("/healthz/cluster{path}");
            for method in ["GET", "HEAD"] {
                let answer = server.ask(method, &path).sign(Sign::Not).send().await;
                assert_eq!(answer.status, status, "{path}");
                assert_eq!(answer.headers["x-minio-write-quorum"], "2");
            }
        }
        let reads = server.ask("GET", "/minio/health/cluster/read").sign(Sign::Not).send().await;
        assert_eq!(reads.status, 200, "reads go on, whatever becomes of writes");
    }
}

/// A store that counts how often it was asked for its state.
#[derive(Default)]
struct Told(AtomicUsize);

impl ServerHooks for Told {
    async fn status(&self) -> Option<Bytes> {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        // A key may have characters that no XML has.
        Some(format!("{{\"asked\":{asked},\"key\":\"\u{fffe}\"}}").into())
    }
}

const STATE: &str = "/_larder/v1/status";

#[tokio::test]
async fn the_state_is_told_to_who_has_roots_keys_and_to_nobody_else() {
    let hooks = Arc::new(Told::default());
    let (options, face) = (ServerOptions::default(), GatewayOptions::default());
    let server = Server::with(options, Arc::clone(&hooks), face).await;
    server.ask("GET", STATE).sign(Sign::Not).send().await.refused(403, "AccessDenied");
    let other = server.ask("GET", STATE).keys("somebody", "else").send().await;
    other.refused(403, "InvalidAccessKeyId");
    let wrong = server.ask("GET", STATE).keys(ACCESS, "wrong-secret").send().await;
    wrong.refused(403, "SignatureDoesNotMatch");
    let preflight = server.ask("OPTIONS", STATE).header("origin", "http://a").sign(Sign::Not);
    preflight.send().await.refused(405, "MethodNotAllowed");
    for method in ["PUT", "POST", "DELETE"] {
        let refused = server.ask(method, STATE).send().await;
        assert_eq!(refused.headers["allow"], "GET, HEAD");
        refused.refused(405, "MethodNotAllowed");
    }
    let form = server.ask("POST", STATE).header("content-type", "multipart/form-data; boundary=b");
    form.sign(Sign::Not).send().await.refused(405, "MethodNotAllowed");
    assert_eq!(hooks.0.load(Ordering::Relaxed), 0, "it was not asked in vain");
    let reported = server.get(STATE).await.expect(200);
    assert_eq!(reported.headers["content-type"], "application/json");
    assert_eq!(reported.text(), "{\"asked\":0,\"key\":\"\u{fffe}\"}");
    server.head(STATE).await.expect(200);
    let other_paths = ["/_larder/v1/state", "/_larder/v1/status/", "/_larder"];
    for path in other_paths {
        server.get(path).await.refused(400, "InvalidBucketName");
    }
}

#[tokio::test]
async fn concurrent_status_requests_share_one_query() {
    let hooks = Arc::new(Told::default());
    let (options, face) = (ServerOptions::default(), GatewayOptions::default());
    let server = Server::with(options, Arc::clone(&hooks), face).await;
    let begun = std::time::Instant::now();
    let asked = (0..20).map(|_| async { drop(server.get(STATE).await.expect(200)) });
    futures::future::join_all(asked).await;
    let most = 1 + begun.elapsed().as_secs() as usize / 5;
    assert!((1..=most).contains(&hooks.0.load(Ordering::Relaxed)), "{most}");
}

#[tokio::test]
async fn a_server_without_a_status_is_reported_as_such() {
    let server = Server::start().await;
    server.get(STATE).await.refused(501, "NotImplemented");
}

#[tokio::test]
async fn the_head_of_the_service_is_answered_to_whom_it_knows() {
    let server = Server::bucket().await;
    let head = server.head("/").await.expect(200);
    assert_eq!(head.text(), "");
    server.ask("HEAD", "/").sign(Sign::Not).send().await.expect(403);
    server.ask("HEAD", "/").keys("somebody", "else").send().await.expect(403);
}

#[tokio::test]
async fn each_request_is_counted_once() {
    let hooks = Arc::new(Hooks::default());
    let server =
        Server::with(ServerOptions::default(), Arc::clone(&hooks), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/k", "hello").await.expect(200);
    server.get("/bkt/k").await.expect(200);
    server.head("/bkt/k").await.expect(200);
    let done = hooks.done(4).await;
    assert_eq!(
        done,
        [
            ("CreateBucket", 200, 0, 0),
            ("PutObject", 200, 5, 0),
            ("GetObject", 200, 0, 5),
            ("HeadObject", 200, 0, 0)
        ]
    );
}

#[tokio::test]
async fn bytes_that_were_announced_and_did_not_come_are_not_counted() {
    let hooks = Arc::new(Hooks::default());
    let server =
        Server::with(ServerOptions::default(), Arc::clone(&hooks), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let put = |path| server.ask("PUT", path).body(vec![1; 1000]).payload("UNSIGNED-PAYLOAD");
    let mut broken = send_head(&server, put("/bkt/k"), "content-length: 1000\r\n").await;
    broken.write_all(&[1; 10]).await.unwrap();
    drop(broken);
    assert_eq!(hooks.done(2).await[1].2, 10, "the client went away");
    put("/bkt/k").keys(ACCESS, "another-secret").send().await.expect(403);
    assert_eq!(hooks.done(3).await[2].2, 0, "a stranger's body is not read");
    put("/bkt/k").send().await.expect(200);
    assert_eq!(hooks.done(4).await[3].2, 1000);
}

#[tokio::test]
async fn a_connection_above_the_limit_is_refused_with_the_reason() {
    let idle_before_closed = std::time::Duration::from_secs(3600);
    let options =
        ServerOptions { connections_max: 1, idle_before_closed, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 12];
    first.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    drop(first);
}

/// All of the answer is made, and most of it is still to leave.
#[tokio::test]
async fn a_connection_with_a_reply_in_flight_is_not_evicted() {
    const SOCKET_BYTES: u32 = 4096;
    const ANSWER_BYTES: usize = 256 * 1024;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(SOCKET_BYTES).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let idle_before_closed = std::time::Duration::ZERO;
    let options =
        ServerOptions { connections_max: 1, idle_before_closed, ..ServerOptions::default() };
    let hooks = Arc::new(Hooks::default());
    let face = GatewayOptions::default();
    let server =
        Server::at(socket.listen(16).unwrap(), options, Arc::clone(&hooks), face, |service| {
            service
        });
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/k", vec![b'x'; ANSWER_BYTES]).await.expect(200);

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(SOCKET_BYTES).unwrap();
    let mut slow = socket.connect(server.address).await.unwrap();
    slow.write_all(head(&server.ask("GET", "/bkt/k"), "").as_bytes()).await.unwrap();
    assert_eq!(hooks.done(3).await[2], ("GetObject", 200, 0, ANSWER_BYTES as u64));
    let mut other = TcpStream::connect(server.address).await.unwrap();
    let refused = read_answer(&mut other).await.expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let answer = read_answer(&mut slow).await.expect("all of the answer");
    assert!(answer.len() > ANSWER_BYTES, "{}", answer.len());

    let mut other = TcpStream::connect(server.address).await.unwrap();
    other.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(read_answer(&mut other).await.is_some(), "it is idle, and makes room");
}

#[tokio::test]
async fn a_request_that_would_wait_too_long_gets_slow_down() {
    let options = ServerOptions { requests_max: 1, waiting_max: 0, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let mut busy = put_in_flight(&server).await;
    let refused = server.put("/bkt/other", "x").await.refused(503, "SlowDown");
    assert_eq!(refused.header("retry-after"), "1");
    busy.write_all(b"hello").await.unwrap();
    let mut start = [0; 12];
    busy.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_body_waits_until_there_is_memory_for_it() {
    let budget = 100;
    let options = ServerOptions { body_budget_bytes: budget, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let mut busy = put_in_flight(&server).await;
    let waiting = tokio::spawn(server.ask("PUT", "/bkt/large").body(vec![1; budget]).send());
    server.get("/bkt").await.expect(200);
    assert!(!waiting.is_finished());
    server.head("/bkt/large").await.expect(404);
    busy.write_all(b"hello").await.unwrap();
    waiting.await.unwrap().expect(200);
}

#[tokio::test]
async fn shutdown_lets_a_request_finish_and_closes_idle_connections() {
    let mut server = Server::bucket().await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 12];
    idle.read_exact(&mut start).await.unwrap();

    let mut busy = put_in_flight(&server).await;
    server.stop();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    busy.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.ended.take().unwrap().await.unwrap(), "everything finished in time");
}

#[tokio::test]
async fn a_silent_client_is_cut_off() {
    let server = Server::bucket().await;
    for sent in
        [&b""[..], b"GET /healthz HTTP/1.1\r\nhos", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"]
    {
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        silent.write_all(sent).await.unwrap();
        tokio::time::pause();
        let mut answer = Vec::new();
        let _ = silent.read_to_end(&mut answer).await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let hooks = Arc::new(Hooks::default());
    let server =
        Server::with(ServerOptions::default(), Arc::clone(&hooks), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/k", vec![1; 16 * 1024 * 1024]).await.expect(200);
    let stuck = send_head(&server, server.ask("GET", "/bkt/k"), "").await;
    tokio::time::pause();
    let (op, _, _, sent) = hooks.done(3).await[2];
    assert_eq!(op, "GetObject");
    assert!(sent < 16 * 1024 * 1024, "it was cut off half-way");
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_finish_is_cut_off() {
    let mut server = Server::bucket().await;
    let _busy = put_in_flight(&server).await;
    server.stop();
    assert!(!server.ended.take().unwrap().await.unwrap());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_stored() {
    let server = Server::bucket().await;
    let ask = server.ask("PUT", "/bkt/k").body("hello").payload("UNSIGNED-PAYLOAD");
    let mut broken = send_head(&server, ask, "content-length: 5\r\n").await;
    broken.write_all(b"hel").await.unwrap();
    broken.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = broken.read_to_string(&mut answer).await;
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn a_listener_resolves_names_and_reports_why_it_cannot() {
    let listener = larder_s3::listen("localhost:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::net::TcpStream::connect(address).await.unwrap();
    let taken = larder_s3::listen(&address.to_string()).await.unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    assert!(larder_s3::listen("no port").await.is_err());
}
