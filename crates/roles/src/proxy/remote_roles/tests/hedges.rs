//! Reads of replicas that take long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_protocol::limits::{HEDGED_PART, HEDGES_SAVED_MAX};
use tokio::time::Instant;

use super::data::Fault;
use super::{Cluster, content, reaches, soon};
use crate::limits::{DOWN_FAILURES, READ_TIMEOUT_MS};

fn hedged(cluster: &Cluster) -> u64 {
    cluster.proxy.counters().reads_hedged.load(Ordering::Relaxed)
}

fn won(cluster: &Cluster) -> u64 {
    cluster.proxy.counters().hedges_won.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_replica_that_hangs_is_outrun_by_the_next() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 21);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    let began = Instant::now();
    for _ in 0..20 {
        assert!(cluster.has("read", &bytes).await);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(READ_TIMEOUT_MS), "nobody waited for it: {took:?}");
    let asked = *cluster.disks[0].reads.lock();
    assert_eq!((hedged(&cluster), won(&cluster)), (u64::from(asked), u64::from(asked)));
    assert!((1..=DOWN_FAILURES + 1).contains(&asked), "it was found to be down: {asked}");
    // The loser of the race is told that nobody waits for it.
    reaches(&cluster.disks[0].unwanted, asked).await;
}

#[tokio::test]
async fn a_wrong_answer_of_the_next_does_not_win() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 22);
    cluster.put("read", &bytes).await.unwrap();
    assert!(cluster.has("read", &bytes).await);
    cluster.fail(0, Fault::Hangs);
    cluster.fail(1, Fault::Corrupt);
    // One of two reads begins with the replica that hangs: the first, as this one does not.
    let reads = async { cluster.has("read", &bytes).await && cluster.has("read", &bytes).await };
    let released = soon(async {
        while hedged(&cluster) == 0
            || cluster.proxy.counters().mismatches.load(Ordering::Relaxed) == 0
        {
            tokio::task::yield_now().await;
        }
        cluster.disks[0].release();
    });
    let (both, ()) = tokio::join!(reads, released);
    assert!(both, "the first had it right");
    assert_eq!(won(&cluster), 0);
}

#[tokio::test]
async fn where_all_replicas_take_long_few_reads_are_hedged() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 23);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    cluster.fail(1, Fault::Hangs);
    let count = 3 * HEDGES_SAVED_MAX;
    let read = |from| cluster.has_from("read", &bytes, from);
    let reads = futures::future::join_all((0..count).map(read));
    let released = soon(async {
        let asked = |disk: usize| *cluster.disks[disk].reads.lock();
        while hedged(&cluster) < u64::from(HEDGES_SAVED_MAX)
            || asked(0) + asked(1) < count + HEDGES_SAVED_MAX
        {
            tokio::task::yield_now().await;
        }
        cluster.disks.iter().for_each(|disk| disk.release());
    });
    let (all, ()) = tokio::join!(reads, released);
    assert!(all.into_iter().all(|read| read));
    let most = u64::from(HEDGES_SAVED_MAX + count / 20);
    assert!(hedged(&cluster) <= most, "{} of {count}", hedged(&cluster));
}

#[tokio::test]
async fn a_read_for_which_no_hedge_was_left_is_hedged_when_there_is_one_again() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 24);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Hangs);
    // Half of them are sent to the one that hangs: more than there are hedges.
    let reads = (0..3 * HEDGES_SAVED_MAX).map(|from| cluster.has_from("read", &bytes, from));
    let others = soon(async {
        while hedged(&cluster) < u64::from(HEDGES_SAVED_MAX) {
            tokio::task::yield_now().await;
        }
        for _ in 0..HEDGED_PART * HEDGES_SAVED_MAX {
            assert!(cluster.has("read", &bytes).await);
        }
    });
    let (all, ()) = tokio::join!(futures::future::join_all(reads), others);
    assert!(all.into_iter().all(|read| read));
    let least = u64::from(HEDGES_SAVED_MAX + HEDGES_SAVED_MAX / 4);
    assert!(hedged(&cluster) >= least, "{} hedges", hedged(&cluster));
}
