//! Processes that follow each other on one directory, and on copies of it: what goes wrong around their numbers, and what
//! none of them removes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use larder_objects::{Objects, ReadBody};
use larder_pack::{PackConfig, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::copies::{beside_a_late_blob, numbered, without};
use crate::policies::{MANY, check, name, put_some};
use crate::support::{
    Faulty, MIB, bucket, by_prefix, config, content, count, delete, get, holds, key, made, open,
    put, put_and_flush, snapshot, successor_of, try_open,
};

/// Removes at once what nothing needs.
async fn run_maintenance(store: &Packer) {
    while store.run_maintenance().await.unwrap().removed > 0 {}
}

#[tokio::test]
async fn a_bundle_that_died_is_read_on_by_whoever_began_before() {
    const LARGE: usize = 300_000;
    let (dir, backend, store) = made().await;
    drop(store);
    let repack_at_once = PackConfig { grace: Duration::ZERO, ..by_prefix(dir.path()) };
    let store = try_open(repack_at_once, &backend).await.unwrap();
    for number in 0..3 {
        put(&store, &name("a", number), content(number, LARGE)).await.unwrap();
    }
    assert!(store.flush().await);
    let bundles = backend.names("objects").await;
    assert!(!bundles.is_empty(), "it is a bundle");
    // The blob that told of it, and has the first object, goes: then the bundle's own row alone says under which name it is.
    let (blob, _) = backend.names("blobs").await.pop().unwrap();
    delete(&store, &name("a", 0)).await;
    assert!(store.flush().await);
    for _ in 0..8 {
        store.run_maintenance().await.unwrap();
        assert!(store.flush().await);
    }
    let blobs = backend.names("blobs").await;
    assert!(blobs.iter().all(|(name, _)| *name != blob), "{blobs:?}");
    assert_eq!(backend.names("objects").await, bundles);
    let opened = store.open(&bucket("first"), &key(&name("a", 1))).await.unwrap();
    // A piece behind the first comes spoiled: it is asked for once more, by the name.
    let (bundle, good) = (Name::from(bundles[0].0.clone()), backend.bytes(&bundles[0].0).await);
    let mut spoiled = good.to_vec();
    for at in (LARGE / 2..spoiled.len()).step_by(LARGE) {
        spoiled[at] ^= 1;
    }
    backend.inner.put(&bundle, spoiled.into()).await.unwrap();
    let ReadBody::Stream(mut pieces) = store.read(&opened, 0..LARGE as u64).await.unwrap() else {
        panic!("it is read as it comes");
    };
    for number in 1..3 {
        delete(&store, &name("a", number)).await;
    }
    assert!(store.flush().await);
    backend.inner.put(&bundle, good.into()).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(bytes, content(1, LARGE));
}

#[tokio::test]
async fn the_row_of_a_bundle_goes_with_the_bundle() {
    let (dir, backend, store) = made().await;
    drop(store);
    let repack_at_once = PackConfig { grace: Duration::ZERO, ..by_prefix(dir.path()) };
    let store = try_open(repack_at_once, &backend).await.unwrap();
    put_some(&store, &["a"], 0..MANY).await;
    assert!(store.flush().await);
    assert_eq!(backend.names("objects").await.len(), 1);
    for number in 0..MANY {
        delete(&store, &name("a", number)).await;
    }
    assert!(store.flush().await);
    run_maintenance(&store).await;
    assert_eq!(backend.names("objects").await, []);
    put_and_flush(&store, "b", 1).await;
    assert_eq!(get(&store, "b").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn a_number_that_is_not_shown_for_a_moment_ends_no_process() {
    let (_dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    put(&store, "k", content(2, 1000)).await.unwrap();
    backend.missing.store(3, Ordering::Relaxed);
    assert!(store.flush().await);
    assert_eq!(*store.fatal().borrow(), None);
    assert_eq!(get(&store, "k").await.unwrap(), content(2, 1000));
}

#[tokio::test]
async fn a_number_that_came_back_beside_a_late_blob_keeps_no_index_from_being_made_anew() {
    let (dir, backend) = beside_a_late_blob().await;
    for process in [3, 4] {
        let store = open(dir.path(), &backend).await;
        numbered(&backend, process).await;
        assert!(store.flush().await);
    }
    // The numbers of the first two were removed; a request for the first was made twice, and is late.
    let first = "incarnations/0000000000000001-00000001";
    let number = backend.bytes(first).await;
    for name in ["1", "1-from", "2", "2-from"] {
        let name = format!("incarnations/0000000000000001-0000000{name}");
        backend.inner.delete(&Name::from(name)).await.unwrap();
    }
    backend.inner.put(&Name::from(first), number.into()).await.unwrap();
    for _ in 0..2 {
        without(dir.path(), &["kv"]);
        let store = open(dir.path(), &backend).await;
        assert_eq!(get(&store, "of the second").await.unwrap(), content(3, 1000));
        assert_eq!(get(&store, "waits").await.unwrap(), content(4, 1000));
    }
}

#[tokio::test]
async fn a_record_that_is_not_shown_for_a_moment_is_not_taken_for_one_that_was_removed() {
    let (_dir, backend) = beside_a_late_blob().await;
    let new = tempfile::tempdir().unwrap();
    let takes = || PackConfig { take_over: true, ..config(new.path()) };
    *backend.hidden.lock() = ("incarnations/0000000000000001-00000002".to_owned(), 2);
    let error = try_open(takes(), &backend)
        .await
        .err()
        .expect("it says what counts by a record that it has not read");
    assert!(error.to_string().contains("-00000002-from"), "{error}");
    backend.hidden.lock().1 = 0;
    let heir = try_open(takes(), &backend).await.unwrap();
    assert_eq!(get(&heir, "of the second").await.unwrap(), content(3, 1000));
}

#[tokio::test]
async fn a_process_that_cannot_write_its_number_down_uploads_all_the_same() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    drop(store);
    // As on a full disk.
    std::fs::create_dir_all(dir.path().join("numbered.draft/in-the-way")).unwrap();
    let store = open(dir.path(), &backend).await;
    assert!(store.flush().await, "it would wait for ever");
    assert_eq!(store.waiting().blobs, 0);
}

#[tokio::test]
async fn what_the_index_names_stays_whatever_records_say() {
    let (dir, backend, store) = made().await;
    for number in 0..5 {
        put(&store, &format!("k{number}"), content(number, 1000)).await.unwrap();
        assert!(store.flush().await);
    }
    drop(store);
    // Somebody writes that the first process of many began too late, as a mistake of another release would.
    for (path, _) in backend.names("incarnations").await {
        let bytes = backend.bytes(&path).await;
        let later = path.replace("-00000001", "-00000009");
        backend.inner.put(&Name::from(later), bytes.into()).await.unwrap();
    }
    let repack_at_once = PackConfig { grace: Duration::ZERO, ..config(dir.path()) };
    let store = try_open(repack_at_once, &backend).await.unwrap();
    put_and_flush(&store, "more", 9).await;
    run_maintenance(&store).await;
    for number in 0..5 {
        assert_eq!(get(&store, &format!("k{number}")).await.unwrap(), content(number, 1000));
    }
}

#[tokio::test]
async fn a_large_object_of_a_copy_stays_until_the_copy_cannot_go_on() {
    let (dir, backend, first) = made().await;
    assert!(first.flush().await);
    let copy = snapshot(dir.path());
    put(&first, "large", content(1, 3 * MIB)).await.unwrap();
    let repack_at_once = |dir| PackConfig { grace: Duration::ZERO, ..config(dir) };
    let second = try_open(repack_at_once(copy.path()), &backend).await.unwrap();
    assert!(second.flush().await);
    drop(first);
    run_maintenance(&second).await;
    drop(second);
    // It uploaded nothing: the first one goes on.
    let first = open(dir.path(), &backend).await;
    assert_eq!(get(&first, "large").await.unwrap(), content(1, 3 * MIB));
    drop(first);

    let second = try_open(repack_at_once(copy.path()), &backend).await.unwrap();
    put_and_flush(&second, "k", 2).await;
    run_maintenance(&second).await;
    assert_eq!(backend.names("objects").await, [], "the other copy is refused from now on");
    drop(second);
    assert!(try_open(config(dir.path()), &backend).await.is_err());
}

/// Numbers of processes, with records that they began at a blob: as crashes leave them. All that there are become a day old.
async fn many_processes(backend: &Faulty, processes: std::ops::RangeInclusive<u64>, blob: u8) {
    let first = backend.names("incarnations").await.remove(0).0;
    let (worker, _) = first.rsplit_once('-').unwrap();
    for process in processes {
        let name = format!("{worker}-{process:08x}");
        for (name, bytes) in [(format!("{name}-from"), vec![1, 1, blob]), (name, vec![1, 7])] {
            backend.inner.put(&Name::from(name), bytes.into()).await.unwrap();
        }
    }
    let all = backend.names("incarnations").await.into_iter();
    backend.aged.lock().extend(all.map(|(name, _)| name));
}

#[tokio::test]
async fn numbers_of_processes_in_the_backend_are_bounded() {
    let (dir, backend, store) = made().await;
    assert!(store.flush().await);
    drop(store);
    many_processes(&backend, 2..=520, 2).await;
    // Of one that was removed, as it was old, the record is there still.
    let (first, _) = backend.names("incarnations").await.remove(0);
    backend.inner.delete(&Name::from(first)).await.unwrap();
    let store = open(dir.path(), &backend).await;
    put_and_flush(&store, "k", 1).await;
    assert_eq!(backend.names("incarnations").await.len(), 2 * 521 - 1, "more than few are few");
    store.run_maintenance().await.unwrap();
    assert_eq!(backend.names("incarnations").await.len(), 2 * 512);
    put_and_flush(&store, "l", 2).await;
}

#[tokio::test]
async fn a_start_among_many_numbers_asks_for_few_and_removes_some_that_are_old() {
    let (dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    let asked = async |seed| {
        let store = open(dir.path(), &backend).await;
        while store.owner().process.number() == 0 {
            tokio::task::yield_now().await;
        }
        put(&store, "k", content(seed, 1000)).await.unwrap();
        assert!(store.flush().await);
        assert_eq!(get(&store, "k").await.unwrap(), content(seed, 1000));
        let requests = &store.counters().requests;
        [&requests.list, &requests.get, &requests.put, &requests.delete].map(count)
    };
    many_processes(&backend, 2..=500, 2).await;
    let [list, get, put, delete] = asked(2).await;
    // None of the 500 records: no blob is there that any of them could make void.
    assert!(list <= 16 && get <= 5 && put <= 5 && delete == 0, "{list} {get} {put} {delete}");

    // Processes that ended before any work in the background.
    many_processes(&backend, 502..=700, 3).await;
    for (seed, left) in [(3, 701 - 16), (4, 702 - 32)] {
        let [_, get, _, delete] = asked(seed).await;
        assert!(get <= 720, "{get}: each record once");
        assert_eq!(delete, 32);
        assert_eq!(backend.names("incarnations").await.len(), 2 * left);
    }
    // A start that needs all records reads each once.
    std::fs::remove_dir_all(dir.path().join("kv")).unwrap();
    let [_, get, ..] = asked(5).await;
    assert!(get <= 720, "{get}");
    // Those of the last hour stay.
    backend.aged.lock().clear();
    let [.., delete] = asked(6).await;
    assert_eq!(delete, 0);
}

#[tokio::test]
async fn a_successor_reads_each_record_once_and_keeps_one_of_its_predecessor() {
    let (_dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    drop(store);
    many_processes(&backend, 2..=40, 2).await;
    let (_of_heir, heir) = successor_of(&backend).await;
    let read = count(&heir.counters().requests.get);
    assert!(read <= 60, "{read}");
    put_and_flush(&heir, "l", 2).await;
    heir.run_maintenance().await.unwrap();
    let kept: Vec<_> =
        backend.names("incarnations").await.into_iter().map(|(name, _)| name).collect();
    let [first, second] = [("1", "00000028"), ("2", "00000001")]
        .map(|(worker, process)| format!("incarnations/000000000000000{worker}-{process}"));
    assert_eq!(kept, [first.clone(), first + "-from", second.clone(), second + "-from"]);
    drop(heir);
    let (_of_next, next) = successor_of(&backend).await;
    holds(&next, [("k", 1), ("l", 2)]).await;
}

#[tokio::test]
async fn an_upload_looks_five_times_who_owns_the_backend() {
    let (_dir, _backend, store) = made().await;
    assert!(store.flush().await);
    let looks = || count(&store.counters().requests.head);
    let before = looks();
    for seed in 0..3 {
        put(&store, "k", content(seed, 1000)).await.unwrap();
        assert!(store.flush().await);
    }
    // For a claim and for a later number, before and after; and for its own number after, by which it is acknowledged.
    assert_eq!(looks() - before, 3 * 5);
}

#[tokio::test]
async fn what_an_earlier_process_uploaded_too_late_goes_also_once_no_record_says_so() {
    let (dir, backend, store) = made().await;
    assert!(store.flush().await);
    drop(store);
    let repack_at_once = || PackConfig { grace: Duration::ZERO, ..by_prefix(dir.path()) };
    let store = try_open(repack_at_once(), &backend).await.unwrap();
    put_some(&store, &["a"], 0..MANY).await;
    assert!(store.flush().await);
    drop(store);
    many_processes(&backend, 3..=600, 9).await;
    let store = try_open(repack_at_once(), &backend).await.unwrap();
    put_and_flush(&store, "k", 1).await;
    run_maintenance(&store).await;
    let (blobs, bundles) = (backend.names("blobs").await, backend.names("objects").await);
    let named = |names: &[(String, u64)]| {
        let of_second = names.iter().find(|(name, _)| name.ends_with("-00000002"));
        of_second.expect("the second process has uploaded it").0.clone()
    };
    assert!(!backend.names("incarnations").await[0].0.contains("-00000002"), "it is forgotten");
    // Of the first process.
    for name in [named(&blobs), named(&bundles)] {
        let late = Name::from(name.replace("-00000002", "-00000001"));
        backend.inner.put(&late, backend.bytes(&name).await.into()).await.unwrap();
    }
    drop(store);
    let store = try_open(repack_at_once(), &backend).await.unwrap();
    run_maintenance(&store).await;
    assert_eq!(backend.names("blobs").await, blobs);
    assert_eq!(backend.names("objects").await, bundles);
    check(&store, &["a"], 0..MANY).await;
}
