//! A store under what its backend does: blobs that go up by themselves, refusals, other owners.

use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::{ObjectError, Objects};
use larder_pack::{Acknowledge, Backend, BlobId, PackConfig, PackError, Packer, WorkerId};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::support::{Faulty, MIB, bucket, config, content, count, get, made, put, try_open};

#[tokio::test]
async fn a_full_blob_goes_up_by_itself() {
    let (_dir, backend, store) = made().await;
    for seed in 0..5 {
        put(&store, &format!("k{seed}"), content(seed, 600_000)).await.unwrap();
    }
    // The last one is open still.
    while store.waiting().blobs > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(count(&store.counters().blobs), 4);
    for (_, size) in backend.names("blobs").await {
        assert!((600_000..MIB as u64).contains(&size), "{size}");
    }
}

#[tokio::test]
async fn a_blob_goes_up_when_its_oldest_change_is_old() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), std::sync::Arc::<Faulty>::default());
    let quick = PackConfig { flush_timeout: Duration::from_millis(20), ..config(dir.path()) };
    let store = try_open(quick, &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    while count(&store.counters().blobs) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(backend.names("blobs").await.len(), 1);
}

#[tokio::test]
async fn with_ack_uploaded_a_put_has_its_blob_behind_it() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), std::sync::Arc::<Faulty>::default());
    let sure = PackConfig {
        flush_timeout: Duration::from_millis(10),
        acknowledge: Acknowledge::Uploaded,
        ..config(dir.path())
    };
    let store = try_open(sure, &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    assert_eq!(backend.names("blobs").await.len(), 1);
    put(&store, "k", content(1, 1000)).await.unwrap();
    let blobs = backend.names("blobs").await;
    assert_eq!(blobs.len(), 2);
    let bytes = backend.bytes(&blobs[1].0).await;
    assert_eq!(bytes.slice(..1000), content(1, 1000));
}

#[tokio::test]
async fn a_backend_that_refuses_slows_puts_down_and_loses_nothing() {
    let (dir, backend, store) = made().await;
    assert!(store.flush().await);
    backend.refuses.store(true, Ordering::Relaxed);
    drop(store);
    let small = PackConfig { spool_bytes: 2 * MIB as u64, ..config(dir.path()) };
    let store = try_open(small, &backend).await.unwrap();
    let mut taken = 0;
    let refused = loop {
        match put(&store, &format!("k{taken}"), content(taken, 500_000)).await {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, ObjectError::SlowDown);
    assert_eq!(taken, 4, "as many as the spool has room for");
    assert_eq!(get(&store, "k3").await.unwrap(), content(3, 500_000));
    store.delete(&bucket("first"), &crate::support::key("k0"), Default::default()).await.unwrap();
    while count(&store.counters().failed_uploads) == 0 {
        tokio::task::yield_now().await;
    }
    backend.refuses.store(false, Ordering::Relaxed);
    assert!(store.flush().await);
    put(&store, "k9", content(9, 500_000)).await.unwrap();
    assert_eq!(get(&store, "k1").await.unwrap(), content(1, 500_000));
    assert_eq!(get(&store, "k0").await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_worker_that_was_superseded_stops_and_uploads_nothing() {
    let (dir, backend, store) = made().await;
    put(&store, "k", content(1, 100)).await.unwrap();
    assert!(store.flush().await);
    let other = tempfile::tempdir().unwrap();
    let refused = try_open(config(other.path()), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Owned { owner: WorkerId(1) }), "{refused}");
    let takes = PackConfig { take_over: true, ..config(other.path()) };
    let second = try_open(takes, &backend).await.unwrap();
    assert_eq!(get(&second, "k").await.unwrap(), content(1, 100));

    put(&store, "late", content(2, 100)).await.unwrap();
    assert!(!store.flush().await);
    assert!(store.fatal().borrow().is_some());
    let refused = put(&store, "later", content(3, 100)).await;
    assert!(matches!(refused, Err(ObjectError::Unavailable { .. })), "{refused:?}");
    assert_eq!(backend.names("blobs").await.len(), 1);
    drop(store);
    let refused = try_open(config(dir.path()), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Superseded { .. }), "{refused}");
}

#[tokio::test]
async fn a_missing_or_damaged_blob_stops_the_rebuild_and_is_named() {
    let (_dir, backend, store) = made().await;
    for seed in 0..3 {
        put(&store, &format!("k{seed}"), content(seed, 100)).await.unwrap();
        assert!(store.flush().await);
    }
    drop(store);
    let (second, _) = backend.names("blobs").await.remove(1);
    let bytes = backend.bytes(&second).await;
    let rebuild = async || {
        let dir = tempfile::tempdir().unwrap();
        let takes = PackConfig { take_over: true, ..config(dir.path()) };
        let opened = try_open(takes, &backend).await;
        (opened.err().map(|error| error.to_string()), dir)
    };
    let mut damaged = bytes.to_vec();
    damaged[110] ^= 1;
    backend.inner.put(&Name::from(second.clone()), damaged.into()).await.unwrap();
    let error = rebuild().await.0.unwrap();
    assert!(error.contains(&second), "{error}");
    backend.inner.delete(&Name::from(second.clone())).await.unwrap();
    let error = rebuild().await.0.unwrap();
    let blob = BlobId { worker: WorkerId(1), seq: 2 };
    assert!(error.contains(&format!("blob {blob} is not in the backend")), "{error}");
    backend.inner.put(&Name::from(second), bytes.into()).await.unwrap();
    assert_eq!(rebuild().await.0, None);
}

#[tokio::test]
async fn a_directory_serves_as_a_backend() {
    let (dir, blobs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}/new", blobs.path().display());
    let store = Packer::open(config(dir.path()), Backend::open(&url).unwrap()).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    let (small, large) = (content(1, 1000), content(2, 20 * MIB));
    put(&store, "small", small.clone()).await.unwrap();
    put(&store, "large", large.clone()).await.unwrap();
    assert!(store.flush().await);
    assert_eq!(get(&store, "small").await.unwrap(), small);
    assert_eq!(get(&store, "large").await.unwrap(), large);
    drop(store);

    let blob = std::fs::read_dir(blobs.path().join("new/blobs")).unwrap().next().unwrap().unwrap();
    let blob = larder_pack::blob::BlobFile::open(&blob.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let extracted = blob.extract(&[], out.path()).unwrap();
    let outcomes: Vec<_> = extracted.iter().map(|e| (e.name.as_str(), e.outcome.is_ok())).collect();
    assert_eq!(outcomes, [("first/large", false), ("first/small", true)]);
    assert_eq!(std::fs::read(out.path().join("first/small")).unwrap(), small);
    let again = blob.extract(&["first/small".into()], out.path()).unwrap();
    assert!(again[0].outcome.is_err(), "a file that is there is left alone");
}

#[tokio::test]
async fn a_start_removes_what_killed_uploads_left_in_a_directory() {
    let (dir, blobs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", blobs.path().display());
    let open = || Packer::open(config(dir.path()), Backend::open(&url).unwrap());
    let store = open().await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    put(&store, "large", content(2, 20 * MIB)).await.unwrap();
    assert!(store.flush().await);
    drop(store);
    let large = std::fs::read_dir(blobs.path().join("objects")).unwrap().next().unwrap().unwrap();
    let left = format!("{}#1", large.path().display());
    let file = std::fs::File::create(&left).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
    let store = open().await.unwrap();
    assert!(!std::path::Path::new(&left).exists());
    assert_eq!(get(&store, "large").await.unwrap(), content(2, 20 * MIB));
}
