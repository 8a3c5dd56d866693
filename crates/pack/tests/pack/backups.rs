//! Backups of the index, and rebuilds that have to do without something.

use std::sync::Arc;
use std::time::Duration;

use larder_pack::{PackConfig, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::crashes::{fill, seen};
use crate::support::{Faulty, bucket, config, content, delete, get, put, put_and_flush, try_open};
use larder_objects::{ObjectError, Objects};

fn frequent_backups(dir: &std::path::Path) -> PackConfig {
    PackConfig {
        grace: Duration::ZERO,
        background_bytes_per_s: 1 << 40,
        backup_interval: Duration::from_nanos(1),
        ..config(dir)
    }
}

async fn backup_store() -> (tempfile::TempDir, Arc<Faulty>, Packer) {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = try_open(frequent_backups(dir.path()), &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    (dir, backend, store)
}

async fn rebuilt(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..frequent_backups(dir.path()) };
    let store = try_open(takes, backend).await.unwrap();
    (dir, store)
}

#[tokio::test]
async fn a_rebuild_begins_from_the_last_backup_and_shows_what_came_later() {
    let (_dir, backend, store) = backup_store().await;
    fill(&store).await;
    assert!(store.flush().await);
    assert_eq!(store.run_maintenance().await.unwrap().backups, 1);
    assert_eq!(store.run_maintenance().await.unwrap().backups, 0, "nothing is new");
    delete(&store, "k20").await;
    put(&store, "k21", content(700, 30_000)).await.unwrap();
    put(&store, "later", content(701, 30_000)).await.unwrap();
    assert!(store.flush().await);
    let before = seen(&store).await;
    drop(store);
    let (new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
    drop((new, store));
    for (name, _) in backend.names("index").await {
        let mut bytes = backend.bytes(&name).await.to_vec();
        bytes[20] ^= 1;
        backend.inner.put(&Name::from(name), bytes.into()).await.unwrap();
    }
    assert_eq!(backend.names("backups").await.len(), 1);
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before, "from footers, as the backup is damaged");
    assert_eq!(backend.names("backups").await.len(), 0, "a backup that was passed over is removed");
}

#[tokio::test]
async fn a_backup_needs_no_footer_of_the_blobs_that_it_shows() {
    let (_dir, backend, store) = backup_store().await;
    fill(&store).await;
    assert!(store.flush().await);
    assert_eq!(store.run_maintenance().await.unwrap().backups, 1);
    assert!(store.flush().await);
    let before = seen(&store).await;
    drop(store);
    // A footer that is not read may be damaged, as long as the bodies before it are not.
    let (first, _) = backend.names("blobs").await.remove(0);
    let mut bytes = backend.bytes(&first).await.to_vec();
    let at = bytes.len() - 70;
    bytes[at] ^= 1;
    backend.inner.put(&Name::from(first), bytes.into()).await.unwrap();
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
}

#[tokio::test]
async fn old_backups_are_removed_and_so_is_what_a_crash_left_of_one() {
    let (_dir, backend, store) = backup_store().await;
    let left = "index/0000000000000001-0000000000000001-00000000";
    backend.inner.put(&Name::from(left), content(1, 10).into()).await.unwrap();
    let mut made: Vec<String> = Vec::new();
    for round in 0..4 {
        put(&store, "k", content(round, 1000)).await.unwrap();
        assert!(store.flush().await);
        assert_eq!(store.run_maintenance().await.unwrap().backups, 1);
        made.extend(backend.names("backups").await.pop().map(|(name, _)| name));
    }
    assert!(made.is_sorted_by(|a, b| a < b), "the last one is the newest: {made:?}");
    let heads: Vec<_> = backend.names("backups").await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(heads, made[2..]);
    assert_eq!(backend.names("index").await.len(), 2);
}

/// Makes a backup, then deletes an object that it has; then another worker takes over, and removes the blobs with the
/// object and with its delete. To that worker the backup is known or, if its requests are `late`, not.
async fn delete_what_a_backup_has(late: bool) {
    let (_dir, backend, store) = backup_store().await;
    put(&store, "gone", content(1, 50_000)).await.unwrap();
    put(&store, "dead", content(2, 500_000)).await.unwrap();
    delete(&store, "dead").await;
    assert!(store.flush().await);
    // The backup has "gone" in the blob that it was moved to.
    let kept = store.run_maintenance().await.unwrap();
    assert_eq!((kept.retired, kept.backups), (1, 1));
    delete(&store, "gone").await;
    put(&store, "dead", content(3, 500_000)).await.unwrap();
    delete(&store, "dead").await;
    put_and_flush(&store, "kept", 4).await;
    drop(store);
    let mut under_way = Vec::new();
    if late {
        for (name, _) in [backend.names("index").await, backend.names("backups").await].concat() {
            under_way.push((Name::from(name.clone()), backend.bytes(&name).await));
            backend.inner.delete(&Name::from(name)).await.unwrap();
        }
        assert!(under_way.len() > 1);
    }
    let dir = tempfile::tempdir().unwrap();
    let no_backups = Duration::ZERO;
    let takes =
        PackConfig { take_over: true, backup_interval: no_backups, ..frequent_backups(dir.path()) };
    let store = try_open(takes, &backend).await.unwrap();
    for _ in 0..2 {
        store.run_maintenance().await.unwrap();
        assert!(store.flush().await);
    }
    assert_eq!(backend.names("blobs").await.len(), 1, "all that was before is gone");
    let before = seen(&store).await;
    drop((dir, store));
    for (name, bytes) in under_way {
        backend.inner.put(&name, bytes.into()).await.unwrap();
    }
    let (_new, store) = rebuilt(&backend).await;
    assert_eq!(seen(&store).await, before);
    assert_eq!(get(&store, "gone").await, Err(ObjectError::NoSuchKey));
    assert_eq!(get(&store, "kept").await.unwrap(), content(4, 1000));
}

#[tokio::test]
async fn a_backup_that_still_has_a_deleted_object_does_not_bring_it_back() {
    delete_what_a_backup_has(false).await;
}

#[tokio::test]
async fn a_backup_that_comes_late_is_not_used_once_blobs_were_removed_without_it() {
    delete_what_a_backup_has(true).await;
}

#[tokio::test]
async fn a_rebuild_skips_a_blob_only_on_request_and_names_what_is_lost() {
    let (_dir, backend, store) = backup_store().await;
    for seed in 0..3 {
        put(&store, &format!("k{seed}"), content(seed, 1000)).await.unwrap();
        if seed == 1 {
            put(&store, "source", content(9, 1000)).await.unwrap();
        }
        assert!(store.flush().await);
    }
    let source = store.open(&bucket("first"), &crate::support::key("source")).await.unwrap();
    let copy = crate::support::key("copy");
    store.link(&source, &bucket("first"), &copy, Default::default()).await.unwrap().unwrap();
    assert!(store.flush().await);
    drop(store);
    let (second, _) = backend.names("blobs").await.remove(1);
    backend.inner.delete(&Name::from(second)).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..frequent_backups(dir.path()) };
    let refused = try_open(takes.clone(), &backend).await.err().unwrap().to_string();
    assert!(refused.contains("--accept-loss"), "{refused}");
    let store = try_open(PackConfig { accept_loss: true, ..takes }, &backend).await.unwrap();
    for seed in [0, 2] {
        assert_eq!(get(&store, &format!("k{seed}")).await.unwrap(), content(seed, 1000));
    }
    assert_eq!(get(&store, "k1").await, Err(ObjectError::NoSuchKey));
    assert_eq!(get(&store, "copy").await, Err(ObjectError::Damaged), "known, and lost");
    let report = std::fs::read_to_string(dir.path().join("lost.txt")).unwrap();
    let lines: Vec<_> = report.lines().collect();
    assert!(lines[0].starts_with("blob 1/2: "), "{report}");
    assert_eq!(lines[1], "lost first/copy: its bytes are in blob 1/2");
    assert_eq!(lines[3..], ["perhaps first/k0"]);
    drop(store);
    // With its index the store goes on by itself. The blobs around the lost one go; that one is not
    // forgotten.
    let store = try_open(frequent_backups(dir.path()), &backend).await.unwrap();
    for seed in [0, 2] {
        put(&store, &format!("k{seed}"), content(seed + 10, 1000)).await.unwrap();
    }
    assert!(store.flush().await);
    while store.run_maintenance().await.unwrap().removed < 2 {
        assert!(store.flush().await);
    }
    drop(store);
    for (head, _) in backend.names("backups").await {
        backend.inner.delete(&Name::from(head)).await.unwrap();
    }
    let new = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..frequent_backups(new.path()) };
    let refused = try_open(takes.clone(), &backend).await.err().unwrap().to_string();
    assert!(refused.contains("blob 1/2 ") && refused.contains("--accept-loss"), "{refused}");
    let store = try_open(PackConfig { accept_loss: true, ..takes }, &backend).await.unwrap();
    assert_eq!(get(&store, "copy").await, Err(ObjectError::Damaged));
    for seed in [0, 2] {
        assert_eq!(get(&store, &format!("k{seed}")).await.unwrap(), content(seed + 10, 1000));
    }
}
