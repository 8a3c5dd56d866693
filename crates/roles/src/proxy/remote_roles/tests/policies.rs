//! Buckets whose puts do not wait for every copy.

use std::sync::atomic::Ordering;

use larder_objects::ObjectError;
use larder_protocol::manager::state::Command;
use larder_types::WritePolicy;

use super::data::Fault;
use super::{Cluster, content, soon};

impl Cluster {
    fn set_policy(&self, policy: WritePolicy) {
        let command = Command::SetWritePolicy(self.bucket.name.clone(), policy);
        self.world.managers.agree(command);
        self.world.managers.publish();
    }

    /// Waits until an object is shown; readers of the real index wait by themselves.
    async fn shows(&self, name: &str, bytes: &bytes::Bytes) {
        soon(async {
            while !self.has(name, bytes).await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_put_that_needs_one_copy_waits_for_no_other() {
    let cluster = Cluster::begin().await;
    cluster.set_policy(WritePolicy::AtLeast(1));
    for (disk, name) in [(0, "first"), (1, "second")] {
        cluster.fail(disk, Fault::HangsWrites);
        let bytes = content(70_000, 3);
        cluster.put(name, &bytes).await.unwrap();
        cluster.shows(name, &bytes).await;
        cluster.fail(disk, Fault::None);
    }
    let counters = cluster.proxy.counters();
    assert_eq!(counters.begun_anew.load(Ordering::Relaxed), 0);
    assert_eq!(counters.answered_early.load(Ordering::Relaxed), 2);
    assert_eq!(counters.late_writes.load(Ordering::Relaxed), 2, "what hangs is not waited for");
}

#[tokio::test]
async fn the_last_copies_of_a_put_that_was_answered_are_named_too() {
    let cluster = Cluster::begin().await;
    cluster.set_policy(WritePolicy::AtLeast(1));
    let bytes = content(70_000, 5);
    cluster.put("both", &bytes).await.unwrap();
    cluster.shows("both", &bytes).await;
    assert_eq!(cluster.proxy.counters().late_writes.load(Ordering::Relaxed), 0);
    for disk in 0..2 {
        cluster.fail(disk, Fault::Silent);
        assert!(cluster.has("both", &bytes).await, "either copy is read");
        cluster.fail(disk, Fault::None);
    }
}

#[tokio::test]
async fn a_put_is_content_with_the_copies_that_have_room() {
    let cluster = Cluster::begin().await;
    cluster.set_policy(WritePolicy::AtLeast(1));
    cluster.fail(0, Fault::Full);
    let bytes = content(70_000, 6);
    cluster.put("narrow", &bytes).await.unwrap();
    cluster.shows("narrow", &bytes).await;
    assert_eq!(*cluster.world.without_room.borrow(), 1, "its primary hears of it");
    assert_eq!(*cluster.world.abandoned.borrow(), 0);
    cluster.set_policy(WritePolicy::Majority);
    let refused = cluster.put("wide", &bytes).await;
    assert!(matches!(refused, Err(ObjectError::Unavailable { .. })), "a majority of two is both");
}
