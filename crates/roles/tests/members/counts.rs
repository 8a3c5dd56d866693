//! Requests to a meta server, as it counts them.

use std::collections::BTreeMap;

use larder_env::clock::uptime_ms;
use larder_protocol::{Answer, Call, Refusal};
use larder_roles::breakdown::CountsStatus;
use larder_roles::wire::{MetaCall, MetaReply};
use larder_types::codec::decode;
use larder_types::{
    Condition, Epoch, Holders, ObjectKey, OpId, ServerId, StreamId, Target, View, rows,
};

use super::support::{BUCKET, Cluster, PG, data, inline, put, put_to, request, until};

async fn counted(cluster: &Cluster, of: ServerId) -> BTreeMap<String, u64> {
    let (reply, payload) = cluster.ask(of, MetaCall::Counts).await.unwrap();
    assert_eq!(reply, MetaReply::Counts);
    let CountsStatus { counts, .. } = decode("counts", &payload).unwrap();
    assert!(counts.iter().all(|it| it.table == "meta" && it.size.is_empty()), "{counts:?}");
    counts.into_iter().map(|it| (it.kind, it.ops)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_counted_at_its_kind() {
    let cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    // It lists until its servers answer.
    let mut before = counted(&cluster, primary).await;
    let lists = before.remove("list");
    assert_eq!(before, BTreeMap::from([("status".to_owned(), 1)]));
    assert!(matches!(cluster.call(PG, put(request(1), "a", inline())).await, Answer::Done { .. }));
    cluster.put_data(PG, put(request(2), "b", data())).await;
    let stream = StreamId { session: super::SESSION, number: 3 };
    let chunk = put_to(request(3), "c", Target::Chunk { stream, number: 0 }, data());
    assert!(matches!(cluster.call(PG, chunk).await, Answer::Granted { .. }));
    let key = ObjectKey::new("a").unwrap();
    let (bucket, epoch, condition) = (BUCKET, Epoch(1), Condition::default());
    let delete = Call::Delete { request: request(4), bucket, epoch, key, condition };
    assert!(matches!(cluster.call(PG, delete).await, Answer::Done { .. }));
    until("the index shows all but what has no outcome", async || {
        let gauges = cluster.meta(primary).gauges(PG);
        gauges.open_puts == 1 && gauges.tail_ops <= 1
    })
    .await;
    assert!(cluster.find(PG, view, primary, "b").await.unwrap().is_some());
    assert!(cluster.find(PG, view, primary, "a").await.unwrap().is_none());
    let mut now = counted(&cluster, primary).await;
    // One may come late.
    assert!(now.remove("list") >= lists, "{now:?}");
    // A group steps for a look-up only if something of the key is open just then.
    let looked_up = ["look_up", "look_up_open"].map(|kind| now.remove(kind).unwrap_or_default());
    assert_eq!(looked_up.iter().sum::<u64>(), 2);
    let expected = [
        ("await_put", 1),
        ("commit", 1),
        ("delete", 1),
        ("put", 2),
        ("put_chunk", 1),
        ("status", 2),
    ];
    let expected = expected.map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(now, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_counts_at_its_kind_too() {
    let cluster = Cluster::start(1).await;
    let (View(view), primary) = cluster.leads(PG);
    let (later, key) = (View(view + 1), ObjectKey::new("a").unwrap());
    let before = counted(&cluster, primary).await;
    let (bucket, op) = (BUCKET, OpId::default());
    let from = rows::version(bucket, &key, rows::UNVERSIONED);
    let asks = [
        ("put", MetaCall::Call { pg: PG, view: later, call: put(request(1), "a", inline()) }),
        ("await_put", MetaCall::Await { pg: PG, view: later, op }),
        ("look_up", MetaCall::Find { pg: PG, view: later, bucket, key }),
        ("row", MetaCall::GetRow { pg: PG, view: later, row: from }),
    ];
    for (kind, ask) in asks {
        let (reply, _) = cluster.ask(primary, ask).await.unwrap();
        assert_eq!(reply, MetaReply::Refused(Refusal::NotPrimary), "{kind}");
        let now = counted(&cluster, primary).await;
        let more = |of: &BTreeMap<String, u64>| of.get(kind).copied().unwrap_or_default();
        assert_eq!(more(&now), more(&before) + 1, "{kind}");
    }
    let stream = StreamId { session: super::SESSION, number: 9 };
    cluster.notify(PG, Call::DropStream { bucket, stream });
    until("a proxy's word is counted", async || {
        counted(&cluster, primary).await.get("drop_stream") == Some(&1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_counts_the_time_until_its_answer() {
    let cluster = Cluster::start(1).await;
    let (_, primary) = cluster.leads(PG);
    let granted = cluster.call(PG, put(request(1), "a", data())).await;
    let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
    assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    let sums = || -> BTreeMap<&str, (u64, u64)> {
        cluster.meta(primary).requests_by_kind().sums().collect()
    };
    // It waits for the outcome of the put before it.
    let (view, _) = cluster.leads(PG);
    let finds = cluster.find(PG, view, primary, "a");
    let commits = async {
        until("it is taken", async || sums()["look_up_open"].0 == 1).await;
        let before_ms = uptime_ms();
        until("time passes", async || uptime_ms() > before_ms + 20).await;
        assert_eq!(sums()["look_up_open"].1, 0, "it is not answered yet");
        let (op, attempt, holders) = (grant.op, grant.attempt, Holders::default().with(0));
        cluster.notify(PG, Call::Commit { op, attempt, holders });
    };
    let (found, ()) = tokio::join!(finds, commits);
    assert_eq!(found.unwrap().unwrap().op, grant.op);
    let (count, ms) = sums()["look_up_open"];
    assert!(count == 1 && ms >= 20, "{:?}", sums());
}
