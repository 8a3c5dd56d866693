//! Processes that follow each other on one directory, and on copies of it: what goes wrong around their numbers, and what
//! none of them removes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use larder_objects::{Objects, ReadBody};
use larder_pack::{PackConfig, Packer};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::policies::{MANY, name, put_some};
use crate::support::{
    MIB, bucket, by_prefix, config, content, delete, get, key, made, open, put, snapshot, try_open,
};

/// Removes at once what nothing needs.
async fn keep_house(store: &Packer) {
    while store.keep_house().await.unwrap().removed > 0 {}
}

#[tokio::test]
async fn a_bundle_that_died_is_read_on_by_whoever_began_before() {
    const LARGE: usize = 300_000;
    let (dir, backend, store) = made().await;
    drop(store);
    let store = try_open(by_prefix(dir.path()), &backend).await.unwrap();
    for number in 0..6 {
        put(&store, &name("a", number), content(number, LARGE)).await.unwrap();
    }
    assert!(store.flush().await);
    assert!(!backend.names("objects").await.is_empty(), "it is a bundle");
    let opened = store.open(&bucket("first"), &key(&name("a", 0))).await.unwrap();
    let ReadBody::Stream(mut pieces) = store.read(&opened, 0..LARGE as u64).await.unwrap() else {
        panic!("it is read as it comes");
    };
    for number in 0..6 {
        delete(&store, &name("a", number)).await;
    }
    assert!(store.flush().await);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(bytes, content(0, LARGE));
}

#[tokio::test]
async fn the_row_of_a_bundle_goes_with_the_bundle() {
    let (dir, backend, store) = made().await;
    drop(store);
    let hasty = PackConfig { grace: Duration::ZERO, ..by_prefix(dir.path()) };
    let store = try_open(hasty, &backend).await.unwrap();
    put_some(&store, &["a"], 0..MANY).await;
    assert!(store.flush().await);
    assert_eq!(backend.names("objects").await.len(), 1);
    for number in 0..MANY {
        delete(&store, &name("a", number)).await;
    }
    assert!(store.flush().await);
    keep_house(&store).await;
    assert_eq!(backend.names("objects").await, []);
    put(&store, "b", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    assert_eq!(get(&store, "b").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn a_number_that_is_not_shown_for_a_moment_ends_no_process() {
    let (_dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    assert!(store.flush().await);
    put(&store, "k", content(2, 1000)).await.unwrap();
    backend.missing.store(3, Ordering::Relaxed);
    assert!(store.flush().await);
    assert_eq!(*store.fatal().borrow(), None);
    assert_eq!(get(&store, "k").await.unwrap(), content(2, 1000));
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
    let hasty = PackConfig { grace: Duration::ZERO, ..config(dir.path()) };
    let store = try_open(hasty, &backend).await.unwrap();
    put(&store, "more", content(9, 1000)).await.unwrap();
    assert!(store.flush().await);
    keep_house(&store).await;
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
    let hasty = |dir| PackConfig { grace: Duration::ZERO, ..config(dir) };
    let second = try_open(hasty(copy.path()), &backend).await.unwrap();
    assert!(second.flush().await);
    drop(first);
    keep_house(&second).await;
    drop(second);
    // It uploaded nothing: the first one goes on.
    let first = open(dir.path(), &backend).await;
    assert_eq!(get(&first, "large").await.unwrap(), content(1, 3 * MIB));
    drop(first);

    let second = try_open(hasty(copy.path()), &backend).await.unwrap();
    put(&second, "k", content(2, 1000)).await.unwrap();
    assert!(second.flush().await);
    keep_house(&second).await;
    assert_eq!(backend.names("objects").await, [], "the other copy is refused from now on");
    drop(second);
    assert!(try_open(config(dir.path()), &backend).await.is_err());
}
