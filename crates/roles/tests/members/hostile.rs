//! Meta servers among servers whose certificates are good and whose words are not.

use std::time::Duration;

use bytes::Bytes;
use larder_env::SeededRng;
use larder_identity::Role;
use larder_kv::KvReader;
use larder_net::Peer;
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::LvRecord;
use larder_protocol::{Answer, AppendCall, Call, LogEntry, PeerMessage, PutCall, Refusal};
use larder_roles::wire::{MetaCall, MetaMessage, MetaReply, MetaService};
use larder_types::codec::encode;
use larder_types::limits::REPLICAS_MAX;
use larder_types::{
    Attributes, Condition, Epoch, LvId, ObjectKey, Op, OpId, OpSeq, PgId, Request, ServerId,
    SessionId, StreamId, Target, UploadId, View, rows,
};

use crate::raw::{InBytes, Raw, corpus, panics, rounds, spoiled};
use crate::support::{
    BUCKET, Cluster, OTHER_SESSION, PG, SESSION, data, inline, put, put_to, request,
};

/// Requests of one round that wait for their answers together.
const AT_ONCE: usize = 40;

/// Times that a good request is among what is spoiled, so that many of these get past the door.
const GOOD_PART: usize = 6;

/// Rounds between two good requests that must be served, and of a session.
const SERVED_EACH: u64 = 50;

/// Of so many good requests one may have to be made again, and [`LOST_LEAST`] more. A machine with much
/// else to do may let the process stand still for so long that connections are given up.
const LOST_PART: u64 = 20;
const LOST_LEAST: u64 = 2;

/// Numbers of requests that [`calls`] takes, and more.
const KINDS: u64 = 16;

/// A request of a session that no golden message names: one that does may well end another's. Those before are finished,
/// as a proxy says at each beat: a session of which 65,536 are not is told to slow down.
fn of_another_session(number: u64) -> Request {
    Request { session: OTHER_SESSION, number, floor: number }
}

/// Good requests under a session, one of each kind that changes or waits for something, without the byte of the version.
fn calls(view: View, session: SessionId, number: u64) -> Vec<Vec<u8>> {
    let (bucket, epoch, condition) = (BUCKET, Epoch(1), Condition::default);
    let (key, stream) = (ObjectKey::new("k").unwrap(), StreamId { session, number });
    let mut number = KINDS * number;
    let mut request = || {
        number += 1;
        Request { session, number, floor: number.saturating_sub(KINDS) }
    };
    let chunk = Target::Chunk { stream, number: 0 };
    let Call::Put(like) = put(request(), "k", inline()) else { unreachable!("a put") };
    let PutCall { description, content, .. } = *like;
    let append = AppendCall {
        request: request(),
        bucket,
        epoch,
        key: key.clone(),
        offset: None,
        description,
        content,
        condition: condition(),
    };
    let upload = UploadId { pg: PG, op: Default::default() };
    let attributes = Attributes::default();
    let calls = [
        put(request(), "k", inline()),
        put(request(), "k", data()),
        put_to(request(), "k", chunk, data()),
        Call::Append(Box::new(append)),
        Call::Delete {
            request: request(),
            bucket,
            epoch,
            key: key.clone(),
            condition: condition(),
        },
        Call::SetTags { request: request(), bucket, key: key.clone(), tags: Vec::new() },
        Call::CreateUpload {
            request: request(),
            bucket,
            epoch,
            key: key.clone(),
            attributes,
            checksum: None,
        },
        Call::AbortUpload { request: request(), bucket, key: key.clone(), upload },
        Call::DropStream { bucket, stream },
        Call::Read { bucket, key },
        Call::Barrier,
    ];
    let bytes = |call| encode(&MetaCall::Call { pg: PG, view, call })[1..].to_vec();
    calls.into_iter().map(bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_from_certified_servers_end_no_meta_server() {
    let cluster = Cluster::start(1).await;
    let (golden, before) = (corpus(), panics());
    let (_, primary) = cluster.leads(PG);
    let roles = [Role::Meta, Role::Proxy, Role::Manager];
    let callers: Vec<_> = (0..3)
        .flat_map(|to| roles.map(|role| (ServerId(to), role)))
        .map(|(to, role)| {
            let from = ServerId((to.0 + 1) % 3);
            let endpoint =
                cluster.another(if role == Role::Meta { from } else { ServerId(4) }, role);
            Peer::<InBytes<MetaService>>::new(&endpoint, to, cluster.address(to))
        })
        .collect();
    let mut number = 1_000;
    for mut draw in rounds() {
        // Bytes may well end a session.
        let session = SessionId(number / SERVED_EACH);
        if number.is_multiple_of(SERVED_EACH) {
            cluster.stand_in.begin_session(session);
        }
        let good = calls(cluster.leads(PG).0, session, number);
        let mut corpus = golden.clone();
        (0..GOOD_PART).for_each(|_| corpus.extend_from_slice(&good));
        let calls = (0..AT_ONCE).map(|_| {
            let peer = &callers[draw.below(callers.len() as u64) as usize];
            let (body, payload) =
                (Raw(spoiled(&mut draw, &corpus)), Bytes::from(spoiled(&mut draw, &corpus)));
            if draw.below(2) == 0 {
                // One that is full may drop it.
                drop(peer.send(&body, payload));
                return None;
            }
            let deadline = tokio::time::Instant::now() + Duration::from_millis(50);
            Some(async move { peer.call(&body, payload, deadline).await.map(|_| ()) })
        });
        let calls: Vec<_> = calls.collect();
        drop(futures::future::join_all(calls.into_iter().flatten()).await);
        for to in (0..3).map(ServerId) {
            // A message of a member, by the view in which it may do harm.
            let mut bytes =
                encode(&PeerMessage::Acked { view: View(1), through: Default::default() });
            let at = 2 + draw.below(bytes.len() as u64 - 2) as usize;
            bytes[at] = draw.next_u64() as u8;
            // By itself, or between messages of other groups.
            let (message, bytes) = match draw.below(2) {
                0 => (MetaMessage::Peer(PG), bytes),
                _ => (MetaMessage::Peers, a_batch_with(bytes, &mut draw)),
            };
            let body = encode(&message);
            let peer = &callers[3 * to.0 as usize];
            drop(peer.send(&Raw(body[1..].to_vec()), bytes.into()));
        }
        number += 1;
        if number.is_multiple_of(SERVED_EACH) {
            let done = cluster.call(PG, put(of_another_session(number), "good", inline())).await;
            assert!(matches!(done, Answer::Done { .. }), "a good request is served: {done:?}");
        }
    }
    let done = cluster.call(PG, put(of_another_session(number + 1), "good", inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "a good request is served: {done:?}");
    cluster.shows(primary, &["good".to_owned()]).await;
    assert_eq!(panics(), before, "nothing panicked");
    let (rounds, ops) = (number - 1_000, cluster.meta(primary).log_counters().ops);
    let lost = cluster.lost();
    println!("{rounds} rounds, {ops} ops, {lost} lost, {:?}", cluster.meta(primary).gauges(PG));
    let lost_max = LOST_LEAST + rounds / SERVED_EACH / LOST_PART;
    assert!(lost <= lost_max, "a good request is seldom made again: {lost} were");
    assert!(ops > rounds / 10, "much gets past the door");
}

/// A message of several groups, of which one says this, spoiled in one of eight cases.
fn a_batch_with(bytes: Vec<u8>, draw: &mut SeededRng) -> Vec<u8> {
    let other = encode(&PeerMessage::Acked { view: View(1), through: Default::default() });
    let batch: Vec<(PgId, Bytes)> =
        vec![(PgId(70_000), other.clone().into()), (PG, bytes.into()), (PG, other.into())];
    let mut batch = encode(&batch);
    if draw.below(8) == 0 {
        let at = draw.below(batch.len() as u64) as usize;
        batch[at] = draw.next_u64() as u8;
    }
    batch
}

/// The index takes no such key, and asserts it: a release ends with the panic.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_key_is_too_long_is_not_looked_for() {
    let cluster = Cluster::start(1).await;
    let (view, to) = cluster.leads(PG);
    let (before, row) = (panics(), vec![b'V'; 70_000]);
    let get = MetaCall::GetRow { pg: PG, view, row: row.clone() };
    assert!(cluster.ask(to, get).await.is_none(), "it has no answer");
    let (pgs, map, settled) = (vec![(PG, view)], cluster.stand_in.map().version, false);
    let scan = MetaCall::Scan { pgs, map, settled, from: row.clone(), to: None, count_max: 1 };
    assert!(cluster.ask(to, scan).await.is_none(), "it has no answer");
    let peer: Peer<MetaService> =
        Peer::new(&cluster.another(ServerId((to.0 + 1) % 3), Role::Meta), to, cluster.address(to));
    let next = PeerMessage::SnapshotNext { view, at: Default::default(), after: Some(row) };
    peer.send(&MetaMessage::Peer(PG), encode(&next).into()).unwrap();
    let done = cluster.call(PG, put(request(1), "good", inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "a good request is served: {done:?}");
    assert_eq!(panics(), before, "nothing of it panicked");
}

/// The others refuse such an op, so that nothing behind it would ever be agreed on.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_a_key_of_another_group_is_not_stepped() {
    let cluster = Cluster::start(2).await;
    let is_own = |key: &&str| {
        larder_protocol::placement::pg_of(BUCKET, &ObjectKey::new(key).unwrap(), 2) == PG
    };
    let (own, others): (Vec<_>, Vec<_>) = ["a", "b", "c", "d", "e"].into_iter().partition(is_own);
    let (view, to) = cluster.leads(PG);
    let (epoch, condition) = (Epoch(1), Condition::default());
    let key = ObjectKey::new(others[0]).unwrap();
    let call = Call::Delete { request: request(1), bucket: BUCKET, epoch, key, condition };
    let call = MetaCall::Call { pg: PG, view, call };
    assert!(cluster.ask(to, call).await.is_none(), "it has no answer");
    let good = put(request(2), own[0], inline());
    let done = cluster.ask(to, MetaCall::Call { pg: PG, view, call: good }).await;
    let is_done = matches!(done, Some((MetaReply::Answered(Answer::Done { .. }), _)));
    assert!(is_done, "the group goes on: {done:?}");
}

/// Says something to a meta server as another server, and waits until it was heard: what is asked afterwards on the same
/// connection is answered afterwards.
async fn wait_until_received(
    cluster: &Cluster,
    (from, role): (ServerId, Role),
    to: ServerId,
    said: SentMessage,
) {
    let peer: Peer<MetaService> = Peer::new(&cluster.another(from, role), to, cluster.address(to));
    peer.send(&said.0, said.1).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    // A handler that panics answers nothing.
    drop(peer.call(&MetaCall::Progress, Bytes::new(), deadline).await);
}

type SentMessage = (MetaMessage, Bytes);

/// A primary hears of its group's volumes, as if from a manager.
async fn receives_volumes(cluster: &Cluster, lvs: Vec<(LvId, LvRecord)>) {
    let (view, primary) = cluster.leads(PG);
    let map = cluster.stand_in.map();
    let (boot, version) = (map.servers[&primary].boot, map.version);
    let (boots, sessions) = (Vec::new(), Vec::new());
    let word = ManagerMessage::Volumes { pg: PG, view, boot, version, lvs, boots, sessions };
    let said = (MetaMessage::Manager(word), Bytes::new());
    wait_until_received(cluster, (ServerId(9), Role::Manager), primary, said).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ops_with_a_gap_between_them_are_not_stepped() {
    let cluster = Cluster::start(1).await;
    let before = panics();
    let done = cluster.call(PG, put(request(1), "good", inline())).await;
    let Answer::Done { op, .. } = done else { panic!("a good request is served: {done:?}") };
    let (view, members) = cluster.members(PG);
    cluster.shows(members[1], &["good".to_owned()]).await;
    let stream = StreamId { session: SessionId(1), number: 1 };
    let late = OpId { view, seq: OpSeq(op.seq.0 + 100) };
    let entry = LogEntry { id: late, op: Op::DropStream { bucket: BUCKET, stream }.into() };
    let append = PeerMessage::Append { view, prev: op, entries: vec![entry], commit: OpSeq(0) };
    let said = (MetaMessage::Peer(PG), encode(&append).into());
    wait_until_received(&cluster, (members[0], Role::Meta), members[1], said).await;
    assert_eq!(panics(), before, "its log has no gap");
    let done = cluster.call(PG, put(request(2), "next", inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "every member takes what comes next: {done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_no_manager_decides_on_is_not_stepped() {
    let cluster = Cluster::start(1).await;
    let before = panics();
    cluster.put_data(PG, put(request(1), "good", data())).await;
    let map = cluster.stand_in.map();
    let known = map.lv(LvId(0)).unwrap();
    let mut crowded = known.clone();
    crowded.replicas = vec![known.replicas[0]; REPLICAS_MAX + 1];
    receives_volumes(&cluster, vec![(LvId(77), crowded)]).await;
    assert_eq!(panics(), before, "a set of replicas has no more places");
    cluster.put_data(PG, put(request(2), "next", data())).await;
}

/// A group forgets what it remembers of a session when that ends. Of sessions that nobody has opened it
/// would remember requests for ever, until it takes no more of anybody.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_remembered_of_sessions_that_are_not_the_senders() {
    let cluster = Cluster::start(1).await;
    let (view, to) = cluster.leads(PG);
    let unknown = Request { session: SessionId(1 << 41), ..request(1) };
    let refused = cluster.call(PG, put(unknown, "bad", inline())).await;
    assert_eq!(refused, Answer::Refused(Refusal::Busy), "it may be opened in a newer map");
    let other = cluster.another(ServerId(3), Role::Proxy);
    let peer: Peer<MetaService> = Peer::new(&other, to, cluster.address(to));
    let call = MetaCall::Call { pg: PG, view, call: put(request(1), "bad", inline()) };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    assert!(peer.call(&call, Bytes::new(), deadline).await.is_err(), "it is another proxy's");
    let mine = cluster.call(PG, put(request(1), "good", inline())).await;
    assert!(matches!(mine, Answer::Done { .. }), "and has not had its request done: {mine:?}");
    assert_eq!(request(1).session, SESSION);
    cluster.shows(to, &["good".to_owned()]).await;
    let row = rows::version(BUCKET, &ObjectKey::new("bad").unwrap(), rows::UNVERSIONED);
    assert_eq!(cluster.meta(to).kv().get(&row).unwrap(), None);
    cluster.stand_in.begin_session(unknown.session);
    let opened = cluster.call(PG, put(unknown, "late", inline())).await;
    assert!(matches!(opened, Answer::Done { .. }), "the newer map has come: {opened:?}");
}

/// A volume that is new has no earlier description by which both could be judged.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_described_twice_is_not_stepped() {
    let cluster = Cluster::start(1).await;
    let before = panics();
    cluster.put_data(PG, put(request(1), "good", data())).await;
    let map = cluster.stand_in.map();
    let known = map.lv(LvId(0)).unwrap();
    let mut wide = known.clone();
    wide.replicas = vec![known.replicas[0]; 2];
    receives_volumes(&cluster, vec![(LvId(77), wide), (LvId(77), known.clone())]).await;
    assert_eq!(panics(), before, "the second has lost a replica");
    cluster.put_data(PG, put(request(2), "next", data())).await;
}
