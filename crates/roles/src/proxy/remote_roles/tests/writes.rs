//! Data that replicas do not take, or not yet.

use std::sync::atomic::Ordering;

use super::data::Fault;
use super::{Cluster, content, reaches, soon};

#[tokio::test]
async fn data_that_a_busy_replica_turns_away_is_written_once_it_has_less_to_do() {
    let cluster = Cluster::begin().await;
    cluster.fail(1, Fault::Busy);
    let bytes = content(70_000, 3);
    let (stored, ()) = tokio::join!(cluster.put("late", &bytes), async {
        reaches(&cluster.disks[1].turned_away, 3).await;
        cluster.fail(1, Fault::None);
    });
    stored.unwrap();
    assert!(cluster.disks.iter().all(|disk| disk.chunks() == 1), "both have it");
    assert!(cluster.has("late", &bytes).await);
    let counters = cluster.proxy.counters();
    assert_eq!(counters.begun_anew.load(Ordering::Relaxed), 0, "under the same grant");
    assert_eq!(counters.failed_writes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn data_that_a_replica_does_not_take_is_put_elsewhere() {
    for fault in [Fault::NextWrite, Fault::NextWriteFull, Fault::Silent] {
        let cluster = Cluster::begin().await;
        cluster.fail(1, fault);
        let bytes = content(70_000, 3);
        let (stored, ()) = tokio::join!(cluster.put("retried", &bytes), async {
            if fault == Fault::Silent {
                let failed = &cluster.proxy.counters().failed_writes;
                soon(async {
                    while failed.load(Ordering::Relaxed) == 0 {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                cluster.fail(1, Fault::None);
            }
        });
        stored.unwrap();
        assert!(cluster.has("retried", &bytes).await);
        let anew = cluster.proxy.counters().begun_anew.load(Ordering::Relaxed);
        assert_eq!(anew, u64::from(*cluster.world.abandoned.borrow()));
        assert!(anew > 0, "{fault:?}");
    }
}

#[tokio::test]
async fn a_put_is_begun_anew_only_after_it_is_known_to_be_revoked() {
    let cluster = Cluster::begin().await;
    cluster.fail(1, Fault::NextWrite);
    *cluster.world.loses_word.lock() = true;
    let bytes = content(70_000, 3);
    cluster.put("retried", &bytes).await.unwrap();
    assert!(cluster.has("retried", &bytes).await);
    assert_eq!(*cluster.world.abandoned.borrow(), 1, "its primary was told again");
    assert_eq!(cluster.proxy.counters().begun_anew.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_put_that_is_rolled_forward_is_done_and_not_begun_anew() {
    let cluster = Cluster::begin().await;
    cluster.fail(1, Fault::NextWrite);
    *cluster.world.rolls_forward.lock() = true;
    let bytes = content(70_000, 3);
    cluster.put("once", &bytes).await.unwrap();
    assert!(cluster.has("once", &bytes).await);
    assert_eq!(cluster.proxy.counters().begun_anew.load(Ordering::Relaxed), 0);
}
