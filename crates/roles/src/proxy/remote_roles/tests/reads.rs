//! The replicas that reads ask.

use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::{ObjectError, Objects};
use larder_protocol::scheduler::{Load, Policy, Report};
use tokio::time::{Instant, sleep};

use super::data::Fault;
use super::{Cluster, content, key, soon};
use crate::limits::{PROTOCOL_REPORTS, READ_SILENT_MAX};

/// So many small requests at a disk that takes 10 ms for each.
fn waiting(requests: u32) -> Option<Report> {
    let mut report = Report { lanes: 1, service_us: [10_000; 4], ..Report::default() };
    report.waiting[0] = Load { requests, bytes: u64::from(requests) * 4096 };
    Some(report)
}

impl Cluster {
    fn asked(&self) -> [u32; 2] {
        [0, 1].map(|disk| *self.disks[disk].reads.lock())
    }
}

#[tokio::test]
async fn the_replica_with_the_shorter_queue_is_read() {
    for policy in [Policy::EarliestFinish, Policy::Parallel, Policy::C3] {
        let cluster = Cluster::reading_by(policy).await;
        let bytes = content(10_000, 31);
        cluster.put("read", &bytes).await.unwrap();
        *cluster.disks[0].report.lock() = waiting(500);
        *cluster.disks[1].report.lock() = waiting(0);
        // Until both were heard.
        soon(async {
            while cluster.asked().contains(&0) {
                assert!(cluster.has("read", &bytes).await);
            }
        })
        .await;
        let before = cluster.asked();
        for _ in 0..20 {
            assert!(cluster.has("read", &bytes).await);
        }
        assert_eq!(cluster.asked(), [before[0], before[1] + 20], "{policy:?}");
    }
}

#[tokio::test]
async fn all_replicas_serve_whichever_release_theirs_is() {
    for policy in Policy::ALL {
        let cluster = Cluster::reading_by(policy).await;
        let bytes = content(10_000, 32);
        cluster.put("read", &bytes).await.unwrap();
        *cluster.disks[1].report.lock() = waiting(0);
        for _ in 0..40 {
            assert!(cluster.has("read", &bytes).await, "{policy:?}");
        }
        let [old, new] = cluster.asked();
        assert_eq!((old + new, cluster.proxy.reads().1), (40, 0), "{policy:?}");
        assert!(old > 0, "{policy:?}: {old} and {new}");
        // By latencies, either may be better by chance.
        if !matches!(policy, Policy::PrimaryFirst | Policy::C3 | Policy::Prequal) {
            assert!(new > 0, "{policy:?}: {old} and {new}");
        }
    }
}

/// A proxy is upgraded before the data servers: it hedges, and they hear of no cancel.
#[tokio::test]
async fn older_data_servers_are_hedged_and_get_no_new_messages() {
    let cluster = Cluster::of_releases(Policy::default(), PROTOCOL_REPORTS - 1).await;
    let bytes = content(10_000, 34);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    soon(async {
        while cluster.asked()[0] == 0 {
            assert!(cluster.has("read", &bytes).await);
        }
    })
    .await;
    cluster.disks[0].release();
    // On the same connection: a frame that they do not know would have ended it.
    soon(async {
        while cluster.asked()[0] < 10 {
            assert!(cluster.has("read", &bytes).await);
        }
    })
    .await;
    assert!(cluster.proxy.counters().hedges_won.load(Ordering::Relaxed) > 0);
    assert_eq!(cluster.proxy.counters().failed_reads.load(Ordering::Relaxed), 0);
    assert_eq!(*cluster.disks[0].unwanted.borrow(), 0);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_no_replica_owing() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 33);
    cluster.put("read", &bytes).await.unwrap();
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Hangs));
    let is_asked = soon(async {
        while cluster.proxy.reads().1 == 0 || cluster.asked() == [0, 0] {
            tokio::task::yield_now().await;
        }
    });
    tokio::select! {
        _ = cluster.read("read", 0..10) => unreachable!("nobody answers"),
        () = is_asked => {}
    }
    assert_eq!(cluster.proxy.reads().1, 0, "what nobody waits for weighs on no replica");
    let unwanted = |disk: usize| *cluster.disks[disk].unwanted.borrow();
    soon(async {
        while [unwanted(0), unwanted(1)] != cluster.asked() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_replica_with_wrong_bytes_is_asked_after_the_others() {
    for policy in [Policy::EarliestFinish, Policy::RoundRobin] {
        let cluster = Cluster::reading_by(policy).await;
        let bytes = content(10_000, 35);
        cluster.put("read", &bytes).await.unwrap();
        // It gives them at once, and its queue is always empty.
        *cluster.disks[0].report.lock() = waiting(0);
        *cluster.disks[1].report.lock() = waiting(5);
        cluster.fail(0, Fault::Corrupt);
        for _ in 0..40 {
            assert!(cluster.has("read", &bytes).await);
        }
        assert!((1..=2).contains(&cluster.asked()[0]), "{policy:?}: {:?}", cluster.asked());
    }
}

#[tokio::test]
async fn a_read_outlasts_a_moment_in_which_no_replica_answers() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 37);
    cluster.put("read", &bytes).await.unwrap();
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Silent));
    let back = soon(async {
        // Both were asked several times.
        while cluster.proxy.counters().failed_reads.load(Ordering::Relaxed) < 10 {
            sleep(Duration::from_millis(1)).await;
        }
        (0..2).for_each(|disk| cluster.fail(disk, Fault::None));
    });
    assert!(tokio::join!(cluster.has("read", &bytes), back).0);
}

#[tokio::test]
async fn a_read_that_no_replica_answers_ends_soon() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 38);
    cluster.put("read", &bytes).await.unwrap();
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Silent));
    let began = Instant::now();
    let read = cluster.read("read", 0..10).await;
    assert!(matches!(read, Err(ObjectError::Unavailable { .. })), "{read:?}");
    assert!(began.elapsed() >= READ_SILENT_MAX, "{:?}", began.elapsed());
}

fn joined(cluster: &Cluster) -> u64 {
    cluster.proxy.counters().reads_joined.load(Ordering::Relaxed)
}

#[tokio::test]
async fn reads_of_the_same_bytes_at_once_are_one() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 35);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    cluster.fail(1, Fault::Hangs);
    let reads = futures::future::join_all((0..10).map(|_| cluster.has("read", &bytes)));
    let released = soon(async {
        while cluster.asked() == [0, 0] {
            tokio::task::yield_now().await;
        }
        // All but the first have looked it up by then, as this one does.
        assert!(cluster.proxy.open(&cluster.bucket.name, &key("read")).await.is_ok());
        cluster.disks.iter().for_each(|disk| disk.release());
    });
    let (all, ()) = tokio::join!(reads, released);
    assert!(all.into_iter().all(|read| read));
    let [one, two] = cluster.asked();
    assert!(joined(&cluster) > 0, "{one} and {two} were asked");
    assert!(u64::from(one + two) <= 10 - joined(&cluster) + 2, "{one} and {two} were asked");
}

#[tokio::test]
async fn who_joined_a_read_whose_client_goes_away_reads_on() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 36);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    cluster.fail(1, Fault::Hangs);
    let mut first = Box::pin(cluster.has("read", &bytes));
    let begun = soon(async {
        while cluster.asked() == [0, 0] {
            tokio::task::yield_now().await;
        }
    });
    tokio::select! {
        _ = &mut first => panic!("nothing answers it"),
        () = begun => {}
    }
    let other = cluster.has("read", &bytes);
    let gone = async {
        tokio::task::yield_now().await;
        drop(first);
        cluster.disks.iter().for_each(|disk| disk.release());
    };
    assert!(tokio::join!(other, gone).0);
}
