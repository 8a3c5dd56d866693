//! Members whose indexes differ find out, and the one that is odd takes the group anew.

use std::time::Duration;

use larder_kv::{Batch, Kv, KvReader};
use larder_protocol::Answer;
use larder_roles::progress::DigestsStatus;
use larder_types::codec::{decode, encode};
use larder_types::{ObjectKey, ServerId, VersionRow, rows};

use super::support::{BUCKET, Cluster, PG, inline, put, request, until};

/// Within which time each group is to be compared: twice as often.
const PERIOD: Duration = Duration::from_secs(4);

fn row() -> Vec<u8> {
    rows::version(BUCKET, &ObjectKey::new("key").unwrap(), rows::UNVERSIONED)
}

impl Cluster {
    fn size(&self, id: ServerId) -> u64 {
        let value = self.meta(id).kv().get(&row()).unwrap();
        value.map_or(0, |value| decode::<VersionRow>("version row", &value).unwrap().metax.size)
    }

    /// A row of a server's index says something else, under a checksum that is right.
    fn rot(&self, id: ServerId, size: u64) {
        let kv = self.meta(id).kv();
        let value = kv.get(&row()).unwrap().unwrap();
        let mut version: VersionRow = decode("version row", &value).unwrap();
        version.metax.size = size;
        let mut batch = Batch::new();
        batch.put(&row(), &encode(&version));
        kv.apply(&batch).unwrap();
    }

    /// The primary's knowledge of comparisons.
    async fn digests(&self) -> DigestsStatus {
        self.progress(self.leads(PG).1).await.digests.unwrap()
    }

    async fn stored() -> Self {
        let cluster = Self::start_with(1, Some(PERIOD)).await;
        assert!(matches!(
            cluster.call(PG, put(request(1), "key", inline())).await,
            Answer::Done { .. }
        ));
        for id in 0..3 {
            cluster.shows(ServerId(id), &["key".to_owned()]).await;
        }
        cluster
    }

    async fn is_found_equal_again(&self) {
        until("all are members, and equal", async || {
            let digests = self.digests().await;
            self.members(PG).1.len() == 3 && digests.equal == 1 && digests.differing == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_with_a_rotten_row_is_rebuilt() {
    let cluster = Cluster::stored().await;
    cluster.is_found_equal_again().await;
    let (_, members) = cluster.members(PG);
    cluster.rot(members[2], 7);
    until("it is found", async || cluster.digests().await.found_odd > 0).await;
    until("it is mended", async || cluster.size(members[2]) == 1).await;
    cluster.is_found_equal_again().await;
    assert!((0..3).all(|id| cluster.size(ServerId(id)) == 1));
    assert!(
        cluster.progress(members[2]).await.background.digest_bytes > 0,
        "it is within the budget"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_with_a_rotten_row_steps_down_and_is_rebuilt() {
    let cluster = Cluster::stored().await;
    let (view, primary) = cluster.leads(PG);
    cluster.rot(primary, 7);
    until("another leads", async || {
        let (later, leads) = cluster.leads(PG);
        later > view && leads != primary
    })
    .await;
    until("it is mended", async || cluster.size(primary) == 1).await;
    cluster.is_found_equal_again().await;
    let call = put(request(2), "other", inline());
    assert!(matches!(cluster.call(PG, call).await, Answer::Done { .. }));
    cluster.shows(primary, &["other".to_owned()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_differ_nothing_is_changed_and_it_is_told() {
    let cluster = Cluster::stored().await;
    let (view, members) = cluster.members(PG);
    cluster.rot(members[1], 7);
    cluster.rot(members[2], 8);
    until("it is found", async || {
        let digests = cluster.digests().await;
        digests.found_unclear > 1 && digests.differing_groups == [PG.0]
    })
    .await;
    assert_eq!(cluster.members(PG), (view, members.clone()));
    assert_eq!(members.iter().map(|id| cluster.size(*id)).collect::<Vec<_>>(), [1, 7, 8]);
}
