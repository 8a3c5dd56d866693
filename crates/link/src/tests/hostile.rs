//! Fuzzers: regions with good keys and spoiled messages, at either end, and strangers.

use std::time::Duration;

use larder_env::SeededRng;
use larder_env::hostile::{panics, rounds, spoiled};
use larder_protocol::region::journal::Batch;
use larder_protocol::region::{Listed, Range, Sum, Summed, Token};
use larder_types::codec::encode;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::frame;
use crate::identity::Identity;
use crate::limits::CALL_TIME_MAX;
use crate::message::{Join, JoinRefused, Joined, RegionList, Request};
use crate::registry::identity;
use crate::tls::{self, no_name};
use crate::transport::RegionConnector;

/// Rounds of a short run.
const ROUNDS: u64 = 200;
/// Time to wait for an answer that may not come.
const TIMEOUT: Duration = Duration::from_millis(100);

fn range() -> Range {
    Range { from: vec![1, 2], to: Some(vec![3]) }
}

fn requests(token: &JoinToken) -> Vec<Vec<u8>> {
    let names = vec![(name("a"), true), (name("b"), false)];
    let (name, address) = (region_name("x"), "x.example:7001".parse().unwrap());
    let join = Join { token: token.id(), proof: [5; 32], name, address };
    let all = [
        Request::Hello,
        Request::IdsQuery(ask()),
        Request::Walk(Walk { range: range() }),
        Request::List(List { range: range() }),
        Request::Keys(super::regions::keys_ask(bucket())),
        Request::Fetch(Fetch { names }),
        Request::Join(join),
    ];
    all.iter().map(encode).collect()
}

/// A whole request or answer of HTTP, of which now and then anything is spoiled.
fn http(draw: &mut SeededRng, head: &str, body: Vec<u8>) -> Vec<u8> {
    let head = format!("{head}\r\nhost: region\r\ncontent-length: {}\r\n\r\n", body.len());
    let bytes = [head.into_bytes(), body].concat();
    if draw.below(8) == 0 { spoiled(draw, &[bytes]) } else { bytes }
}

/// Sends bytes and no more, and returns the status that comes back, if one does.
async fn status(address: &Address, tls: Arc<ClientConfig>, bytes: &[u8]) -> Option<u16> {
    let tcp = TcpStream::connect(address.as_str()).await.ok()?;
    tcp.set_nodelay(true).ok()?;
    let mut stream = TlsConnector::from(tls).connect(no_name(), tcp).await.ok()?;
    stream.write_all(bytes).await.ok()?;
    let mut received = vec![0; 4096];
    // Of a request that is not complete the answering end waits for more.
    let len = timeout(TIMEOUT, stream.read(&mut received)).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&received[..len]);
    text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_requests_end_no_region() {
    let (first, second) = two(How::Bytes(10)).await;
    let (own, before) = (first.members().own.clone(), panics());
    let peer = tls::client(&identity(second.path()).unwrap(), own.fingerprint).unwrap();
    let stranger = tls::client(&Identity::draw().unwrap(), own.fingerprint).unwrap();
    let corpus = requests(&first.token());
    let (mut answered, mut refused, mut unsound, mut unheard) = (0, 0, 0, 0);
    for mut draw in rounds(ROUNDS) {
        let body = spoiled(&mut draw, &corpus);
        let bytes = http(&mut draw, "POST /region HTTP/1.1", body);
        let is_stranger = draw.below(4) == 0;
        let tls = if is_stranger { &stranger } else { &peer };
        match status(&own.advertise, tls.clone(), &bytes).await {
            Some(200) => {
                assert!(!is_stranger, "a stranger was answered: {bytes:?}");
                answered += 1;
            }
            Some(403) => refused += 1,
            Some(_) => unsound += 1,
            None => unheard += 1,
        }
    }
    println!("{answered} answered, {refused} refused, {unsound} not sound, {unheard} not heard");
    assert!(answered > 0 && refused > 0 && unsound > 0, "all of it is reached");
    assert_eq!(first.members().peers.len(), 1, "nobody has joined");
    let third = first.joined("three", How::Bytes(10)).await;
    assert_eq!(third.to(&first).hello().await.unwrap().number, RegionId(1));
    assert_eq!(panics(), before, "nothing panicked");
}

/// Answers with their statuses: first those to what [`asked`] asks, in its order.
fn answers() -> Vec<(u16, Vec<u8>)> {
    let token = Token { through: OpSeq(300) };
    let ids = vec![(OpSeq(300), marker().id(name("a")))];
    let batch = Batch { ids: ids.clone(), token, last: OpSeq(400), left: (7, 9000) };
    let buckets = || vec![(BucketId(1), bucket())];
    let summed = Summed { runs: vec![(range(), Sum::default())], rest: Some(range()) };
    let listed = Listed { ids: ids.into_iter().map(|(_, id)| id).collect(), rest: None };
    let fetched =
        |key, bytes| Fetched { name: name(key), entry: Some(marker()), bytes, is_withheld: false };
    let stream = [
        frame::head(&fetched("a", 3)).unwrap().to_vec(),
        vec![7; 3],
        frame::head(&fetched("b", 0)).unwrap().to_vec(),
    ];
    vec![
        (200, encode(&Hello { number: RegionId(1), pg_count: 256, now_ms: 7 })),
        (200, encode(&IdsReply { pgs: vec![(PgId(3), Ok(batch))], buckets: buckets() })),
        (200, encode(&WalkAnswer { summed, buckets: buckets() })),
        (200, encode(&ListAnswer { listed, buckets: buckets() })),
        (200, stream.concat()),
        (200, encode(&RegionList { regions: Vec::new() })),
        (200, encode(&Joined { number: RegionId(3), known: RegionList { regions: Vec::new() } })),
        (503, encode(&Declined::Busy)),
        (400, encode(&Declined::Unsound("why".into()))),
        (403, encode(&Declined::Join(JoinRefused::Full))),
    ]
}

/// Asks one thing of a region that answers anything.
async fn asked(what: usize, link: &Link) -> Result<(), LinkError> {
    match what {
        0 => link.hello().await.map(drop),
        1 => link.query_ids(ask()).await.map(drop),
        2 => link.walk(Walk { range: range() }).await.map(drop),
        3 => link.list(List { range: range() }).await.map(drop),
        _ => {
            let names = vec![(name("a"), true), (name("b"), false)];
            let mut stream = link.fetch(Fetch { names }).await?;
            while let Some(fetched) = stream.next().await? {
                let mut taken = 0;
                while let Some(bytes) = stream.bytes().await? {
                    taken += bytes.len() as u64;
                }
                assert_eq!(taken, fetched.bytes, "an entry is whole");
            }
            Ok(())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_answers_end_no_region() {
    let (first, second) = two(How::Bytes(10)).await;
    let before = panics();
    let (socket, address) = a_socket().await;
    let acceptor = TlsAcceptor::from(first.region_endpoint.answering().clone());
    let mut peer = second.members().peer(RegionId(1)).unwrap().clone();
    peer.address = address;
    let own = identity(second.path()).unwrap();
    let corpus = answers();
    let (mut good, mut bad) = (0, 0);
    for mut draw in rounds(ROUNDS) {
        let link =
            Link::to(&peer, RegionConnector::of(&own, peer.fingerprint).unwrap(), Arc::default());
        // An answer to this request, or to any.
        let what = draw.below(5) as usize;
        let other = draw.below(corpus.len() as u64) as usize;
        let (status, body) = &corpus[if draw.below(4) == 0 { other } else { what }];
        let body = if draw.below(2) == 0 {
            body.clone()
        } else {
            spoiled(&mut draw, std::slice::from_ref(body))
        };
        let bytes = http(&mut draw, &format!("HTTP/1.1 {status} so"), body);
        let answering = async {
            let (tcp, _) = socket.accept().await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let Ok(mut stream) = acceptor.accept(tcp).await else { return };
            let mut received = vec![0; 64 * 1024];
            drop(stream.read(&mut received).await);
            drop(stream.write_all(&bytes).await);
            drop(stream.shutdown().await);
        };
        let asking = timeout(2 * CALL_TIME_MAX, asked(what, &link));
        let (ended, ()) = tokio::join!(asking, answering);
        match ended.expect("it ends in time") {
            Ok(()) => good += 1,
            Err(_) => bad += 1,
        }
    }
    println!("{good} understood, {bad} refused");
    assert!(good > 0 && bad > 0, "all of it is reached");
    assert_eq!(panics(), before, "nothing panicked");
}
