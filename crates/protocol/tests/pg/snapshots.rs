//! Followers: who was away comes back by the ops that it missed, or by a snapshot.

use crate::support::{BUCKET, Member, name_of, put};
use crate::views::Cluster;
use bytes::Bytes;
use larder_protocol::limits::{
    HISTORY_OPS_MAX, HISTORY_OPS_MIN, LEARNER_TICKS_MAX, SILENT_TICKS_MAX,
};
use larder_protocol::pg::Role;
use larder_protocol::{Answer, Call, Changes, Content, Event, Index, PeerMessage};
use larder_types::codec::encode;
use larder_types::{Condition, Op, OpId, OpSeq, ServerId, Stamp, Tombstone, View, rows};

/// More ops than a member remembers for others.
const MANY: usize = HISTORY_OPS_MIN + 20;

/// A PG of members 1 and 2, led by 1, in view 2; member 3 was let go.
fn without_the_third() -> Cluster {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for id in [1, 2] {
        cluster.at(id).begin(2, &[1, 2]);
    }
    settle_two(&mut cluster);
    cluster.at(1).serve(1);
    cluster
}

/// Settles members 1 and 2 without the third.
fn settle_two(cluster: &mut Cluster) {
    for _ in 0..6 {
        for id in [1, 2] {
            cluster.at(id).settle();
            cluster.at(id).step(Event::Tick);
            cluster.deliver(id, &[1, 2]);
        }
    }
}

fn learn(cluster: &mut Cluster, id: u32, view: u64, primary: u32) {
    cluster.at(id).step(Event::Learn { view: View(view), primary: ServerId(primary) });
}

/// The third is to learn from the first, and has the beginning of a snapshot.
fn begin_snapshot(cluster: &mut Cluster) {
    learn(cluster, 3, 2, 1);
    cluster.deliver(3, &[1]);
    cluster.deliver(1, &[3]);
}

fn put_many(cluster: &mut Cluster) {
    for at in 0..MANY {
        cluster.at(1).put_inline(&format!("k{}", at % 7), &format!("value {at}"));
        if at % 50 == 0 {
            settle_two(cluster);
        }
    }
    settle_two(cluster);
}

fn same_rows(cluster: &mut Cluster, ids: &[u32]) {
    for at in 0..7 {
        let key = format!("k{at}");
        let row = cluster.at(ids[0]).row(&key);
        assert!(row.is_some(), "{key} was put");
        for &id in &ids[1..] {
            assert_eq!(cluster.at(id).row(&key), row, "{key} at member {id}");
        }
    }
}

#[test]
fn one_that_missed_little_is_sent_the_ops() {
    let mut cluster = without_the_third();
    for at in 0..7 {
        cluster.at(1).put_inline(&format!("k{at}"), "while it was away");
    }
    settle_two(&mut cluster);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 0);
    assert!(cluster.at(1).caught_up().contains(&ServerId(3)));
    cluster.begin(3, &[3, 1, 2]);
    cluster.settle();
    assert_eq!(cluster.at(3).pg.role(), Role::Active);
    same_rows(&mut cluster, &[1, 2, 3]);
}

#[test]
fn nobody_waits_for_a_learner() {
    let mut cluster = without_the_third();
    learn(&mut cluster, 3, 2, 1);
    cluster.deliver(3, &[1]);
    let put = cluster.at(1).put_inline("k", "one");
    settle_two(&mut cluster);
    assert!(cluster.at(1).is_done(put));
    assert!(!cluster.at(1).caught_up().contains(&ServerId(3)), "it has not said so");
}

#[test]
fn a_silent_learner_is_dropped_and_may_return() {
    let mut cluster = without_the_third();
    learn(&mut cluster, 3, 2, 1);
    cluster.deliver(3, &[1]);
    cluster.at(1).messages();
    let sends_to_third = |cluster: &mut Cluster| {
        cluster.at(1).step(Event::Tick);
        cluster.at(1).messages().iter().any(|(to, _)| *to == ServerId(3))
    };
    assert!(sends_to_third(&mut cluster));
    for _ in 0..LEARNER_TICKS_MAX {
        cluster.at(1).step(Event::Tick);
        cluster.at(1).messages();
    }
    assert!(!sends_to_third(&mut cluster), "nothing is remembered for it");
    cluster.restart(3);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert!(cluster.at(1).caught_up().contains(&ServerId(3)));
}

#[test]
fn one_that_missed_much_takes_a_snapshot_with_what_is_open_and_remembered() {
    let mut cluster = without_the_third();
    cluster.at(1).put_inline("gone", "deleted later");
    settle_two(&mut cluster);
    put_many(&mut cluster);
    cluster.at(1).delete("gone");
    let request = cluster.at(1).request();
    let asked = || put(request, "asked", Content::Inline(Bytes::new()), Condition::default());
    let first = cluster.at(1).call(asked());
    settle_two(&mut cluster);
    let done = cluster.at(1).answers(first);
    assert!(matches!(done[..], [Answer::Done { .. }]));

    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    assert!(cluster.at(1).caught_up().contains(&ServerId(3)));
    same_rows(&mut cluster, &[1, 2, 3]);
    assert_eq!(cluster.at(3).row("gone"), None);

    // It leads, also after a restart: a repeat gets the same answer.
    cluster.restart(3);
    cluster.begin(3, &[3, 1, 2]);
    cluster.settle();
    cluster.at(3).serve(1);
    let again = cluster.at(3).call(asked());
    assert_eq!(cluster.at(3).answers(again), done);
}

#[test]
fn rows_of_an_older_life_do_not_survive_a_snapshot() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.at(1).put_inline("gone", "all three have it");
    cluster.settle();
    assert!(cluster.at(3).row("gone").is_some());
    for id in [1, 2] {
        cluster.at(id).begin(2, &[1, 2]);
    }
    settle_two(&mut cluster);
    cluster.at(1).serve(1);
    cluster.at(1).delete("gone");
    put_many(&mut cluster);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    assert_eq!(cluster.at(3).row("gone"), None);
    same_rows(&mut cluster, &[1, 3]);
}

/// A member without the tombstone would take the version back from a region that has it still.
#[test]
fn tombstones_come_with_a_snapshot_and_those_of_an_older_life_go() {
    let mut cluster = without_the_third();
    put_many(&mut cluster);
    let row = |key: &str| rows::tombstone(BUCKET, &name_of(key), rows::UNVERSIONED);
    let (op, at) = (OpId { view: View(1), seq: OpSeq(1) }, Stamp::default());
    let tombstone = encode(&Tombstone { op, at, origin: None });
    for (id, key) in [(1, "purged"), (3, "of an older life")] {
        let mut changes = Changes::default();
        changes.put(row(key), tombstone.clone());
        cluster.at(id).table.write(changes).expect("memory takes it");
    }
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    let has =
        |cluster: &mut Cluster, key| cluster.at(3).table.get(&row(key)).expect("memory gives it");
    assert_eq!(has(&mut cluster, "purged").as_deref(), Some(&tombstone[..]));
    assert_eq!(has(&mut cluster, "of an older life"), None);
}

#[test]
fn nothing_is_acknowledged_before_the_rows_and_the_end_of_the_snapshot_are_durable() {
    let mut cluster = without_the_third();
    put_many(&mut cluster);
    learn(&mut cluster, 3, 2, 1);
    let acks = |member: &mut Member| {
        let messages = member.messages();
        messages.iter().filter(|(_, sent)| matches!(sent, PeerMessage::Acked { .. })).count()
    };
    cluster.deliver(3, &[1]);
    cluster.deliver(1, &[3]);
    assert!(matches!(cluster.at(3).log.last(), Some((entry, _)) if *entry.op == Op::SnapshotBegin));
    assert_eq!(cluster.at(3).messages(), [], "no rows are asked for before that is durable");
    cluster.at(3).sync();
    cluster.deliver(3, &[1]);
    cluster.deliver(1, &[3]);
    assert!(!matches!(
        cluster.at(3).log.last(),
        Some((entry, _)) if matches!(*entry.op, Op::SnapshotEnd { .. })
    ));
    assert_eq!(acks(cluster.at(3)), 0);
    cluster.at(3).flush();
    assert_eq!(acks(cluster.at(3)), 0, "the end is not durable yet");
    cluster.at(3).sync();
    assert_eq!(acks(cluster.at(3)), 1);
}

#[test]
fn a_snapshot_torn_by_a_crash_leaves_a_member_that_leads_nothing() {
    let mut cluster = without_the_third();
    put_many(&mut cluster);
    begin_snapshot(&mut cluster);
    cluster.at(3).sync();
    cluster.restart(3);
    assert!(!cluster.at(3).pg.is_whole());
    cluster.at(3).begin(3, &[3, 1, 2]);
    assert_eq!(cluster.at(3).pg.role(), Role::Down);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert!(cluster.at(3).pg.is_whole());
    same_rows(&mut cluster, &[1, 3]);
}

#[test]
fn a_put_open_in_a_snapshot_is_committed_by_its_taker() {
    let mut cluster = without_the_third();
    cluster.at(1).answer(0, larder_protocol::DataAnswer::Floor(crate::support::key(2, 0)));
    let grant = cluster.at(1).open_put("open", 2);
    put_many(&mut cluster);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    cluster.restart(3);
    learn(&mut cluster, 3, 2, 1);
    cluster.settle();
    assert_eq!(cluster.at(3).pg.gauges().open_puts, 1);
    assert_eq!(cluster.at(3).pg.retain_from(), grant.op.seq, "its record is needed");
    cluster.at(1).call(Call::Commit {
        op: grant.op,
        attempt: 0,
        holders: larder_types::Holders::default().with(0),
    });
    cluster.settle();
    assert_eq!(cluster.at(3).pg.gauges().open_puts, 0);
    assert_eq!(cluster.at(3).row("open"), cluster.at(1).row("open"));
    assert!(cluster.at(3).row("open").is_some());
}

/// Has members 1 and 2 agree on so many puts before anybody's next tick.
fn put_at_once(cluster: &mut Cluster, count: usize) {
    for at in 0..count {
        cluster.at(1).put_inline(&format!("k{}", at % 7), &format!("value {at}"));
        if at % 50 == 0 || at + 1 == count {
            cluster.at(1).settle();
            cluster.deliver(1, &[2]);
            cluster.at(2).settle();
            cluster.deliver(2, &[1]);
            cluster.at(1).settle();
        }
    }
}

#[test]
fn a_snapshot_that_takes_too_long_begins_anew_and_has_twice_the_time() {
    let mut cluster = without_the_third();
    put_many(&mut cluster);
    begin_snapshot(&mut cluster);
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    put_at_once(&mut cluster, HISTORY_OPS_MAX + 1);
    for _ in 0..SILENT_TICKS_MAX + 10 {
        if cluster.at(1).snapshots_begun == 2 {
            break;
        }
        cluster.at(3).settle();
        cluster.at(3).flush();
        cluster.at(3).step(Event::Tick);
        cluster.deliver(3, &[1]);
        cluster.deliver(1, &[3]);
    }
    assert_eq!(cluster.at(1).snapshots_begun, 2, "what follows the first is forgotten");
    put_at_once(&mut cluster, HISTORY_OPS_MAX + 1);
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 2, "the second was not too long");
    assert!(cluster.at(1).caught_up().contains(&ServerId(3)));
    same_rows(&mut cluster, &[1, 2, 3]);
}

/// A report from the beginning of the view comes when all that it names is long forgotten, and looks as if its member had
/// nothing in common with the primary.
#[test]
fn a_late_report_makes_no_member_forget_what_it_has_acknowledged() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for id in [1, 2] {
        cluster.at(id).begin(2, &[1, 2]);
    }
    let late = cluster.at(2).messages();
    let is_report = |message: &PeerMessage| matches!(message, PeerMessage::Report { .. });
    let late = late.into_iter().find(|(_, message)| is_report(message)).expect("a report").1;
    settle_two(&mut cluster);
    cluster.at(1).serve(1);
    put_many(&mut cluster);
    let put = cluster.at(1).put_inline("k0", "at last");
    cluster.at(1).settle();
    cluster.deliver(1, &[2]);
    cluster.at(2).settle();
    cluster.at(1).step(Event::Peer { from: ServerId(2), message: late });
    cluster.deliver(1, &[2]);
    assert!(cluster.at(2).pg.is_whole(), "it has what the snapshot shows");
    cluster.deliver(2, &[1]);
    settle_two(&mut cluster);
    assert!(cluster.at(1).is_done(put));
    assert_eq!(cluster.at(1).pg.last(), cluster.at(2).pg.last());
    same_rows(&mut cluster, &[1, 2]);
}

#[test]
fn one_whose_snapshot_its_primary_forgot_asks_for_another_though_ops_still_come() {
    let mut cluster = without_the_third();
    put_many(&mut cluster);
    begin_snapshot(&mut cluster);
    cluster.at(3).sync();
    let is_asking = |messages: &[(ServerId, PeerMessage)], wanted: fn(&PeerMessage) -> bool| {
        messages.iter().any(|(_, message)| wanted(message))
    };
    let sent = cluster.at(3).messages();
    assert!(is_asking(&sent, |message| matches!(message, PeerMessage::SnapshotNext { .. })));
    let (prev, view) = (cluster.at(1).pg.last(), View(2));
    let ops = PeerMessage::Append { view, prev, entries: Vec::new(), commit: prev.seq };
    for _ in 0..=SILENT_TICKS_MAX {
        cluster.at(3).step(Event::Peer { from: ServerId(1), message: ops.clone() });
        cluster.at(3).messages();
        cluster.at(3).step(Event::Tick);
    }
    let sent = cluster.at(3).messages();
    assert!(is_asking(&sent, |message| matches!(message, PeerMessage::Report { .. })), "{sent:?}");
}
