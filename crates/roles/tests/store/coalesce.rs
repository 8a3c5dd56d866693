//! Pieces of objects that were appended to become fewer and larger, and nobody who reads them notices.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use larder_objects::{AppendAt, Objects, Opened, ReadBody};
use larder_roles::proxy::coalesce_pieces;
use larder_roles::{Proxy, Store};
use larder_types::Body;

use crate::{append, assert_sound, bucket, config, content, get, key, put, read};

async fn opened(proxy: &Proxy, name: &str) -> Opened {
    proxy.open(&bucket(), &key(name)).await.unwrap()
}

fn rows(object: &Opened) -> u32 {
    match object.body {
        Body::Pieces { rows, .. } => rows,
        _ => panic!("no pieces: {:?}", object.body),
    }
}

/// Appends records of these lengths one after the other, and returns all their bytes.
async fn append_all(proxy: &Proxy, name: &str, lens: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut expected = Vec::new();
    for (number, len) in lens.enumerate() {
        let record = content(number as u64, len);
        let offset = append(proxy, name, AppendAt::End, &record).await;
        assert_eq!(offset, expected.len() as u64);
        expected.extend_from_slice(&record);
    }
    expected
}

/// Waits until an object has so few pieces.
async fn has_few(proxy: &Proxy, name: &str, rows_max: u32) {
    let begun = Instant::now();
    loop {
        let found = rows(&opened(proxy, name).await);
        if found <= rows_max {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{name} still has {found} pieces");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_every_size_come_to_lie_in_few_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy().clone();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let coalescing = tokio::spawn(coalesce_pieces(proxy.clone()));
    // More windows than a proxy coalesces in a turn, too.
    let kinds: [(&str, Vec<usize>); 4] = [
        ("bytes", vec![1; 512]),
        ("small", vec![300; 2600]),
        ("chunks", vec![20_000; 256]),
        ("mixed", (0..512).map(|n| 1 << (n * 7 % 16)).collect()),
    ];
    let mut wholes = Vec::new();
    for (name, lens) in kinds {
        let count = lens.len() as u32;
        wholes.push((name, append_all(&proxy, name, lens.into_iter()).await));
        has_few(&proxy, name, count / 3).await;
    }
    let done = proxy.coalesced();
    assert!(done.windows.load(Ordering::Relaxed) >= 8);
    for (name, expected) in &wholes {
        assert!(get(&proxy, name).await.unwrap() == expected[..], "{name}");
        let object = opened(&proxy, name).await;
        let (from, to) = (expected.len() as u64 / 3, expected.len() as u64 / 2);
        let part = read(&proxy, &object, from..to).await;
        assert!(part == expected[from as usize..to as usize], "{name}");
    }
    coalescing.abort();
    let _ended = coalescing.await;
    drop(proxy);
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    for (name, expected) in &wholes {
        assert!(get(store.proxy(), name).await.unwrap() == expected[..], "{name}");
        let gone = store.proxy().delete(&bucket(), &key(name), Default::default()).await;
        gone.unwrap();
    }
    store.close();
    assert_sound(&dir);
}

/// A reader has looked up pieces that are gone when it comes to them, and others' bytes lie where they lay.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_goes_on_while_the_pieces_before_it_are_coalesced() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy().clone();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let expected = append_all(&proxy, "log", std::iter::repeat_n(60_000, 256)).await;
    let expected = Arc::new(expected);
    let mut readers = Vec::new();
    for _ in 0..4 {
        let object = opened(&proxy, "log").await;
        assert_eq!(rows(&object), 256);
        let range = 0..object.metax.size;
        let ReadBody::Stream(mut stream) = proxy.read(&object, range).await.unwrap() else {
            panic!("so large an object comes piece by piece");
        };
        let first: Bytes = stream.next().await.unwrap().unwrap();
        readers.push((first, stream));
    }
    let coalescing = tokio::spawn(coalesce_pieces(proxy.clone()));
    has_few(&proxy, "log", 64).await;
    // Blocks that were freed are given to others.
    for round in 0..12 {
        put(&proxy, "other", &content(round, 4_000_000)).await;
    }
    for (first, mut stream) in readers {
        let mut all = first.to_vec();
        while let Some(piece) = stream.next().await {
            all.extend_from_slice(&piece.unwrap());
        }
        assert!(all == **expected, "every byte, once");
    }
    assert_eq!(proxy.alarms().lost_reads.load(Ordering::Relaxed), 0, "nothing was taken for lost");
    coalescing.abort();
    let _ended = coalescing.await;
    drop(proxy);
    store.close();
    assert_sound(&dir);
}
