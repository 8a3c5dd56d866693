//! Messages that certified servers may send and no release does: each of these ended a member before it was refused.

use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::digest::{IndexSum, Summed, TableSum};
use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::{OpenEntry, Origin, Piece, Recovering, Report, Role, SnapshotHeader};
use larder_protocol::{
    Answer, Call, Content, DataAnswer, Event, LogEntry, LvInfo, PeerMessage, Pg, PutCall, Replica,
};
use larder_types::codec::encode;
use larder_types::{
    Body, Condition, ETag, HybridClock, Metax, ObjectKey, Op, OpId, OpSeq, Outcome, Put, Request,
    ServerId, SessionId, StreamId, Target, VersionRow, View, rows,
};

use crate::support::{
    BUCKET, EPOCH, LV_BLOCKS, Member, PG, info, key, name_of, origin, put, replica,
};

const REQUEST: Request = Request { session: SessionId(3), number: 4, floor: 0 };
const PRIMARY: ServerId = ServerId(2);

/// A member that follows in view 3 and has nothing.
fn backup() -> Member {
    let mut member = Member::new(1);
    member.begin(3, &[2, 1]);
    member
}

fn entry(seq: u64, op: Op) -> LogEntry {
    LogEntry { id: key(3, seq), op: Arc::new(op) }
}

fn append(entries: Vec<LogEntry>) -> PeerMessage {
    let (prev, commit) = (OpId::default(), OpSeq(0));
    PeerMessage::Append { view: View(3), prev, entries, commit }
}

fn is_refused(member: &Member, message: &PeerMessage) -> bool {
    member.pg.admits(message, encode(message).len()).is_err()
}

fn hear(member: &mut Member, message: PeerMessage) {
    assert!(!is_refused(member, &message), "{message:?}");
    member.step(Event::Peer { from: PRIMARY, message });
}

fn metax(clock: u64) -> Metax {
    Metax::new(1, HybridClock(clock), ETag::Md5([1; 16]))
}

fn inline(target: Target, clock: u64) -> Op {
    let body = Body::Inline(Bytes::from_static(b"x"));
    let (request, key) = (REQUEST, name_of("k"));
    let put = Put { request, bucket: BUCKET, key, target, metax: metax(clock), body };
    Op::Put(Box::new(put))
}

fn revoked(put: u64) -> Op {
    Op::Outcome { put: OpSeq(put), outcome: Outcome::Revoked }
}

#[test]
fn an_outcome_before_its_put_is_refused() {
    let member = backup();
    assert!(is_refused(&member, &append(vec![entry(1, revoked(2)), entry(2, Op::Digest)])));
    assert!(is_refused(&member, &append(vec![entry(1, revoked(1))])));
    assert!(!is_refused(&member, &append(vec![entry(1, Op::Digest), entry(2, revoked(1))])));
}

#[test]
fn a_second_outcome_that_is_cut_off_takes_no_other_with_it() {
    let mut primary = Member::alone(1);
    let grant = primary.open_put("k", 1);
    let put = primary.log.iter().find(|(entry, _)| entry.id == grant.op).expect("its op").clone();
    let mut member = backup();
    // The same put, where this view's primary would have it.
    let Op::Put(mut of) = (*put.0.op).clone() else { panic!("a put") };
    let Body::Chunk(chunk) = &mut of.body else { panic!("with data") };
    chunk.grant.op = key(3, 1);
    of.metax.size = u64::from(chunk.len);
    hear(
        &mut member,
        append(vec![entry(1, Op::Put(of)), entry(2, revoked(1)), entry(3, revoked(1))]),
    );
    let other = LogEntry { id: key(3, 3), op: Arc::new(Op::Digest) };
    let prev = key(3, 2);
    // Another op of the third place: what stood there is cut.
    let replaced = LogEntry { id: OpId { view: View(3), seq: OpSeq(3) }, ..other };
    member.begin(4, &[2, 1]);
    let id = OpId { view: View(4), seq: OpSeq(3) };
    let entries = vec![LogEntry { id, ..replaced }];
    hear(&mut member, PeerMessage::Append { view: View(4), prev, entries, commit: OpSeq(3) });
    member.settle();
    let commit = OpSeq(3);
    hear(&mut member, PeerMessage::Append { view: View(4), prev: id, entries: vec![], commit });
    member.settle();
    assert_eq!((member.pg.applied(), member.pg.gauges().open_puts), (id, 0));
}

#[test]
fn records_that_members_make_for_themselves_are_taken_from_nobody() {
    let member = backup();
    for op in [Op::SnapshotBegin, Op::SnapshotEnd { superseded: vec![] }] {
        assert!(is_refused(&member, &append(vec![entry(1, op)])));
    }
}

#[test]
fn a_chunk_of_a_stream_without_data_is_refused() {
    let stream = StreamId { session: SessionId(3), number: 4 };
    let target = Target::Chunk { stream, number: 0 };
    assert!(is_refused(&backup(), &append(vec![entry(1, inline(target.clone(), 7))])));
    let content = Content::Inline(Bytes::from_static(b"x"));
    let Call::Put(call) = put(REQUEST, "k", content, Condition::default()) else { panic!("a put") };
    let call = Call::Put(Box::new(PutCall { target, ..*call }));
    assert!(Member::alone(1).pg.admits_call(&call).is_err());
}

#[test]
fn a_clock_at_the_end_of_numbers_is_refused() {
    let member = backup();
    assert!(is_refused(&member, &append(vec![entry(1, inline(Target::Version, u64::MAX))])));
    assert!(!is_refused(&member, &append(vec![entry(1, inline(Target::Version, 7))])));
}

#[test]
fn a_report_with_a_gap_is_refused_also_from_one_without_rows() {
    let mut primary = Member::new(1);
    primary.begin(3, &[1, 2]);
    let entries = vec![entry(5, Op::Digest)];
    let report = Report { is_whole: false, last: key(3, 5), prev: OpId::default(), entries };
    assert!(is_refused(&primary, &PeerMessage::Report { view: View(3), report }));
}

#[test]
fn a_snapshot_of_rows_that_are_not_the_groups_is_refused() {
    let member = backup();
    let at = key(3, 9);
    let version = |op| {
        encode(&VersionRow { op, metax: metax(7), body: Body::Inline(Bytes::from_static(b"x")) })
    };
    let row = |name| rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
    let piece = |rows| PeerMessage::SnapshotRows {
        view: View(3),
        at,
        after: None,
        piece: Piece { rows, is_last: true },
    };
    assert!(!is_refused(&member, &piece(vec![(row("a"), version(key(3, 8)))])));
    let later = vec![(row("a"), version(key(3, 10)))];
    let own = vec![(rows::applied(PG), encode(&at))];
    let unordered = vec![(row("b"), version(key(1, 1))), (row("a"), version(key(1, 1)))];
    let no_version = vec![(row("a"), vec![1, 2, 3])];
    for rows in [later, own, unordered, no_version] {
        assert!(is_refused(&member, &piece(rows.clone())), "{rows:?}");
    }
    let empty = Piece { rows: vec![], is_last: false };
    let empty = PeerMessage::SnapshotRows { view: View(3), at, after: None, piece: empty };
    assert!(is_refused(&member, &empty));
}

#[test]
fn a_snapshot_at_the_end_of_numbers_is_refused() {
    let member = backup();
    let snapshot = |seq, clock| {
        let clock = HybridClock(clock);
        let header = SnapshotHeader { at: key(3, seq), clock, open: vec![], sessions: vec![] };
        PeerMessage::Snapshot { view: View(3), header: Arc::new(header) }
    };
    assert!(!is_refused(&member, &snapshot(9, 7)));
    for (seq, clock) in [(0, 7), (u64::MAX, 7), (9, u64::MAX)] {
        assert!(is_refused(&member, &snapshot(seq, clock)), "{seq}, {clock}");
    }
}

#[test]
fn a_sum_of_more_rows_than_numbers_is_refused() {
    let tables = vec![TableSum { table: b'V', rows: u64::MAX, hash: [0; 16] }; 2];
    let sum = Summed::Sum(IndexSum { tables });
    assert!(is_refused(&backup(), &PeerMessage::Digest { view: View(3), at: key(3, 1), sum }));
}

#[test]
fn a_volume_that_shrinks_or_has_too_many_replicas_is_refused() {
    let member = Member::alone(2);
    assert_eq!(member.pg.role(), Role::Serving);
    let admits = |info: LvInfo| member.pg.admits_lv(&info).is_ok();
    let as_of = MapVersion(9);
    assert!(admits(LvInfo { as_of, ..info(3) }));
    assert!(!admits(LvInfo { as_of, ..info(1) }), "a replica is forgotten");
    assert!(!admits(LvInfo { blocks: LV_BLOCKS / 2, as_of, ..info(2) }));
    let replicas: Vec<Replica> = (0..17).map(replica).collect();
    assert!(!admits(LvInfo { replicas, as_of, ..info(2) }));
}

/// Two managers may lead for a moment, and messages overtake each other.
#[test]
fn a_volume_as_an_older_map_has_it_is_no_fault_and_changes_nothing() {
    let mut member = Member::alone(2);
    let info = |replicas, version| LvInfo { as_of: MapVersion(version), ..info(replicas) };
    member.step(Event::Lv(info(3, 9)));
    member.answer(2, DataAnswer::Floor(key(1, 0)));
    assert_eq!(member.pg.admits_lv(&info(2, 8)), Ok(()));
    assert!(
        member.pg.admits_lv(&info(2, 9)).is_err() && member.pg.admits_lv(&info(2, 10)).is_err()
    );
    member.effects.clear();
    member.step(Event::Lv(info(2, 8)));
    assert_eq!(member.effects, []);
    let token = member.put_data("k", 1);
    let [Answer::Granted { replicas, .. }] = member.answers(token)[..] else { panic!("a grant") };
    assert_eq!(replicas.count(), 3);
}

#[test]
fn a_call_for_a_key_of_another_group_is_refused() {
    let pg: Pg =
        Recovering::new(Origin { pg_count: 2, ..origin(ServerId(1), OpId::default(), None) })
            .finish()
            .expect("nothing to fit");
    let delete = |key: ObjectKey| {
        let (request, condition) = (REQUEST, Condition::default());
        Call::Delete { request, bucket: BUCKET, epoch: EPOCH, key, condition }
    };
    let keys = || ["a", "b", "c", "d", "e"].map(name_of).into_iter();
    let is_own = |key: &ObjectKey| larder_protocol::placement::pg_of(BUCKET, key, 2) == PG;
    assert!(keys().filter(is_own).all(|key| pg.admits_call(&delete(key)).is_ok()));
    assert!(keys().any(|key| !is_own(&key)), "some key is of the other group");
    assert!(keys().filter(|key| !is_own(key)).all(|key| pg.admits_call(&delete(key)).is_err()));
}

/// Rows are replaced by later ops alone, and asserts say so.
#[test]
fn a_log_whose_views_go_back_is_not_followed() {
    let mut member = backup();
    hear(&mut member, append(vec![entry(1, Op::Digest), entry(2, Op::Digest)]));
    member.settle();
    let commit = OpSeq(2);
    let said = PeerMessage::Append { view: View(3), prev: key(3, 2), entries: vec![], commit };
    hear(&mut member, said);
    member.settle();
    assert_eq!(member.pg.applied(), key(3, 2));
    let earlier = |seq| LogEntry { id: key(1, seq), op: Arc::new(Op::Digest) };
    hear(&mut member, append(vec![earlier(1), earlier(2), earlier(3)]));
    assert_eq!(member.pg.last(), key(3, 2), "it stands before what is applied");
}

/// Their keys' later ops would come before them.
#[test]
fn a_snapshot_with_open_puts_from_behind_it_is_refused() {
    let mut primary = Member::alone(1);
    let grant = primary.open_put("k", 1);
    let of = primary.log.iter().find(|(entry, _)| entry.id == grant.op).expect("its op");
    let Op::Put(of) = (*of.0.op).clone() else { panic!("a put") };
    let snapshot = |seq| {
        let id = key(1, seq);
        let mut put = of.clone();
        let Body::Chunk(chunk) = &mut put.body else { panic!("with data") };
        chunk.grant.op = id;
        put.metax.size = u64::from(chunk.len);
        let entry = LogEntry { id, op: Arc::new(Op::Put(put)) };
        let open = vec![OpenEntry { entry, superseded: false }];
        let header =
            SnapshotHeader { at: key(3, 9), clock: HybridClock(7), open, sessions: vec![] };
        PeerMessage::Snapshot { view: View(3), header: Arc::new(header) }
    };
    assert!(!is_refused(&backup(), &snapshot(9)));
    assert!(is_refused(&backup(), &snapshot(10)), "of an earlier view, but behind");
}

/// A primary that waits for the report of the other member in view 3.
fn levelling() -> Member {
    let mut primary = Member::new(1);
    primary.begin(3, &[1, 2]);
    assert_eq!(primary.pg.role(), Role::Levelling);
    primary
}

/// One that has these ops.
fn report(view: u64, entries: Vec<LogEntry>) -> PeerMessage {
    let last = entries.last().expect("an op").id;
    let report = Report { is_whole: true, last, prev: OpId::default(), entries };
    PeerMessage::Report { view: View(view), report }
}

fn put_in(view: u64) -> LogEntry {
    LogEntry { id: key(view, 1), op: Arc::new(inline(Target::Version, 7)) }
}

/// The view's own ops would come before those that the primary took over: a row would be removed by an earlier op than
/// made it.
#[test]
fn a_report_of_ops_of_a_later_view_is_refused() {
    let mut primary = levelling();
    let later = report(3, vec![put_in(9)]);
    if is_refused(&primary, &later) {
        hear(&mut primary, report(3, vec![put_in(2)]));
    } else {
        hear(&mut primary, later);
    }
    primary.settle();
    let through = primary.pg.last();
    hear(&mut primary, PeerMessage::Acked { view: View(3), through });
    primary.settle();
    // The next primary is sound, and so is what it sends.
    primary.begin(4, &[2, 1]);
    let op = Op::Delete {
        request: Request { number: 5, ..REQUEST },
        bucket: BUCKET,
        key: name_of("k"),
        clock: HybridClock(9),
    };
    let prev = primary.pg.last();
    let id = OpId { view: View(4), seq: prev.seq.next() };
    let entries = vec![LogEntry { id, op: Arc::new(op) }];
    let commit = id.seq;
    hear(&mut primary, PeerMessage::Append { view: View(4), prev, entries, commit });
    primary.settle();
    hear(&mut primary, PeerMessage::Append { view: View(4), prev: id, entries: vec![], commit });
    primary.settle();
    assert_eq!((primary.pg.applied(), primary.row("k")), (id, None));
}

/// The commit point would reach them before the view's start: the view would be active with ops yet to be applied.
#[test]
fn a_report_of_ops_of_a_view_that_has_not_begun_is_not_believed() {
    let mut primary = levelling();
    assert!(is_refused(&primary, &report(3, vec![put_in(3)])));
    hear(&mut primary, report(3, vec![put_in(2)]));
    assert_eq!(primary.pg.last(), key(3, 2), "the view has begun behind the longest log");
    // Now there are such ops: a member that comes back to the view has some.
    assert!(!is_refused(&primary, &report(3, vec![put_in(3)])));
    // One that came before the primary was told of its view.
    let mut primary = Member::new(1);
    hear(&mut primary, report(3, vec![put_in(3)]));
    primary.begin(3, &[1, 2]);
    assert_eq!((primary.pg.role(), primary.pg.last()), (Role::Levelling, OpId::default()));
    hear(&mut primary, report(3, vec![put_in(2)]));
    assert_eq!(primary.pg.last(), key(3, 2));
}
