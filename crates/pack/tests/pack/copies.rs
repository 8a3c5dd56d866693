//! Processes on copies of one directory, and requests of theirs that come late: one of them owns the backend, and all agree
//! on which blobs count.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_objects::ObjectError;
use larder_pack::blob::{BlobName, TRAILER_BYTES, Trailer};
use larder_pack::{PackConfig, PackError, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{
    Faulty, bucket, by_prefix, config, content, count, get, holds, made, open, put, put_and_flush,
    snapshot, successor_of, try_open,
};
use crate::workers::{answering, missing, shared, until, workers};

/// The reason why a store stopped.
fn reason(store: &Packer) -> String {
    store.fatal().borrow().clone().expect("it stopped")
}

/// Waits until a process has a number and a record.
pub async fn numbered(backend: &Faulty, process: u64) {
    let record = format!("-{process:08x}-from");
    until("the process has a number", async || {
        backend.names("incarnations").await.iter().any(|(name, _)| name.ends_with(&record))
    })
    .await;
}

/// Process and number of all blobs, in the order of their names.
pub async fn blobs(backend: &Faulty) -> Vec<(u64, u64)> {
    let names = backend.names("blobs").await.into_iter();
    let parse = |(name, _): (String, u64)| BlobName::parse(name.strip_prefix("blobs/").unwrap());
    let named = names.map(|name| parse(name).unwrap());
    let mut blobs: Vec<_> = named.map(|name| (name.process.number(), name.id.seq)).collect();
    blobs.sort_by_key(|(process, seq)| (*seq, *process));
    blobs
}

/// Uploads of a blob that get no answer until they come late; the process ends meanwhile.
async fn upload_late(backend: &Faulty, process: u64, store: Packer) {
    let name = format!("-{process:08x}");
    numbered(backend, process).await;
    backend.delay(&name);
    let store = Arc::new(store);
    let flushing = store.clone();
    let flushing = tokio::spawn(async move { flushing.flush().await });
    backend.delayed(&name).await;
    flushing.abort();
    let _aborted = flushing.await;
    drop(store);
}

/// A copy of the directory of a first process, whose next blob has this object and comes late.
async fn copy_before(
    dir: &tempfile::TempDir,
    backend: &Faulty,
    (first, name, seed): (Packer, &str, u64),
) -> tempfile::TempDir {
    let copy = snapshot(dir.path());
    put(&first, name, content(seed, 1000)).await.unwrap();
    upload_late(backend, 1, first).await;
    copy
}

pub fn without(dir: &Path, parts: &[&str]) {
    for part in parts {
        std::fs::remove_dir_all(dir.join(part)).unwrap();
    }
}

async fn is_older_copy(dir: &Path, backend: &Arc<Faulty>) -> bool {
    match try_open(config(dir), backend).await {
        Err(PackError::OlderCopy { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

#[tokio::test]
async fn of_two_processes_on_copies_of_a_directory_the_first_stops_at_its_next_upload() {
    let (dir, backend, first) = made().await;
    put_and_flush(&first, "k", 1).await;
    let copy = snapshot(dir.path());
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    put(&first, "of the first", content(2, 1000)).await.unwrap();
    put(&second, "of the second", content(3, 1000)).await.unwrap();
    assert!(!first.flush().await);
    let reason = reason(&first);
    assert!(reason.contains("Run one of the copies only"), "{reason}");
    assert!(second.flush().await);
    assert_eq!(blobs(&backend).await, [(1, 1), (2, 2)]);
    drop((first, second));
    let (_dir, heir) = successor_of(&backend).await;
    assert_eq!(get(&heir, "of the second").await.unwrap(), content(3, 1000));
    assert_eq!(get(&heir, "of the first").await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_blob_that_is_under_way_while_a_copy_starts_is_not_acknowledged() {
    let (dir, backend, first) = made().await;
    put_and_flush(&first, "k", 1).await;
    put(&first, "both", content(2, 1000)).await.unwrap();
    let copy = snapshot(dir.path());
    put(&first, "of the first", content(9, 1000)).await.unwrap();
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
    assert!(!flushing.await.unwrap(), "the copy has judged without it");
    put_and_flush(&second, "later", 3).await;
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2), (2, 2), (2, 3)]);
    drop((first, second));
    let (_dir, heir) = successor_of(&backend).await;
    holds(&heir, [("k", 1), ("both", 2), ("later", 3)]).await;
    assert_eq!(get(&heir, "of the first").await, Err(ObjectError::NoSuchKey));
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
    assert!(is_older_copy(copy.path(), &backend).await);
}

#[tokio::test]
async fn an_older_copy_that_is_refused_leaves_the_owner_alone() {
    let (dir, backend, store) = made().await;
    let copy = snapshot(dir.path());
    put_and_flush(&store, "k", 1).await;
    let before = backend.names("incarnations").await;
    for _ in 0..3 {
        assert!(is_older_copy(copy.path(), &backend).await);
    }
    assert_eq!(backend.names("incarnations").await, before);
    put(&store, "l", content(2, 1000)).await.unwrap();
    assert!(store.flush().await, "it is the owner still");
}

#[tokio::test]
async fn an_older_copy_without_its_index_does_not_swallow_what_it_acknowledged() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    let copy = snapshot(dir.path());
    put_and_flush(&store, "l", 2).await;
    drop(store);
    without(copy.path(), &["kv"]);
    assert!(is_older_copy(copy.path(), &backend).await, "blob 1 waits there, and is another");
    // A directory that has the same blob goes on.
    without(dir.path(), &["kv"]);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "l").await.unwrap(), content(2, 1000));
}

#[tokio::test]
async fn a_conflict_that_made_nothing_leaves_no_hole_in_the_numbers_of_processes() {
    let (dir, backend, store) = made().await;
    numbered(&backend, 1).await;
    let copy = snapshot(dir.path());
    backend.conflicts.store(2, Ordering::Relaxed);
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    assert_eq!(backend.names("incarnations").await.len(), 4);
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(!store.flush().await, "it finds the next number");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_give_one_process_one_number() {
    for lost in 1..=3 {
        let (dir, backend, store) = made().await;
        numbered(&backend, 1).await;
        drop(store);
        backend.answers_lost.store(lost, Ordering::Relaxed);
        let store = open(dir.path(), &backend).await;
        put_and_flush(&store, "k", 1).await;
        assert_eq!(count_of_numbers(&backend).await, 2, "it knows its own number again");
        assert_eq!(blobs(&backend).await, [(2, 1), (2, 2)]);
    }
}

async fn count_of_numbers(backend: &Faulty) -> usize {
    let names = backend.names("incarnations").await.into_iter();
    names.filter(|(name, _)| !name.ends_with("-from")).count()
}

#[tokio::test(start_paused = true)]
async fn a_worker_starts_while_the_backend_takes_no_writes() {
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    backend.refuses.store(true, Ordering::Relaxed);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
    put(&store, "l", content(2, 1000)).await.unwrap();
    assert_eq!(get(&store, "l").await.unwrap(), content(2, 1000));
    assert_eq!(backend.names("blobs").await.len(), 1);
    backend.refuses.store(false, Ordering::Relaxed);
    // Though it uploads nothing: a process on a copy finds that out.
    numbered(&backend, 2).await;
    assert!(store.flush().await);
    assert_eq!(backend.names("blobs").await.len(), 2);
}

#[tokio::test]
async fn a_late_blob_of_a_superseded_process_keeps_no_start_from_going_on_and_is_removed() {
    let (dir, backend, first) = made().await;
    put_and_flush(&first, "k", 1).await;
    let copy = copy_before(&dir, &backend, (first, "of the first", 2)).await;
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    drop(second);
    backend.arrive().await;
    let soon = PackConfig { grace: std::time::Duration::ZERO, ..config(copy.path()) };
    let third = try_open(soon, &backend).await.unwrap();
    put_and_flush(&third, "of the third", 3).await;
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2), (3, 2)]);
    third.run_maintenance().await.unwrap();
    assert_eq!(blobs(&backend).await, [(1, 1), (3, 2)]);
    assert_eq!(count(&third.counters().removed_objects), 1);
    drop(third);
    let (_dir, heir) = successor_of(&backend).await;
    assert_eq!(get(&heir, "of the third").await.unwrap(), content(3, 1000));
    assert_eq!(get(&heir, "of the first").await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_late_blob_of_a_directory_that_starts_again_is_adopted() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    upload_late(&backend, 1, store).await;
    backend.arrive().await;
    let store = open(dir.path(), &backend).await;
    put_and_flush(&store, "l", 2).await;
    assert_eq!(blobs(&backend).await, [(1, 1), (2, 2)], "nothing goes up twice");
    drop(store);
    let (_dir, heir) = successor_of(&backend).await;
    holds(&heir, [("k", 1), ("l", 2)]).await;
}

#[tokio::test]
async fn a_blob_that_a_list_is_late_with_is_adopted_too() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    upload_late(&backend, 1, store).await;
    backend.arrive().await;
    let (name, _) = backend.names("blobs").await.remove(0);
    *backend.late.lock() = (name, usize::MAX);
    let store = open(dir.path(), &backend).await;
    assert!(store.flush().await);
    assert_eq!(blobs(&backend).await, [(1, 1)], "nothing goes up twice");
}

#[tokio::test]
async fn of_two_copies_that_take_turns_none_counts_what_the_other_judged_void() {
    let (dir, backend, first) = made().await;
    put_and_flush(&first, "k", 1).await;
    put(&first, "both", content(2, 1000)).await.unwrap();
    let copy = snapshot(dir.path());
    upload_late(&backend, 1, first).await;
    // The copy begins at blob 2, and ends before it has uploaded that.
    backend.delay("blobs/");
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    backend.delayed("-00000002").await;
    drop(second);
    backend.arrive_from("-00000001").await;
    backend.undelay();
    let third = open(dir.path(), &backend).await;
    assert!(third.flush().await);
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2), (3, 2)], "the late one is void");
    drop(third);
    backend.arrive().await;
    let (_dir, heir) = successor_of(&backend).await;
    assert_eq!(get(&heir, "both").await.unwrap(), content(2, 1000));
}

/// A blob of a first process comes late, beside one of the same number that a copy has uploaded.
pub async fn beside_a_late_blob() -> (tempfile::TempDir, Arc<Faulty>) {
    let (dir, backend, first) = made().await;
    put_and_flush(&first, "k", 1).await;
    let copy = copy_before(&dir, &backend, (first, "of the first", 2)).await;
    let second = open(copy.path(), &backend).await;
    put_and_flush(&second, "of the second", 3).await;
    put(&second, "waits", content(4, 1000)).await.unwrap();
    drop(second);
    backend.arrive().await;
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2), (2, 2)]);
    (copy, backend)
}

#[tokio::test]
async fn an_index_is_rebuilt_beside_a_late_blob() {
    for lost in [&["kv"][..], &["kv", "log", "spool"]] {
        let (dir, backend) = beside_a_late_blob().await;
        without(dir.path(), lost);
        let store = open(dir.path(), &backend).await;
        assert_eq!(get(&store, "of the second").await.unwrap(), content(3, 1000));
        assert_eq!(get(&store, "of the first").await, Err(ObjectError::NoSuchKey));
        match lost.len() {
            1 => assert_eq!(get(&store, "waits").await.unwrap(), content(4, 1000)),
            _ => assert_eq!(get(&store, "waits").await, Err(ObjectError::NoSuchKey)),
        }
        put_and_flush(&store, "later", 5).await;
        drop(store);
        drop(open(dir.path(), &backend).await);
    }
}

#[tokio::test]
async fn what_waits_at_the_number_of_a_late_blob_outlives_the_index() {
    let (dir, backend, first) = made().await;
    assert!(first.flush().await);
    let copy = copy_before(&dir, &backend, (first, "of the first", 2)).await;
    backend.delay("blobs/");
    let second = open(copy.path(), &backend).await;
    numbered(&backend, 2).await;
    put(&second, "waits", content(3, 1000)).await.unwrap();
    drop(second);
    backend.arrive().await;
    without(copy.path(), &["kv"]);
    let second = open(copy.path(), &backend).await;
    assert_eq!(get(&second, "waits").await.unwrap(), content(3, 1000));
    assert!(second.flush().await);
}

#[tokio::test]
async fn a_record_that_comes_after_the_next_process_began_judges_nothing() {
    let (dir, backend, first) = made().await;
    assert!(first.flush().await);
    let copy = copy_before(&dir, &backend, (first, "k", 1)).await;
    backend.delay("-00000002-from");
    let second = open(copy.path(), &backend).await;
    backend.delayed("-00000002-from").await;
    drop(second);
    backend.arrive_from("blobs/").await;
    backend.undelay();
    let third = open(dir.path(), &backend).await;
    assert!(third.flush().await);
    assert_eq!(blobs(&backend).await, [(1, 1), (1, 2)], "it is adopted");
    drop(third);
    backend.arrive().await;
    let (_dir, heir) = successor_of(&backend).await;
    assert_eq!(get(&heir, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn a_record_written_after_a_takeover_is_ignored() {
    let (dir, backend, first) = made().await;
    assert!(first.flush().await);
    let copy = copy_before(&dir, &backend, (first, "k", 1)).await;
    // It finds no blob after the first, and so begins there; but its record is late.
    backend.delay("-from");
    let second = open(copy.path(), &backend).await;
    backend.delayed("-from").await;
    drop(second);
    backend.arrive_from("blobs/").await;
    backend.undelay();
    let (dir, heir) = successor_of(&backend).await;
    assert_eq!(get(&heir, "k").await.unwrap(), content(1, 1000));
    drop(heir);
    backend.arrive().await;
    without(dir.path(), &["kv", "log"]);
    let heir = open(dir.path(), &backend).await;
    assert_eq!(get(&heir, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn a_bundle_that_comes_late_is_written_over_no_other() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let first = try_open(by_prefix(dir.path()), &backend).await.unwrap();
    larder_objects::Objects::create_bucket(&first, &bucket("first"), None).await.unwrap();
    for (name, seed) in [("g/1", 1), ("g/2", 2)] {
        put(&first, name, content(seed, 100_000)).await.unwrap();
    }
    let copy = snapshot(dir.path());
    put(&first, "g/3", content(3, 100_000)).await.unwrap();
    drop(first);
    // The copy has less in the same bundle.
    backend.delay("objects/");
    let second = try_open(by_prefix(copy.path()), &backend).await.unwrap();
    backend.delayed("objects/").await;
    drop(second);
    backend.undelay();
    let third = try_open(by_prefix(dir.path()), &backend).await.unwrap();
    assert!(third.flush().await);
    backend.arrive().await;
    let objects = backend.names("objects").await;
    assert_eq!(objects.len(), 2, "{objects:?}");
    for (name, seed) in [("g/1", 1), ("g/2", 2), ("g/3", 3)] {
        assert_eq!(get(&third, name).await.unwrap(), content(seed, 100_000), "{name}");
    }
    drop(third);
    without(dir.path(), &["kv", "log"]);
    let soon = PackConfig { grace: std::time::Duration::ZERO, ..by_prefix(dir.path()) };
    let store = try_open(soon, &backend).await.unwrap();
    store.run_maintenance().await.unwrap();
    assert_eq!(backend.names("objects").await.len(), 1, "the late one is removed");
    for (name, seed) in [("g/1", 1), ("g/2", 2), ("g/3", 3)] {
        assert_eq!(get(&store, name).await.unwrap(), content(seed, 100_000), "{name}");
    }
}

#[tokio::test]
async fn what_an_older_copy_of_another_worker_uploads_takes_the_place_of_what_was_heard() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "before", content(1, 1000)).await.unwrap();
    until("b hears the original", async || get(&b.store, "before").await.is_ok()).await;
    put_and_flush(&b.store, "mine", 9).await;
    a.store.refresh().await.unwrap();
    assert_eq!(get(&a.store, "mine").await.unwrap(), content(9, 1000));
    let copy = snapshot(a.dir.path());
    for (key, seed) in [("ghost", 2), ("k", 3), ("mine", 7), ("later ghost", 4)] {
        put(&a.store, key, content(seed, 1000)).await.unwrap();
    }
    until("b hears the ghosts", async || get(&b.store, "later ghost").await.is_ok()).await;
    drop(a.store);
    let a = try_open(answering(copy.path(), "a"), &backend).await.unwrap();
    put_and_flush(&a, "k", 5).await;
    b.store.refresh().await.unwrap();
    b.store.run_maintenance().await.unwrap();
    put(&a, "new", content(6, 1000)).await.unwrap();
    until("b hears the copy", async || get(&b.store, "new").await.is_ok()).await;
    holds(&b.store, [("before", 1), ("k", 5), ("new", 6), ("mine", 9)]).await;
    missing(get(&b.store, "ghost").await);
    missing(get(&b.store, "later ghost").await);
    let lost = std::fs::read_to_string(b.dir.path().join("lost-a.txt")).unwrap();
    assert!(lost.contains("lost first/ghost") && !lost.contains("first/before"), "{lost}");
}

#[tokio::test]
async fn a_silent_workers_changes_are_read_from_the_bucket() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    let copy = snapshot(a.dir.path());
    for (key, seed) in [("ghost", 2), ("later ghost", 4)] {
        put(&a.store, key, content(seed, 1000)).await.unwrap();
    }
    until("b hears the ghosts", async || get(&b.store, "later ghost").await.is_ok()).await;
    drop(a.store);
    let a = try_open(shared(copy.path(), "a"), &backend).await.unwrap();
    put_and_flush(&a, "new", 6).await;
    b.store.refresh().await.unwrap();
    assert_eq!(get(&b.store, "new").await.unwrap(), content(6, 1000));
    missing(get(&b.store, "ghost").await);
}

/// Makes the claim of a worker's successor, as it is before the successor has written anything
/// else.
async fn claim_after(backend: &Faulty, prefix: &str) -> Name {
    let names = backend.names(&format!("{prefix}/claims")).await;
    let is_claim = |(name, _): &&(String, u64)| !name.ends_with("/numbered");
    let (last, _) = names.iter().rfind(is_claim).expect("the worker has a claim");
    let (claims, number) = last.rsplit_once('/').unwrap();
    let next = u64::from_str_radix(number, 16).unwrap() + 1;
    let name = Name::from(format!("{claims}/{next:016x}"));
    backend.inner.put(&name, backend.bytes(last).await.into()).await.unwrap();
    name
}

#[tokio::test]
async fn a_worker_is_hidden_until_its_successor_names_valid_blobs() {
    let backend = Arc::<Faulty>::default();
    let (of_a, of_b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let b = try_open(shared(of_b.path(), "b"), &backend).await.unwrap();
    let a = try_open(shared(of_a.path(), "a"), &backend).await.unwrap();
    larder_objects::Objects::create_bucket(&a, &bucket("first"), None).await.unwrap();
    put_and_flush(&a, "k", 1).await;
    let claim = claim_after(&backend, "workers/a").await;
    b.refresh().await.unwrap();
    assert!(get(&b, "k").await.is_err(), "the heir may find it void");
    backend.inner.delete(&claim).await.unwrap();
    b.refresh().await.unwrap();
    assert_eq!(get(&b, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn what_is_lost_with_a_worker_is_written_down_once() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "lost", content(1, 1000)).await.unwrap();
    until("b hears it", async || get(&b.store, "lost").await.is_ok()).await;
    drop(a.store);
    let of_heir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..shared(of_heir.path(), "a") };
    let heir = try_open(takes, &backend).await.unwrap();
    let claim = claim_after(&backend, "workers/a").await;
    let report = b.dir.path().join("lost-a.txt");
    for _ in 0..3 {
        b.store.refresh().await.unwrap();
        assert!(!report.exists(), "another heir may count it");
    }
    backend.inner.delete(&claim).await.unwrap();
    for _ in 0..2 {
        b.store.refresh().await.unwrap();
    }
    missing(get(&b.store, "lost").await);
    let report = std::fs::read_to_string(report).unwrap();
    assert_eq!(report.matches("lost first/lost").count(), 1, "{report}");
    drop(heir);
}
