//! Reads of objects where they were remembered to lie.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use larder_objects::{Objects, ReadBody};

use super::data::Fault;
use super::{Cluster, content, key};

fn located(cluster: &Cluster) -> [u64; 2] {
    let counters = cluster.proxy.counters();
    [&counters.located_reads, &counters.located_reads_used].map(|it| it.load(Ordering::Relaxed))
}

impl Cluster {
    /// The bytes of a get of all of an object.
    async fn whole(&self, name: &str) -> Bytes {
        let opened = self.proxy.open_whole(&self.bucket.name, &key(name)).await.unwrap();
        match self.proxy.read(&opened, 0..opened.metax.size).await.unwrap() {
            ReadBody::Whole(bytes) => bytes,
            ReadBody::Stream(_) => panic!("it is one piece"),
        }
    }
}

#[tokio::test]
async fn an_object_is_read_at_its_cached_place_while_metax_is_requested() {
    let cluster = Cluster::begin().await;
    let (first, second) = (content(10_000, 41), content(10_000, 42));
    cluster.put("read", &first).await.unwrap();
    assert_eq!(cluster.whole("read").await, first);
    assert_eq!(located(&cluster), [0, 0], "nothing is known of it before");
    for times in 1..=3 {
        assert_eq!(cluster.whole("read").await, first);
        assert_eq!(located(&cluster), [times, times]);
    }
    let asked: u32 = cluster.disks.iter().map(|disk| *disk.reads.lock()).sum();
    assert_eq!(asked, 4, "each get reads once");
    cluster.put("read", &second).await.unwrap();
    assert_eq!(cluster.whole("read").await, second, "what was remembered is of another version");
    assert_eq!(located(&cluster), [4, 3]);
    assert_eq!(cluster.whole("read").await, second);
    assert_eq!(located(&cluster), [5, 4]);
}

#[tokio::test]
async fn reused_extents_are_no_evidence_of_a_bad_disk() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 43);
    cluster.put("read", &bytes).await.unwrap();
    assert_eq!(cluster.whole("read").await, bytes);
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Corrupt));
    let opened = cluster.proxy.open_whole(&cluster.bucket.name, &key("read")).await.unwrap();
    assert!(opened.bytes.is_none());
    let counters = cluster.proxy.counters();
    assert_eq!(counters.mismatches.load(Ordering::Relaxed), 0, "nothing is suspected");
    assert_eq!((counters.failed_reads.load(Ordering::Relaxed), cluster.proxy.reads().1), (0, 0));
    // The copies that METAX names are suspected, both.
    assert!(cluster.proxy.read(&opened, 0..10_000).await.is_err());
    assert!(counters.mismatches.load(Ordering::Relaxed) >= 2);
}
