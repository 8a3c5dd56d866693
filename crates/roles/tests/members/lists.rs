//! Lists while puts are pending, and puts whose proxy has died or was not heard.

use larder_protocol::manager::state::Command;
use larder_protocol::{Answer, Refusal};
use larder_roles::wire::{MetaCall, MetaMessage, MetaReply};
use larder_types::{BucketId, BucketName, Grant, ObjectKey, ServerId, rows};

use super::support::{BUCKET, Cluster, PG, SESSION, data, inline, put, request, until};

/// A cluster with a put of key `m` that is pending, and its primary.
async fn pending() -> (Cluster, ServerId, Grant) {
    let cluster = Cluster::start(1).await;
    assert!(matches!(cluster.call(PG, put(request(1), "a", inline())).await, Answer::Done { .. }));
    let granted = cluster.call(PG, put(request(2), "m", data())).await;
    let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
    assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    let (_, primary) = cluster.leads(PG);
    (cluster, primary, grant)
}

fn version(key: &str) -> Vec<u8> {
    rows::version(BUCKET, &ObjectKey::new(key).unwrap(), rows::UNVERSIONED)
}

/// Keys that the primary lists from a row on, and where it goes on.
async fn page(
    cluster: &Cluster,
    primary: ServerId,
    from: Vec<u8>,
) -> Result<(Vec<String>, Option<Vec<u8>>), Refusal> {
    // The proxy lives.
    cluster.send_message(primary, MetaMessage::Floor { session: SESSION, floor: 2 });
    let map = cluster.stand_in.map().version;
    let (page, next) = cluster.page_under(map, &[PG], primary, from, 10).await?;
    let name = |row: &[u8]| rows::parse_keyed(row).unwrap().1.as_str().to_owned();
    Ok((page.iter().map(|(row, _)| name(row)).collect(), next))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_waits_only_for_puts_that_could_be_on_its_page() {
    let (cluster, primary, _) = pending().await;
    let another = BucketName::new("another").unwrap();
    cluster.stand_in.apply(Command::CreateBucket(another, None, 0)).unwrap();
    let other_bucket = rows::bucket(b'V', BucketId(BUCKET.0 + 1));
    assert_eq!(page(&cluster, primary, other_bucket).await, Ok((vec![], None)));
    let behind = rows::key_prefix(b'V', BUCKET, b"n");
    assert_eq!(page(&cluster, primary, behind).await, Ok((vec![], None)));
    let all = page(&cluster, primary, b"V".to_vec()).await;
    assert_eq!(all, Ok((vec!["a".to_owned()], Some(version("m")))), "m may be there or not");
}

/// A proxy asks this before a bucket is marked for deletion, and again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_found_empty_beside_a_pending_put_into_another() {
    let (cluster, primary, _) = pending().await;
    for (name, bucket) in [("next", BUCKET.0 + 1), ("behind", BUCKET.0 + 2)] {
        let name = BucketName::new(name).unwrap();
        cluster.stand_in.apply(Command::CreateBucket(name, None, 0)).unwrap();
        let bucket = BucketId(bucket);
        cluster.send_message(primary, MetaMessage::Floor { session: SESSION, floor: 2 });
        let from = rows::bucket(b'V', bucket);
        let to = rows::prefix_end(&from);
        let pgs = vec![(PG, cluster.leads(PG).0)];
        let map = cluster.stand_in.map().version;
        let call = MetaCall::Scan { pgs, map, settled: true, from, to, count_max: 1 };
        let reply = cluster.ask(primary, call).await.map(|(reply, _)| reply);
        assert_eq!(reply, Some(MetaReply::Rows(None)), "{bucket:?}");
    }
    assert_eq!(cluster.meta(primary).gauges(PG).open_puts, 1, "it is pending all the while");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_proxy_died_is_settled_and_listed() {
    let (cluster, primary, grant) = pending().await;
    let listed = page(&cluster, primary, version("m")).await;
    assert_eq!(listed, Ok((vec!["m".to_owned()], None)), "its data verifies");
    let (view, to) = cluster.leads(PG);
    assert_eq!(cluster.find(PG, view, to, "m").await.unwrap().unwrap().op, grant.op);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_commit_was_lost_is_settled_while_its_proxy_lives() {
    let (cluster, primary, _) = pending().await;
    until("the put is settled", async || {
        let (session, open) = (SESSION, vec![1, 3]);
        cluster.send_message(primary, MetaMessage::Floor { session, floor: 1 });
        cluster.send_message(primary, MetaMessage::Finished { session, below: 4, open });
        cluster.meta(primary).gauges(PG).open_puts == 0
    })
    .await;
    assert_eq!(page(&cluster, primary, version("m")).await, Ok((vec!["m".to_owned()], None)));
}
