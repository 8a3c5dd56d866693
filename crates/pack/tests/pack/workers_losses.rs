//! Blobs of one of several workers that are lost, and workers that are killed while another is out of reach.

use larder_objects::ObjectError;
use larder_pack::PackConfig;
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;

use crate::support::*;
use crate::workers::{answering, missing, shared, until, workers};

#[tokio::test]
async fn a_worker_skips_anothers_lost_blob_only_on_request() {
    let (backend, [a]) = workers::<1>(shared).await;
    for seed in 0..3 {
        put(&a.store, &format!("k{seed}"), content(seed, 1000)).await.unwrap();
        assert!(a.store.flush().await);
    }
    let blobs = backend.names("workers/a/blobs").await;
    let (lost, _) = &blobs[blobs.len() - 2];
    backend.inner.delete(&Name::from(lost.as_str())).await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let refused = try_open(shared(dir.path(), "b"), &backend).await.err().unwrap().to_string();
    assert!(refused.contains("--accept-loss"), "{refused}");
    let reported = PackConfig { accept_loss: true, ..shared(dir.path(), "b") };
    let b = try_open(reported, &backend).await.unwrap();
    for seed in [0, 2] {
        assert_eq!(get(&b, &format!("k{seed}")).await.unwrap(), content(seed, 1000));
    }
    missing(get(&b, "k1").await);
    let report = std::fs::read_to_string(dir.path().join("lost-blobs-a.txt")).unwrap();
    assert!(
        report.contains("is not in the backend") && report.contains("perhaps first/k0"),
        "{report}"
    );
    drop(b);

    // It has its index of the other now.
    let b = try_open(shared(dir.path(), "b"), &backend).await.unwrap();
    assert_eq!(get(&b, "k2").await.unwrap(), content(2, 1000));
    put(&b, "k1", content(7, 1000)).await.unwrap();
    assert!(b.flush().await);
    a.store.refresh().await.unwrap();
    assert_eq!(get(&a.store, "k1").await.unwrap(), content(7, 1000));
}

#[tokio::test]
async fn a_blob_that_a_list_is_late_with_is_not_lost() {
    let (backend, [a]) = workers::<1>(shared).await;
    for seed in 0..3 {
        put(&a.store, &format!("k{seed}"), content(seed, 1000)).await.unwrap();
        assert!(a.store.flush().await);
    }
    let blobs = backend.names("workers/a/blobs").await;
    let (late, _) = blobs[blobs.len() - 2].clone();
    for accept_loss in [false, true] {
        *backend.late.lock() = (late.clone(), 2);
        let dir = tempfile::tempdir().unwrap();
        let config = PackConfig { accept_loss, ..shared(dir.path(), &format!("b{accept_loss}")) };
        let b = try_open(config, &backend).await.unwrap();
        assert_eq!(backend.late.lock().1, 0, "lists left it out");
        for seed in 0..3 {
            assert_eq!(get(&b, &format!("k{seed}")).await.unwrap(), content(seed, 1000));
        }
        assert!(!dir.path().join("lost-blobs-a.txt").exists());
    }
}

#[tokio::test]
async fn what_was_heard_is_known_after_a_kill() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    assert!(a.store.flush().await);
    b.store.refresh().await.unwrap();
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
