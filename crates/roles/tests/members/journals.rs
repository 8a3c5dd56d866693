//! The answers of meta servers to the gateway of a region: journals behind tokens, whichever server leads,
//! and keys as they are kept.

use larder_protocol::manager::state::RegionRecord;
use larder_protocol::region::journal::VoidReason;
use larder_protocol::region::{KeyRows, RemoteChange, Token};
use larder_protocol::{Answer, Call, Refusal};
use larder_roles::limits::{JOURNALS_MAX, KEPT_KEYS_MAX, REGION_QUIET_OPS};
use larder_roles::wire::{JournalReply, JournalShown, KeyReply, MetaCall, MetaMessage, MetaReply};
use larder_types::codec::decode;
use larder_types::{
    Condition, Epoch, ObjectKey, OpSeq, Passed, PgId, RegionId, Request, ServerId, SessionId, View,
};

use super::support::{BUCKET, Cluster, PG, SESSION, data, inline, put, request, until};

const REGION: RegionRecord = RegionRecord { number: RegionId(3), fingerprint: [7; 32] };

fn become_region(cluster: &Cluster) {
    cluster.stand_in.claim(REGION);
}

/// A call that only a gateway makes.
fn note(request: Request) -> Call {
    let passed = vec![Passed { region: RegionId(9), pg: PgId(4), through: OpSeq(7) }];
    Call::RemoteChange(Box::new(RemoteChange::Note { request, passed, forgotten: None }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_none_any_more_is_refused_and_puts_as_any_other() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    let noted = cluster.call(PG, note(request(1))).await;
    assert!(matches!(noted, Answer::Done { .. }), "{noted:?}");
    let session = SessionId(77);
    cluster.stand_in.another_gateway(REGION, session);
    let late = cluster.call(PG, note(request(2))).await;
    assert_eq!(late, Answer::Refused(Refusal::Finished), "its session is over");
    let of_next = |number| Request { session, ..request(number) };
    let former = cluster.call(PG, note(of_next(1))).await;
    assert_eq!(former, Answer::Refused(Refusal::Busy), "the map has another");
    let put = cluster.call(PG, put(of_next(2), "as a client's", inline())).await;
    assert!(matches!(put, Answer::Done { .. }), "{put:?}");
}

fn journals(
    cluster: &Cluster,
    view: View,
    token: u64,
    (settled, wait_ms): (bool, u32),
) -> MetaCall {
    let pgs = vec![(PG, view, Token { through: OpSeq(token) })];
    let map = cluster.stand_in.map().version;
    MetaCall::Journals { pgs, map, ids_max: 100, settled, wait_ms }
}

/// The primary's answer on the journal behind a token; `None` if it gives none now.
async fn asked(cluster: &Cluster, token: u64, how: (bool, u32)) -> Option<JournalShown> {
    let (view, to) = cluster.leads(PG);
    match cluster.ask(to, journals(cluster, view, token, how)).await? {
        (MetaReply::Journals, payload) => {
            let mut now: Vec<(PgId, JournalReply)> = decode("journals", &payload).unwrap();
            match now.pop().unwrap() {
                (PG, JournalReply::Shows(shown)) => Some(shown),
                _ => None,
            }
        }
        other => panic!("an ask about journals is answered by {other:?}"),
    }
}

async fn shown(cluster: &Cluster, token: u64, how: (bool, u32)) -> JournalShown {
    let mut shown = None;
    until("the primary tells its journal", async || {
        shown = asked(cluster, token, how).await;
        shown.is_some()
    })
    .await;
    shown.unwrap()
}

/// Keys that are told behind a token, and the token behind them.
fn batch_of(shown: &JournalShown) -> (Vec<&str>, u64) {
    let batch = shown.batch.as_ref().unwrap();
    let keys = batch.ids.iter().map(|(_, id)| id.name.key.as_str()).collect();
    (keys, batch.token.through.0)
}

async fn put_inline(cluster: &Cluster, number: u64, key: &str) {
    let done = cluster.call(PG, put(request(number), key, inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_primary_goes_on_behind_the_token_of_the_one_before() {
    let mut cluster = Cluster::start(1).await;
    put_inline(&cluster, 1, "before").await;
    become_region(&cluster);
    let first = shown(&cluster, 0, (true, 0)).await;
    let void = first.batch.unwrap_err();
    assert_eq!(
        (void.why, void.resume.through),
        (VoidReason::Overrun, first.applied),
        "there is no journal of that"
    );
    put_inline(&cluster, 2, "one").await;
    let now = shown(&cluster, first.applied.0, (false, 2000)).await;
    let (keys, token) = batch_of(&now);
    assert_eq!(keys, ["one"]);

    let (view, primary) = cluster.leads(PG);
    put_inline(&cluster, 3, "two").await;
    cluster.end(primary).await;
    cluster.serving(PG, View(view.0 + 1)).await;
    let now = shown(&cluster, token, (false, 2000)).await;
    let (keys, token) = batch_of(&now);
    assert_eq!(keys, ["two"]);
    let again = shown(&cluster, token, (false, 0)).await;
    assert_eq!(batch_of(&again), (vec![], token));
    put_inline(&cluster, 4, "three").await;
    assert_eq!(batch_of(&shown(&cluster, token, (false, 2000)).await).0, ["three"]);
    // An op that no log has was lost.
    let ahead = shown(&cluster, token + 1000, (false, 0)).await;
    assert_eq!(ahead.batch.unwrap_err().why, VoidReason::Ahead);
    let (later, to) = cluster.leads(PG);
    let over =
        cluster.ask(to, journals(&cluster, View(later.0 - 1), token, (false, 0))).await.unwrap();
    let now: Vec<(PgId, JournalReply)> = decode("journals", &over.1).unwrap();
    assert_eq!(now, [(PG, JournalReply::NotNow)], "that view is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_skips_ops_without_changes() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    put_inline(&cluster, 1, "a").await;
    let token = shown(&cluster, 0, (true, 0)).await.applied.0;
    let note_many = async |numbers: std::ops::Range<u64>| {
        let floor = numbers.start;
        let of = |number| Request { floor, ..request(number) };
        let noted = numbers.map(|number| cluster.call(PG, note(of(number))));
        for answer in futures::future::join_all(noted).await {
            assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
        }
    };
    note_many(2..10).await;
    let now = shown(&cluster, token, (true, 0)).await;
    assert_eq!(batch_of(&now), (vec![], token), "not for each of them");
    for first in (10..10 + REGION_QUIET_OPS).step_by(32) {
        note_many(first..first + 32).await;
    }
    for _ in 0..2 {
        let now = shown(&cluster, token, (true, 0)).await;
        assert!(now.applied.0 >= token + REGION_QUIET_OPS);
        assert_eq!(batch_of(&now), (vec![], now.applied.0));
    }
    put_inline(&cluster, 2_000, "b").await;
    let now = shown(&cluster, token, (true, 0)).await;
    assert_eq!(batch_of(&now).0, ["b"], "it passes over none that tells something");
}

/// As one that leads anew, whose index has not caught up with what the primary before has told.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_index_shows_less_than_its_log_has_calls_no_token_ahead() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    put_inline(&cluster, 1, "a").await;
    let applied = shown(&cluster, 0, (true, 0)).await.applied.0;
    let (_, members) = cluster.members(PG);
    let gate = cluster.gate(members[1]);
    gate.shut();
    let putting = put_inline(&cluster, 2, "b");
    let asking = async {
        until("the log has more than the index", async || {
            let now = asked(&cluster, applied + 1, (false, 0)).await;
            now.is_some_and(|now| now.batch.is_ok() && now.applied.0 == applied)
        })
        .await;
        gate.open();
    };
    tokio::join!(putting, asking);
    assert_eq!(batch_of(&shown(&cluster, applied, (false, 2000)).await), (vec!["b"], applied + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_without_a_number_shows_before_a_journal_is_told() {
    let cluster = Cluster::start(1).await;
    let granted = cluster.call(PG, put(request(1), "pending", data())).await;
    let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
    assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    become_region(&cluster);
    let (_, primary) = cluster.leads(PG);
    assert_eq!(cluster.meta(primary).gauges(PG).open_puts, 1);
    let now = shown(&cluster, 0, (true, 0)).await;
    assert_eq!(cluster.meta(primary).gauges(PG).open_puts, 0, "it is told of at {}", now.applied.0);
    assert!(matches!(kept(&cluster, &["pending"]).await[..], [KeyReply::Rows(Some(_), None)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_waits_for_updates_up_to_its_limit() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    let applied = shown(&cluster, 0, (true, 0)).await.applied.0;
    let applied = applied.max(1);
    let begun = std::time::Instant::now();
    let (waiting, putting) = tokio::join!(shown(&cluster, applied, (false, 2000)), async {
        put_inline(&cluster, 1, "news").await;
        begun.elapsed()
    });
    assert_eq!(batch_of(&waiting).0, ["news"]);
    assert!(begun.elapsed() < putting + std::time::Duration::from_millis(1500), "it comes at once");
    let token = batch_of(&waiting).1;
    let none = shown(&cluster, token, (false, 50)).await;
    assert_eq!(batch_of(&none), (vec![], token));
}

/// The primary's answer on keys.
async fn kept(cluster: &Cluster, keys: &[&str]) -> Vec<KeyReply> {
    let (view, to) = cluster.leads(PG);
    let keys = keys.iter().map(|key| (BUCKET, ObjectKey::new(key).unwrap())).collect();
    match cluster.ask(to, MetaCall::Kept { pgs: vec![(PG, view)], keys }).await {
        Some((MetaReply::Kept, payload)) => decode("kept keys", &payload).unwrap(),
        other => panic!("an ask about keys is answered by {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_kept_with_all_that_was_taken_of_them() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    put_inline(&cluster, 1, "object").await;
    put_inline(&cluster, 2, "deleted").await;
    let key = ObjectKey::new("deleted").unwrap();
    let (request_3, bucket) = (request(3), BUCKET);
    let epoch = Epoch(1);
    let condition = Condition::default();
    let delete = Call::Delete { request: request_3, bucket, epoch, key, condition };
    assert!(matches!(cluster.call(PG, delete).await, Answer::Done { .. }));
    let now = kept(&cluster, &["object", "deleted", "never"]).await;
    let rows = |now: &KeyReply| match now {
        KeyReply::Rows(version, tombstone) => {
            let kept = KeyRows::of_values(version.as_deref(), tombstone.as_deref()).unwrap();
            (kept.version.is_some(), kept.tombstone.map(|it| it.at.region))
        }
        KeyReply::NotNow | KeyReply::Unknown => panic!("each key is settled"),
    };
    let now: Vec<_> = now.iter().map(rows).collect();
    assert_eq!(now, [(true, None), (false, Some(RegionId(3))), (false, None)]);
    // Of another view, or of a PG that was not named, nothing is said.
    let (view, to) = cluster.leads(PG);
    for pgs in [vec![(PG, View(view.0 + 1))], vec![]] {
        let keys = vec![(BUCKET, ObjectKey::new("object").unwrap())];
        let (_, payload) = cluster.ask(to, MetaCall::Kept { pgs, keys }).await.unwrap();
        assert_eq!(decode::<Vec<KeyReply>>("kept keys", &payload).unwrap(), [KeyReply::NotNow]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_put_that_goes_on_holds_up_no_other() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    put_inline(&cluster, 1, "object").await;
    let granted = cluster.call(PG, put(request(2), "pending", data())).await;
    let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
    assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    // The proxy lives.
    let (_, primary) = cluster.leads(PG);
    cluster.send_message(primary, MetaMessage::Floor { session: SESSION, floor: 2 });
    let now = kept(&cluster, &["pending", "object"]).await;
    assert!(matches!(now[..], [KeyReply::Unknown, KeyReply::Rows(Some(_), None)]), "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_out_of_bounds_are_not_answered() {
    let cluster = Cluster::start(1).await;
    become_region(&cluster);
    let (view, to) = cluster.leads(PG);
    let map = cluster.stand_in.map().version;
    let journals = |pg: u32, count: usize| {
        let pgs = vec![(PgId(pg), view, Token::default()); count];
        MetaCall::Journals { pgs, map, ids_max: u32::MAX, settled: true, wait_ms: u32::MAX }
    };
    let kept = |count: usize| {
        let keys = vec![(BUCKET, ObjectKey::new("a").unwrap()); count];
        MetaCall::Kept { pgs: vec![(PgId(u32::MAX), view), (PG, view)], keys }
    };
    for call in [
        journals(1, 1),
        journals(u32::MAX, 1),
        journals(0, JOURNALS_MAX + 1),
        kept(0),
        kept(KEPT_KEYS_MAX + 1),
    ] {
        assert!(cluster.ask(to, call).await.is_none());
    }
    // A map that nobody has is waited for, but not for ever.
    let pgs = vec![(PG, view, Token::default())];
    let map = larder_protocol::manager::state::MapVersion(u64::MAX);
    let late = MetaCall::Journals { pgs, map, ids_max: 1, settled: false, wait_ms: 0 };
    let answered = cluster.ask(to, late).await.map(|(reply, _)| reply);
    assert_eq!(answered, Some(MetaReply::Refused(Refusal::Busy)));
    put_inline(&cluster, 1, "a").await;
    let many = cluster.ask(ServerId(to.0), kept(KEPT_KEYS_MAX)).await.unwrap();
    assert_eq!(decode::<Vec<KeyReply>>("kept keys", &many.1).unwrap().len(), KEPT_KEYS_MAX);
}
