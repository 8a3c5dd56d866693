//! Repacking: space comes back, nothing else does; and what is removed from the backend, and when.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_objects::{
    CompleteOptions, NamedPart, ObjectError, Objects, PutOptions, ReadBody, UploadOptions,
};
use larder_pack::{PackConfig, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::crashes::{Seen, fill, seen};
use crate::support::{
    Faulty, MIB, Sent, bucket, config, content, count, delete, get, key, made, put, put_and_flush,
    snapshot, try_open,
};

/// A configuration under which what is not needed goes at once.
fn repack_at_once(dir: &std::path::Path) -> PackConfig {
    PackConfig { grace: Duration::ZERO, background_bytes_per_s: 1 << 40, ..config(dir) }
}

async fn repacking_store() -> (tempfile::TempDir, Arc<Faulty>, Packer) {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = try_open(repack_at_once(dir.path()), &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    (dir, backend, store)
}

/// Repacks until there is nothing left to do, and removes what is left over.
async fn run_maintenance(store: &Packer) {
    loop {
        let kept = store.run_maintenance().await.unwrap();
        assert!(store.flush().await);
        if kept.retired == 0 && kept.removed == 0 {
            return;
        }
    }
}

/// Opens a new directory, which shows what the backend has.
async fn rebuilt(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..repack_at_once(dir.path()) };
    let store = try_open(takes, backend).await.unwrap();
    (dir, store)
}

async fn blob_bytes(backend: &Faulty) -> u64 {
    backend.names("blobs").await.iter().map(|(_, bytes)| bytes).sum()
}

#[tokio::test]
async fn space_comes_back_and_every_object_stays() {
    let (dir, backend, store) = repacking_store().await;
    for seed in 0..400 {
        put(&store, &format!("k{seed:03}"), content(seed, 10_000)).await.unwrap();
    }
    assert!(store.flush().await);
    let mut live = 400 * 10_000;
    for seed in 0..400 {
        match seed % 10 {
            0..3 => {
                delete(&store, &format!("k{seed:03}")).await;
                live -= 10_000;
            }
            3..5 => {
                put(&store, &format!("k{seed:03}"), content(seed + 1000, 10_000)).await.unwrap();
            }
            5 => {
                let source =
                    store.open(&bucket("first"), &key(&format!("k{seed:03}"))).await.unwrap();
                let new = key(&format!("renamed{seed:03}"));
                let options = PutOptions::default();
                store.link(&source, &bucket("first"), &new, options).await.unwrap().unwrap();
                delete(&store, &format!("k{seed:03}")).await;
            }
            _ => {}
        }
    }
    assert!(store.flush().await);
    let before = seen(&store).await;
    assert!(blob_bytes(&backend).await > live * 13 / 10);
    run_maintenance(&store).await;
    assert!(blob_bytes(&backend).await <= live * 13 / 10, "{}", blob_bytes(&backend).await);
    assert!(count(&store.counters().removed_blobs) > 0);
    let (blob_bytes, live_bytes) = store.blob_use().unwrap();
    assert_eq!(live_bytes, live);
    assert!(blob_bytes <= live * 13 / 10);
    assert_eq!(seen(&store).await, before);
    drop(store);
    let store = try_open(repack_at_once(dir.path()), &backend).await.unwrap();
    assert_eq!(seen(&store).await, before, "after a restart");
    assert_eq!(store.blob_use().unwrap(), (blob_bytes, live_bytes));
    drop(store);
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before, "from footers alone");
    assert_eq!(store.blob_use().unwrap(), (blob_bytes, live_bytes));
}

#[tokio::test]
async fn a_removed_blobs_changes_are_in_other_blobs() {
    let (_dir, backend, store) = repacking_store().await;
    fill(&store).await;
    let parts = upload_in_parts(&store).await;
    assert!(store.flush().await);
    let first: Vec<_> = backend.names("blobs").await;
    let mut before = seen(&store).await;
    // One blob after the other becomes dead by more than a fifth, until none of the first is left.
    for round in 0..40u64 {
        for seed in 0..40 {
            put(&store, &format!("k{seed:02}"), content(round * 100 + seed, 20_000)).await.unwrap();
        }
        assert!(store.flush().await);
        run_maintenance(&store).await;
        before = seen(&store).await;
        let left = backend.names("blobs").await;
        if !first.iter().any(|blob| left.contains(blob)) {
            break;
        }
    }
    let left = backend.names("blobs").await;
    assert!(!first.iter().any(|blob| left.contains(blob)), "{left:?}");
    drop(store);
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
    assert_eq!(get(&store, "parted").await.unwrap(), parts);
}

/// An object of one part, of an upload that had others: replaced, and not named.
async fn upload_in_parts(store: &Packer) -> bytes::Bytes {
    let (name, target) = (bucket("first"), key("parted"));
    let upload = store.create_upload(&name, &target, UploadOptions::default()).await.unwrap();
    let mut named = Vec::new();
    for (number, seed) in [(1, 90), (1, 91), (2, 92), (3, 93)] {
        let body = Sent::whole(content(seed, 30_000));
        let done = store.put_part(&name, &target, upload, number, body).await.unwrap();
        named.retain(|part: &NamedPart| part.number != number);
        named.push(NamedPart { number, etag: done.etag.text(), checksum: None });
    }
    named.retain(|part| part.number == 2);
    let options = CompleteOptions { parts: named, ..CompleteOptions::default() };
    store.complete_upload(&name, &target, upload, options).await.unwrap();
    content(92, 30_000)
}

#[tokio::test]
async fn a_deleted_object_stays_deleted_when_the_blob_with_its_delete_is_gone() {
    let (_dir, backend, store) = repacking_store().await;
    for seed in 0..10 {
        put(&store, &format!("old{seed}"), content(seed, 50_000)).await.unwrap();
    }
    assert!(store.flush().await);
    delete(&store, "old3").await;
    put(&store, "short-lived", content(20, 50_000)).await.unwrap();
    put_and_flush(&store, "kept", 21).await;
    delete(&store, "short-lived").await;
    assert!(store.flush().await);
    let (second, _) = backend.names("blobs").await.remove(1);
    run_maintenance(&store).await;
    let left = backend.names("blobs").await;
    assert!(!left.iter().any(|(name, _)| *name == second), "the blob with the delete is gone");
    let before = seen(&store).await;
    drop(store);
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
    assert_eq!(get(&store, "old3").await, Err(ObjectError::NoSuchKey));
    assert_eq!(get(&store, "kept").await.unwrap(), content(21, 1000));
}

#[tokio::test]
async fn what_changes_while_it_is_moved_does_not_come_back() {
    let (_dir, backend, store) = repacking_store().await;
    for seed in 0..10 {
        put(&store, &format!("k{seed}"), content(seed, 50_000)).await.unwrap();
    }
    for seed in 4..10 {
        delete(&store, &format!("k{seed}")).await;
    }
    assert!(store.flush().await);
    // Repacking has decided what to move and waits for the bytes.
    let closed = backend.gate.write().await;
    let store = Arc::new(store);
    let moving = store.clone();
    let moving = tokio::spawn(async move { moving.run_maintenance().await });
    while backend.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    put(&store, "k0", content(100, 40_000)).await.unwrap();
    delete(&store, "k1").await;
    drop(closed);
    assert_eq!(moving.await.unwrap().unwrap().retired, 1);
    assert!(store.flush().await);
    run_maintenance(&store).await;
    assert_eq!(get(&store, "k0").await.unwrap(), content(100, 40_000));
    assert_eq!(get(&store, "k1").await, Err(ObjectError::NoSuchKey));
    assert_eq!(get(&store, "k2").await.unwrap(), content(2, 50_000));
    let before = seen(&store).await;
    drop(store);
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
}

#[tokio::test]
async fn a_blob_stays_while_somebody_reads_it() {
    let (_dir, backend, store) = repacking_store().await;
    put(&store, "k", content(1, 300_000)).await.unwrap();
    put(&store, "dead", content(2, 500_000)).await.unwrap();
    delete(&store, "dead").await;
    assert!(store.flush().await);
    let opened = store.open(&bucket("first"), &key("k")).await.unwrap();
    let ReadBody::Stream(mut reading) = store.read(&opened, 0..300_000).await.unwrap() else {
        panic!("a body of several pieces comes in pieces")
    };
    let first = reading.next().await.unwrap().unwrap();
    let (old, _) = backend.names("blobs").await.remove(0);
    store.run_maintenance().await.unwrap();
    assert!(store.flush().await);
    store.run_maintenance().await.unwrap();
    assert!(backend.names("blobs").await.iter().any(|(name, _)| *name == old));
    let mut bytes = first.to_vec();
    while let Some(piece) = reading.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(bytes, content(1, 300_000));
    drop(reading);
    store.run_maintenance().await.unwrap();
    assert!(!backend.names("blobs").await.iter().any(|(name, _)| *name == old));
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 300_000));
}

#[tokio::test]
async fn what_is_not_needed_stays_for_the_grace_time() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    put(&store, "dead", content(2, 500_000)).await.unwrap();
    put(&store, "large", content(3, 3 * MIB)).await.unwrap();
    for name in ["dead", "large"] {
        delete(&store, name).await;
    }
    assert!(store.flush().await);
    assert_eq!(store.run_maintenance().await.unwrap().retired, 1);
    assert!(store.flush().await);
    assert_eq!(store.run_maintenance().await.unwrap().removed, 0);
    assert_eq!(backend.names("objects").await.len(), 1);
    drop(store);
    let store = try_open(repack_at_once(dir.path()), &backend).await.unwrap();
    assert_eq!(store.run_maintenance().await.unwrap().removed, 1, "the blob");
    assert_eq!(backend.names("objects").await.len(), 1, "a copy of the directory may name it");
    put_and_flush(&store, "next", 4).await;
    assert_eq!(store.run_maintenance().await.unwrap().removed, 1);
    assert!(backend.names("objects").await.is_empty());
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn large_objects_and_parts_go_when_nothing_names_them() {
    let (_dir, backend, store) = repacking_store().await;
    for (name, seed) in [("kept", 1), ("deleted", 2), ("replaced", 3), ("copied", 4)] {
        put(&store, name, content(seed, 2 * MIB)).await.unwrap();
    }
    delete(&store, "deleted").await;
    put(&store, "replaced", content(5, 2 * MIB)).await.unwrap();
    let source = store.open(&bucket("first"), &key("copied")).await.unwrap();
    let options = PutOptions::default();
    store.link(&source, &bucket("first"), &key("copy"), options).await.unwrap().unwrap();
    delete(&store, "copied").await;
    let name = key("aborted");
    let options = UploadOptions::default();
    let upload = store.create_upload(&bucket("first"), &name, options).await.unwrap();
    let body = Sent::whole(content(6, 2 * MIB));
    store.put_part(&bucket("first"), &name, upload, 1, body).await.unwrap();
    store.abort_upload(&bucket("first"), &name, upload).await.unwrap();
    let orphan = "objects/0000000000000001-00000000000000aa-0000000000000001";
    let body = content(7, 100).into();
    backend.inner.put(&Name::from(orphan), body).await.unwrap();
    assert_eq!(backend.names("objects").await.len(), 7);
    store.run_maintenance().await.unwrap();
    let left = backend.names("objects").await.len();
    assert_eq!(left, 7, "whoever loses the directory now has their names in the backend");
    assert!(store.flush().await);
    store.run_maintenance().await.unwrap();
    assert_eq!(backend.names("objects").await.len(), 3);
    for (name, seed) in [("kept", 1), ("replaced", 5), ("copy", 4)] {
        assert_eq!(get(&store, name).await.unwrap(), content(seed, 2 * MIB), "{name}");
    }
}

#[tokio::test]
async fn a_link_to_an_object_that_is_gone_is_refused() {
    let (_dir, _backend, store) = repacking_store().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    let source = store.open(&bucket("first"), &key("k")).await.unwrap();
    put(&store, "k", content(2, 1000)).await.unwrap();
    let options = PutOptions::default();
    let refused = store.link(&source, &bucket("first"), &key("copy"), options).await;
    assert_eq!(refused, Err(ObjectError::Changed));
}

#[tokio::test]
async fn a_blob_that_does_not_verify_is_not_repacked() {
    let (_dir, backend, store) = repacking_store().await;
    put(&store, "k", content(1, 10_000)).await.unwrap();
    put(&store, "dead", content(2, 90_000)).await.unwrap();
    delete(&store, "dead").await;
    assert!(store.flush().await);
    let (name, _) = backend.names("blobs").await.remove(0);
    let mut blob = backend.bytes(&name).await.to_vec();
    blob[5000] ^= 1;
    backend.inner.put(&Name::from(name.clone()), blob.into()).await.unwrap();
    run_maintenance(&store).await;
    assert!(backend.names("blobs").await.iter().any(|(left, _)| *left == name));
    assert_eq!(get(&store, "k").await, Err(ObjectError::Damaged));
}

#[tokio::test]
async fn what_a_superseded_worker_uploads_late_is_void_and_is_removed() {
    let (_dir, backend, late) = repacking_store().await;
    put_and_flush(&late, "k", 1).await;
    // It asked who owns the backend before the claim; its upload comes after the list.
    let late = Arc::new(late);
    put(&late, "late", content(2, 1000)).await.unwrap();
    delete(&late, "k").await;
    let held = backend.puts.write().await;
    let flushing = late.clone();
    let flushing = tokio::spawn(async move { flushing.flush().await });
    while backend.puts_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let (_second, heir) = rebuilt(&backend).await;
    drop(held);
    assert!(!flushing.await.unwrap(), "it is not acknowledged");
    drop(late);
    let before: Seen = seen(&heir).await;
    assert!(heir.flush().await);
    drop(heir);
    let (_third, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
    assert_eq!(backend.names("blobs").await.len(), 2);
    assert_eq!(store.run_maintenance().await.unwrap().removed, 1);
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn an_index_that_is_lost_twice_is_rebuilt_though_a_blob_of_the_log_was_removed_between() {
    let (dir, backend, store) = repacking_store().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    let crashed = snapshot(dir.path());
    assert!(store.flush().await);
    drop(store);
    let lose = || std::fs::remove_dir_all(crashed.path().join("kv")).unwrap();

    // The backend has the first blob, and the log says that it waits.
    lose();
    let store = try_open(repack_at_once(crashed.path()), &backend).await.unwrap();
    delete(&store, "k").await;
    assert!(store.flush().await);
    let (first, _) = backend.names("blobs").await.remove(0);
    run_maintenance(&store).await;
    assert!(backend.names("blobs").await.iter().all(|(name, _)| *name != first), "it is removed");
    put(&store, "waits", content(2, 1000)).await.unwrap();
    drop(store);

    lose();
    let store = try_open(repack_at_once(crashed.path()), &backend).await.unwrap();
    assert_eq!(get(&store, "waits").await.unwrap(), content(2, 1000));
    assert!(matches!(get(&store, "k").await, Err(ObjectError::NoSuchKey)));
    assert!(store.flush().await);
}
