//! Reads of pieces that are coalesced while they are read.

use larder_objects::{ObjectError, Objects};
use tokio::time::Instant;

use super::data::Fault;
use super::{Cluster, content, key, soon};

/// Returns once a disk was asked.
async fn is_asked(cluster: &Cluster) {
    soon(async {
        while cluster.disks.iter().all(|disk| *disk.reads.lock() == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn bytes_that_lie_in_a_larger_piece_by_now_are_read_there() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 51);
    let bucket = cluster.bucket.id;
    cluster.put("log", &bytes).await.unwrap();
    cluster.put("joined", &bytes).await.unwrap();
    cluster.world.index.lock().as_a_piece(bucket, &key("log"));
    assert!(cluster.has("log", &bytes).await);
    // As if another object's bytes lay there.
    cluster.world.index.lock().spoil_piece(bucket, &key("log"));
    cluster.disks.iter().for_each(|disk| *disk.reads.lock() = 0);
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Hangs));
    let coalesced = async {
        is_asked(&cluster).await;
        cluster.world.index.lock().coalesce(bucket, &key("log"), &key("joined"));
        (0..2).for_each(|disk| cluster.fail(disk, Fault::None));
        cluster.disks.iter().for_each(|disk| disk.release());
    };
    assert!(tokio::join!(cluster.has("log", &bytes), coalesced).0);
}

#[tokio::test]
async fn damaged_bytes_of_a_piece_are_reported_early() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 52);
    cluster.put("log", &bytes).await.unwrap();
    // Its outcome is there.
    assert!(cluster.has("log", &bytes).await);
    cluster.world.index.lock().as_a_piece(cluster.bucket.id, &key("log"));
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Corrupt));
    let began = Instant::now();
    let opened = cluster.proxy.open(&cluster.bucket.name, &key("log")).await.unwrap();
    let read = cluster.proxy.read(&opened, 0..10_000).await;
    assert!(matches!(read, Err(ObjectError::Damaged)), "it is where it was");
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}
