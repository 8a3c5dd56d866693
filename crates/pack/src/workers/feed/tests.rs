use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use larder_env::SimDisk;
use larder_kv::SimKv;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::wire::Heard;
use super::*;
use crate::entry::{BlobId, WorkerId};
use crate::index::Index;
use crate::rows::BlobRow;
use crate::spool::Spool;
use crate::workers::uploads::Handed;

const WORKER: WorkerId = WorkerId(3);
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
async fn worker() -> String {
    let spool = Spool::new(SimDisk::new(1, 1 << 20), WORKER).unwrap();
    spool.start(5);
    let index = Index::over(Box::new(SimKv::default())).unwrap().0;
    index.add_blob(BlobId { worker: WORKER, seq: 4 }, &ROW, None).unwrap();
    let handed = Arc::new(Handed::new(Arc::default()));
    let feed = Feed::new(WORKER, secret(), Arc::new(spool), Arc::new(index), handed);
    let (listener, address) = listen().await;
    tokio::spawn(serve(listener, Arc::new(feed)));
    address
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
    let asked = caller.changes(address, WORKER, 4, 0);
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
async fn an_answer_to_another_call_is_not_heard() {
    let repeats = on_the_way(worker().await, |_| {}, true).await;
    assert!(heard(&repeats).await.is_some());
    assert_eq!(heard(&repeats).await, None);
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_neither_answered_nor_heard() {
    let worker = worker().await;
    let caller = Caller { secret: Some(Secret::known(b"another")) };
    let refused = caller.changes(&worker, WORKER, 4, 0).await.unwrap_err();
    assert!(refused.to_string().contains(StatusCode::FORBIDDEN.as_str()), "{refused}");
}
