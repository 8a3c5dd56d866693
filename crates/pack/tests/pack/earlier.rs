//! Builds from before processes had numbers, and later ones: neither goes on where the other was, and each stops before it
//! writes anything that decides what counts.

use std::sync::Arc;

use larder_kv::{Batch, Kv, KvReader, LsmKv};
use larder_pack::{PackConfig, PackError};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::support::{Faulty, config, content, get, made, open, put_and_flush, snapshot, try_open};

/// Reads a name as builds from before numbers do. They read that of a claim before they claim
/// anything, and that of a takeover fence at each start before they open the index. Of a name that they
/// refuse, they say that it is damaged, and end.
fn earlier_build_reads(name: &str) -> bool {
    u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16).is_some()
}

/// Names below claims and takeover fences at which such a build stops.
async fn stops_at(backend: &Faulty, below: &str) -> Vec<String> {
    let mut stops = Vec::new();
    for prefix in ["claims", "horizons"] {
        let prefix = format!("{below}{prefix}");
        for (name, _) in backend.names(&prefix).await {
            let file = name.strip_prefix(&prefix).unwrap().strip_prefix('/').unwrap();
            if !earlier_build_reads(file) {
                stops.push(name);
            }
        }
    }
    stops
}

const MARKERS: [&str; 2] = ["claims/numbered", "horizons/numbered"];

async fn write(backend: &Faulty, name: &str, text: &'static str) {
    backend.inner.put(&Name::from(name), text.into()).await.unwrap();
}

#[tokio::test]
async fn an_earlier_build_is_stopped_before_a_process_asks_for_its_first_number() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    backend.delay("incarnations/");
    // A new directory starts with a number, or not at all.
    assert!(try_open(config(dir.path()), &backend).await.is_err());
    backend.delayed("incarnations/").await;
    assert_eq!(backend.names("incarnations").await, []);
    assert_eq!(stops_at(&backend, "").await, MARKERS);
}

#[tokio::test]
async fn what_stops_an_earlier_build_is_nothing_to_this_one() {
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    assert_eq!(stops_at(&backend, "").await, MARKERS);
    drop(store);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
    drop(store);
    let new = tempfile::tempdir().unwrap();
    let error = try_open(config(new.path()), &backend).await.err().unwrap();
    assert!(matches!(error, PackError::Owned { .. }), "{error}");
    let takes = PackConfig { take_over: true, ..config(new.path()) };
    let heir = try_open(takes, &backend).await.unwrap();
    assert_eq!(get(&heir, "k").await.unwrap(), content(1, 1000));
    assert!(heir.flush().await);
    assert_eq!(stops_at(&backend, "").await, MARKERS);
}

#[tokio::test]
async fn a_backend_without_the_marker_gets_it_from_the_next_process() {
    let (dir, backend, store) = made().await;
    assert!(store.flush().await);
    drop(store);
    for marker in MARKERS {
        backend.inner.delete(&Name::from(marker)).await.unwrap();
    }
    let store = open(dir.path(), &backend).await;
    // A process that has nothing to upload has its number a little later.
    put_and_flush(&store, "k", 1).await;
    assert_eq!(stops_at(&backend, "").await, MARKERS);
}

#[tokio::test]
async fn a_marker_of_a_later_release_stops_this_one() {
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    write(&backend, "horizons/later", "").await;
    let error = try_open(config(dir.path()), &backend).await.err().unwrap().to_string();
    assert!(error.contains("horizons/later") && error.contains("later release"), "{error}");
    backend.inner.delete(&Name::from("horizons/later")).await.unwrap();

    write(&backend, "claims/later", "").await;
    let before = backend.names("").await;
    let new = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(new.path()) };
    let error = try_open(takes, &backend).await.err().unwrap().to_string();
    assert!(error.contains("claims/later") && error.contains("later release"), "{error}");
    assert_eq!(backend.names("").await, before, "it has claimed nothing");
}

#[tokio::test]
async fn a_successor_that_cannot_read_a_blobs_name_takes_over_nothing() {
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    let (blob, _) = backend.names("blobs").await.remove(0);
    let later = format!("{blob}-and-more");
    write(&backend, &later, "").await;
    let new = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(new.path()) };
    let error = try_open(takes, &backend).await.err().unwrap().to_string();
    assert!(error.contains(&later), "{error}");
    let takeover_fences: Vec<_> =
        backend.names("horizons").await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(takeover_fences, [MARKERS[1]], "what it did not list would be void for ever");
    drop(dir);
}

#[tokio::test]
async fn an_index_without_numbers_is_upgraded_silently() {
    const LAYOUT: &[u8] = b"L";
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    let rows = |of: &tempfile::TempDir| LsmKv::open(&of.path().join("kv"), 1 << 20).unwrap();
    let kv = rows(&dir);
    assert_eq!(kv.get(LAYOUT).unwrap().unwrap(), &[1, 3][..]);
    let mut batch = Batch::new();
    batch.put(LAYOUT, &[1, 2]);
    // A process that makes the index anew begins with an empty one.
    batch.put(b"Z", b"is there");
    kv.apply(&batch).unwrap();
    kv.flush().unwrap();
    drop(kv);
    // Already while it has no number.
    backend.delay("incarnations/");
    let store = open(dir.path(), &backend).await;
    backend.delayed("incarnations/").await;
    let copy = snapshot(dir.path());
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
    drop(store);
    for of in [&copy, &dir] {
        let kv = rows(of);
        assert_eq!(kv.get(LAYOUT).unwrap().unwrap(), &[1, 3][..]);
        assert!(kv.get(b"Z").unwrap().is_some(), "it was made anew");
    }
}
