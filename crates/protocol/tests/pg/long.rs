//! The bound on what a member may have to tell another in one message: calls are turned away, and taken again when there
//! is room.

use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::limits::{
    DROPS_WAITING_MAX, FOLLOWED_BYTES_MAX, FOLLOWED_OPS_MAX, LONGEST_BYTES_MAX, LONGEST_OPS_MAX,
    OPEN_BYTES_MAX, OWN_BYTES_MAX, PEER_FRAME_BYTES_MAX, TAIL_BYTES_MAX, UNRESPONSIVE_TICKS_MAX,
};
use larder_protocol::pg::{Report, Role};
use larder_protocol::{
    Answer, Call, Content, Effect, Event, LogEntry, PeerMessage, Refusal, Token,
};
use larder_types::codec::encode;
use larder_types::{Condition, Op, OpId, OpSeq, ServerId, SessionId, StreamId, View};

use crate::support::{BUCKET, Member, data, put};
use crate::views::Cluster;

/// Bytes of a description that is as long as one may be.
const LONG: usize = 250_000;
/// Of such puts more than any bound has room for.
const MANY: usize = 4 * PEER_FRAME_BYTES_MAX / LONG;

/// A put whose op is long.
fn long_put(member: &mut Member, name: &str, content: Content) -> (Token, Call) {
    let request = member.request();
    let Call::Put(mut put) = put(request, name, content, Condition::default()) else {
        unreachable!("it is a put")
    };
    put.description.attributes.content_type = Some("a".repeat(LONG));
    let call = Call::Put(put);
    (member.call(call.clone()), call)
}

fn inline() -> Content {
    Content::Inline(Bytes::from_static(b"x"))
}

/// Makes calls until one is turned away, which it returns: with how many were taken.
fn fill(member: &mut Member, name: &str, content: &Content) -> (usize, Call) {
    for taken in 0..MANY {
        let (token, call) = long_put(member, &format!("{name}{taken}"), content.clone());
        if let [Answer::Refused(refusal)] = member.answers(token)[..] {
            assert_eq!(refusal, Refusal::Busy);
            return (taken, call);
        }
    }
    panic!("{MANY} puts of {LONG} bytes have room");
}

fn is_done(answers: &[Answer]) -> bool {
    matches!(answers, [Answer::Done { .. }])
}

fn fits_a_frame(message: &PeerMessage) {
    let bytes = encode(message).len();
    assert!(bytes <= PEER_FRAME_BYTES_MAX, "a message of {bytes} bytes fits no frame");
}

#[test]
fn a_report_fits_a_frame_however_much_is_under_way() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let mut taken = 0;
    for number in 0..MANY {
        let (token, _) = long_put(cluster.at(1), &format!("k{number}"), inline());
        if cluster.at(1).answers(token) == [Answer::Refused(Refusal::Busy)] {
            break;
        }
        taken += 1;
    }
    // Nothing of it is acknowledged, and the next view begins.
    cluster.deliver(1, &[2, 3]);
    cluster.at(2).sync();
    cluster.at(2).messages();
    cluster.begin(2, &[1, 2, 3]);
    let messages = cluster.at(2).messages();
    let [(_, report @ PeerMessage::Report { .. })] = &messages[..] else {
        panic!("not just a report: {}", messages.len())
    };
    fits_a_frame(report);
    assert!(taken >= TAIL_BYTES_MAX / LONG - 1, "{taken} puts have room");
    cluster.at(1).step(Event::Peer { from: ServerId(2), message: report.clone() });
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
}

#[test]
fn a_tail_of_many_bytes_turns_calls_away_until_it_is_applied() {
    let mut member = Member::alone(1);
    let (_, refused) = fill(&mut member, "k", &inline());
    let short = member.put_inline("short", "x");
    assert_eq!(member.refusal(short), Refusal::Busy);
    member.settle();
    let again = member.call(refused);
    member.settle();
    assert!(is_done(&member.answers(again)), "there is room");
}

#[test]
fn a_repeat_of_what_was_done_is_answered_by_a_full_tail() {
    let mut member = Member::alone(1);
    let (done, call) = long_put(&mut member, "done", inline());
    member.settle();
    assert!(is_done(&member.answers(done)));
    fill(&mut member, "k", &inline());
    let again = member.call(call);
    assert!(is_done(&member.answers(again)), "it needs no room");
}

#[test]
fn one_turned_away_has_what_is_committed_applied() {
    let mut member = Member::alone(1);
    // Puts with data change no row before their outcome: nothing has them applied.
    for number in 0..3 {
        long_put(&mut member, &format!("open{number}"), data(1));
    }
    member.sync();
    member.effects.clear();
    let (_, refused) = fill(&mut member, "k", &inline());
    let wanted = [Effect::SyncSoon, Effect::Committed];
    assert!(wanted.iter().all(|effect| member.effects.contains(effect)), "{:?}", member.effects);
    // Those that are not synced yet keep their room, and there is some.
    member.apply();
    let again = member.call(refused);
    assert_eq!(member.answers(again), []);
}

#[test]
fn puts_that_are_open_turn_others_away_until_one_has_an_outcome() {
    let mut member = Member::alone(1);
    let mut granted = Vec::new();
    let refused = loop {
        let (token, call) = long_put(&mut member, &format!("k{}", granted.len()), data(1));
        match member.answers(token)[..] {
            [Answer::Granted { grant, .. }] => granted.push(grant),
            [Answer::Refused(Refusal::Busy)] => break call,
            ref other => panic!("neither a grant nor a refusal: {other:?}"),
        }
        member.settle();
        member.effects.clear();
        if granted.len() == MANY {
            break put(member.request(), "last", data(1), Condition::default());
        }
    };
    // A put that opens nothing has room.
    let inline = member.put_inline("inline", "x");
    member.settle();
    assert!(is_done(&member.answers(inline)));
    // All of them go along with a snapshot.
    let mut learner = Member::new(2);
    learner.step(Event::Learn { view: View(1), primary: member.me });
    let report = learner.messages().remove(0).1;
    member.step(Event::Peer { from: ServerId(2), message: report });
    let header = member.messages().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Snapshot { .. } => Some(message),
        _ => None,
    });
    fits_a_frame(&header.expect("it is to have a snapshot"));
    assert!(granted.len() >= OPEN_BYTES_MAX / LONG, "{} have room", granted.len());

    member.commit(granted[0], 1);
    member.settle();
    let again = member.call(refused);
    assert!(matches!(member.answers(again)[..], [Answer::Granted { .. }]), "there is room");
}

#[test]
fn what_has_room_is_counted_over_a_restart() {
    let mut member = Member::alone(1);
    fill(&mut member, "k", &data(1));
    member.settle();
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    let (refused, _) = long_put(&mut member, "late", data(1));
    assert_eq!(member.refusal(refused), Refusal::Busy);
}

fn drop_stream(number: u64) -> Call {
    let stream = StreamId { session: SessionId(9), number };
    Call::DropStream { bucket: BUCKET, stream }
}

fn dropped(member: &Member) -> usize {
    let is_drop = |op: &Op| matches!(op, Op::DropStream { .. });
    member.log.iter().filter(|(entry, _)| is_drop(&entry.op)).count()
}

#[test]
fn calls_take_no_room_of_what_a_primary_does_of_itself() {
    let mut member = Member::alone(1);
    fill(&mut member, "k", &inline());
    member.call(drop_stream(1));
    assert_eq!(dropped(&member), 1);
}

#[test]
fn a_stream_is_dropped_when_there_is_room_for_that() {
    let mut member = Member::alone(1);
    let count = OWN_BYTES_MAX / 20;
    for number in 0..count as u64 {
        member.call(drop_stream(1 << 62 | number));
    }
    let first = dropped(&member);
    assert!(first < count, "there is an end");
    let kept = (count - first).min(DROPS_WAITING_MAX);
    // Nothing but time passes: nobody repeats what has no answer.
    for _ in 0..4 {
        member.step(Event::Tick);
        member.settle();
    }
    assert_eq!(dropped(&member), first + kept);
    assert!(!member.pg.wants_tick(), "there is nothing left to do");
}

/// As many ops after one as a message has, each as long as one may be.
fn ops_after(prev: OpId, op: &Arc<Op>) -> Vec<LogEntry> {
    let id = |number| OpId { view: prev.view, seq: OpSeq(prev.seq.0 + number) };
    let count = (PEER_FRAME_BYTES_MAX / LONG) as u64;
    (1..=count).map(|number| LogEntry { id: id(number), op: op.clone() }).collect()
}

/// A long op, and how many of it any tail has room for.
fn long_op() -> (Arc<Op>, u64) {
    let mut member = Member::alone(1);
    long_put(&mut member, "long", inline());
    let op = member.log.last().expect("an op").0.op.clone();
    (op, (FOLLOWED_BYTES_MAX / LONG) as u64 + 2)
}

#[test]
fn a_primary_that_commits_nothing_fills_no_follower() {
    let (op, most) = long_op();
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    let from = cluster.at(2).pg.last();
    for _ in 0..2 * FOLLOWED_BYTES_MAX / PEER_FRAME_BYTES_MAX {
        let prev = cluster.at(2).pg.last();
        let entries = ops_after(prev, &op);
        let message = PeerMessage::Append { view: View(1), prev, entries, commit: from.seq };
        cluster.at(2).step(Event::Peer { from: ServerId(1), message });
        cluster.at(2).sync();
        cluster.at(2).effects.clear();
    }
    let last = cluster.at(2).pg.last();
    assert!(last.seq.0 - from.seq.0 <= most, "{last:?} after {from:?}");
    // The log that it has goes on as soon as something of it is committed.
    let commit = OpSeq(from.seq.0 + 1);
    let message = PeerMessage::Append { view: View(1), prev: last, entries: Vec::new(), commit };
    cluster.at(2).step(Event::Peer { from: ServerId(1), message });
    cluster.at(2).settle();
    let message =
        PeerMessage::Append { view: View(1), prev: last, entries: ops_after(last, &op), commit };
    cluster.at(2).step(Event::Peer { from: ServerId(1), message });
    assert!(cluster.at(2).pg.last() > last);
}

/// Each member's log has so many long ops above what the index shows, as after a loss of power between two flushes; one
/// member has one more.
fn restarted_with(cluster: &mut Cluster, count: usize) {
    cluster.settle();
    let (op, _) = long_op();
    for id in 1..=3 {
        let member = cluster.at(id);
        member.log.retain(|(entry, _)| entry.id.seq <= member.pg.commit());
        let from = member.log.last().expect("an op").0.id;
        for number in 1..=(count + usize::from(id == 2)) as u64 {
            let at = OpId { view: from.view, seq: OpSeq(from.seq.0 + number) };
            member.log.push((LogEntry { id: at, op: op.clone() }, OpSeq(at.seq.0 - 1)));
        }
        member.synced = member.log.len();
        cluster.restart(id);
    }
}

/// As drivers do: rows are changed only when a machine says that something is committed.
fn drive(cluster: &mut Cluster, id: u32) {
    cluster.at(id).sync();
    while cluster.at(id).effects.contains(&Effect::Committed) {
        cluster.at(id).effects.retain(|effect| *effect != Effect::Committed);
        cluster.at(id).apply();
    }
    cluster.deliver(id, &[1, 2, 3]);
}

#[test]
fn what_was_not_flushed_before_a_restart_is_in_no_ones_way() {
    for bytes in [LONGEST_BYTES_MAX, FOLLOWED_BYTES_MAX] {
        let mut cluster = Cluster::serving(1, [2, 3]);
        restarted_with(&mut cluster, bytes / LONG + 1);
        cluster.begin(2, &[1, 2, 3]);
        for _ in 0..UNRESPONSIVE_TICKS_MAX {
            for id in 1..=3 {
                cluster.at(id).step(Event::Tick);
                drive(&mut cluster, id);
            }
            assert_eq!(cluster.at(1).pg.unheard().count(), 0, "all are sound");
        }
        assert_eq!(cluster.at(1).pg.role(), Role::Active, "{bytes} bytes");
    }
}

#[test]
fn a_report_of_many_short_ops_leaves_room_for_the_views_start() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    cluster.at(1).put_inline("k", "x");
    let op = cluster.at(1).log.last().expect("an op").0.op.clone();
    cluster.at(1).effects.clear();
    let from = cluster.at(2).pg.last();
    cluster.begin(2, &[1, 2, 3]);
    cluster.deliver(3, &[1]);
    let id = |number| OpId { view: View(1), seq: OpSeq(from.seq.0 + number) };
    let count = FOLLOWED_OPS_MAX as u64;
    let entries = (1..=count).map(|number| LogEntry { id: id(number), op: op.clone() }).collect();
    let report = Report { is_whole: true, last: id(count), prev: from, entries };
    let message = PeerMessage::Report { view: View(2), report };
    cluster.at(1).step(Event::Peer { from: ServerId(2), message });
    let taken = cluster.at(1).pg.last().seq.0 - from.seq.0;
    assert!(taken <= LONGEST_OPS_MAX as u64 + 1, "{taken} ops are taken");
}

#[test]
fn an_endless_log_of_a_member_is_ignored_and_fills_no_primary() {
    let (op, most) = long_op();
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    let from = cluster.at(1).pg.last();
    cluster.begin(2, &[1, 2, 3]);
    cluster.deliver(3, &[1]);
    cluster.at(1).effects.clear();
    let end = OpId { view: View(1), seq: OpSeq(1 << 40) };
    let mut prev = from;
    for _ in 0..2 * FOLLOWED_BYTES_MAX / PEER_FRAME_BYTES_MAX {
        let entries = ops_after(prev, &op);
        let next = entries.last().expect("an op").id;
        let report = Report { is_whole: true, last: end, prev, entries };
        let message = PeerMessage::Report { view: View(2), report };
        cluster.at(1).step(Event::Peer { from: ServerId(2), message });
        prev = next;
    }
    let last = cluster.at(1).pg.last();
    assert!(last.seq.0 - from.seq.0 <= most, "{last:?} after {from:?}");
    assert_eq!(cluster.at(1).pg.unheard().collect::<Vec<_>>(), [ServerId(2)]);
    cluster.at(1).begin(3, &[1, 3]);
    cluster.at(3).begin(3, &[1, 3]);
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active, "the next view is without it");
}
