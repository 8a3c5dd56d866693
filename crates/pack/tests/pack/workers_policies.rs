//! Packing policies where several workers share a bucket: a bundle is read by all, wherever it is.

use std::path::Path;
use std::time::Duration;

use larder_objects::ObjectError;
use larder_pack::{PackConfig, Packing};

use crate::policies::{MANY, OBJECT_BYTES, check, name, put_some};
use crate::support::*;
use crate::workers::{Worker, answering, missing, until, workers};

/// Where the bundles of worker a lie.
const BUNDLES: &str = "workers/a/objects";

/// A worker that answers the others, and packs what belongs to one beginning of keys together.
fn grouping(dir: &Path, name: &str) -> PackConfig {
    let packing = Packing::Prefix { delimiter: "/".into(), depth: 1 };
    PackConfig { packing, ..answering(dir, name) }
}

/// The same, for which all that waits by the clock waits for seconds.
fn repack_at_once(dir: &Path, name: &str) -> PackConfig {
    let mut config = PackConfig { grace: KEPT, ..grouping(dir, name) };
    let sharing = config.sharing.as_mut().unwrap();
    (sharing.kept, sharing.unseen_max) = (KEPT, KEPT / 2);
    sharing.look_period = KEPT / 20;
    config
}

/// Time for which the hasty keep what others replaced.
const KEPT: Duration = Duration::from_secs(2);

/// Waits until a worker has heard of the last object of each group.
async fn hears(worker: &Worker, groups: &[&str], last: u64) {
    for group in groups {
        let last = name(group, last);
        until("it hears of them", async || get(&worker.store, &last).await.is_ok()).await;
    }
}

#[tokio::test]
async fn a_bundle_is_read_from_its_worker_until_it_is_in_the_bucket_and_then_from_there() {
    let (backend, [a, b]) = workers::<2>(grouping).await;
    put_some(&a.store, &["a", "b"], 0..MANY).await;
    hears(&b, &["a", "b"], MANY - 1).await;
    assert!(a.store.waiting().groups >= 2 && backend.names(BUNDLES).await.is_empty());
    check(&b.store, &["a", "b"], 0..MANY).await;
    // It is in the bucket, and b may not have seen that.
    assert!(a.store.flush().await);
    assert_eq!(backend.names(BUNDLES).await.len(), 2, "one for a, one for b");
    check(&b.store, &["a", "b"], 0..MANY).await;
    b.store.refresh().await.unwrap();
    let dir = a.dir;
    drop(a.store);
    check(&b.store, &["a", "b"], 0..MANY).await;
    assert!(backend.names("workers/b/objects").await.is_empty(), "nothing moved");
    drop(dir);
}

#[tokio::test]
async fn a_bundle_that_waits_is_read_from_its_worker_or_not_at_all() {
    let (backend, [a, b]) = workers::<2>(grouping).await;
    put_some(&a.store, &["a"], 0..MANY).await;
    assert!(a.store.flush().await);
    let replaced = name("a", 20);
    put_some(&a.store, &["a"], MANY..MANY + 10).await;
    put(&a.store, &replaced, content(7, OBJECT_BYTES)).await.unwrap();
    until("b hears of it", async || {
        get(&b.store, &replaced).await.is_ok_and(|bytes| bytes == content(7, OBJECT_BYTES))
    })
    .await;
    let dir = a.dir;
    drop(a.store);
    let refused = get(&b.store, &replaced).await.unwrap_err();
    assert!(matches!(refused, ObjectError::Unavailable { .. }), "not the one before: {refused}");
    // It starts again, and says where it is now.
    let a = try_open(grouping(dir.path(), "a"), &backend).await.unwrap();
    b.store.refresh().await.unwrap();
    assert_eq!(get(&b.store, &replaced).await.unwrap(), content(7, OBJECT_BYTES));
    check(&b.store, &["a"], MANY..MANY + 10).await;
    drop(a);
}

#[tokio::test]
async fn what_another_worker_deleted_makes_a_bundle_dead_and_the_rest_is_read_where_it_moved() {
    let (backend, [a, b]) = workers::<2>(grouping).await;
    put_some(&a.store, &["a", "b"], 0..MANY).await;
    assert!(a.store.flush().await);
    let before = backend.names(BUNDLES).await;
    assert_eq!(before.len(), 2);
    hears(&b, &["a", "b"], MANY - 1).await;
    // The first few lie in the blob, the next few stay live in the bundle.
    for number in 12..MANY {
        delete(&b.store, &name("a", number)).await;
    }
    assert!(b.store.flush().await);
    let dir = a.dir;
    drop(a.store);
    let a = try_open(repack_at_once(dir.path(), "a"), &backend).await.unwrap();
    // The bundle is given up once that was in the bucket for long enough, moved, uploaded, and
    // removed after the grace time. A worker that looks more seldom than that answers nobody: see
    // `unseen_max`.
    until("the bundle of a is removed", async || {
        a.run_maintenance().await.unwrap();
        assert!(a.flush().await);
        b.store.refresh().await.unwrap();
        !backend.names(BUNDLES).await.contains(&before[0])
    })
    .await;
    assert!(backend.names(BUNDLES).await.contains(&before[1]), "the other is live");
    assert!(count(&a.counters().repacked_bytes) >= 5 * OBJECT_BYTES as u64, "they moved");
    drop(a);
    check(&b.store, &["a"], 0..12).await;
    check(&b.store, &["b"], 0..MANY).await;
    missing(get(&b.store, &name("a", 12)).await);
}

#[tokio::test]
async fn of_a_lost_worker_the_bundles_that_are_in_the_bucket_stay_and_the_others_are_written_down()
{
    let (backend, [a, b]) = workers::<2>(grouping).await;
    put_some(&a.store, &["a"], 0..MANY).await;
    assert!(a.store.flush().await);
    put_some(&a.store, &["a"], MANY..2 * MANY).await;
    hears(&b, &["a"], 2 * MANY - 1).await;
    check(&b.store, &["a"], MANY..2 * MANY).await;
    drop(a);
    let new = tempfile::tempdir().unwrap();
    let config = PackConfig { take_over: true, ..grouping(new.path(), "a") };
    let heir = try_open(config, &backend).await.unwrap();
    b.store.refresh().await.unwrap();
    for store in [&heir, &b.store] {
        check(store, &["a"], 0..MANY).await;
        missing(get(store, &name("a", MANY)).await);
    }
    let report = std::fs::read_to_string(b.dir.path().join("lost-a.txt")).unwrap();
    for number in MANY..2 * MANY {
        let line = format!("lost first/{}: {OBJECT_BYTES} bytes", name("a", number));
        assert!(report.contains(&line), "{line} is not in {report}");
    }
    assert!(!report.contains(&name("a", MANY - 1)), "{report}");
    // Numbers of blobs and bundles begin anew with the heir.
    put_some(&heir, &["a"], MANY..2 * MANY).await;
    hears(&b, &["a"], 2 * MANY - 1).await;
    check(&b.store, &["a"], 0..2 * MANY).await;
}
