//! Requests that have ended, as the program and the log tell of them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use larder_s3::{BytesMoved, FinishedRequest, GatewayOptions, ServerHooks, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::client::{ACCESS, Form, SECRET, Server, Sign};
use crate::strangers::Log;
use crate::wire::head;

/// A request that has ended, as texts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FinishedLog {
    id: String,
    op: &'static str,
    status: u16,
    code: Option<String>,
    moved: Option<BytesMoved>,
    user: Option<String>,
    names: [Option<String>; 2],
    client: Option<std::net::IpAddr>,
    forwarded_for: Option<String>,
}

#[derive(Default)]
struct Hooks {
    finished: Mutex<Vec<FinishedLog>>,
    request_finished: Notify,
}

impl Hooks {
    /// The next request that has ended.
    async fn next(&self) -> FinishedLog {
        loop {
            if let Some(finished) = self.finished.lock().unwrap().pop() {
                return finished;
            }
            self.request_finished.notified().await;
        }
    }
}

impl ServerHooks for Hooks {
    fn done(&self, ended: &FinishedRequest<'_>) {
        self.finished.lock().unwrap().push(FinishedLog {
            id: ended.id.to_string(),
            op: ended.op,
            status: ended.status,
            code: ended.code.map(str::to_owned),
            moved: ended.moved,
            user: ended.user.map(str::to_owned),
            names: [ended.bucket(), ended.key()].map(|name| name.map(std::borrow::Cow::into_owned)),
            client: ended.client().map(|client| client.ip()),
            forwarded_for: ended.forwarded_for(),
        });
        self.request_finished.notify_one();
    }
}

async fn server() -> (Server, Arc<Hooks>) {
    let hooks = Arc::new(Hooks::default());
    let (options, face) = (ServerOptions::default(), GatewayOptions::default());
    let server = Server::with(options, Arc::clone(&hooks), face).await;
    server.put("/bkt", "").await.expect(200);
    let _made = hooks.next().await;
    (server, hooks)
}

#[tokio::test]
async fn who_asked_for_what_is_told_with_the_id_that_the_client_got() {
    let (server, hooks) = server().await;
    let ask = server.ask("PUT", "/bkt/a%20%22b").body("x");
    let ask = ask.unsigned("x-forwarded-for", "6.6.6.6").unsigned("x-forwarded-for", "192.0.2.7");
    let answer = ask.send().await;
    let finished = hooks.next().await;
    let names = ["bkt", "a \"b"].map(|name| Some(name.to_owned()));
    let expected = FinishedLog {
        id: answer.headers["x-amz-request-id"].to_str().unwrap().to_owned(),
        op: "PutObject",
        status: 200,
        code: None,
        moved: Some(BytesMoved::Written(1)),
        user: Some(ACCESS.to_owned()),
        names,
        client: Some(std::net::Ipv4Addr::LOCALHOST.into()),
        forwarded_for: Some("6.6.6.6, 192.0.2.7".to_owned()),
    };
    assert_eq!(finished, expected);
}

#[tokio::test]
async fn a_user_is_logged_only_if_the_signature_was_verified() {
    let (server, hooks) = server().await;
    let ask = |sign| server.ask("GET", "/bkt/k").sign(sign);
    let query = Sign::Query { expires_s: 100 };
    for (ask, code, user) in [
        (ask(Sign::Header), "NoSuchKey", Some(ACCESS)),
        (ask(query), "NoSuchKey", Some(ACCESS)),
        // This one goes by another way to the store.
        (ask(Sign::Header).header("range", "lines=1"), "NoSuchKey", Some(ACCESS)),
        (ask(Sign::Not), "AccessDenied", None),
        (ask(Sign::Header).keys(ACCESS, "another-secret"), "SignatureDoesNotMatch", None),
        (ask(Sign::Header).keys("NOBODY", SECRET), "InvalidAccessKeyId", None),
        (ask(query).in_past(110), "AccessDenied", None),
    ] {
        ask.send().await;
        let finished = hooks.next().await;
        assert_eq!((finished.code.as_deref(), finished.user.as_deref()), (Some(code), user));
    }
    server.head("/").await.expect(200);
    assert_eq!(hooks.next().await.user.as_deref(), Some(ACCESS));
    server.head("/bkt/k").await.expect(404);
    let finished = hooks.next().await;
    assert_eq!(
        (finished.op, finished.status, finished.code.as_deref()),
        ("HeadObject", 404, Some("NoSuchKey"))
    );
}

#[tokio::test]
async fn object_bytes_are_counted_without_framing() {
    let (server, hooks) = server().await;
    let body = vec![7; 70_000];
    let put = |body: &[u8]| server.ask("PUT", "/bkt/k").body(body.to_vec());
    let get = |key: &str| server.ask("GET", &format!("/bkt/{key}"));
    let record = |body: &[u8]| {
        let ask = server.ask("PUT", "/bkt/log").header("x-larder-append", "record");
        ask.body(body.to_vec())
    };
    let asks = [
        (put(&body), Some(BytesMoved::Written(70_000))),
        (put(&body).signed_chunks(8192, false), Some(BytesMoved::Written(70_000))),
        // It is not stored, and what was there stays.
        (put(&body).signed_chunks(8192, true), None),
        (put(&body).header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="), None),
        (put(&[]).header("x-amz-copy-source", "/bkt/k"), None),
        (record(b"one"), Some(BytesMoved::Appended(3))),
        (record(b""), None),
        (get("k"), Some(BytesMoved::Read(70_000))),
        (get("k").header("range", "bytes=10-14"), Some(BytesMoved::Read(5))),
        (get("k").header("if-none-match", "*"), None),
        (get("nothing"), Some(BytesMoved::Read(0))),
        (server.ask("GET", "/bkt/k").sign(Sign::Not), None),
        (server.ask("HEAD", "/bkt/k"), None),
        (server.ask("DELETE", "/bkt/k"), None),
        (put(&[]), Some(BytesMoved::Written(0))),
    ];
    for (at, (ask, moved)) in asks.into_iter().enumerate() {
        let answer = ask.send().await;
        assert_eq!(hooks.next().await.moved, moved, "ask {at}, answered {}", answer.status);
    }
    let id = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
    let part = format!("/bkt/k?partNumber=1&uploadId={}", id.tag("UploadId").unwrap());
    assert_eq!(hooks.next().await.moved, None);
    server.ask("PUT", &part).body(body.clone()).send().await.expect(200);
    assert_eq!(hooks.next().await.moved, Some(BytesMoved::Written(70_000)));
    let said = Form::of(&server, "bkt", "form").file(&body).send(&server, "/bkt", 9000).await;
    assert!(said.starts_with("HTTP/1.1 204"), "{said}");
    assert_eq!(hooks.next().await.moved, Some(BytesMoved::Written(70_000)));
}

#[tokio::test]
async fn a_get_that_broke_off_moved_nothing() {
    const LARGE: usize = 64 * 1024 * 1024;
    let (server, hooks) = server().await;
    for (key, bytes) in [("large", LARGE), ("small", 200_000)] {
        server.put(&format!("/bkt/{key}"), vec![7; bytes]).await.expect(200);
        assert_eq!(hooks.next().await.moved, Some(BytesMoved::Written(bytes as u64)));
    }
    // The client goes away after some of it: far less than there is fits what lies between.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let ask = server.ask("GET", "/bkt/large");
    stream.write_all(head(&ask, "").as_bytes()).await.unwrap();
    let mut some = vec![0; 60_000];
    stream.read_exact(&mut some).await.unwrap();
    drop(stream);
    let finished = hooks.next().await;
    assert_eq!((finished.op, finished.status, finished.moved), ("GetObject", 200, None));
    server.store.breaks_off.store(true, Ordering::Relaxed);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let ask = server.ask("GET", "/bkt/small");
    stream.write_all(head(&ask, "").as_bytes()).await.unwrap();
    let mut all = Vec::new();
    let _cut_off = stream.read_to_end(&mut all).await;
    // The connection may end before it has sent what came before the error.
    assert!(all.len() < 200_000, "it breaks off");
    let finished = hooks.next().await;
    assert_eq!((finished.op, finished.status, finished.moved), ("GetObject", 200, None));
    server.store.breaks_off.store(false, Ordering::Relaxed);
    server.get("/bkt/small").await.expect(200);
    assert_eq!(hooks.next().await.moved, Some(BytesMoved::Read(200_000)));
}

#[tokio::test]
async fn no_signature_is_logged() {
    let (server, hooks) = server().await;
    let query = Sign::Query { expires_s: 100 };
    server.ask("GET", "/bkt/k?versionId=null").sign(query).send().await.expect(404);
    let finished = format!("{:?}", hooks.next().await);
    assert!(!finished.contains("X-Amz") && !finished.contains("Signature"), "{finished}");
}

#[tokio::test]
async fn a_failure_of_the_servers_own_is_logged_with_what_it_was_about() {
    let (log, _guards) = Log::begin();
    let (server, hooks) = server().await;
    server.put("/bkt/a%20b", "hello").await.expect(200);
    server.store.damaged.store(true, Ordering::Relaxed);
    let answer = server.get("/bkt/a%20b").await;
    let id = answer.headers["x-amz-request-id"].to_str().unwrap().to_owned();
    answer.refused(500, "InternalError");
    let _told = hooks.next().await;
    let log = log.text();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("ERROR") && log.contains("a request failed"), "{log}");
    for field in [
        &format!("request={id}"),
        "op=\"GetObject\"",
        "bucket=\"bkt\"",
        "key=\"a b\"",
        "client=127.0.0.1:",
        "status=500",
        "code=\"InternalError\"",
    ] {
        assert!(log.contains(field), "{field} in {log}");
    }
}

#[tokio::test]
async fn what_clients_are_refused_is_not_logged() {
    let (log, _guards) = Log::begin();
    let (server, _hooks) = server().await;
    server.get("/bkt/none").await.refused(404, "NoSuchKey");
    server.ask("GET", "/bkt/k").sign(Sign::Not).send().await.refused(403, "AccessDenied");
    server.get("/bkt?website").await.expect(404);
    server.get("/bkt/k?torrent").await.refused(501, "NotImplemented");
    assert_eq!(log.text(), "");
}

#[tokio::test]
async fn puts_into_a_full_store_get_one_line() {
    let (log, _guards) = Log::begin();
    let (server, _hooks) = server().await;
    server.store.full.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        server.put("/bkt/k", "x").await.refused(507, "InsufficientStorage");
    }
    let log = log.text();
    assert_eq!(log.matches("a request was rejected").count(), 1, "{log}");
    assert!(log.contains("WARN") && log.contains("key=\"k\""), "{log}");
}

#[tokio::test]
async fn preflights_and_cors_rules_are_told_by_their_names() {
    let (server, hooks) = server().await;
    let rules = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
                 <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
    let preflight = server.ask("OPTIONS", "/bkt/k").sign(Sign::Not).header("origin", "null");
    let preflight = preflight.header("access-control-request-method", "GET");
    for (ask, op, code, user) in [
        (preflight.clone(), "Preflight", Some("AccessForbidden"), None),
        (server.ask("PUT", "/bkt?cors").body(rules), "PutBucketCors", None, Some(ACCESS)),
        (server.ask("GET", "/bkt?cors"), "GetBucketCors", None, Some(ACCESS)),
        (preflight, "Preflight", None, None),
        (server.ask("DELETE", "/bkt?cors"), "DeleteBucketCors", None, Some(ACCESS)),
    ] {
        ask.send().await;
        let finished = hooks.next().await;
        assert_eq!(
            (finished.op, finished.code.as_deref(), finished.user.as_deref()),
            (op, code, user)
        );
        assert_eq!(finished.names[0].as_deref(), Some("bkt"));
    }
}
