//! Meta servers as members of PGs: three of them over loopback connections, under the real policy.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counts;
mod damage;
mod digests;
mod hostile;
mod journals;
mod lists;
#[path = "../raw/mod.rs"]
mod raw;
mod reading;
mod stalls;
mod stand_in;
mod support;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use larder_kv::KvReader;
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::Command;
use larder_protocol::placement::pg_of;
use larder_protocol::{Answer, Call, Refusal};
use larder_roles::wire::{MetaCall, MetaMessage, MetaReply};
use larder_types::{BucketId, BucketName, ObjectKey, PgId, ServerId, StreamId, Target, View, rows};

use support::{BUCKET, Cluster, PG, SESSION, data, inline, put, put_to, request, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_is_on_all_members_and_the_next_primary_has_it() {
    let mut cluster = Cluster::start(1).await;
    let inline_put = put(request(1), "inline", inline());
    let Answer::Done { op, clock } = cluster.call(PG, inline_put.clone()).await else {
        panic!("the put is done");
    };
    let data_op = cluster.put_data(PG, put(request(2), "data", data())).await;
    let (view, primary) = cluster.leads(PG);
    assert_eq!(cluster.find(PG, view, primary, "data").await.unwrap().unwrap().op, data_op);
    let keys = ["inline".to_owned(), "data".to_owned()];
    for id in 0..3 {
        cluster.shows(ServerId(id), &keys).await;
    }

    cluster.end(primary).await;
    let (later, next) = cluster.serving(PG, View(view.0 + 1)).await;
    assert_ne!(next, primary);
    assert_eq!(cluster.find(PG, later, next, "inline").await.unwrap().unwrap().op, op);
    assert_eq!(cluster.find(PG, later, next, "data").await.unwrap().unwrap().op, data_op);
    assert_eq!(
        cluster.call(PG, inline_put).await,
        Answer::Done { op, clock },
        "a repeat gets the first answer"
    );
    let late = put(request(3), "late", inline());
    assert_eq!(
        cluster.call_in(PG, view, next, late.clone()).await,
        Answer::Refused(Refusal::NotPrimary),
        "the view is over"
    );
    assert_eq!(cluster.find(PG, later, next, "late").await, Ok(None), "it was not stepped");
    assert!(matches!(cluster.call(PG, late).await, Answer::Done { .. }));

    cluster.begin(primary).await;
    until("it is a member again", async || cluster.members(PG).1.len() == 3).await;
    cluster.shows(primary, &["late".to_owned()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_groups_to_one_member_are_batched() {
    let cluster = Cluster::start(8).await;
    let begun = |id| cluster.meta(ServerId(id)).batches();
    for id in 0..3 {
        let (before, _) = begun(id);
        until("it said several things together", async || begun(id).0 > before + 2).await;
        let (batches, messages) = begun(id);
        assert!(messages >= 2 * batches, "{messages} messages in {batches}");
    }
    let done = cluster.call(PG, put(request(1), "key", inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "and they are understood: {done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_is_reported_by_the_primary_that_verified_it() {
    let cluster = Cluster::start_with(1, Some(Duration::from_secs(4))).await;
    cluster.put_data(PG, put(request(1), "data", data())).await;
    cluster.call(PG, put(request(2), "inline", inline())).await;
    let (_, primary) = cluster.leads(PG);
    until("a round is over", async || {
        cluster.progress(primary).await.scrub.is_some_and(|scrub| scrub.rounds > 0 && scrub.bad > 0)
    })
    .await;
    let reported = cluster.progress(primary).await;
    let scrub = reported.scrub.unwrap();
    assert_eq!((scrub.bad, scrub.right, scrub.unanswered), (1, 0, 0), "what is inline has no copy");
    assert_eq!(reported.floors.volumes, 1);
    let backup = (0..3).map(ServerId).find(|id| *id != primary).unwrap();
    let reported = cluster.progress(backup).await;
    assert_eq!((reported.scrub.unwrap().bad, reported.floors.volumes), (0, 0), "it leads nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_was_open_in_the_view_before_is_verified_and_rolls_forward() {
    let mut cluster = Cluster::start(1).await;
    let call = put(request(1), "key", data());
    let Answer::Granted { grant, .. } = cluster.call(PG, call.clone()).await else {
        panic!("the put has a grant");
    };
    assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    let (view, primary) = cluster.leads(PG);
    cluster.end(primary).await;
    let (later, next) = cluster.serving(PG, View(view.0 + 1)).await;
    let found = cluster.find(PG, later, next, "key").await.unwrap();
    assert_eq!(found.unwrap().op, grant.op, "a reader waits until it is decided");
    let unknown = larder_types::OpId { view: later, seq: larder_types::OpSeq(1 << 40) };
    assert_eq!(cluster.persisted(PG, unknown).await, Err(Refusal::NotPrimary));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_all_have_restarted_what_was_put_is_there() {
    let mut cluster = Cluster::start(2).await;
    let keys: Vec<String> = (1..=20).map(|number| format!("key {number}")).collect();
    let pg = |key: &str| pg_of(BUCKET, &ObjectKey::new(key).unwrap(), 2);
    for (number, key) in (1..).zip(&keys) {
        let content = if number % 2 == 0 { data() } else { inline() };
        let call = put(request(number), key, content);
        if number % 2 == 0 {
            cluster.put_data(pg(key), call).await;
        } else {
            assert!(matches!(cluster.call(pg(key), call).await, Answer::Done { .. }));
        }
    }
    let views: Vec<View> = (0..2).map(|pg| cluster.leads(PgId(pg)).0).collect();
    for id in 0..3 {
        cluster.end(ServerId(id)).await;
    }
    for id in 0..3 {
        cluster.begin(ServerId(id)).await;
    }
    for (pg, view) in (0..).map(PgId).zip(views) {
        cluster.serving(pg, View(view.0 + 1)).await;
    }
    for key in &keys {
        until("the key is there", async || {
            let (view, primary) = cluster.leads(pg(key));
            matches!(cluster.find(pg(key), view, primary, key).await, Ok(Some(_)))
        })
        .await;
    }
    until("all is counted", async || cluster.counted() == Some(keys.len() as u64)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_to_a_bucket_that_is_being_deleted_is_refused() {
    let cluster = Cluster::start(1).await;
    let answer = cluster.call(PG, put(request(1), "early", inline())).await;
    assert!(matches!(answer, Answer::Done { .. }));
    cluster.stand_in.apply(Command::BeginDeletion(stand_in::bucket())).unwrap();
    let late = cluster.call(PG, put(request(2), "late", inline())).await;
    assert_eq!(late, Answer::Refused(Refusal::StaleBucket));
    let again = cluster.call(PG, put(request(2), "late", inline())).await;
    assert_eq!(again, Answer::Refused(Refusal::StaleBucket), "a refusal is an answer too");
}

#[tokio::test(flavor = "multi_thread")]
async fn that_a_key_is_not_there_is_said_of_a_live_bucket_alone() {
    let cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    let answer = cluster.call(PG, put(request(1), "key", inline())).await;
    assert!(matches!(answer, Answer::Done { .. }));
    let find = async |key| {
        let found = cluster.find(PG, view, primary, key).await;
        found.map(|row| row.is_some())
    };
    assert_eq!((find("key").await, find("none").await), (Ok(true), Ok(false)));
    cluster.stand_in.apply(Command::BeginDeletion(stand_in::bucket())).unwrap();
    assert_eq!((find("key").await, find("none").await), (Ok(true), Err(Refusal::StaleBucket)));

    let scan = async || {
        let map = cluster.stand_in.map().version;
        let behind = rows::key_prefix(b'V', BUCKET, b"l");
        let page = cluster.page_under(map, &[PG], primary, behind, 10).await;
        page.map(|(rows, _)| rows.len())
    };
    assert_eq!(scan().await, Ok(0), "whether it is empty is asked of a bucket that is marked");
    let epoch = cluster.stand_in.map().buckets[&stand_in::bucket()].epoch;
    cluster.stand_in.apply(Command::EndDeletion(stand_in::bucket(), epoch, true)).unwrap();
    assert_eq!(scan().await, Err(Refusal::StaleBucket));
    assert_eq!(find("none").await, Err(Refusal::StaleBucket));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_unknown_to_the_primary_does_not_count_as_deleted() {
    let cluster = Cluster::start(1).await;
    cluster.stand_in.hold_map();
    let name = BucketName::new("another").unwrap();
    cluster.stand_in.apply(Command::CreateBucket(name, None, 0)).unwrap();
    let (bucket, key) = (BucketId(BUCKET.0 + 1), ObjectKey::new("none").unwrap());
    let pg = pg_of(bucket, &key, cluster.stand_in.map().pgs.len() as u32);
    let (view, primary) = cluster.leads(pg);
    let found = cluster.ask(primary, MetaCall::Find { pg, view, bucket, key }).await;
    assert_eq!(found.map(|(reply, _)| reply), Some(MetaReply::Found(None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_primary_takes_no_put_to_a_bucket_that_the_one_before_found_empty() {
    let mut cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    let stand_in = cluster.stand_in.clone();
    // The others do not hear of the mark, under which the primary looks whether the bucket is empty.
    stand_in.hold_map();
    stand_in.apply(Command::BeginDeletion(stand_in::bucket())).unwrap();
    let marked = stand_in.map().version;
    cluster.end(primary).await;
    until("the next primary is told by which map it is to serve", async || {
        *stand_in.note_newer_map.borrow() >= marked
    })
    .await;
    let (next_view, next) = cluster.leads(PG);
    assert!(next_view > view && next != primary);
    let early = cluster.call_in(PG, next_view, next, put(request(1), "early", inline())).await;
    assert!(matches!(early, Answer::Refused(_)), "it does not serve yet: {early:?}");
    stand_in.show_map();
    cluster.serving(PG, next_view).await;
    let late = cluster.call(PG, put(request(2), "late", inline())).await;
    assert_eq!(late, Answer::Refused(Refusal::StaleBucket));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_gives_no_orders() {
    let cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    let order = ManagerMessage::NewView {
        pg: PG,
        view: View(view.0 + 100),
        members: vec![primary],
        learners: Vec::new(),
        boot: cluster.stand_in.map().servers[&primary].boot,
    };
    cluster.send_message(primary, MetaMessage::Manager(order));
    let answer = cluster.call_in(PG, view, primary, put(request(1), "key", inline())).await;
    assert!(matches!(answer, Answer::Done { .. }), "it leads in its view as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_lost_everything_takes_a_snapshot_and_follows() {
    let mut cluster = Cluster::start(1).await;
    let (_, members) = cluster.members(PG);
    let away = members[2];
    cluster.end(away).await;
    cluster.wipe(away);
    until("it is let go", async || cluster.members(PG).1.len() == 2).await;
    cluster.serving(PG, View(2)).await;
    let count = larder_protocol::limits::HISTORY_OPS_MIN as u64 + 100;
    let keys: Vec<String> = (1..=count).map(|number| format!("key {number}")).collect();
    let puts = futures::stream::iter(1..=count).map(|number| {
        let call = put(request(number), &format!("key {number}"), inline());
        cluster.call(PG, call)
    });
    let answers: Vec<Answer> = puts.buffer_unordered(32).collect().await;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Done { .. })));
    cluster.begin(away).await;
    until("it is a member again", async || cluster.members(PG).1.contains(&away)).await;
    cluster.shows(away, &keys).await;
    let snapshot = cluster.meta(away).kv().get(&rows::snapshot(PG)).unwrap();
    assert!(snapshot.is_some(), "its rows came with a snapshot");
}

/// Groups that a server takes anew share walks over the index of each that leads them.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_lost_everything_takes_all_its_groups_by_few_walks() {
    const PGS: u32 = 8;
    let mut cluster = Cluster::start(PGS).await;
    // So many that no group is followed by the ops that its primary remembers.
    let count = PGS as usize * (larder_protocol::limits::HISTORY_OPS_MIN + 100);
    let keys: Vec<String> = (0..count).map(|number| format!("key {number}")).collect();
    let puts = futures::stream::iter(&keys).enumerate().map(|(number, key)| {
        let pg = pg_of(BUCKET, &ObjectKey::new(key).unwrap(), PGS);
        cluster.call(pg, put(request(number as u64 + 1), key, inline()))
    });
    let answers: Vec<Answer> = puts.buffer_unordered(32).collect().await;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Done { .. })));
    let away = ServerId(2);
    cluster.end(away).await;
    cluster.wipe(away);
    until("it is let go", async || (0..PGS).map(PgId).all(|pg| cluster.members(pg).1.len() == 2))
        .await;
    cluster.begin(away).await;
    until("it is a member again", async || {
        (0..PGS).map(PgId).all(|pg| cluster.members(pg).1.contains(&away))
    })
    .await;
    cluster.shows(away, &keys).await;
    let senders = [0, 1].map(|id| cluster.meta(ServerId(id)).snapshots());
    let begun: u64 = senders.iter().map(|sender| sender.begun).sum();
    let walks: u64 = senders.iter().map(|sender| sender.walks).sum();
    assert!(begun >= u64::from(PGS), "{senders:?}");
    assert!(walks < begun, "{senders:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_answers_reads_only_under_a_lease() {
    let cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    assert!(matches!(
        cluster.call(PG, put(request(1), "key", inline())).await,
        Answer::Done { .. }
    ));
    cluster.stand_in.keeps_leases.store(true, Ordering::Relaxed);
    until("the lease runs out", async || {
        cluster.find(PG, view, primary, "key").await == Err(Refusal::NotPrimary)
    })
    .await;
    assert_eq!(cluster.leads(PG), (view, primary), "it leads all the while");
    let row = rows::version(BUCKET, &ObjectKey::new("key").unwrap(), rows::UNVERSIONED);
    let ask = || MetaCall::GetRow { pg: PG, view, row: row.clone() };
    let reply = cluster.ask(primary, ask()).await.unwrap().0;
    assert_eq!(reply, MetaReply::Refused(Refusal::NotPrimary));
    let gone = Call::SetTags {
        request: request(2),
        bucket: BUCKET,
        key: ObjectKey::new("no key").unwrap(),
        tags: Vec::new(),
    };
    assert_eq!(
        cluster.call_in(PG, view, primary, gone).await,
        Answer::Refused(Refusal::NotPrimary),
        "that there is no such key is told under a lease alone"
    );
    assert!(matches!(
        cluster.call(PG, put(request(3), "other", inline())).await,
        Answer::Done { .. }
    ));
    cluster.stand_in.keeps_leases.store(false, Ordering::Relaxed);
    until("it has a lease again", async || {
        matches!(cluster.find(PG, view, primary, "other").await, Ok(Some(_)))
    })
    .await;
    assert_eq!(cluster.ask(primary, ask()).await.unwrap().0, MetaReply::Row(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_shows_the_keys_of_its_pgs_in_order_and_no_others() {
    let cluster = Cluster::start(4).await;
    let mut expected: Vec<String> = (0..40).map(|number| format!("key {number}")).collect();
    for (number, key) in (1..).zip(&expected) {
        let pg = pg_of(BUCKET, &ObjectKey::new(key).unwrap(), 4);
        if number % 4 == 0 {
            cluster.put_data(pg, put(request(number), key, data())).await;
        } else {
            let answer = cluster.call(pg, put(request(number), key, inline())).await;
            assert!(matches!(answer, Answer::Done { .. }));
        }
    }
    let mut seen = Vec::new();
    until("the primaries list while they lead", async || {
        seen = list_all(&cluster, 4).await.unwrap_or_default();
        !seen.is_empty()
    })
    .await;
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_is_answered_under_the_map_that_its_asker_has_or_a_newer_one() {
    let cluster = Cluster::start(1).await;
    let (pgs, page) = ([PgId(0)], 3);
    let under = async |map| {
        let to = cluster.leads(PgId(0)).1;
        cluster.page_under(map, &pgs, to, b"V".to_vec(), page).await.map(|_| ())
    };
    until("the primary answers under the map that there is", async || {
        under(cluster.stand_in.map().version).await.is_ok()
    })
    .await;
    cluster.stand_in.hold_map();
    cluster.stand_in.apply(Command::BeginDeletion(stand_in::bucket())).unwrap();
    let to_come = cluster.stand_in.map().version;
    assert_eq!(under(to_come).await, Err(Refusal::Busy), "a bucket is marked in that map");
    cluster.stand_in.show_map();
    until("the primary answers under that map", async || under(to_come).await.is_ok()).await;
}

/// The keys that each primary lists of the PGs that it leads, in pages of three.
async fn list_all(cluster: &Cluster, pg_count: u32) -> Result<Vec<String>, Refusal> {
    let pgs = || (0..pg_count).map(PgId);
    let primaries: BTreeSet<ServerId> = pgs().map(|pg| cluster.leads(pg).1).collect();
    let mut seen = Vec::new();
    for server in primaries {
        let led: Vec<PgId> = pgs().filter(|pg| cluster.leads(*pg).1 == server).collect();
        let keys = cluster.list(&led, server, 3).await?;
        assert!(keys.is_sorted(), "rows come in order");
        let pg = |key: &String| pg_of(BUCKET, &ObjectKey::new(key).unwrap(), pg_count);
        assert!(keys.iter().all(|key| led.contains(&pg(key))), "backups have other PGs' rows");
        seen.extend(keys);
    }
    Ok(seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_session_that_is_over_are_dropped() {
    let cluster = Cluster::start(1).await;
    let stream = StreamId { session: SESSION, number: 1 };
    let target = Target::Chunk { stream, number: 0 };
    let op = cluster.put_data(PG, put_to(request(1), "large", target, data())).await;
    let (_, primary) = cluster.leads(PG);
    let chunk = rows::chunk(BUCKET, stream, 0);
    let has_chunk = || cluster.meta(primary).kv().get(&chunk).unwrap().is_some();
    until("the chunk is there", async || has_chunk()).await;
    cluster.stand_in.apply(Command::CloseSession(SESSION)).unwrap();
    until("the chunk is gone", async || !has_chunk()).await;
    let late = cluster.call(PG, put(request(2), "late", inline())).await;
    assert_eq!(late, Answer::Refused(Refusal::Finished), "after op {op:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_of_a_session_that_is_over_is_not_done_after_a_restart() {
    let mut cluster = Cluster::start(1).await;
    cluster.call(PG, put(request(1), "good", inline())).await;
    let (view, _) = cluster.leads(PG);
    cluster.stand_in.apply(Command::CloseSession(SESSION)).unwrap();
    // The values that floors were raised to are in no log.
    let servers = cluster.members(PG).1;
    for server in servers.iter().copied() {
        cluster.end(server).await;
    }
    for server in servers {
        cluster.begin(server).await;
    }
    cluster.serving(PG, View(view.0 + 1)).await;
    let late = cluster.call(PG, put(request(2), "late", inline())).await;
    assert_eq!(late, Answer::Refused(Refusal::Finished));
    let remembered = async || (0..3).any(|id| cluster.meta(ServerId(id)).gauges(PG).remembered > 0);
    until("nothing of it is remembered", async || !remembered().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_closed_while_a_server_was_down_is_over_there_though_its_ops_come_later() {
    let mut cluster = Cluster::start(1).await;
    let (view, primary) = cluster.leads(PG);
    let away = cluster.members(PG).1.into_iter().find(|id| *id != primary).unwrap();
    cluster.end(away).await;
    cluster.serving(PG, View(view.0 + 1)).await;
    cluster.call(PG, put(request(1), "k", inline())).await;
    cluster.stand_in.apply(Command::CloseSession(SESSION)).unwrap();
    cluster.begin(away).await;
    cluster.shows(away, &["k".to_owned()]).await;
    let remembered = async || cluster.meta(away).gauges(PG).remembered;
    until("nothing of it is remembered", async || remembered().await == 0).await;
}
