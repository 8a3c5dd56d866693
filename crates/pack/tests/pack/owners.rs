//! Processes on copies of one directory: one of them owns the backend, and other workers follow that one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_objects::{ObjectError, Objects};
use larder_pack::blob::{BlobName, TRAILER_BYTES, Trailer};
use larder_pack::{PackConfig, PackError, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{
    Faulty, bucket, config, content, delete, get, made, open, put, snapshot, try_open,
};
use crate::workers::{answering, missing, shared, until, workers};

async fn heir_of(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(dir.path()) };
    let heir = try_open(takes, backend).await.unwrap();
    (dir, heir)
}

/// Why a store stopped.
fn reason(store: &Packer) -> String {
    store.fatal().borrow().clone().expect("it stopped")
}

/// Waits until so many processes have had a number.
async fn numbered(backend: &Faulty, processes: u64) {
    let last = format!("-{processes:016x}");
    until("the process has a number", async || {
        backend.names("incarnations").await.last().is_some_and(|(name, _)| name.ends_with(&last))
    })
    .await;
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
    numbered(&backend, 2).await;
    put(&first, "of the first", content(2, 1000)).await.unwrap();
    put(&second, "of the second", content(3, 1000)).await.unwrap();
    assert!(!first.flush().await);
    let reason = reason(&first);
    assert!(reason.contains("Run one of the copies only"), "{reason}");
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
    let _stopped = flushing.await.unwrap();
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
async fn another_blob_of_one_name_that_arrives_late_is_removed_too() {
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
async fn a_conflict_that_made_nothing_leaves_no_hole_in_the_numbers_of_processes() {
    let (dir, backend, store) = made().await;
    numbered(&backend, 1).await;
    let copy = snapshot(dir.path());
    backend.conflicts.store(2, Ordering::Relaxed);
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    assert_eq!(backend.names("incarnations").await.len(), 2);
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(!store.flush().await, "it finds the next incarnation");
    drop(second);
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

#[tokio::test]
async fn an_answer_that_is_lost_gives_one_process_one_number() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = open(dir.path(), &backend).await;
    numbered(&backend, 1).await;
    drop(store);
    backend.answers_lost.store(1, Ordering::Relaxed);
    let store = open(dir.path(), &backend).await;
    numbered(&backend, 2).await;
    store.create_bucket(&bucket("first"), None).await.unwrap();
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    assert_eq!(backend.names("incarnations").await.len(), 2, "it knows its own number again");
}

#[tokio::test]
async fn others_keep_what_they_heard_of_a_worker_whose_start_lost_an_answer() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    until("b hears of it", async || get(&b.store, "k").await.is_ok()).await;
    drop(a.store);
    backend.answers_lost.store(1, Ordering::Relaxed);
    let a = try_open(answering(a.dir.path(), "a"), &backend).await.unwrap();
    put(&a, "l", content(2, 1000)).await.unwrap();
    b.store.look().await.unwrap();
    until("b hears the next process", async || get(&b.store, "l").await.is_ok()).await;
    assert_eq!(get(&b.store, "k").await.unwrap(), content(1, 1000));
    assert!(!b.dir.path().join("lost-a.txt").exists());
}

#[tokio::test]
async fn numbers_of_processes_in_the_backend_are_bounded() {
    let (dir, backend, store) = made().await;
    assert!(store.flush().await);
    drop(store);
    for process in 2..=40 {
        let store = open(dir.path(), &backend).await;
        numbered(&backend, process).await;
        put(&store, "k", content(process, 1000)).await.unwrap();
        assert!(store.flush().await);
    }
    let names = backend.names("incarnations").await;
    assert_eq!(names.len(), 16, "{names:?}");
}

#[tokio::test]
async fn a_worker_starts_while_the_backend_takes_no_writes() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    drop(store);
    backend.refuses.store(true, Ordering::Relaxed);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
    put(&store, "l", content(2, 1000)).await.unwrap();
    assert_eq!(get(&store, "l").await.unwrap(), content(2, 1000));
    assert_eq!(backend.names("blobs").await.len(), 1);
    backend.refuses.store(false, Ordering::Relaxed);
    assert!(store.flush().await);
    assert_eq!(backend.names("blobs").await.len(), 2);
}

#[tokio::test]
async fn a_blob_that_a_superseded_process_uploads_late_keeps_no_start_from_going_on() {
    let (dir, backend, first) = made().await;
    put(&first, "k", content(1, 1000)).await.unwrap();
    assert!(first.flush().await);
    // The copy is of the same process's directory.
    let copy = snapshot(dir.path());
    put(&first, "of the first", content(2, 1000)).await.unwrap();
    let held = backend.puts.write().await;
    let first = Arc::new(first);
    let flushing = first.clone();
    let flushing = tokio::spawn(async move { flushing.flush().await });
    while backend.puts_waiting() < 1 {
        tokio::task::yield_now().await;
    }
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    // It has looked for blobs since once it says that it has its number.
    until("it says so", async || copy.path().join("numbered").exists()).await;
    drop(second);
    drop(held);
    let _stopped = flushing.await.unwrap();
    drop(first);
    assert_eq!(numbers(&backend).await, [1, 2]);
    let third = open(copy.path(), &backend).await;
    put(&third, "of the third", content(3, 1000)).await.unwrap();
    assert!(third.flush().await);
    assert_eq!(numbers(&backend).await, [1, 2], "one of each number");
    drop(third);
    let (_dir, heir) = heir_of(&backend).await;
    assert_eq!(get(&heir, "of the third").await.unwrap(), content(3, 1000));
    assert_eq!(get(&heir, "of the first").await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_copy_that_is_older_than_the_last_start_is_followed_once_the_bucket_says_so() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    let copy = snapshot(a.dir.path());
    drop(a.store);
    let restarted = try_open(answering(a.dir.path(), "a"), &backend).await.unwrap();
    b.store.look().await.unwrap();
    put(&restarted, "ghost", content(2, 1000)).await.unwrap();
    until("b hears the ghost", async || get(&b.store, "ghost").await.is_ok()).await;
    drop(restarted);
    let a = try_open(answering(copy.path(), "a"), &backend).await.unwrap();
    put(&a, "new", content(3, 1000)).await.unwrap();
    for _ in 0..3 {
        let _looked = b.store.look().await;
    }
    until("b hears the copy", async || get(&b.store, "new").await.is_ok()).await;
    missing(get(&b.store, "ghost").await);
}

#[tokio::test]
async fn what_a_worker_replaced_stays_until_the_copy_of_another_has_something_newer() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&b.store, "k", content(1, 1000)).await.unwrap();
    everybody_uploads_both(&a.store, &b.store).await;
    let copy = snapshot(a.dir.path());
    put(&a.store, "k", content(2, 1000)).await.unwrap();
    until("b hears of it", async || {
        get(&b.store, "k").await.is_ok_and(|bytes| bytes == content(2, 1000))
    })
    .await;
    drop(a.store);
    let a = try_open(shared(copy.path(), "a"), &backend).await.unwrap();
    put(&a, "other", content(3, 1000)).await.unwrap();
    assert!(a.flush().await);
    b.store.look().await.unwrap();
    b.store.keep_house().await.unwrap();
    assert_eq!(get(&b.store, "k").await.unwrap(), content(1, 1000), "its own, which is durable");
    assert_eq!(get(&b.store, "other").await.unwrap(), content(3, 1000));
}

async fn everybody_uploads_both(a: &Packer, b: &Packer) {
    for store in [a, b] {
        assert!(store.flush().await);
    }
    for store in [a, b] {
        store.look().await.unwrap();
    }
}
