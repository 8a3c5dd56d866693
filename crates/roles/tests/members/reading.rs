//! Rows of an object that is replaced while a proxy reads it.

use larder_kv::KvReader;
use larder_protocol::{Answer, AppendCall, Call, PutCall};
use larder_roles::wire::{MetaCall, MetaReply, Rows};
use larder_types::codec::decode;
use larder_types::{Condition, Epoch, ObjectKey, ServerId, rows};

use super::support::{BUCKET, Cluster, PG, inline, put, request, until};

/// Rows of pieces that the primary tells.
async fn pieces(cluster: &Cluster, primary: ServerId) -> Rows {
    let (pgs, map) = (vec![(PG, cluster.leads(PG).0)], cluster.stand_in.map().version);
    let (from, to) = (b"W".to_vec(), rows::prefix_end(b"W"));
    let call = MetaCall::Scan { pgs, map, settled: false, from, to, count_max: 100 };
    match cluster.ask(primary, call).await {
        Some((MetaReply::Rows(None), payload)) => decode("rows", &payload).unwrap(),
        other => panic!("a scan is answered by {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_reads_an_object_finds_its_rows_after_it_was_deleted() {
    let cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    let key = ObjectKey::new("log").unwrap();
    for number in 1..=3 {
        let Call::Put(like) = put(request(number), "log", inline()) else { unreachable!("a put") };
        let PutCall { description, content, .. } = *like;
        let append = AppendCall {
            request: request(number),
            bucket: BUCKET,
            epoch: Epoch(1),
            key: key.clone(),
            offset: None,
            description,
            content,
            condition: Condition::default(),
        };
        let answer = cluster.call(PG, Call::Append(Box::new(append))).await;
        assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
    }
    let read = pieces(&cluster, primary).await;
    assert!(read.len() > 1, "{read:?}");
    let (request, bucket, epoch) = (request(4), BUCKET, Epoch(1));
    let delete = Call::Delete { request, bucket, epoch, key, condition: Condition::default() };
    assert!(!matches!(cluster.call(PG, delete).await, Answer::Refused(_)));
    until("the index has no row of it", async || {
        let has =
            |(row, _): &(Vec<u8>, Vec<u8>)| cluster.meta(primary).kv().get(row).unwrap().is_some();
        !read.iter().any(has)
    })
    .await;
    assert_eq!(pieces(&cluster, primary).await, read);
    for (row, value) in &read {
        let ask = MetaCall::GetRow { pg: PG, view, row: row.clone() };
        let (reply, reported) = cluster.ask(primary, ask).await.unwrap();
        assert_eq!((reply, &reported[..]), (MetaReply::Row(true), &value[..]));
    }
}
