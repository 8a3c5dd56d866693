use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_identity::limits::CERTIFICATE_VALIDITY;
use larder_identity::proof::Secret;
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_kv::SimKv;
use larder_metalog::Lsn;
use larder_net::limits::{HANDSHAKES_MAX, HELLO_TIME_MAX};
use larder_net::{CallError, Endpoint, Listener, Peer, Refused};
use larder_types::{HybridClock, OpSeq, ServerId};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::identity::{credentials, server_of};
use super::places::{FeedQuota, Place};
use super::wire::{FeedReply, FeedRequest, FeedUpdate, Refusal, WorkerService};
use super::*;
use crate::backend::Backend;
use crate::clock::{SuspendAwareInstant, uptime};
use crate::commit::queue::Queue;
use crate::commit::spool::Spool;
use crate::format::entry::{Change, Container, Entry};
use crate::format::rows::BlobRow;
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, Run, WorkerId};
use crate::index::Index;
use crate::limits::{
    BODY_LANES, CHANGE_CALLS_OF_ONE_MAX, FEED_BODY_BYTES_OF_ONE_MAX, FEED_CALLS_OF_ONE_MAX,
    PACKED_BYTES_MAX,
};
use crate::owner::announce::Announcement;
use crate::owner::name::WorkerName;
use crate::owner::numbering::Numbering;
use crate::owner::ownership::Ownership;
use crate::read::{HeldBody, Holder};

const WORKER: WorkerId = WorkerId(3);
const CALLER: WorkerId = WorkerId(4);
const ASKED: FeedPosition = FeedPosition { blob: 4, from: 0, last: None };
const ROW: BlobRow = BlobRow { bytes: 9, ..BlobRow::NONE };
const PATIENCE: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::of(*b"0123456789abcdef0123456789abcdef")
}

fn endpoint(secret: &Secret, worker: WorkerId) -> Arc<Endpoint> {
    Endpoint::new(credentials(secret, worker).unwrap())
}

fn caller() -> Caller {
    Caller::new(endpoint(&secret(), CALLER))
}

async fn socket() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A worker whose blob 4 is uploaded.
fn feed() -> FeedSource {
    let spool = Spool::new(SimDisk::new(1, 1 << 24), WORKER).unwrap();
    spool.start(5);
    let index = Index::over(Box::new(SimKv::default())).unwrap().0;
    index.add_blob(BlobId { worker: WORKER, seq: 4 }, &ROW, None).unwrap();
    let handed = Arc::new(Handed::new(Arc::default()));
    FeedSource::new(WORKER, Arc::new(spool), Arc::new(index), handed)
}

/// The announcement of a worker with this claim, at this address.
fn announced(worker: WorkerId, address: SocketAddr) -> Announcement {
    let name = WorkerName::new("a").unwrap();
    let (prefix, address) = (name.prefix(), Some(address.to_string()));
    Announcement { name, prefix, worker, address, announced_ms: 0 }
}

async fn listening(feed: &Arc<FeedSource>) -> (Announcement, Listener) {
    let listener = feed.listen(&endpoint(&secret(), WORKER), socket().await).unwrap();
    (announced(WORKER, listener.address()), listener)
}

async fn serving(feed: FeedSource) -> (Announcement, Listener) {
    listening(&Arc::new(feed)).await
}

async fn heard_by(caller: &Caller, announcement: &Announcement) -> Result<FeedUpdate, String> {
    let asked = tokio::time::timeout(PATIENCE, caller.changes(announcement, ASKED)).await;
    let received = asked.expect("a call ends").map_err(|error| error.to_string())?;
    Ok(received.0)
}

async fn received(announcement: &Announcement) -> Result<FeedUpdate, String> {
    heard_by(&caller(), announcement).await
}

fn uploaded() -> Result<FeedUpdate, String> {
    Ok(FeedUpdate::Uploaded { blob: 4, row: ROW })
}

#[tokio::test]
async fn a_worker_of_the_bucket_is_answered() {
    let (announcement, _listener) = serving(feed()).await;
    assert_eq!(received(&announcement).await, uploaded());
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_neither_answered_nor_heard() {
    let (announcement, _listener) = serving(feed()).await;
    let stranger = Caller::new(endpoint(&Secret::of([1; 32]), CALLER));
    let refused = heard_by(&stranger, &announcement).await.unwrap_err();
    assert!(refused.contains("look at --peer-advertise"), "{refused}");
    // A server with a certificate of the same authority, but without the role, is refused there.
    let authority = Authority::from_secret(&secret()).unwrap();
    let servers = Roles::of(&[Role::Proxy]);
    let proxy = authority.identity_for(ServerId(9), servers, CERTIFICATE_VALIDITY).unwrap();
    let proxy = Endpoint::new(Credentials::new(&proxy).unwrap());
    let lane: Peer<WorkerService> =
        Peer::new(&proxy, server_of(WORKER), announcement.address.clone().unwrap());
    let ask = FeedRequest::Changes { worker: WORKER, asked: ASKED };
    let refused = lane.call(&ask, Bytes::new(), Instant::now() + PATIENCE).await.unwrap_err();
    let CallError::Denied(denied) = refused else { panic!("{refused}") };
    assert_eq!(denied.reason, Refused::WrongRole, "{denied}");
}

#[tokio::test]
async fn a_worker_is_not_taken_for_another_claim() {
    let (announcement, _listener) = serving(feed()).await;
    let heir = Announcement { worker: WorkerId(WORKER.0 + 1), ..announcement.clone() };
    let caller = caller();
    let refused = heard_by(&caller, &heir).await.unwrap_err();
    assert!(refused.contains("another worker answers at its address"), "{refused}");
    // Once it is announced as it is, it is asked over other connections.
    assert_eq!(heard_by(&caller, &announcement).await, uploaded());
}

/// Two claims may have one number in certificates.
#[tokio::test]
async fn a_call_that_claims_another_identity_is_refused() {
    let (announcement, _listener) = serving(feed()).await;
    let ours = endpoint(&secret(), CALLER);
    let lane: Peer<WorkerService> =
        Peer::new(&ours, server_of(WORKER), announcement.address.unwrap());
    let other = WorkerId(WORKER.0 + 1);
    for ask in [
        FeedRequest::Changes { worker: other, asked: ASKED },
        FeedRequest::Body { worker: other, blob: 4, unit: 0, from: 0, to: 5 },
    ] {
        let answer = lane.call(&ask, Bytes::new(), Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(answer.0, FeedReply::Refused(Refusal::OtherClaim));
    }
}

#[tokio::test]
async fn a_worker_of_an_earlier_release_is_named_with_what_to_do() {
    let earlier = socket().await;
    let announcement = announced(WORKER, earlier.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = earlier.accept().await.unwrap();
            let mut said = [0; 512];
            assert!(stream.read(&mut said).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        }
    });
    let refused = received(&announcement).await.unwrap_err();
    assert!(refused.contains("run all workers of the bucket with the same one"), "{refused}");
}

/// A worker of an earlier release, or anybody who speaks HTTP.
#[tokio::test]
async fn a_call_of_an_earlier_release_is_not_answered() {
    let (announcement, _listener) = serving(feed()).await;
    let mut stream = TcpStream::connect(announcement.address.unwrap()).await.unwrap();
    let call = b"GET /larder/v3/changes?worker=3&blob=4&from=0 HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(call).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "it is closed");
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn whoever_only_connects_keeps_no_other_worker_away() {
    let (announcement, _listener) = serving(feed()).await;
    let mut silent = Vec::new();
    for _ in 0..HANDSHAKES_MAX + 8 {
        silent.push(TcpStream::connect(announcement.address.as_ref().unwrap()).await.unwrap());
    }
    let begun = Instant::now();
    assert_eq!(received(&announcement).await, uploaded());
    assert!(begun.elapsed() < HELLO_TIME_MAX, "before any of them was given up");
}

/// Takes all places for calls of one worker.
fn crowd(feed: &FeedSource, caller: WorkerId) -> Vec<Place> {
    let all = |of| std::iter::from_fn(move || feed.places.call(server_of(caller), of));
    let places: Vec<Place> = all(FeedQuota::Bodies).chain(all(FeedQuota::Changes)).collect();
    assert_eq!(places.len(), FEED_CALLS_OF_ONE_MAX + CHANGE_CALLS_OF_ONE_MAX);
    places
}

#[tokio::test]
async fn a_caller_over_its_share_gets_busy_and_keeps_its_connection() {
    let feed = Arc::new(feed());
    let (announcement, _listener) = listening(&feed).await;
    let ours = endpoint(&secret(), CALLER);
    let lane: Peer<WorkerService> =
        Peer::new(&ours, server_of(WORKER), announcement.address.clone().unwrap());
    let ask = FeedRequest::Changes { worker: WORKER, asked: ASKED };
    let soon = || Instant::now() + PATIENCE;
    lane.call(&ask, Bytes::new(), soon()).await.unwrap();
    let places = crowd(&feed, CALLER);
    for _ in 0..FEED_CALLS_OF_ONE_MAX {
        let busy = lane.call(&ask, Bytes::new(), soon()).await;
        assert!(matches!(busy, Err(CallError::Busy(_))), "{busy:?}");
    }
    // Another worker is answered meanwhile, and one that goes on asking is once there is room.
    let other = Caller::new(endpoint(&secret(), WorkerId(5)));
    assert_eq!(heard_by(&other, &announcement).await, uploaded());
    let again = endpoint(&secret(), CALLER);
    let caller = Caller::new(again.clone());
    let (received, ()) = tokio::join!(heard_by(&caller, &announcement), async {
        while again.metrics().busy.get() == 0 {
            tokio::task::yield_now().await;
        }
        drop(places);
    });
    assert_eq!(received, uploaded());
    lane.call(&ask, Bytes::new(), soon()).await.unwrap();
    assert_eq!(ours.metrics().connected.get(), 1, "over the same connection");
}

/// A worker whose blob 5 waits, with one body of the largest size.
fn with_a_large_body() -> (Arc<FeedSource>, FeedRequest) {
    let feed = feed();
    let bytes = vec![7; PACKED_BYTES_MAX as usize];
    let file = feed.spool.write(5, UploadUnit::SHARED, 0, &[Bytes::from(bytes)]).unwrap();
    feed.spool.add(5, None, &entry(10, 100), Lsn(0), Some(&file));
    let ask = FeedRequest::Body { worker: WORKER, blob: 5, unit: 0, from: 0, to: PACKED_BYTES_MAX };
    (Arc::new(feed), ask)
}

/// Answers that have not left, and take all memory of one worker for bodies.
async fn answers_in_memory(feed: &FeedSource, ask: &FeedRequest) -> Vec<Bytes> {
    let mut kept = Vec::new();
    for _ in 0..FEED_BODY_BYTES_OF_ONE_MAX as u64 / PACKED_BYTES_MAX {
        let place = feed.places.call(server_of(CALLER), FeedQuota::Bodies).unwrap();
        let (reply, payload) = feed.answer(ask.clone(), place).await.unwrap();
        assert_eq!((reply, payload.len() as u64), (FeedReply::Body, PACKED_BYTES_MAX));
        kept.push(payload);
    }
    kept
}

#[tokio::test]
async fn waiting_bodies_are_requested_over_all_connections() {
    let (feed, ask) = with_a_large_body();
    let (announcement, _listener) = listening(&feed).await;
    let kept = answers_in_memory(&feed, &ask).await;
    let ours = endpoint(&secret(), CALLER);
    let caller = Arc::new(Caller::new(ours.clone()));
    let link = Link::new(Arc::new(Mutex::new(announcement)), caller);
    let container = Container::Blob(BlobId { worker: WORKER, seq: 5 });
    let mut waits: Vec<_> =
        (0..BODY_LANES).map(|_| link.body(container, 0..PACKED_BYTES_MAX)).collect();
    let connected = async {
        while ours.metrics().connected.get() < BODY_LANES as u64 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = futures::future::select_all(&mut waits) => panic!("its share of memory is taken"),
        () = connected => {}
    }
    drop(kept);
    for held in futures::future::join_all(waits).await {
        assert!(matches!(held, Ok(HeldBody::Bytes(bytes)) if bytes.iter().all(|byte| *byte == 7)));
    }
}

#[tokio::test]
async fn bodies_that_have_not_left_hold_up_neither_changes_nor_other_workers() {
    let (feed, ask) = with_a_large_body();
    let (announcement, _listener) = listening(&feed).await;
    // One that does not read: its answers stay in memory.
    let kept = answers_in_memory(&feed, &ask).await;
    let ours = endpoint(&secret(), CALLER);
    let lane = |of: &Arc<Endpoint>| -> Peer<WorkerService> {
        Peer::new(of, server_of(WORKER), announcement.address.clone().unwrap())
    };
    let soon = || Instant::now() + PATIENCE;
    let (bodies, others) = (lane(&ours), lane(&endpoint(&secret(), WorkerId(5))));
    let mut waits = Box::pin(bodies.call(&ask, Bytes::new(), soon()));
    let (_, payload) = tokio::select! {
        biased;
        answer = &mut waits => panic!("it has its share of memory already: {answer:?}"),
        other = others.call(&ask, Bytes::new(), soon()) => other.unwrap(),
    };
    assert!(payload.iter().all(|byte| *byte == 7));
    let (changes, follower) = (FeedRequest::Changes { worker: WORKER, asked: ASKED }, lane(&ours));
    tokio::select! {
        biased;
        answer = &mut waits => panic!("it has its share of memory already: {answer:?}"),
        received = follower.call(&changes, Bytes::new(), soon()) => drop(received.unwrap()),
    }
    drop(kept);
    assert_eq!(waits.await.unwrap().0, FeedReply::Body);
}

/// A worker with a good certificate may ask for anything.
#[tokio::test(start_paused = true)]
async fn whatever_is_asked_for_is_answered_or_refused() {
    let (feed, _) = with_a_large_body();
    let ends = [0, 1, 5, PACKED_BYTES_MAX, PACKED_BYTES_MAX + 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let (mut given, mut refused) = (0, 0);
    for blob in [0, 4, 5, 6, u64::MAX] {
        for (from, to) in ends.into_iter().flat_map(|from| ends.map(|to| (from, to))) {
            let mut asks = [0, 1, u8::MAX]
                .map(|unit| FeedRequest::Body { worker: WORKER, blob, unit, from, to })
                .to_vec();
            for last in [None, Some((OpSeq(from), HybridClock(to)))] {
                asks.push(FeedRequest::Changes {
                    worker: WORKER,
                    asked: FeedPosition { blob, from, last },
                });
            }
            for ask in asks {
                let place = feed.places.call(server_of(CALLER), FeedQuota::Bodies).unwrap();
                match feed.answer(ask, place).await.expect("it is not busy").0 {
                    FeedReply::Refused(_) => refused += 1,
                    _ => given += 1,
                }
            }
        }
    }
    assert!(given > 0 && refused > 0, "{given} given, {refused} refused");
}

fn entry(seq: u64, clock: u64) -> Entry {
    let run = Run { worker: WORKER, first: 1, last: 1 };
    let change = Change::Retired { run, backups: Vec::new() };
    Entry { seq: OpSeq(seq), clock: HybridClock(clock), change }
}

/// A process whose blob 5 has entries of these numbers and clocks, which are all of the same length; and that length.
fn process(changes: &[(u64, u64)]) -> (FeedSource, u64) {
    let feed = feed();
    for (seq, clock) in changes {
        feed.spool.add(5, None, &entry(*seq, *clock), Lsn(0), None);
    }
    let all = feed.spool.entries(5, 0, usize::MAX).unwrap().bytes.len() as u64;
    (feed, all / changes.len() as u64)
}

#[tokio::test]
async fn changes_are_sent_only_after_an_entry_of_the_process() {
    // Of two copies of a directory one was heard through its second entry.
    let (_, len) = process(&[(10, 100), (11, 101)]);
    let (feed, len_too) = process(&[(10, 100), (11, 102), (12, 103)]);
    assert_eq!(len, len_too);
    let (announcement, _listener) = serving(feed).await;
    let caller = caller();
    let asked = async |from: u64, last: Option<(u64, u64)>| {
        let last = last.map(|(seq, clock)| (OpSeq(seq), HybridClock(clock)));
        let received = caller.changes(&announcement, FeedPosition { blob: 5, from, last }).await;
        match received {
            Ok((FeedUpdate::Entries { bytes, .. }, _)) => Some(bytes.len() as u64),
            Ok((received, _)) => panic!("{received:?}"),
            Err(error) => {
                assert!(error.to_string().contains(&Refusal::Diverged.to_string()), "{error}");
                None
            }
        }
    };
    assert_eq!(asked(2 * len, Some((11, 101))).await, None, "another process announced that");
    assert_eq!(asked(2 * len, Some((10, 102))).await, None, "of another number");
    assert_eq!(asked(2 * len + 1, Some((11, 102))).await, None, "no entry ends there");
    assert_eq!(asked(9 * len, Some((11, 102))).await, None, "it has less");
    assert_eq!(asked(2 * len, None).await, None, "nobody knows who announced that");
    assert_eq!(asked(0, None).await, Some(3 * len));
    for (nth, last) in [(1, (10, 100)), (2, (11, 102))] {
        assert_eq!(asked(nth * len, Some(last)).await, Some((3 - nth) * len));
    }
}

#[tokio::test]
async fn a_process_without_ownership_serves_no_feed() {
    let backend = Backend::over(Arc::new(InMemory::new()));
    let (feed, disk) = (feed(), SimDisk::new(1, 1 << 20));
    let numbering = Arc::new(Numbering::new(backend.clone(), WORKER, disk, uptime));
    let (fatal, owned) = (tokio::sync::watch::Sender::new(None), SuspendAwareInstant::now(uptime));
    let parts = (numbering, feed.spool.clone());
    let owner = Ownership::new(parts, owned, Arc::<Queue>::default(), fatal, uptime);
    let owner = Arc::new(owner);
    let (announcement, _listener) = serving(feed.owned(owner.clone())).await;
    assert!(received(&announcement).await.is_ok());
    assert!(backend.put_new("claims/0000000000000004", "a claim".into()).await.unwrap());
    assert!(owner.ask().await.unwrap_err().is_superseded());
    let refused = received(&announcement).await.unwrap_err();
    assert!(refused.contains(&Refusal::OtherClaim.to_string()), "{refused}");
}
