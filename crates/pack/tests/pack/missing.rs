//! The last blobs of a worker are missing from the backend, where a process has said that they were uploaded.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use larder_objects::ObjectError;
use larder_pack::{BlobId, PackConfig, WorkerId};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::copies::{blobs, numbered, without};
use crate::support::{
    Faulty, config, content, get, made, open, put, put_and_flush, snapshot, try_open,
};

/// Three blobs, and one process that uploaded them.
async fn three_blobs() -> (tempfile::TempDir, Arc<Faulty>) {
    let (dir, backend, store) = made().await;
    for seed in 0..3 {
        put(&store, &format!("k{seed}"), content(seed, 1000)).await.unwrap();
        assert!(store.flush().await);
    }
    (dir, backend)
}

/// A next process begins behind the blobs, and ends.
async fn begin(dir: &Path, backend: &Arc<Faulty>, process: u64) {
    let store = open(dir, backend).await;
    numbered(backend, process).await;
    drop(store);
}

/// The last blob goes; its name and bytes.
async fn lose_last(backend: &Faulty) -> (Name, Bytes) {
    let (name, _) = backend.names("blobs").await.pop().unwrap();
    let (name, bytes) = (Name::from(name.as_str()), backend.bytes(&name).await);
    backend.inner.delete(&name).await.unwrap();
    (name, bytes)
}

/// A start stops at the third blob until that is there again, and loses nothing then.
async fn waits_for_it(config: PackConfig, backend: &Arc<Faulty>, (name, bytes): (Name, Bytes)) {
    let missing = format!("blob {} is not in the backend", BlobId { worker: WorkerId(1), seq: 3 });
    for _ in 0..2 {
        let opened = try_open(config.clone(), backend).await;
        let error = opened.err().expect("what the blob had would be lost in silence").to_string();
        assert!(error.contains(&missing), "{error}");
    }
    backend.inner.put(&name, bytes.into()).await.unwrap();
    let store = try_open(config, backend).await.unwrap();
    for seed in 0..3 {
        assert_eq!(get(&store, &format!("k{seed}")).await.unwrap(), content(seed, 1000));
    }
}

#[tokio::test]
async fn a_take_over_stops_at_a_last_blob_that_a_process_knew_and_goes_on_when_it_is_back() {
    let (dir, backend) = three_blobs().await;
    begin(dir.path(), &backend, 2).await;
    let lost = lose_last(&backend).await;
    let heir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(heir.path()) };
    waits_for_it(takes, &backend, lost).await;
}

#[tokio::test]
async fn a_rebuild_stops_at_a_last_blob_that_a_process_knew_and_judges_it_not_void() {
    let (dir, backend) = three_blobs().await;
    begin(dir.path(), &backend, 2).await;
    let lost = lose_last(&backend).await;
    without(dir.path(), &["kv", "log", "spool"]);
    waits_for_it(config(dir.path()), &backend, lost).await;
}

#[tokio::test]
async fn a_rebuild_stops_at_a_last_blob_that_a_process_on_a_copy_knew() {
    let (dir, backend) = three_blobs().await;
    let copy = snapshot(dir.path());
    begin(dir.path(), &backend, 2).await;
    let lost = lose_last(&backend).await;
    without(copy.path(), &["kv", "log", "spool"]);
    waits_for_it(config(copy.path()), &backend, lost).await;
}

#[tokio::test]
async fn a_rebuild_stops_at_the_last_blob_in_the_log() {
    let (dir, backend) = three_blobs().await;
    let lost = lose_last(&backend).await;
    without(dir.path(), &["kv"]);
    waits_for_it(config(dir.path()), &backend, lost).await;
}

#[tokio::test]
async fn the_number_of_a_last_blob_that_is_lost_is_not_given_again() {
    let (dir, backend) = three_blobs().await;
    begin(dir.path(), &backend, 2).await;
    lose_last(&backend).await;
    without(dir.path(), &["kv", "log", "spool"]);
    let accepts = PackConfig { accept_loss: true, ..config(dir.path()) };
    let store = try_open(accepts, &backend).await.unwrap();
    let report = std::fs::read_to_string(dir.path().join("lost.txt")).unwrap();
    assert!(report.contains("is not in the backend"), "{report}");
    assert_eq!(get(&store, "k1").await.unwrap(), content(1, 1000));
    assert_eq!(get(&store, "k2").await, Err(ObjectError::NoSuchKey));
    put_and_flush(&store, "k4", 4).await;
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2), (3, 4)]);
    drop(store);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "k4").await.unwrap(), content(4, 1000));
}
