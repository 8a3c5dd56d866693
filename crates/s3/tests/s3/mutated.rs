//! Requests that are spoiled at random, sent over a socket: whatever comes, the server answers the next good request. Half
//! of them are spoiled before they are signed (`admitted.rs`).
//!
//! `LARDER_SPOIL_S` sets for how many seconds, `LARDER_SPOIL_SEED` where to begin. A failure prints the seed of its batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use larder_s3::{GatewayOptions, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::admitted::{is_admitted, spoiled};
use crate::client::{Form, Server, Sign};
use crate::wire::head;

/// Seconds that the test takes unless it is told otherwise.
const SPOIL_S: u64 = 4;
/// Spoiled requests between two good ones.
const BATCH: usize = 32;
/// Time that a good request has.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Pieces of text that parsers trip over.
pub const TOKENS: [&[u8]; 24] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\0",
    b"%",
    b"%00",
    b"%2F..",
    b"\xff\xfe",
    b"&",
    b"=",
    b"?",
    b";",
    b"0\r\n\r\n",
    b"ffffffff\r\n",
    b"-1",
    b"99999999999999999999",
    b"transfer-encoding: chunked\r\n",
    b"content-length: 1\r\n",
    b"expect: 100-continue\r\n",
    b"&uploadId=x&partNumber=1",
    b"&X-Amz-Signature=0",
    b"<![CDATA[",
    b"--edge",
    b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
];

/// Good requests of all kinds, as bytes.
fn good(server: &Server) -> Vec<Vec<u8>> {
    let query = Sign::Query { expires_s: 600 };
    let body = vec![b'a'; 3000];
    let asks = [
        server.ask("GET", "/bkt?list-type=2&prefix=a%2Fb&delimiter=%2F&max-keys=3"),
        server.ask("GET", "/bkt/k?response-content-type=text%2Fx").sign(query),
        server.ask("PUT", "/bkt/k").body(body.clone()).header("content-md5", "AAAA"),
        server.ask("PUT", "/bkt/k").body(body.clone()).signed_chunks(1000, false),
        server.ask("PUT", "/bkt/k").body(body.clone()).unsigned_trailer(
            700,
            "x-amz-checksum-crc32",
            "AAAAAA==",
        ),
        server.ask("PUT", "/bkt/k").body(body.clone()).sign(query),
        server.ask("PUT", "/bkt/k").header("x-amz-copy-source", "/bkt/other"),
        server.ask("POST", "/bkt/k?uploads"),
        server.ask("POST", "/bkt?delete").body("<Delete><Object><Key>a</Key></Object></Delete>"),
        server.ask("PUT", "/bkt/k?tagging").body("<Tagging><TagSet></TagSet></Tagging>"),
        server.ask("GET", "/bkt/k").sign(Sign::Not),
    ];
    let mut all = Vec::new();
    for ask in asks {
        let body = ask.sent().clone();
        let head = head(&ask, &format!("content-length: {}\r\n", body.len()));
        all.push([head.as_bytes(), &body].concat());
        let chunked = head.replace(
            &format!("content-length: {}\r\n", body.len()),
            "transfer-encoding: chunked\r\n",
        );
        let framed = format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len(), String::from_utf8_lossy(&body));
        all.push([chunked.as_bytes(), framed.as_bytes()].concat());
    }
    for form in
        [Form::of(server, "bkt", "k"), Form::of(server, "bkt", "k").without("x-amz-signature")]
    {
        let bytes = form.set("x-amz-meta-a", "b").file(&body).bytes();
        all.push([Form::head("/bkt", bytes.len()).as_bytes(), &bytes].concat());
    }
    all
}

/// Spoils a request in a few places, most of them in its head.
fn spoil(rng: &mut Rng, request: &[u8]) -> Vec<u8> {
    let mut bytes = request.to_vec();
    for _ in 0..1 + rng.below(3) {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(bytes.len());
        let end = if rng.below(4) == 0 { bytes.len() } else { head };
        spoil_at(rng, &mut bytes, end);
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Spoils bytes in one place.
pub fn spoil_piece(rng: &mut Rng, bytes: &mut Vec<u8>) {
    spoil_at(rng, bytes, bytes.len());
}

/// Spoils bytes in one place before `end`.
fn spoil_at(rng: &mut Rng, bytes: &mut Vec<u8>, end: usize) {
    let at = rng.below(end);
    let until = (at + 1 + rng.below(12)).min(bytes.len());
    match rng.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..until)),
        2 => bytes[at..until].reverse(),
        3 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        4 => {
            let copied = bytes[at..until].to_vec();
            bytes.splice(at..at, copied);
        }
        _ => {
            let token = rng.pick(&TOKENS).to_vec();
            bytes.splice(at..at, token);
        }
    }
}

/// Sends it in pieces and takes what comes. The server may close at any time, and need not answer what is not whole.
async fn send(server: &Server, rng: &mut Rng, bytes: &[u8], is_whole: bool) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect(server.address).await else { return answer };
    for piece in bytes.chunks(1 + rng.below(bytes.len())) {
        if stream.write_all(piece).await.is_err() {
            return answer;
        }
    }
    if !is_whole {
        // Nothing more comes: the server need not wait.
        let _ = stream.shutdown().await;
    }
    let _ = tokio::time::timeout(ANSWER_MAX, stream.read_to_end(&mut answer)).await;
    answer
}

/// Panics of the process, which would end a server.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        tell(panic);
    }));
}

/// A number of the environment's.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_outlives_spoiled_requests() {
    let face = GatewayOptions {
        domains: vec!["s3.test".into()],
        version_2: true,
        ..GatewayOptions::default()
    };
    let server = Server::with(ServerOptions::default(), std::sync::Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    count_panics();
    let mut seed = setting("LARDER_SPOIL_SEED").unwrap_or(1);
    let length = Duration::from_secs(setting("LARDER_SPOIL_S").unwrap_or(SPOIL_S));
    let (begun, first, mut admitted) = (Instant::now(), seed, 0);
    while begun.elapsed() < length {
        let mut rng = Rng(seed);
        // Signatures end: each batch signs anew.
        let requests = good(&server);
        for _ in 0..BATCH / 2 {
            let request = rng.pick(&requests).clone();
            let spoiled = spoil(&mut rng, &request);
            send(&server, &mut rng, &spoiled, false).await;
        }
        let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
        let upload = begun.tag("UploadId").expect("an upload has an id");
        for _ in 0..BATCH / 2 {
            let ask = spoiled(&server, &mut rng, &upload);
            let more = format!("connection: close\r\ncontent-length: {}\r\n", ask.sent().len());
            let whole = [head(&ask, &more).as_bytes(), ask.sent()].concat();
            let answer = send(&server, &mut rng, &whole, true).await;
            admitted += usize::from(is_admitted(&answer));
        }
        let alive = tokio::time::timeout(ANSWER_MAX, async {
            server.put("/bkt/alive", "x").await.expect(200);
            assert_eq!(server.get("/bkt/alive").await.expect(200).text(), "x");
        });
        assert!(alive.await.is_ok(), "no answer after the batch of seed {seed}");
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a panic in the batch of seed {seed}");
        seed += 1;
    }
    let batches = (seed - first) as usize;
    println!("{batches} batches of {BATCH}, {admitted} admitted, the next seed is {seed}");
    assert!(
        admitted > batches * BATCH / 4,
        "half of those that were signed last are admitted: {admitted}"
    );
}
