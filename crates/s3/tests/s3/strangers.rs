//! The resources of a server that a client without keys can hold, and for how long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_s3::limits::FORMS_UNVERIFIED_MAX;
use larder_s3::{GatewayOptions, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{ACCESS, Form, SECRET, Server, Sign};
use crate::wire::{head, read_answer};

/// A form that announces 16 MiB, once the server reads it, and falls silent.
async fn silent_form(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /bkt HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=x\r\n\
                content-length: 16777216\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 25];
    stream.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

#[tokio::test]
async fn silent_forms_do_not_stop_a_put() {
    let server = Server::bucket().await;
    let mut forms = Vec::new();
    for _ in 0..16 {
        forms.push(silent_form(&server).await);
    }
    server.put("/bkt/k", "x").await.expect(200);
}

/// The lines logged on this thread.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes what is logged at the default level, until the guards are dropped.
    pub fn begin() -> (Self, (tracing::Dispatch, tracing::subscriber::DefaultGuard)) {
        let log = Self::default();
        let writer = log.clone();
        // While a process has a single subscriber, a thread without one that comes to a line first turns it off for all.
        let second =
            tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let subscriber = subscriber.with_ansi(false).finish();
        (log, (second, tracing::subscriber::set_default(subscriber)))
    }

    /// The lines. Those of the protocol library are left out, as the program does.
    pub fn text(&self) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.split_inclusive('\n').filter(|line| !line.contains(" s3s::")).collect()
    }
}

#[tokio::test]
async fn many_forms_that_are_turned_away_get_one_line() {
    let (log, _guards) = Log::begin();
    let server = Server::bucket().await;
    let mut forms = Vec::new();
    for _ in 0..FORMS_UNVERIFIED_MAX {
        forms.push(silent_form(&server).await);
    }
    for _ in 0..20 {
        let answer = Form::of(&server, "bkt", "k").file(b"x").send(&server, "/bkt", 1000).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    let log = log.text();
    assert_eq!(log.matches("a request was rejected").count(), 1, "{log}");
}

#[tokio::test]
async fn a_silent_form_is_cut_off() {
    let server = Server::bucket().await;
    let mut form = silent_form(&server).await;
    tokio::time::pause();
    let mut answer = String::new();
    let begun = tokio::time::Instant::now();
    form.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// Turns and memory are for those who have signed: one without keys is refused also when the server has none left.
#[tokio::test]
async fn a_request_without_a_signature_takes_no_turn() {
    let options = ServerOptions { requests_max: 1, waiting_max: 0, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let _busy = put_in_flight(&server).await;
    server.ask("GET", "/bkt/k").sign(Sign::Not).send().await.refused(403, "AccessDenied");
    server.get("/bkt/k").await.refused(503, "SlowDown");
}

/// A put of 5 bytes once the server has asked for them.
pub async fn put_in_flight(server: &Server) -> TcpStream {
    let ask = server.ask("PUT", "/bkt/k").body("hello");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = head(&ask, "content-length: 5\r\nexpect: 100-continue\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 25];
    stream.read_exact(&mut goes_on).await.unwrap();
    stream
}

#[tokio::test]
async fn a_body_that_falls_silent_gives_its_share_back() {
    let options = ServerOptions { requests_max: 1, waiting_max: 0, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let list = "<Delete><Object><Key>a</Key></Object></Delete>";
    let (known, anew) = (("x-amz-meta-a", "b"), ("expires", "0"));
    for (method, path, (name, value)) in [
        ("PUT", "/bkt/k", known),
        ("PUT", "/bkt/k", anew),
        ("PUT", "/bkt/k?tagging", known),
        ("PUT", "/bkt/k?tagging", anew),
        ("POST", "/bkt?delete", known),
        ("POST", "/bkt?delete", anew),
    ] {
        let ask = server.ask(method, path).body(list).header(name, value);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let length = format!("content-length: {}\r\nexpect: 100-continue\r\n", list.len());
        stream.write_all(head(&ask, &length).as_bytes()).await.unwrap();
        stream.read_exact(&mut [0; 25]).await.unwrap();
        server.get("/bkt").await.refused(503, "SlowDown");
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        let answer = read_answer(&mut stream).await.expect("an answer");
        assert!(begun.elapsed() < Duration::from_secs(31), "{path}: {:?}", begun.elapsed());
        tokio::time::resume();
        assert!(answer.contains("RequestTimeout"), "{path}: {answer}");
        server.get("/bkt").await.expect(200);
    }
}

#[tokio::test]
async fn a_form_uploads_a_file_however_it_is_cut() {
    let server = Server::bucket().await;
    let file = vec![b'\r'; 300_000];
    for piece in [1, 1000, 1_000_000] {
        let form = Form::of(&server, "bkt", "k").file(&file);
        let answer = form.send(&server, "/bkt", piece).await;
        assert!(answer.starts_with("HTTP/1.1 204"), "{piece}: {answer}");
        assert_eq!(server.get("/bkt/k").await.expect(200).body, file);
    }
}

#[tokio::test]
async fn a_form_with_a_wrong_signature_or_none_is_refused_before_its_file_is_read() {
    let server = Server::bucket().await;
    let wrong = Form::of(&server, "bkt", "k").set("x-amz-signature", &"0".repeat(64));
    let none = Form::of(&server, "bkt", "k").without("x-amz-signature");
    for (form, status, code) in
        [(wrong, 403, "SignatureDoesNotMatch"), (none, 400, "InvalidArgument")]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // Of the file, only the beginning comes.
        let bytes = form.file(&vec![7; 200_000]).bytes();
        stream.write_all(Form::head("/bkt", 16_000_000).as_bytes()).await.unwrap();
        stream.write_all(&bytes[..150_000]).await.unwrap();
        let answer = read_answer(&mut stream).await.expect("an answer");
        let begins = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&begins) && answer.contains(code), "{answer}");
    }
}

/// The library's arithmetic on such dates ends builds that check it for overflow, before a signature is verified.
#[tokio::test]
async fn a_form_with_a_malformed_date_is_refused() {
    let server = Server::bucket().await;
    let credential = format!("{ACCESS}/2006 102/us-east-1/s3/aws4_request");
    for (name, value) in [("x-amz-date", "20060102T1504 5Z"), ("X-Amz-Credential", &credential)] {
        let form = Form::of(&server, "bkt", "k").without(&name.to_lowercase()).set(name, value);
        let answer = form.file(b"x").send(&server, "/bkt", 1000).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("InvalidRequest"),
            "{answer}"
        );
        assert!(answer.contains(&name.to_lowercase()), "{answer}");
    }
}

#[tokio::test]
async fn forms_can_be_switched_off() {
    let face = GatewayOptions { forms: false, ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    let answer = Form::of(&server, "bkt", "k").file(b"x").send(&server, "/bkt", 1000).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

async fn is_alive(stream: &mut TcpStream) -> bool {
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    read_answer(stream).await.is_some()
}

#[tokio::test]
async fn the_connection_that_is_idle_longest_makes_room() {
    let idle_before_closed = Duration::ZERO;
    let options =
        ServerOptions { connections_max: 3, idle_before_closed, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let mut busy = put_in_flight(&server).await;
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        assert!(is_alive(&mut stream).await, "one that comes finds a place");
        open.push(stream);
    }
    assert!(!is_alive(&mut open[0]).await);
    busy.write_all(b"hello").await.unwrap();
    assert!(read_answer(&mut busy).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_head_that_is_too_large_is_cut_off() {
    let server = Server::bucket().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "x".repeat(200_000));
    let _ = stream.write_all(head.as_bytes()).await;
    assert_eq!(read_answer(&mut stream).await, None);
}

/// Requests with a header in a form that a stricter reader would refuse.
const ODD: [(&str, &str, &str, &str); 9] = [
    ("GET", "/bkt/k", "range", "lines=0-1"),
    ("HEAD", "/bkt/k", "if-modified-since", "soon"),
    ("PUT", "/bkt/k", "expires", "0"),
    ("PUT", "/bkt/k", "if-match", "a_b"),
    ("PUT", "/bkt/k?tagging", "expires", "0"),
    ("PUT", "/bkt?cors", "expires", "0"),
    ("POST", "/bkt?delete", "expires", "0"),
    ("POST", "/bkt/k?uploads", "expires", "0"),
    ("DELETE", "/bkt/k", "if-match", "a_b"),
];

#[tokio::test]
async fn a_malformed_header_authenticates_nobody() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    for (method, path, name, value) in ODD {
        let ask = |sign| server.ask(method, path).sign(sign).header(name, value);
        let query = Sign::Query { expires_s: 100 };
        for (refused, code) in [
            (ask(Sign::Not), "AccessDenied"),
            (ask(Sign::Header).keys(ACCESS, "another-secret"), "SignatureDoesNotMatch"),
            (ask(Sign::Header).keys("NOBODY", SECRET), "InvalidAccessKeyId"),
            (ask(query).keys(ACCESS, "another-secret"), "SignatureDoesNotMatch"),
            (ask(query).in_past(110), "AccessDenied"),
        ] {
            let answer = refused.send().await.expect(403);
            let reported = answer.tag("Code");
            assert!(
                method == "HEAD" || reported.as_deref() == Some(code),
                "{method} {path}: {reported:?}"
            );
        }
    }
    let unhashed = server.ask("PUT", "/bkt").payload(&"0".repeat(64));
    unhashed.sign(Sign::Not).send().await.refused(403, "AccessDenied");
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "hello");
    assert!(server.get("/bkt?uploads").await.expect(200).tags("UploadId").is_empty());
}

/// With one turn and no place to wait, a request that took two would be told to slow down.
#[tokio::test]
async fn a_request_with_an_odd_header_takes_one_turn() {
    let options = ServerOptions { requests_max: 1, waiting_max: 0, ..ServerOptions::default() };
    let server = Server::with(options, Arc::new(()), GatewayOptions::default()).await;
    server.put("/bkt", "").await.expect(200);
    let query = Sign::Query { expires_s: 100 };
    let ask =
        |(method, path, name, value), sign| server.ask(method, path).sign(sign).header(name, value);
    let asks = |sign| ODD.map(|odd| ask(odd, sign));
    let mut busy = put_in_flight(&server).await;
    for ask in asks(Sign::Header).into_iter().chain(asks(query)) {
        ask.send().await.expect(503);
    }
    for ask in asks(Sign::Not) {
        ask.send().await.expect(403);
    }
    busy.write_all(b"hello").await.unwrap();
    assert!(read_answer(&mut busy).await.unwrap().starts_with("HTTP/1.1 200"));
    for ask in asks(Sign::Header).into_iter().chain(asks(query)) {
        let status = ask.send().await.status.as_u16();
        assert!(status != 503 && status != 403, "{status}");
    }
}

/// Each mention would add the whole header to the text that is hashed, before it is known who asks.
#[tokio::test]
async fn a_header_that_is_listed_often_is_refused_before_it_is_hashed() {
    let server = Server::bucket().await;
    let get = server.ask("GET", "/bkt").unsigned("a", &"x".repeat(15_000));
    let in_header = get.clone().rewrite(|header| {
        let often = format!("SignedHeaders=host;{}", "a;".repeat(3000));
        header.replacen("SignedHeaders=host;", &often, 1)
    });
    in_header.send().await.refused(400, "InvalidRequest");
    let often = format!("X-Amz-SignedHeaders=host{}", ";A;a".repeat(1500));
    let in_query = get.sign(Sign::Query { expires_s: 100 });
    let spell = |address: &str| address.replacen("X-Amz-SignedHeaders=host", &often, 1);
    in_query.send_spelled(spell).await.refused(400, "InvalidRequest");
}
