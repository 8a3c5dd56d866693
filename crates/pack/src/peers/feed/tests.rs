use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use larder_env::SimDisk;
use larder_kv::SimKv;
use larder_metalog::Lsn;
use larder_types::{HybridClock, OpSeq};
use object_store::memory::InMemory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::wire::Heard;
use super::*;
use crate::backend::Backend;
use crate::clock::{Sighting, uptime};
use crate::commit::queue::Queue;
use crate::commit::spool::Spool;
use crate::format::entry::{Change, Entry};
use crate::format::rows::BlobRow;
use crate::ids::{BlobId, Run, WorkerId};
use crate::index::Index;
use crate::limits::{CALL_HEADERS_MAX, FEED_CONNECTIONS_MAX};
use crate::owner::numbering::Numbering;
use crate::owner::ownership::Ownership;

const WORKER: WorkerId = WorkerId(3);
const ASKED: Asked = Asked { blob: 4, from: 0, last: None };
const ROW: BlobRow = BlobRow { bytes: 9, ..BlobRow::NONE };

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn secret() -> Secret {
    Secret::known(b"0123456789abcdef0123456789abcdef")
}

/// A worker whose blob 4 is uploaded.
fn feed() -> Feed {
    let spool = Spool::new(SimDisk::new(1, 1 << 20), WORKER).unwrap();
    spool.start(5);
    let index = Index::over(Box::new(SimKv::default())).unwrap().0;
    index.add_blob(BlobId { worker: WORKER, seq: 4 }, &ROW, None).unwrap();
    let handed = Arc::new(Handed::new(Arc::default()));
    Feed::new(WORKER, secret(), Arc::new(spool), Arc::new(index), handed)
}

async fn serving(feed: Feed) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(serve(listener, Arc::new(feed)));
    address
}

async fn worker() -> String {
    serving(feed()).await
}

/// Somebody on the way, who changes answers, or gives the first one to everybody.
async fn on_the_way(to: String, change: fn(&mut Vec<u8>), repeats: bool) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let mut first = None;
        while let Ok((mut caller, _)) = listener.accept().await {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(caller.read_u8().await.unwrap());
            }
            let mut worker = TcpStream::connect(&to).await.unwrap();
            worker.write_all(&asked).await.unwrap();
            let mut answer = Vec::new();
            worker.read_to_end(&mut answer).await.unwrap();
            change(&mut answer);
            let answer = if repeats { first.get_or_insert(answer) } else { &answer };
            caller.write_all(answer).await.unwrap();
        }
    });
    address
}

async fn heard(address: &str) -> Option<Heard> {
    let caller = Caller { secret: Some(secret()) };
    let asked = caller.changes(address, WORKER, &ASKED);
    let heard = tokio::time::timeout(Duration::from_secs(30), asked).await.unwrap();
    heard.ok().map(|(heard, _)| heard)
}

#[tokio::test]
async fn an_answer_that_somebody_changed_on_the_way_is_not_heard() {
    let worker = worker().await;
    let uploaded = Some(Heard::Uploaded { blob: 4, row: ROW });
    assert_eq!(heard(&worker).await, uploaded);
    let as_it_is = on_the_way(worker.clone(), |_| {}, false).await;
    assert_eq!(heard(&as_it_is).await, uploaded);
    let body = |answer: &mut Vec<u8>| *answer.last_mut().unwrap() ^= 1;
    let changed = on_the_way(worker.clone(), body, false).await;
    assert_eq!(heard(&changed).await, None);
    let status = |answer: &mut Vec<u8>| answer[9..12].copy_from_slice(b"201");
    let changed = on_the_way(worker, status, false).await;
    assert_eq!(heard(&changed).await, None);
}

#[tokio::test]
async fn whoever_only_connects_keeps_no_other_worker_away() {
    let worker = worker().await;
    let mut silent = Vec::new();
    for _ in 0..FEED_CONNECTIONS_MAX + 8 {
        silent.push(TcpStream::connect(&worker).await.unwrap());
    }
    // Long before any of them is given up.
    let soon = tokio::time::timeout(CALL_HEADERS_MAX / 2, heard(&worker)).await;
    assert_eq!(soon.ok().flatten(), Some(Heard::Uploaded { blob: 4, row: ROW }));
    let mut end = [0; 1];
    let first = tokio::time::timeout(CALL_HEADERS_MAX / 2, silent[0].read(&mut end)).await;
    assert!(matches!(first, Ok(Ok(0) | Err(_))), "the oldest made room: {first:?}");
}

#[tokio::test]
async fn an_answer_to_another_call_is_not_heard() {
    let repeats = on_the_way(worker().await, |_| {}, true).await;
    assert!(heard(&repeats).await.is_some());
    assert_eq!(heard(&repeats).await, None);
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_neither_answered_nor_heard() {
    let worker = worker().await;
    let caller = Caller { secret: Some(Secret::known(b"another")) };
    let refused = caller.changes(&worker, WORKER, &ASKED).await.unwrap_err();
    assert!(refused.to_string().contains(StatusCode::FORBIDDEN.as_str()), "{refused}");
}

/// A process whose blob 5 has entries of these numbers and clocks, which are all of the same length; and that length.
fn process(changes: &[(u64, u64)]) -> (Feed, u64) {
    let feed = feed();
    let run = Run { worker: WORKER, first: 1, last: 1 };
    for (seq, clock) in changes {
        let change = Change::Retired { run, backups: Vec::new() };
        let entry = Entry { seq: OpSeq(*seq), clock: HybridClock(*clock), change };
        feed.spool.add(5, None, &entry, Lsn(0), None);
    }
    let all = feed.spool.entries(5, 0, usize::MAX).unwrap().bytes.len() as u64;
    (feed, all / changes.len() as u64)
}

#[tokio::test]
async fn more_is_told_only_behind_an_entry_that_the_process_itself_has() {
    // Of two copies of a directory one was heard through its second entry.
    let (_, len) = process(&[(10, 100), (11, 101)]);
    let (feed, len_too) = process(&[(10, 100), (11, 102), (12, 103)]);
    assert_eq!(len, len_too);
    let address = serving(feed).await;
    let caller = Caller { secret: Some(secret()) };
    let asked = async |from: u64, last: Option<(u64, u64)>| {
        let last = last.map(|(seq, clock)| (OpSeq(seq), HybridClock(clock)));
        let heard = caller.changes(&address, WORKER, &Asked { blob: 5, from, last }).await;
        match heard {
            Ok((Heard::Entries { bytes, .. }, _)) => Some(bytes.len() as u64),
            Ok((heard, _)) => panic!("{heard:?}"),
            Err(error) => {
                assert!(error.to_string().contains(StatusCode::CONFLICT.as_str()), "{error}");
                None
            }
        }
    };
    assert_eq!(asked(2 * len, Some((11, 101))).await, None, "another process told that");
    assert_eq!(asked(2 * len, Some((10, 102))).await, None, "of another number");
    assert_eq!(asked(2 * len + 1, Some((11, 102))).await, None, "no entry ends there");
    assert_eq!(asked(9 * len, Some((11, 102))).await, None, "it has less");
    assert_eq!(asked(2 * len, None).await, None, "nobody knows who told that");
    assert_eq!(asked(0, None).await, Some(3 * len));
    for (nth, last) in [(1, (10, 100)), (2, (11, 102))] {
        assert_eq!(asked(nth * len, Some(last)).await, Some((3 - nth) * len));
    }
}

#[tokio::test]
async fn a_process_tells_nothing_once_the_place_is_another_s() {
    let backend = Backend::over(Arc::new(InMemory::new()));
    let (feed, disk) = (feed(), SimDisk::new(1, 1 << 20));
    let numbering = Arc::new(Numbering::new(backend.clone(), WORKER, disk, uptime));
    let (fatal, owned) = (tokio::sync::watch::Sender::new(None), Sighting::now(uptime));
    let parts = (numbering, feed.spool.clone());
    let owner = Ownership::new(parts, owned, Arc::<Queue>::default(), fatal, uptime);
    let owner = Arc::new(owner);
    let address = serving(feed.owned(owner.clone())).await;
    assert!(heard(&address).await.is_some());
    assert!(backend.put_new("claims/0000000000000004", "a claim".into()).await.unwrap());
    assert!(owner.ask().await.unwrap_err().is_superseded());
    let caller = Caller { secret: Some(secret()) };
    let refused = caller.changes(&address, WORKER, &ASKED).await.unwrap_err();
    assert!(refused.to_string().contains(StatusCode::CONFLICT.as_str()), "{refused}");
}
