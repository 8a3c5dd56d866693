//! Messages that are repeated, and their number: a message that is lost costs one report, and one on its way costs
//! nothing.

use bytes::Bytes;
use larder_protocol::limits::{
    IDLE_TICKS, PEER_FRAME_BYTES_MAX, REPEAT_BYTES_PER_TICK, REPEAT_TICKS_MAX, TAIL_BYTES_MAX,
    UNRESPONSIVE_TICKS_MAX,
};
use larder_protocol::pg::{Report, Role};
use larder_protocol::{Call, Content, Effect, Event, LogEntry, PeerMessage};
use larder_types::codec::encode;
use larder_types::{Condition, OpId, OpSeq, ServerId, View};

use crate::support::{Member, put};
use crate::views::Cluster;

/// Ticks after which a member may count as unheard at the soonest: it has had nothing to say for a while.
pub const UNRESPONSIVE_SOONEST: u32 = UNRESPONSIVE_TICKS_MAX - IDLE_TICKS as u32;

/// Bytes of a description that is as long as one may be.
const LONG: usize = 250_000;

fn put_long(member: &mut Member, name: &str) {
    let content = Content::Inline(Bytes::from_static(b"x"));
    let Call::Put(mut put) = put(member.request(), name, content, Condition::default()) else {
        unreachable!("it is a put")
    };
    put.description.attributes.content_type = Some("a".repeat(LONG));
    member.call(Call::Put(put));
}

fn reports(member: &mut Member) -> Vec<Report> {
    let reports = member.messages().into_iter().filter_map(|(_, message)| match message {
        PeerMessage::Report { report, .. } => Some(report),
        _ => None,
    });
    reports.collect()
}

/// Ops in all messages that a member has sent to another.
fn ops_to(member: &mut Member, whom: u32) -> usize {
    let count = |(to, message)| match message {
        PeerMessage::Append { entries, .. } if to == ServerId(whom) => entries.len(),
        _ => 0,
    };
    member.messages().into_iter().map(count).sum()
}

/// Delivers ops to a member whose log takes none, as its driver does: what they follow.
fn deliver_to_busy(cluster: &mut Cluster, to: u32) {
    for (whom, message) in cluster.at(1).messages() {
        let message = match message {
            PeerMessage::Append { view, prev, commit, .. } if whom == ServerId(to) => {
                PeerMessage::Append { view, prev, entries: Vec::new(), commit }
            }
            message => message,
        };
        cluster.at(whom.0).step(Event::Peer { from: ServerId(1), message });
    }
}

#[test]
fn a_member_that_cannot_append_counts_as_unresponsive() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let unheard = |cluster: &mut Cluster| cluster.at(1).pg.unheard().collect::<Vec<_>>();
    for _ in 0..2 * UNRESPONSIVE_TICKS_MAX {
        cluster.settle();
        assert_eq!(unheard(&mut cluster), [], "there is nothing to acknowledge");
    }
    cluster.at(1).put_inline("k", "x");
    for tick in 0..=UNRESPONSIVE_TICKS_MAX {
        let is_heard = unheard(&mut cluster).is_empty();
        assert!(is_heard || tick > UNRESPONSIVE_SOONEST, "tick {tick}: it may be busy for a while");
        cluster.at(1).step(Event::Tick);
        deliver_to_busy(&mut cluster, 3);
        for id in 2..=3 {
            cluster.at(id).settle();
            cluster.deliver(id, &[1]);
        }
    }
    assert_eq!(unheard(&mut cluster), [ServerId(3)]);
    // It is sent anew what it has not taken.
    for _ in 0..REPEAT_TICKS_MAX {
        cluster.at(1).step(Event::Tick);
        cluster.settle();
    }
    // One that takes them slowly gets on.
    for number in 0..2 * UNRESPONSIVE_TICKS_MAX {
        cluster.at(1).put_inline(&format!("k{number}"), "x");
        cluster.deliver(1, &[2, 3]);
        cluster.at(1).put_inline(&format!("l{number}"), "x");
        for id in 1..=3 {
            cluster.at(id).settle();
            cluster.deliver(id, &[1]);
        }
        cluster.at(1).step(Event::Tick);
        assert_eq!(unheard(&mut cluster), [], "it acknowledges more and more");
    }
}

#[test]
fn an_idle_group_sends_little_and_its_commit_point_at_the_next_tick() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.at(1).put_inline("k", "x");
    cluster.settle();
    let tick = |cluster: &mut Cluster| {
        cluster.at(1).step(Event::Tick);
        let is_said = |effect: &&Effect| matches!(effect, Effect::Send { .. });
        let said = cluster.at(1).effects.iter().filter(is_said).count();
        for id in 1..=3 {
            cluster.deliver(id, &[1, 2, 3]);
        }
        said
    };
    for _ in 0..IDLE_TICKS {
        tick(&mut cluster);
    }
    let said: usize = (0..10 * IDLE_TICKS).map(|_| tick(&mut cluster)).sum();
    assert_eq!(said, 2 * 10, "to each of two");
    assert_eq!(cluster.at(1).pg.unheard().count(), 0);
    cluster.at(1).put_inline("k", "y");
    for id in [1, 2, 3, 1, 2, 3] {
        cluster.at(id).settle();
        cluster.deliver(id, &[1, 2, 3]);
    }
    let commit = cluster.at(1).pg.commit();
    assert_eq!(tick(&mut cluster), 2);
    assert_eq!([2, 3].map(|id| cluster.at(id).pg.commit()), [commit; 2]);
}

#[test]
fn what_is_committed_already_is_not_reported_once_it_is_durable() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for id in [1, 2] {
        cluster.at(id).begin(2, &[1, 2]);
    }
    cluster.settle();
    cluster.at(1).serve(1);
    for number in 0..40 {
        put_long(cluster.at(1), &format!("k{number}"));
        for _ in 0..3 {
            cluster.at(1).settle();
            cluster.deliver(1, &[2]);
            cluster.at(2).settle();
            cluster.deliver(2, &[1]);
        }
    }
    // The third takes all of it at once, and its log is synced when it is no learner any more.
    cluster.at(3).step(Event::Learn { view: View(2), primary: ServerId(1) });
    cluster.deliver(3, &[1]);
    cluster.at(1).serve_snapshots();
    cluster.deliver(1, &[3]);
    cluster.at(3).sync();
    cluster.at(3).effects.clear();
    cluster.at(3).begin(3, &[1, 2, 3]);
    let report = reports(cluster.at(3)).remove(0);
    assert!(report.last.seq > OpSeq(40), "it has the ops: {:?}", report.last);
    assert_eq!(report.entries.len(), 0, "all of them are committed");
}

#[test]
fn a_lost_message_is_requested_once() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    put_long(cluster.at(1), "lost");
    cluster.deliver(1, &[2]);
    for number in 0..10 {
        put_long(cluster.at(1), &format!("k{number}"));
    }
    let behind: Vec<_> = cluster.at(1).messages();
    for (whom, message) in behind.clone() {
        cluster.at(whom.0).step(Event::Peer { from: ServerId(1), message });
    }
    let reported = reports(cluster.at(3));
    assert_eq!(reported.len(), 1, "each op that came behind it has the same gap");
    // A member of an earlier release says it each time.
    for report in [reported[0].clone(), reported[0].clone(), reported[0].clone()] {
        let message = PeerMessage::Report { view: View(1), report };
        cluster.at(1).step(Event::Peer { from: ServerId(3), message });
    }
    assert_eq!(ops_to(cluster.at(1), 3), 11, "they are on their way");
}

#[test]
fn what_ticks_repeat_is_answered_as_seldom_as_reports_are() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    put_long(cluster.at(1), "lost");
    cluster.deliver(1, &[2]);
    put_long(cluster.at(1), "behind");
    let messages = cluster.at(1).messages();
    let behind = messages.into_iter().find(|(whom, _)| *whom == ServerId(3)).expect("an op").1;
    let PeerMessage::Append { view, commit, .. } = behind else { panic!("{behind:?}") };
    let prev = cluster.at(3).pg.last();
    let empty = PeerMessage::Append { view, prev, entries: Vec::new(), commit };
    let mut reported = 0;
    for message in [&behind, &empty, &behind, &empty, &behind] {
        cluster.at(3).step(Event::Peer { from: ServerId(1), message: message.clone() });
        reported += reports(cluster.at(3)).len();
    }
    assert_eq!(reported, 1, "the gap is still there");

    // A primary that begins a view asks for the end of a log.
    let last = with_a_long_log(&mut cluster, 2);
    cluster.at(2).begin(2, &[1, 2, 3]);
    let report = reports(cluster.at(2)).remove(0);
    let (view, commit) = (View(2), OpSeq(0));
    let mut ask = |prev: OpId| {
        let message = PeerMessage::Append { view, prev, entries: Vec::new(), commit };
        cluster.at(2).step(Event::Peer { from: ServerId(1), message });
        reports(cluster.at(2)).len()
    };
    let ends = |report: &Report| report.entries.last().expect("an op").id;
    let end = ends(&report);
    assert!(end < last);
    assert_eq!([ask(end), ask(end), ask(end)], [1, 0, 0], "it is on its way");
    let next = OpId { view: end.view, seq: end.seq.next() };
    assert_eq!(ask(next), 1, "another question");
    for _ in 0..=REPEAT_TICKS_MAX {
        cluster.at(2).step(Event::Tick);
    }
    cluster.at(2).effects.clear();
    let message = PeerMessage::Append { view, prev: next, entries: Vec::new(), commit };
    cluster.at(2).step(Event::Peer { from: ServerId(1), message });
    assert_eq!(reports(cluster.at(2)).len(), 1, "it was lost");
}

#[test]
fn what_is_not_acknowledged_is_sent_again_the_seldomer_the_more_it_is() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    let count = TAIL_BYTES_MAX / LONG - 1;
    for number in 0..count {
        put_long(cluster.at(1), &format!("k{number}"));
    }
    assert_eq!(ops_to(cluster.at(1), 3), count);
    let wait = (count * LONG / REPEAT_BYTES_PER_TICK) as u64 + 1;
    assert!((3..=REPEAT_TICKS_MAX).contains(&wait));
    // Once by chance: nothing was said yet of how much it is.
    let sent: Vec<usize> = (0..3 * wait)
        .map(|_| {
            cluster.at(1).step(Event::Tick);
            ops_to(cluster.at(1), 3)
        })
        .collect();
    let times = sent.iter().filter(|ops| **ops > 0).count();
    assert!(sent.iter().all(|ops| [0, count].contains(ops)), "all or nothing: {sent:?}");
    assert!((2..=4).contains(&times), "it takes {wait} ticks: {sent:?}");
    // A message that comes at last is as good as new.
    cluster.settle();
    let last = cluster.at(1).pg.last();
    assert_eq!(cluster.at(3).pg.last(), last);
    assert_eq!(cluster.at(1).pg.commit(), last.seq);
}

/// A member with a log as an earlier release may have left it: its commit point is many frames before its end.
fn with_a_long_log(cluster: &mut Cluster, id: u32) -> OpId {
    let mut ops = cluster.at(1).log.iter().rev();
    let long = ops.next().expect("an op").0.op.clone();
    let member = cluster.at(id);
    let mut last = member.pg.last();
    for _ in 0..3 * PEER_FRAME_BYTES_MAX / LONG {
        last = OpId { view: last.view, seq: last.seq.next() };
        let commit = member.pg.commit();
        member.log.push((LogEntry { id: last, op: long.clone() }, commit));
    }
    member.synced = member.log.len();
    cluster.restart(id);
    assert_eq!(cluster.at(id).pg.last(), last);
    last
}

/// Delivers what a member has sent through the doors of others; what fits no frame is never sent.
fn deliver_framed(cluster: &mut Cluster, from: u32) {
    for (whom, message) in cluster.at(from).messages() {
        let bytes = encode(&message).len();
        let splits = matches!(message, PeerMessage::Append { .. });
        assert!(splits || bytes <= PEER_FRAME_BYTES_MAX, "{bytes} bytes fit no frame");
        cluster.at(whom.0).pg.admits(&message, bytes).expect("a sound message");
        cluster.at(whom.0).step(Event::Peer { from: ServerId(from), message });
    }
}

#[test]
fn a_log_of_many_frames_is_sent_one_frame_at_a_time() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    put_long(cluster.at(1), "long");
    cluster.at(1).sync();
    let last = with_a_long_log(&mut cluster, 2);
    cluster.begin(2, &[1, 2, 3]);
    for _ in 0..8 {
        for id in [2, 3, 1] {
            deliver_framed(&mut cluster, id);
        }
    }
    assert!(cluster.at(1).pg.last() > last, "{:?}", cluster.at(1).pg.last());
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
    let all: Vec<_> = (1..=3).map(|id| cluster.at(id).pg.last()).collect();
    assert_eq!(all, [all[0]; 3]);
}

/// Two members take many long ops, which one of them commits and applies.
fn commit_many(cluster: &mut Cluster, count: usize, others: &[u32]) {
    for number in 0..count {
        put_long(cluster.at(1), &format!("k{number}"));
        cluster.at(1).sync();
        cluster.deliver(1, others);
        for &id in others {
            cluster.at(id).sync();
            cluster.deliver(id, &[1]);
        }
        cluster.at(1).apply();
    }
    cluster.at(1).flush();
    cluster.restart(1);
}

/// Ticks and delivers through doors; returns how many snapshots were told.
fn talk(cluster: &mut Cluster, ticks: u32) -> usize {
    let mut snapshots = 0;
    for _ in 0..ticks {
        for id in [2, 3, 1] {
            cluster.at(id).step(Event::Tick);
            let is_one = |effect: &&Effect| {
                matches!(effect, Effect::Send { message: PeerMessage::Snapshot { .. }, .. })
            };
            snapshots += cluster.at(id).effects.iter().filter(is_one).count();
            deliver_framed(cluster, id);
        }
    }
    snapshots
}

#[test]
fn a_member_whose_report_is_cut_before_what_is_remembered_keeps_its_log() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    let known = cluster.at(2).pg.commit();
    commit_many(&mut cluster, 3 * PEER_FRAME_BYTES_MAX / LONG, &[2, 3]);
    // As an earlier release may have left it: it was not told that any of them is committed.
    cluster.at(2).log.iter_mut().for_each(|(_, commit)| *commit = known.min(*commit));
    cluster.restart(2);
    assert_eq!(cluster.at(2).pg.commit(), known);
    cluster.begin(2, &[1, 2, 3]);
    assert_eq!(talk(&mut cluster, 2 * UNRESPONSIVE_TICKS_MAX), 0, "it has every op");
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
    assert_eq!(cluster.at(2).pg.last(), cluster.at(1).pg.last());
}

#[test]
fn one_that_has_ops_of_the_view_and_no_op_in_common_takes_a_snapshot() {
    let mut member = Member::alone(1);
    put_long(&mut member, "long");
    member.settle();
    member.flush();
    let entry = member.log.last().expect("an op").0.clone();
    let mut primary = member.restart();
    primary.begin(2, &[1]);
    primary.serve(1);
    let begins = |view| {
        let last = OpId { view: View(view), seq: OpSeq(1 << 20) };
        let first = OpId { view: View(1), seq: OpSeq(1) };
        let entries = vec![LogEntry { id: first, op: entry.op.clone() }];
        let report = Report { is_whole: true, last, prev: OpId::default(), entries };
        let message = PeerMessage::Report { view: View(2), report };
        primary.pg.begins_snapshot(ServerId(2), &message)
    };
    assert_eq!([begins(1), begins(2)], [false, true], "only who has none of the view answers");
}

#[test]
fn what_is_asked_of_a_log_of_another_view_is_not_committed_by_that() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    put_long(cluster.at(1), "long");
    cluster.at(1).sync();
    let last = with_a_long_log(&mut cluster, 2);
    let known = cluster.at(2).pg.commit();
    for id in [1, 3] {
        cluster.at(id).begin(2, &[1, 3]);
    }
    cluster.deliver(3, &[1]);
    for _ in 0..3 {
        cluster.at(1).sync();
        cluster.deliver(1, &[3]);
        cluster.at(3).sync();
        cluster.deliver(3, &[1]);
    }
    cluster.at(1).serve(1);
    commit_many(&mut cluster, 3 * PEER_FRAME_BYTES_MAX / LONG, &[3]);
    assert!(cluster.at(1).pg.last().seq >= last.seq);
    cluster.begin(3, &[1, 2, 3]);
    for _ in 0..UNRESPONSIVE_TICKS_MAX {
        if talk(&mut cluster, 1) > 0 {
            break;
        }
        assert_eq!(cluster.at(2).pg.commit(), known, "none of its ops is this primary's");
    }
    cluster.settle();
    cluster.settle();
    let rows: Vec<_> = (1..=3).map(|id| cluster.at(id).row("k1")).collect();
    assert!(rows[0].is_some() && rows.iter().all(|row| *row == rows[0]), "it took a snapshot");
}

#[test]
fn a_lost_part_of_a_long_log_is_resent_to_a_restarted_primary() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.settle();
    // The second member has an op of which it does not know yet that it is committed.
    put_long(cluster.at(1), "long");
    cluster.at(1).sync();
    cluster.deliver(1, &[2, 3]);
    for id in [2, 3] {
        cluster.at(id).sync();
        cluster.deliver(id, &[1]);
    }
    cluster.at(1).settle();
    cluster.at(1).flush();
    assert!(cluster.at(2).pg.commit() < cluster.at(1).pg.commit());
    let last = with_a_long_log(&mut cluster, 2);
    cluster.restart(1);
    cluster.begin(2, &[1, 2, 3]);
    for id in [2, 3] {
        deliver_framed(&mut cluster, id);
    }
    assert!(!cluster.at(1).messages().is_empty(), "it asks for more, and that is lost");
    for _ in 0..4 * UNRESPONSIVE_TICKS_MAX {
        for id in [2, 3, 1] {
            cluster.at(id).step(Event::Tick);
            deliver_framed(&mut cluster, id);
        }
    }
    assert!(cluster.at(1).pg.last() > last, "{:?}", cluster.at(1).pg.last());
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
}
