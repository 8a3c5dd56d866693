//! Packing policies: what lies together, in how many objects, and that it is as safe there as anywhere.

use std::sync::Arc;
use std::time::Duration;

use larder_objects::Objects;
use larder_pack::blob::BlobFile;
use larder_pack::{PackConfig, Packer};

use crate::crashes::seen;
use crate::support::{
    Faulty, bucket, by_prefix, config, content, count, delete, get, put, snapshot, try_open,
};

/// Bytes of each object.
pub const OBJECT_BYTES: usize = 10_000;
/// Objects that are more than a share of a blob, and less than a blob.
pub const MANY: u64 = 40;
/// Time that something that happens by itself may take.
const DEADLINE: Duration = Duration::from_secs(20);

async fn store(config: PackConfig, backend: &Arc<Faulty>) -> Packer {
    let store = try_open(config, backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    assert!(store.flush().await);
    store
}

pub fn name(group: &str, number: u64) -> String {
    format!("{group}/{number:03}")
}

fn seed(group: &str, number: u64) -> u64 {
    group.bytes().map(u64::from).sum::<u64>() * 1000 + number
}

/// Puts objects of all these groups, in turns.
pub async fn put_some(store: &Packer, groups: &[&str], numbers: std::ops::Range<u64>) {
    for number in numbers {
        for group in groups {
            let bytes = content(seed(group, number), OBJECT_BYTES);
            put(store, &name(group, number), bytes).await.unwrap();
        }
    }
}

pub async fn check(store: &Packer, groups: &[&str], numbers: std::ops::Range<u64>) {
    for number in numbers {
        for group in groups {
            let bytes = get(store, &name(group, number)).await.unwrap();
            assert_eq!(bytes, content(seed(group, number), OBJECT_BYTES), "{group} {number}");
        }
    }
}

#[tokio::test]
async fn a_large_group_gets_an_object_of_its_own() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = store(by_prefix(dir.path()), &backend).await;
    let blobs = backend.names("blobs").await.len();
    put_some(&store, &["a", "b"], 0..MANY).await;
    put_some(&store, &["little"], 0..3).await;
    check(&store, &["a", "b"], 0..MANY).await;
    assert!(store.flush().await);
    let bundles = backend.names("objects").await;
    assert_eq!(bundles.len(), 2, "one for a, one for b");
    assert_eq!(backend.names("blobs").await.len(), blobs + 1, "the rest is one blob");
    assert_eq!(count(&store.counters().bundles), 2);
    // Each object's bytes lie in one of them, and nowhere else.
    let bodies: u64 = bundles.iter().map(|(_, bytes)| bytes).sum();
    let (all, live) = store.blob_use().unwrap();
    assert_eq!((all, live), (83 * OBJECT_BYTES as u64, all));
    assert!(bodies > 60 * OBJECT_BYTES as u64 && bodies < all, "{bodies} of {all}");
    check(&store, &["a", "b"], 0..MANY).await;
    check(&store, &["little"], 0..3).await;
}

#[tokio::test]
async fn groups_that_bring_little_share_one_upload() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = store(by_prefix(dir.path()), &backend).await;
    let before = count(&store.counters().requests.put);
    for group in 0..30 {
        put_some(&store, &[&format!("g{group}")], 0..2).await;
    }
    assert!(store.flush().await);
    assert_eq!(count(&store.counters().requests.put), before + 1, "uploads are the bill");
    assert!(backend.names("objects").await.is_empty());
}

#[tokio::test]
async fn the_flush_timeout_is_that_of_the_oldest_object_of_any_group() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let config = PackConfig { flush_timeout: Duration::from_millis(50), ..by_prefix(dir.path()) };
    let store = store(config, &backend).await;
    put_some(&store, &["a", "b"], 0..20).await;
    let uploaded = async {
        while store.waiting().blobs > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, uploaded).await.unwrap();
    assert!(count(&store.counters().sealed_due) > 0);
    check(&store, &["a", "b"], 0..20).await;
}

#[tokio::test]
async fn bundles_survive_a_kill_and_the_loss_of_the_directory() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = store(by_prefix(dir.path()), &backend).await;
    put_some(&store, &["a", "b"], 0..MANY).await;
    assert!(store.flush().await);
    put_some(&store, &["a", "b"], MANY..2 * MANY).await;
    assert!(store.waiting().groups >= 2);
    let copy = snapshot(dir.path());
    store.close();
    drop(store);

    // Under another policy, too: what was decided stays.
    let again = try_open(config(copy.path()), &backend).await.unwrap();
    check(&again, &["a", "b"], 0..2 * MANY).await;
    assert!(again.flush().await);
    check(&again, &["a", "b"], 0..2 * MANY).await;
    let (before, used) = (seen(&again).await, again.blob_use().unwrap());
    drop(again);

    let new = tempfile::tempdir().unwrap();
    let heir = PackConfig { take_over: true, ..by_prefix(new.path()) };
    let heir = try_open(heir, &backend).await.unwrap();
    assert_eq!(seen(&heir).await, before);
    assert_eq!(heir.blob_use().unwrap(), used, "what is live is counted as before");
}

#[tokio::test]
async fn a_bundle_that_is_mostly_dead_is_repacked_and_removed() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let repack_at_once = |dir| PackConfig {
        grace: Duration::ZERO,
        background_bytes_per_s: 1 << 40,
        ..by_prefix(dir)
    };
    let store = store(repack_at_once(dir.path()), &backend).await;
    put_some(&store, &["a", "b"], 0..MANY).await;
    assert!(store.flush().await);
    let bundles = backend.names("objects").await;
    for number in 5..MANY {
        delete(&store, &name("a", number)).await;
    }
    while store.run_maintenance().await.unwrap().removed > 0 || store.waiting().blobs > 0 {
        assert!(store.flush().await);
    }
    let left = backend.names("objects").await;
    assert!(!left.contains(&bundles[0]) && left.contains(&bundles[1]), "{bundles:?} {left:?}");
    let (all, live) = store.blob_use().unwrap();
    assert_eq!(live, 45 * OBJECT_BYTES as u64);
    assert!(all * 10 <= live * 13, "{all} bytes for {live} that are live");
    check(&store, &["a"], 0..5).await;
    check(&store, &["b"], 0..MANY).await;
    let before = seen(&store).await;
    drop(store);
    let new = tempfile::tempdir().unwrap();
    let heir = PackConfig { take_over: true, ..repack_at_once(new.path()) };
    assert_eq!(seen(&try_open(heir, &backend).await.unwrap()).await, before);
}

#[tokio::test]
async fn what_is_read_of_a_bundle_is_cached_and_read_ahead() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let config =
        PackConfig { cache_bytes: 32 << 20, ahead_bytes: 1 << 20, ..by_prefix(dir.path()) };
    let store = store(config, &backend).await;
    put_some(&store, &["a", "b"], 0..MANY).await;
    assert!(store.flush().await);
    let gets = || count(&store.counters().requests.get);
    let before = gets();
    get(&store, &name("b", MANY - 1)).await.unwrap();
    assert_eq!(gets(), before + 1, "cold");
    get(&store, &name("b", MANY - 1)).await.unwrap();
    assert_eq!(gets(), before + 1, "warm");
    let before = gets();
    check(&store, &["a"], 10..MANY).await;
    let asked = gets() - before;
    assert!(asked < (MANY - 10) / 3, "{asked} requests for keys in their order");
}

#[tokio::test]
async fn a_bundle_is_read_with_nothing_else_at_hand() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = store(by_prefix(dir.path()), &backend).await;
    put_some(&store, &["a"], 0..MANY).await;
    assert!(store.flush().await);
    let (bundle, _) = backend.names("objects").await.pop().unwrap();
    let (out, file) = (tempfile::tempdir().unwrap(), dir.path().join("bundle"));
    std::fs::write(&file, backend.bytes(&bundle).await).unwrap();
    let extracted = BlobFile::open(&file).unwrap().extract(&[], out.path()).unwrap();
    assert!(extracted.len() > 20);
    for object in extracted {
        assert_eq!(object.outcome.unwrap(), OBJECT_BYTES as u64, "{}", object.name);
        let number: u64 = object.name.rsplit('/').next().unwrap().parse().unwrap();
        let bytes = std::fs::read(out.path().join(&object.name)).unwrap();
        assert_eq!(bytes, content(seed("a", number), OBJECT_BYTES));
    }
}
