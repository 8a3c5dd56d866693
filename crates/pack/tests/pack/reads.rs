//! Reads of what is uploaded: how often the backend is asked, and what the cache does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_objects::{ObjectError, Objects};
use larder_pack::limits::REPACK_BACKOFF;
use larder_pack::{Acknowledge, PackConfig, Packer, ProcessId};

use crate::support::{
    Faulty, MIB, bucket, config, content, count, delete, get, get_range, made, put, try_open,
};

const CACHE: u64 = 64 * 1024 * 1024;

fn cached(dir: &Path) -> PackConfig {
    PackConfig { cache_bytes: CACHE, ahead_bytes: 1024 * 1024, ..config(dir) }
}

/// A store with a cache, whose objects `k0000` and so on, each of `len` bytes, are uploaded.
async fn uploaded(objects: u64, len: usize) -> (tempfile::TempDir, Arc<Faulty>, Packer) {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = try_open(cached(dir.path()), &backend).await.unwrap();
    store.create_bucket(&bucket("first"), None).await.unwrap();
    for number in 0..objects {
        put(&store, &name(number), content(number, len)).await.unwrap();
    }
    assert!(store.flush().await);
    (dir, backend, store)
}

fn name(number: u64) -> String {
    format!("d/k{number:04}")
}

fn gets(store: &Packer) -> u64 {
    count(&store.counters().requests.get)
}

#[tokio::test]
async fn a_cold_read_makes_one_backend_request_and_a_warm_one_none() {
    let (dir, backend, store) = uploaded(10, 8192).await;
    let before = gets(&store);
    assert_eq!(get(&store, &name(7)).await.unwrap(), content(7, 8192));
    assert_eq!(gets(&store), before + 1);
    // Until what came is kept, others share the request; afterwards the cache has it.
    for _ in 0..3 {
        assert_eq!(get(&store, &name(7)).await.unwrap(), content(7, 8192));
        let part = get_range(&store, &name(7), Some(100..200)).await.unwrap();
        assert_eq!(part, content(7, 8192).slice(100..200));
    }
    assert_eq!(gets(&store), before + 1);
    assert_eq!(count(&store.counters().cache_misses), 1);

    // After a start the cache is empty.
    drop(store);
    let store = try_open(cached(dir.path()), &backend).await.unwrap();
    while store.owner().process == ProcessId::UNNUMBERED {
        tokio::task::yield_now().await;
    }
    let before = gets(&store);
    assert_eq!(get(&store, &name(7)).await.unwrap(), content(7, 8192));
    assert_eq!(gets(&store), before + 1);
}

#[tokio::test]
async fn equal_reads_at_once_are_one_request() {
    let (_dir, _backend, store) = uploaded(1, 100_000).await;
    let (before, store) = (gets(&store), Arc::new(store));
    let reads = (0..20).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { get(&store, &name(0)).await.unwrap() })
    });
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap(), content(0, 100_000));
    }
    assert_eq!(gets(&store), before + 1);
}

#[tokio::test]
async fn keys_read_in_their_order_come_many_at_a_time() {
    let (_dir, _backend, store) = uploaded(100, 8192).await;
    let before = gets(&store);
    for number in 0..100 {
        assert_eq!(get(&store, &name(number)).await.unwrap(), content(number, 8192));
    }
    let asked = gets(&store) - before;
    // One, two that see the sequence, then 128 KiB, 256 KiB and so on.
    assert!((2..=8).contains(&asked), "{asked}");
    assert!(count(&store.counters().ahead_bytes) > 50 * 8192);
    assert_eq!(count(&store.counters().lost_reads), 0);
}

#[tokio::test]
async fn keys_read_in_no_order_come_one_by_one() {
    let (_dir, _backend, store) = uploaded(1000, 512).await;
    let before = gets(&store);
    for number in (0..100).map(|number| number * 37 % 100 * 10) {
        assert_eq!(get(&store, &name(number)).await.unwrap(), content(number, 512));
    }
    assert_eq!(gets(&store) - before, 100);
    assert_eq!(count(&store.counters().ahead_bytes), 0);
}

#[tokio::test]
async fn what_was_overwritten_or_deleted_is_not_found_in_the_cache() {
    let (_dir, _backend, store) = uploaded(3, 8192).await;
    for number in 0..3 {
        get(&store, &name(number)).await.unwrap();
    }
    put(&store, &name(0), content(50, 8192)).await.unwrap();
    delete(&store, &name(1)).await;
    assert_eq!(get(&store, &name(0)).await.unwrap(), content(50, 8192));
    assert!(store.flush().await);
    assert_eq!(get(&store, &name(0)).await.unwrap(), content(50, 8192));
    assert!(get(&store, &name(1)).await.is_err());
    assert_eq!(get(&store, &name(2)).await.unwrap(), content(2, 8192));
}

#[tokio::test]
async fn a_cache_that_rots_is_not_believed() {
    let (dir, _backend, store) = uploaded(2, 200_000).await;
    get(&store, &name(0)).await.unwrap();
    // The second read waits until the first is kept, or finds it there.
    get(&store, &name(0)).await.unwrap();
    while count(&store.counters().cache_hits) == 0 {
        get(&store, &name(0)).await.unwrap();
    }
    let path = dir.path().join("cache/pieces");
    let mut pieces = std::fs::read(&path).unwrap();
    pieces.iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&path, pieces).unwrap();
    assert_eq!(get(&store, &name(0)).await.unwrap(), content(0, 200_000));
    assert_eq!(count(&store.counters().cache_bad), 1);
    assert_eq!(count(&store.counters().bad_pieces), 0, "the backend's are good");
}

#[tokio::test]
async fn the_bill_tells_what_was_asked_and_what_would_have_been() {
    let (dir, backend, store) = uploaded(100, 8192).await;
    for _ in 0..5 {
        get(&store, &name(3)).await.unwrap();
    }
    let totals = store.status().totals;
    assert_eq!((totals.direct.put, totals.direct.get, totals.blobs), (100, 5, 1));
    // The claim, two markers, the process's number and its record, and the blob.
    assert_eq!((totals.requests.put, totals.requests.part), (6, 0));
    drop(store);
    let kept = larder_pack::Status::read(dir.path()).unwrap();
    assert!(!kept.running);
    assert_eq!(kept.totals.requests.put, 6);
    let store = try_open(cached(dir.path()), &backend).await.unwrap();
    assert!((6..=10).contains(&store.status().totals.requests.put), "it goes on");
    assert!(store.status().totals.requests.get > kept.totals.requests.get);
}

#[tokio::test]
async fn a_budget_that_is_used_up_holds_uploads_and_not_reads() {
    let (dir, backend, store) = uploaded(2, 8192).await;
    drop(store);
    let mut poor = cached(dir.path());
    // The start has what gathers in an hour, which is less than one request costs.
    poor.prices.per_thousand.put = 1_000_000.0;
    poor.spend_per_day = Some(1.0);
    let store = Arc::new(try_open(poor, &backend).await.unwrap());
    put(&store, "later", content(9, 100)).await.unwrap();
    // The first request may owe what it costs: that is the process's number.
    let flushing = store.clone();
    let flush = tokio::spawn(async move { flushing.flush().await });
    while count(&store.counters().budget_waits) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&store, &name(1)).await.unwrap(), content(1, 8192));
    assert!(store.status().now.budget_spent);
    assert!(!flush.is_finished());
    assert_eq!(get(&store, "later").await.unwrap(), content(9, 100));
    flush.abort();
}

#[tokio::test]
async fn options_that_cannot_be_are_refused() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let slow = PackConfig { requests_per_second: Some(0.0), ..cached(dir.path()) };
    let refused = try_open(slow, &backend).await.err().unwrap().to_string();
    assert!(refused.contains("requests a second"), "{refused}");
    let sure = PackConfig { acknowledge: Acknowledge::Local, ..cached(dir.path()) };
    assert!(try_open(sure, &backend).await.is_ok());
}

#[tokio::test]
async fn what_is_missing_for_a_moment_is_not_lost() {
    let (_dir, backend, store) = made().await;
    put(&store, "packed", content(1, 1000)).await.unwrap();
    put(&store, "large", content(2, 3 * MIB)).await.unwrap();
    assert!(store.flush().await);
    for (name, bytes) in [("packed", content(1, 1000)), ("large", content(2, 3 * MIB))] {
        backend.missing.store(2, Ordering::Relaxed);
        assert_eq!(get(&store, name).await.as_ref(), Ok(&bytes));
    }
    assert_eq!(count(&store.counters().lost_reads), 0);
    backend.missing.store(1000, Ordering::Relaxed);
    assert_eq!(get(&store, "packed").await, Err(ObjectError::Damaged));
    assert_eq!(count(&store.counters().lost_reads), 1);
    backend.missing.store(0, Ordering::Relaxed);
    assert_eq!(get(&store, "packed").await.unwrap(), content(1, 1000), "it comes back by itself");
}

#[tokio::test]
async fn a_blob_that_is_missing_for_a_moment_is_repacked() {
    let (_dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    put(&store, "dead", content(2, 500_000)).await.unwrap();
    delete(&store, "dead").await;
    assert!(store.flush().await);
    backend.missing.store(2, Ordering::Relaxed);
    assert_eq!(store.run_maintenance().await.unwrap().retired, 1);
}

#[tokio::test]
async fn a_blob_that_was_missing_for_long_is_repacked_after_a_pause() {
    let (_dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    put(&store, "dead", content(2, 500_000)).await.unwrap();
    delete(&store, "dead").await;
    assert!(store.flush().await);
    let retired = async || store.run_maintenance().await.unwrap().retired;
    backend.missing.store(1000, Ordering::Relaxed);
    assert_eq!(retired().await, 0, "it cannot be read");
    backend.missing.store(0, Ordering::Relaxed);
    let before = gets(&store);
    assert_eq!(retired().await, 0);
    assert_eq!(gets(&store), before, "it is not looked at again so soon");
    tokio::time::pause();
    tokio::time::advance(REPACK_BACKOFF).await;
    tokio::time::resume();
    assert_eq!(retired().await, 1, "it is there again");
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000));
}
