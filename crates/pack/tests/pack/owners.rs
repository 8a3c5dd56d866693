//! Processes that believe that they own one backend: what only the owner may acknowledge.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::{ObjectError, Objects};
use larder_pack::blob::{BlobName, TRAILER_BYTES, Trailer};
use larder_pack::{Acknowledge, PackConfig, PackError, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{
    Faulty, bucket, config, content, delete, get, made, open, put, snapshot, try_open,
};
use crate::workers::{answering, missing, shared, until, workers};

/// A store that answers once a change is uploaded, which is at once.
fn sure(dir: &Path) -> PackConfig {
    PackConfig {
        flush_timeout: Duration::from_millis(10),
        acknowledge: Acknowledge::Uploaded,
        ..config(dir)
    }
}

async fn heir_of(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(dir.path()) };
    let heir = try_open(takes, backend).await.unwrap();
    (dir, heir)
}

fn spooled(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("spool")).unwrap().count()
}

#[tokio::test]
async fn a_blob_that_arrives_after_a_take_over_is_not_acknowledged_and_stays_in_the_spool() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = Arc::new(try_open(sure(dir.path()), &backend).await.unwrap());
    store.create_bucket(&bucket("first"), None).await.unwrap();
    let held = backend.puts.write().await;
    let putting = store.clone();
    let putting = tokio::spawn(async move { put(&putting, "late", content(1, 1000)).await });
    while backend.puts_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let (_dir, heir) = heir_of(&backend).await;
    drop(held);
    let answer = putting.await.unwrap();
    assert!(matches!(answer, Err(ObjectError::Unavailable { .. })), "{answer:?}");
    assert_eq!(backend.names("blobs").await.len(), 2, "it came all the same");
    let fatal = store.fatal().borrow().clone().unwrap();
    assert!(fatal.contains("has taken over"), "{fatal}");
    assert_eq!(get(&heir, "late").await, Err(ObjectError::NoSuchKey));
    drop(store);
    assert_eq!(spooled(dir.path()), 1, "the only copy that counts");
}

/// Why a store stopped.
fn reason(store: &Packer) -> String {
    store.fatal().borrow().clone().expect("it stopped")
}

/// Numbers of all blobs, in their order.
async fn numbers(backend: &Faulty) -> Vec<u64> {
    let names = backend.names("blobs").await.into_iter();
    let parse = |(name, _): (String, u64)| BlobName::parse(name.strip_prefix("blobs/").unwrap());
    names.map(|name| parse(name).unwrap().id.seq).collect()
}

#[tokio::test]
async fn of_two_processes_on_copies_of_a_directory_the_first_stops_at_its_next_upload() {
    let (dir, backend, first) = made().await;
    put(&first, "k", content(1, 1000)).await.unwrap();
    assert!(first.flush().await);
    let copy = snapshot(dir.path());
    let second = open(copy.path(), &backend).await;
    put(&first, "of the first", content(2, 1000)).await.unwrap();
    put(&second, "of the second", content(3, 1000)).await.unwrap();
    assert!(!first.flush().await);
    let named = dir.path().display().to_string();
    let reason = reason(&first);
    assert!(reason.contains(&named) && reason.contains("a copy of"), "{reason}");
    assert!(second.flush().await);
    assert_eq!(numbers(&backend).await, [1, 2]);
    drop((first, second));
    let (_dir, heir) = heir_of(&backend).await;
    assert_eq!(get(&heir, "of the second").await.unwrap(), content(3, 1000));
    assert_eq!(get(&heir, "of the first").await, Err(ObjectError::NoSuchKey));
}

/// The first process has an upload under way when a copy of its directory is started. Both have the same first change of
/// that blob, and go on differently.
async fn under_way_while_a_copy_starts(goes_on: impl AsyncFn(&Packer)) {
    let (dir, backend, first) = made().await;
    put(&first, "k", content(1, 1000)).await.unwrap();
    assert!(first.flush().await);
    put(&first, "both", content(2, 1000)).await.unwrap();
    let copy = snapshot(dir.path());
    goes_on(&first).await;
    let first = Arc::new(first);
    let held = backend.puts.write().await;
    let flushing = first.clone();
    let flushing = tokio::spawn(async move { flushing.flush().await });
    while backend.puts_waiting() < 1 {
        tokio::task::yield_now().await;
    }
    let second = open(copy.path(), &backend).await;
    while backend.puts_waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(held);
    assert!(!flushing.await.unwrap(), "what the first process uploads late is not acknowledged");
    assert!(second.flush().await);
    assert_eq!(numbers(&backend).await, [1, 2], "one blob of each number");
    put(&second, "later", content(3, 1000)).await.unwrap();
    assert!(second.flush().await);
    drop((first, second));
    let (_dir, heir) = heir_of(&backend).await;
    for (key, seed) in [("k", 1), ("both", 2), ("later", 3)] {
        assert_eq!(get(&heir, key).await.unwrap(), content(seed, 1000), "{key}");
    }
}

#[tokio::test]
async fn another_blob_of_one_number_that_arrives_late_is_removed() {
    under_way_while_a_copy_starts(async |first| {
        put(first, "of the first", content(9, 1000)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn another_blob_of_one_name_that_arrives_late_is_replaced() {
    under_way_while_a_copy_starts(async |first| delete(first, "k").await).await;
}

#[tokio::test]
async fn a_directory_is_an_older_copy_also_if_the_blob_differs_in_its_sum_alone() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    let copy = snapshot(dir.path());
    assert!(store.flush().await);
    drop(store);
    let (name, _) = backend.names("blobs").await.remove(0);
    let mut blob = backend.bytes(&name).await.to_vec();
    let (at, end) = (blob.len() - TRAILER_BYTES - 1, blob.len());
    let trailer = Trailer::decode(&name, &blob[end - TRAILER_BYTES..]).unwrap();
    blob[at] ^= 1;
    let footer_sum = xxh3_64(&blob[trailer.footer_offset as usize..end - TRAILER_BYTES]);
    blob[end - TRAILER_BYTES..].copy_from_slice(&Trailer { footer_sum, ..trailer }.encode());
    backend.inner.put(&Name::from(name), blob.into()).await.unwrap();
    let refused = try_open(config(copy.path()), &backend).await.err();
    assert!(matches!(refused, Some(PackError::OlderCopy { .. })), "{refused:?}");
}

#[tokio::test]
async fn an_older_copy_that_is_refused_leaves_the_owner_alone() {
    let (dir, backend, store) = made().await;
    let copy = snapshot(dir.path());
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    let before = backend.names("incarnations").await;
    for _ in 0..3 {
        let refused = try_open(config(copy.path()), &backend).await.err();
        assert!(matches!(refused, Some(PackError::OlderCopy { .. })), "{refused:?}");
    }
    assert_eq!(backend.names("incarnations").await, before);
    put(&store, "l", content(2, 1000)).await.unwrap();
    assert!(store.flush().await, "it is the owner still");
}

#[tokio::test]
async fn a_conflict_that_made_nothing_leaves_no_hole_in_the_numbers_of_incarnations() {
    let (dir, backend, store) = made().await;
    let copy = snapshot(dir.path());
    let before = backend.names("incarnations").await.len();
    backend.conflicts.store(2, Ordering::Relaxed);
    let second = open(copy.path(), &backend).await;
    let names = backend.names("incarnations").await;
    assert_eq!(names.len(), before + 1);
    let next = format!("-{:016x}", before + 1);
    assert!(names.last().unwrap().0.ends_with(&next), "{names:?}");
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(!store.flush().await, "it finds the next incarnation");
    drop(second);
}

#[tokio::test]
async fn a_worker_that_is_idle_finds_out_that_it_was_superseded_and_answers_no_reads() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let watchful = PackConfig { owner_period: Duration::from_millis(20), ..config(dir.path()) };
    let store = try_open(watchful, &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    let (_dir, heir) = heir_of(&backend).await;
    delete(&heir, "k").await;
    until("it answers no reads", async || {
        matches!(get(&store, "k").await, Err(ObjectError::Unavailable { .. }))
    })
    .await;
    assert!(store.buckets().is_err() && reason(&store).contains("has taken over"));
}

#[tokio::test]
async fn a_worker_that_cannot_ask_who_owns_the_backend_answers_reads_for_a_bounded_time() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let bounded = PackConfig {
        owner_period: Duration::from_millis(50),
        unowned_max: Duration::from_millis(300),
        ..config(dir.path())
    };
    let store = try_open(bounded, &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    put(&store, "k", content(1, 1000)).await.unwrap();
    let away = backend.gate.write().await;
    until("it answers no reads", async || {
        matches!(get(&store, "k").await, Err(ObjectError::Unavailable { .. }))
    })
    .await;
    put(&store, "l", content(2, 1000)).await.expect("puts go on");
    drop(away);
    until("it answers reads again", async || get(&store, "k").await.is_ok()).await;
    assert_eq!(get(&store, "l").await.unwrap(), content(2, 1000));
}

#[tokio::test]
async fn a_copy_of_another_worker_is_heard_from_where_it_began() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "before", content(1, 1000)).await.unwrap();
    until("b hears the original", async || get(&b.store, "before").await.is_ok()).await;
    let copy = snapshot(a.dir.path());
    for (key, seed) in [("ghost", 2), ("k", 3), ("later ghost", 4)] {
        put(&a.store, key, content(seed, 1000)).await.unwrap();
    }
    until("b hears the ghosts", async || get(&b.store, "later ghost").await.is_ok()).await;
    drop(a.store);
    let a = try_open(answering(copy.path(), "a"), &backend).await.unwrap();
    put(&a, "k", content(5, 1000)).await.unwrap();
    put(&a, "new", content(6, 1000)).await.unwrap();
    b.store.look().await.unwrap();
    until("b hears the copy", async || get(&b.store, "new").await.is_ok()).await;
    for (key, seed) in [("before", 1), ("k", 5), ("new", 6)] {
        assert_eq!(get(&b.store, key).await.unwrap(), content(seed, 1000), "{key}");
    }
    missing(get(&b.store, "ghost").await);
    missing(get(&b.store, "later ghost").await);
    let lost = std::fs::read_to_string(b.dir.path().join("lost-a.txt")).unwrap();
    assert!(lost.contains("lost first/ghost") && !lost.contains("first/before"), "{lost}");
}

#[tokio::test]
async fn a_copy_of_another_worker_that_is_not_heard_is_learned_from_the_bucket() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    let copy = snapshot(a.dir.path());
    for (key, seed) in [("ghost", 2), ("later ghost", 4)] {
        put(&a.store, key, content(seed, 1000)).await.unwrap();
    }
    until("b hears the ghosts", async || get(&b.store, "later ghost").await.is_ok()).await;
    drop(a.store);
    let a = try_open(shared(copy.path(), "a"), &backend).await.unwrap();
    put(&a, "new", content(6, 1000)).await.unwrap();
    assert!(a.flush().await);
    b.store.look().await.unwrap();
    assert_eq!(get(&b.store, "new").await.unwrap(), content(6, 1000));
    missing(get(&b.store, "ghost").await);
}

#[tokio::test]
async fn what_was_heard_is_known_after_a_kill() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    assert!(a.store.flush().await);
    b.store.look().await.unwrap();
    put(&a.store, "k", content(2, 1000)).await.unwrap();
    until("b hears of it", async || {
        get(&b.store, "k").await.is_ok_and(|bytes| bytes == content(2, 1000))
    })
    .await;
    let killed = snapshot(b.dir.path());
    drop((a.store, b.store));
    let b = try_open(answering(killed.path(), "b"), &backend).await.unwrap();
    let refused = get(&b, "k").await;
    assert!(
        matches!(refused, Err(ObjectError::Unavailable { .. })),
        "not the one before: {refused:?}"
    );
    let status = b.workers().unwrap();
    assert!(status.others[0].not_uploaded > 0, "{status:?}");
}
