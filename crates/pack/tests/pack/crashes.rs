//! Crashes, and the loss of what the directory has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use larder_objects::{ListRequest, ListedObject, ObjectError, Objects, PutOptions, UploadOptions};
use larder_pack::{PackConfig, PackError, Packer};
use larder_types::BucketRecord;

use crate::support::{
    Faulty, Sent, bucket, config, content, delete, get, key, list, made, open, put, snapshot,
    try_open,
};

/// Everything that a client can see.
#[derive(Debug, PartialEq)]
pub struct Seen {
    buckets: Vec<BucketRecord>,
    objects: Vec<ListedObject>,
    bytes: BTreeMap<String, Bytes>,
    uploads: usize,
}

pub async fn seen(store: &Packer) -> Seen {
    let mut objects = Vec::new();
    let buckets = store.buckets().unwrap();
    for record in &buckets {
        objects.extend(list(store, &record.name).await);
    }
    let mut bytes = BTreeMap::new();
    for object in list(store, &bucket("first")).await {
        let name = object.key.as_str().to_owned();
        bytes.insert(name.clone(), get(store, &name).await.unwrap());
    }
    let request = ListRequest { max: 100, ..ListRequest::default() };
    let uploads = store.list_uploads(&bucket("first"), request, None).await.unwrap().items.len();
    Seen { buckets, objects, bytes, uploads }
}

/// Something of everything, in several blobs.
pub async fn fill(store: &Packer) {
    for seed in 0..40 {
        put(store, &format!("k{seed:02}"), content(seed, 20_000 + seed as usize)).await.unwrap();
    }
    assert!(store.flush().await);
    for seed in 0..10 {
        delete(store, &format!("k{seed:02}")).await;
        put(store, &format!("k{:02}", seed + 10), content(seed + 100, 500)).await.unwrap();
    }
    let source = store.open(&bucket("first"), &key("k30")).await.unwrap();
    store
        .link(&source, &bucket("first"), &key("linked"), PutOptions::default())
        .await
        .unwrap()
        .unwrap();
    delete(store, "k30").await;
    let tags = vec![("a".to_owned(), "b".to_owned())];
    store.set_tags(&bucket("first"), &key("k31"), tags).await.unwrap();
    store.create_bucket(&bucket("gone"), None).await.unwrap();
    store.delete_bucket(&bucket("gone")).await.unwrap();
    store.create_bucket(&bucket("second"), Some("eu".into())).await.unwrap();
    assert!(store.flush().await);
    let upload = store
        .create_upload(&bucket("first"), &key("open"), UploadOptions::default())
        .await
        .unwrap();
    let body = Sent::whole(content(7, 1000));
    store.put_part(&bucket("first"), &key("open"), upload, 1, body).await.unwrap();
    put(store, "k05", content(55, 5)).await.unwrap();
    put(store, "large", content(9, 3_000_000)).await.unwrap();
}

#[tokio::test]
async fn a_restart_shows_what_was_there() {
    let (dir, backend, store) = made().await;
    fill(&store).await;
    let before = seen(&store).await;
    drop(store);
    let store = open(dir.path(), &backend).await;
    assert_eq!(seen(&store).await, before);
    assert!(store.flush().await);
    assert_eq!(seen(&store).await, before, "from the backend");
}

#[tokio::test]
async fn without_its_directory_a_store_is_rebuilt_from_footers_and_equal() {
    let (_dir, backend, store) = made().await;
    fill(&store).await;
    assert!(store.flush().await);
    let before = seen(&store).await;
    put(&store, "never-uploaded", content(1, 10)).await.unwrap();
    drop(store);

    let new = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(new.path()) };
    let store = try_open(takes, &backend).await.unwrap();
    assert_eq!(seen(&store).await, before);
    let old = before.buckets[0].id;
    store.create_bucket(&bucket("third"), None).await.unwrap();
    assert!(store.bucket(&bucket("third")).unwrap().id > old, "ids are never given twice");
    delete(&store, "k05").await;
    put(&store, "new", content(3, 3)).await.unwrap();
    assert!(store.flush().await);
    let after = seen(&store).await;
    drop(store);

    let third = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(third.path()) };
    let store = try_open(takes, &backend).await.unwrap();
    assert_eq!(seen(&store).await, after, "from the blobs of two workers");
}

#[tokio::test]
async fn a_lost_index_is_rebuilt_and_the_log_goes_on_from_there() {
    let (dir, backend, store) = made().await;
    fill(&store).await;
    let upload = store
        .create_upload(&bucket("first"), &key("late"), UploadOptions::default())
        .await
        .unwrap();
    let body = Sent::whole(content(8, 1000));
    store.put_part(&bucket("first"), &key("late"), upload, 2, body).await.unwrap();
    delete(&store, "k20").await;
    let before = seen(&store).await;
    drop(store);
    std::fs::remove_dir_all(dir.path().join("kv")).unwrap();
    let store = open(dir.path(), &backend).await;
    assert_eq!(seen(&store).await, before);
    let parts = store.list_parts(&bucket("first"), &key("late"), upload, 0, 10).await.unwrap();
    assert_eq!(parts.parts.len(), 1);
}

#[tokio::test]
async fn a_start_that_was_killed_while_it_removed_half_an_index_is_followed_by_another() {
    let (dir, backend, store) = made().await;
    fill(&store).await;
    let before = seen(&store).await;
    store.close();
    drop(store);
    // As docs/formats/kv.md has it: marked, and some of its files are gone.
    let kv = dir.path().join("kv");
    std::fs::rename(kv.join("current"), kv.join("removed")).unwrap();
    for file in std::fs::read_dir(&kv).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().unwrap().to_string_lossy().starts_with('v') {
            std::fs::remove_file(file).unwrap();
        }
    }
    assert!(std::fs::read_dir(kv.join("tables")).unwrap().next().is_some(), "something is left");
    let store = open(dir.path(), &backend).await;
    assert_eq!(seen(&store).await, before);
    assert!(!kv.join("removed").exists());
}

#[tokio::test]
async fn a_blob_that_goes_up_again_after_a_crash_is_the_same() {
    let (dir, backend, store) = made().await;
    fill(&store).await;
    let crashed = snapshot(dir.path());
    assert!(store.flush().await);
    let before = (backend.names("blobs").await, seen(&store).await);
    let mut bytes = Vec::new();
    for (name, _) in &before.0 {
        bytes.push(backend.bytes(name).await);
    }
    drop(store);
    let store = open(crashed.path(), &backend).await;
    assert!(store.flush().await);
    assert_eq!((backend.names("blobs").await, seen(&store).await), before);
    for ((name, _), bytes) in before.0.iter().zip(bytes) {
        assert_eq!(backend.bytes(name).await, bytes, "{name}");
    }
}

/// Returns true if a directory is refused as an older copy.
async fn is_too_old(dir: &std::path::Path, backend: &Arc<Faulty>) -> bool {
    match try_open(config(dir), backend).await {
        Ok(_) => false,
        Err(PackError::OlderCopy { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_older_copy_of_the_directory_is_refused_once_the_backend_has_more() {
    let (dir, backend, store) = made().await;
    fill(&store).await;
    assert!(store.flush().await);
    let same = snapshot(dir.path());
    delete(&store, "k20").await;
    // A blob of it is open here, and goes up with another delete: its name says nothing of that, its length does.
    let open_blob = snapshot(dir.path());
    delete(&store, "k21").await;
    assert!(store.flush().await);
    let (blobs, before) = (backend.names("blobs").await, seen(&store).await);
    drop(store);
    assert!(is_too_old(same.path(), &backend).await, "it does not know the last blob");
    assert!(is_too_old(open_blob.path(), &backend).await, "it has less of the last blob");
    assert_eq!(backend.names("blobs").await, blobs, "nothing was written");
    assert!(!is_too_old(dir.path(), &backend).await);
    let new = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(new.path()) };
    let store = try_open(takes, &backend).await.unwrap();
    assert_eq!(seen(&store).await, before, "the remedy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_moment_loses_nothing_that_was_answered() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    // Nothing goes up: an image is not taken in one moment, and no file may go while it is.
    let patient = PackConfig { blob_bytes: 1 << 28, spool_bytes: 1 << 30, ..config(dir.path()) };
    let store = Arc::new(try_open(patient, &backend).await.unwrap());
    store.create_bucket(&bucket("first"), None).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let answered: Arc<[AtomicU64; 8]> = Arc::default();
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let (store, stop, answered) = (store.clone(), stop.clone(), answered.clone());
            tokio::spawn(async move {
                for number in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let bytes = content(writer << 32 | number, 1 + (number as usize * 977) % 9000);
                    put(&store, &format!("w{writer}-{number}"), bytes).await.unwrap();
                    answered[writer as usize].store(number, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut images = Vec::new();
    for round in 0..6u64 {
        let wanted = (round + 1) * 40;
        while answered.iter().any(|last| last.load(Ordering::Relaxed) < wanted) {
            tokio::task::yield_now().await;
        }
        let before: Vec<_> = answered.iter().map(|last| last.load(Ordering::Relaxed)).collect();
        let source = dir.path().to_owned();
        let image = tokio::task::spawn_blocking(move || snapshot(&source)).await.unwrap();
        images.push((before, image));
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    drop(store);
    // Each image is a store of its own, which must not write to the backend of the others.
    backend.refuses.store(true, Ordering::Relaxed);
    for (before, image) in images {
        verify_image(&before, image.path(), &backend).await;
    }
}

async fn verify_image(answered: &[u64], dir: &std::path::Path, backend: &Arc<Faulty>) {
    let store = open(dir, backend).await;
    for (writer, last) in answered.iter().enumerate() {
        for number in 1..=*last {
            let seed = (writer as u64) << 32 | number;
            let bytes = content(seed, 1 + (number as usize * 977) % 9000);
            let name = format!("w{writer}-{number}");
            assert_eq!(get(&store, &name).await, Ok(bytes), "{name}");
        }
        let beyond = get(&store, &format!("w{writer}-{}", last + 1_000_000)).await;
        assert_eq!(beyond, Err(ObjectError::NoSuchKey));
    }
}
