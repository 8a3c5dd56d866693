//! Members compare their indexes at one op of the log.

use std::collections::BTreeMap;

use larder_protocol::digest::{Compared, Summed, Summer};
use larder_protocol::index::{Changes, Visit};
use larder_protocol::limits::{DIGEST_RETRY_TICKS, DIGEST_TICKS_MAX};
use larder_protocol::pg::Role;
use larder_protocol::{Effect, Event, Index, PeerMessage};
use larder_types::codec::encode;
use larder_types::{Op, OpId, ServerId, View, rows};

use crate::support::{BUCKET, Member, PG, Table, name_of};
use crate::views::Cluster;

/// Three members, led by 1, with some rows.
fn stored() -> Cluster {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for at in 0..5 {
        cluster.at(1).put_inline(&format!("k{at}"), "value");
    }
    cluster.settle();
    cluster
}

fn sum(table: &Table) -> Summed {
    let scan = |from: &[u8], visit: &mut Visit<'_>| table.scan(from, None, visit);
    let sum = Summer::new(PG, 1).go_on(&scan, usize::MAX).expect("readable rows");
    Summed::Sum(sum.expect("all in one piece"))
}

/// A row rots, though its checksum is right.
fn rot(member: &Member) {
    let row = rows::version(BUCKET, &name_of("k0"), rows::UNVERSIONED);
    let mut version = member.row("k0").expect("an object");
    version.metax.size += 1;
    let mut changes = Changes::default();
    changes.put(row, encode(&version));
    member.table.write(changes).expect("memory takes it");
}

impl Member {
    /// Ops at which it is to sum, since the last look.
    fn sums_wanted(&mut self) -> Vec<OpId> {
        let mut ops = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Digest { at } => {
                ops.push(*at);
                false
            }
            _ => true,
        });
        ops
    }

    /// Sums what it is to sum, as a driver does at once.
    fn sum_all(&mut self) -> usize {
        let ops = self.sums_wanted();
        for at in &ops {
            let sum = sum(&self.table);
            self.step(Event::Digested { at: *at, sum });
        }
        ops.len()
    }

    /// Returns the results of comparisons since the last look.
    fn outcomes(&mut self) -> Vec<(Compared, usize)> {
        let mut outcomes = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Compared { outcome, sums, .. } => {
                outcomes.push((*outcome, sums.len()));
                false
            }
            _ => true,
        });
        outcomes
    }
}

/// Applies, sums and delivers until nothing happens any more.
fn run(cluster: &mut Cluster) {
    for _ in 0..3 {
        cluster.settle();
        for id in 1..=3 {
            cluster.at(id).sum_all();
        }
    }
    for id in 1..=3 {
        cluster.deliver(id, &[1, 2, 3]);
    }
}

/// The primary begins a comparison.
fn compare(cluster: &mut Cluster, primary: u32) -> OpId {
    cluster.at(primary).step(Event::Compare);
    cluster.at(primary).pg.comparing().expect("a comparison begins")
}

fn ticks(cluster: &mut Cluster, id: u32, count: u32) {
    for _ in 0..count {
        cluster.at(id).step(Event::Tick);
    }
}

#[test]
fn equal_members_are_found_equal_and_nothing_changes() {
    let mut cluster = stored();
    compare(&mut cluster, 1);
    assert!(!cluster.at(1).pg.may_compare(), "one at a time");
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 3)]);
    assert_eq!(cluster.at(1).pg.compared(), Some(Compared::Equal));
    assert!((1..=3).all(|id| !cluster.at(id).pg.is_odd()));
    compare(&mut cluster, 1);
}

#[test]
fn a_batch_ends_with_the_digest() {
    let mut cluster = stored();
    let at = compare(&mut cluster, 1);
    cluster.at(1).put_inline("k0", "after");
    for _ in 0..2 {
        for id in 1..=3 {
            cluster.at(id).sync();
            cluster.deliver(id, &[1, 2, 3]);
        }
    }
    let now = cluster.at(1).now();
    let Member { pg, table, effects, .. } = cluster.at(1);
    assert!(pg.commit() > at.seq, "both are committed");
    assert_eq!(pg.apply(now, table, effects), 1);
    assert_eq!((pg.applied(), effects.pop()), (at, Some(Effect::Digest { at })));
    assert_eq!(pg.apply(now, table, effects), 1);
}

#[test]
fn a_backup_with_other_rows_is_told_and_takes_a_snapshot_when_it_is_no_member_any_more() {
    let mut cluster = stored();
    rot(cluster.at(3));
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Odd(ServerId(3)), 3)]);
    assert!(cluster.at(3).pg.is_odd() && !cluster.at(1).pg.is_odd() && !cluster.at(2).pg.is_odd());
    let rotten = cluster.at(3).row("k0");
    cluster.at(1).put_inline("k9", "goes on");
    cluster.settle();
    assert_eq!((cluster.at(3).pg.role(), cluster.at(3).row("k0")), (Role::Backup, rotten));
    assert!(cluster.at(3).pg.is_whole() && cluster.at(3).row("k9").is_some());
    // The managers leave the odd member out.
    cluster.begin(2, &[1, 2]);
    cluster.at(3).step(Event::Learn { view: View(2), primary: ServerId(1) });
    assert!(!cluster.at(3).pg.is_whole() && !cluster.at(3).pg.is_odd());
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    assert!(cluster.at(3).pg.is_whole());
    assert_eq!(cluster.at(3).row("k0"), cluster.at(1).row("k0"));
    cluster.begin(3, &[1, 2, 3]);
    cluster.settle();
    cluster.at(1).serve(1);
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 3)]);
}

#[test]
fn a_diverged_primary_reports_itself() {
    let mut cluster = stored();
    rot(cluster.at(1));
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Odd(ServerId(1)), 3)]);
    assert!(cluster.at(1).pg.is_odd() && !cluster.at(2).pg.is_odd() && !cluster.at(3).pg.is_odd());
    cluster.begin(2, &[2, 3]);
    cluster.at(1).step(Event::Learn { view: View(2), primary: ServerId(2) });
    cluster.settle();
    assert_eq!(cluster.at(2).snapshots_begun, 1);
    assert_eq!(cluster.at(1).row("k0"), cluster.at(2).row("k0"));
}

#[test]
fn two_members_that_differ_keep_what_they_have() {
    let mut cluster = stored();
    cluster.begin(2, &[1, 2]);
    cluster.settle();
    cluster.at(1).serve(1);
    rot(cluster.at(2));
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Unclear, 2)]);
    assert!(!cluster.at(1).pg.is_odd() && !cluster.at(2).pg.is_odd());
}

#[test]
fn what_is_odd_is_not_odd_any_more_as_a_member_of_another_view() {
    let mut cluster = stored();
    rot(cluster.at(3));
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert!(cluster.at(3).pg.is_odd());
    cluster.begin(2, &[1, 3]);
    cluster.settle();
    assert!(!cluster.at(3).pg.is_odd() && cluster.at(3).pg.is_whole(), "it is needed");
    assert_eq!(cluster.at(1).pg.compared(), None);
}

#[test]
fn with_the_view_ends_its_comparison() {
    let mut cluster = stored();
    let at = compare(&mut cluster, 1);
    cluster.settle();
    assert_eq!(cluster.at(2).sums_wanted(), [at]);
    assert!(cluster.at(2).pg.wants_sum(at));
    cluster.begin(2, &[1, 2, 3]);
    assert!(!cluster.at(2).pg.wants_sum(at));
    assert_eq!(cluster.at(1).pg.comparing(), None);
    let late = sum(&cluster.at(2).table);
    cluster.at(2).step(Event::Digested { at, sum: late.clone() });
    let digest = PeerMessage::Digest { view: View(1), at, sum: late };
    cluster.at(1).step(Event::Peer { from: ServerId(2), message: digest });
    run(&mut cluster);
    assert_eq!((cluster.at(1).outcomes(), cluster.at(1).pg.compared()), (vec![], None));
}

#[test]
fn a_digest_of_an_older_view_is_not_computed() {
    let mut cluster = stored();
    compare(&mut cluster, 1);
    for id in 1..=3 {
        cluster.at(id).sync();
        cluster.deliver(id, &[1, 2, 3]);
    }
    cluster.begin(2, &[2, 1, 3]);
    cluster.settle();
    for id in 1..=3 {
        let log = &cluster.at(id).log;
        assert!(log.iter().any(|(entry, _)| *entry.op == Op::Digest), "it is in the log");
        assert_eq!(cluster.at(id).sums_wanted(), []);
    }
}

#[test]
fn a_lost_digest_is_requested_again() {
    let mut cluster = stored();
    compare(&mut cluster, 1);
    cluster.settle();
    for id in 1..=3 {
        cluster.at(id).sum_all();
    }
    cluster.deliver(2, &[1]);
    cluster.at(3).messages();
    assert_eq!(cluster.at(1).outcomes(), [], "one is missing");
    ticks(&mut cluster, 1, DIGEST_RETRY_TICKS);
    let asked = cluster.at(1).messages();
    let asked = asked.into_iter().filter(|(_, it)| matches!(it, PeerMessage::AskDigest { .. }));
    let asked: BTreeMap<ServerId, PeerMessage> = asked.collect();
    assert_eq!(asked.keys().copied().collect::<Vec<_>>(), [ServerId(3)], "the others told");
    let message = asked[&ServerId(3)].clone();
    cluster.at(3).step(Event::Peer { from: ServerId(1), message });
    cluster.deliver(3, &[1]);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 3)]);
}

#[test]
fn a_diverged_member_is_notified_again() {
    let mut cluster = stored();
    rot(cluster.at(2));
    compare(&mut cluster, 1);
    cluster.settle();
    for id in 1..=3 {
        cluster.at(id).sum_all();
    }
    cluster.deliver(2, &[1]);
    cluster.deliver(3, &[1]);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Odd(ServerId(2)), 3)]);
    cluster.at(1).messages();
    assert!(!cluster.at(2).pg.is_odd(), "the message is lost");
    ticks(&mut cluster, 1, DIGEST_RETRY_TICKS);
    cluster.deliver(1, &[2, 3]);
    assert!(cluster.at(2).pg.is_odd() && !cluster.at(3).pg.is_odd());
}

#[test]
fn one_that_is_busy_or_has_begun_anew_makes_the_comparison_void() {
    let mut cluster = stored();
    let at = compare(&mut cluster, 1);
    cluster.settle();
    cluster.at(1).sum_all();
    cluster.at(2).step(Event::Digested { at, sum: Summed::Nothing });
    cluster.deliver(2, &[1]);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Void, 2)], "one was busy");
    // The third's index shows the op, and its sum is gone with its run.
    let at = compare(&mut cluster, 1);
    cluster.settle();
    assert!(cluster.at(3).pg.wants_sum(at));
    cluster.restart(3);
    cluster.at(3).begin(1, &[1, 2, 3]);
    cluster.at(1).sum_all();
    cluster.at(2).sum_all();
    for _ in 0..DIGEST_RETRY_TICKS {
        cluster.settle();
    }
    let outcomes = cluster.at(1).outcomes();
    assert!(matches!(outcomes[..], [(Compared::Void, _)]), "{outcomes:?}");
    compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 3)], "it is begun anew");
}

#[test]
fn one_that_is_not_there_yet_says_nothing_and_is_waited_for() {
    let mut cluster = stored();
    let at = compare(&mut cluster, 1);
    let message = PeerMessage::AskDigest { view: View(1), at };
    cluster.at(2).messages();
    cluster.at(2).step(Event::Peer { from: ServerId(1), message });
    assert_eq!(cluster.at(2).messages(), []);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 3)]);
}

#[test]
fn an_index_that_cannot_be_read_is_compared_with_none() {
    let mut cluster = stored();
    let at = compare(&mut cluster, 1);
    cluster.settle();
    cluster.at(3).step(Event::Digested { at, sum: Summed::Unreadable });
    cluster.deliver(3, &[1]);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Void, 1)]);
    assert!(!cluster.at(3).pg.is_odd(), "nothing is thrown away for it");
}

#[test]
fn a_comparison_does_not_wait_for_ever() {
    let mut cluster = stored();
    compare(&mut cluster, 1);
    cluster.settle();
    cluster.at(1).sum_all();
    for _ in 0..=DIGEST_TICKS_MAX {
        cluster.at(1).step(Event::Tick);
        cluster.at(1).messages();
    }
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Void, 1)]);
}

#[test]
fn nothing_is_compared_before_all_members_follow_nor_by_one_alone() {
    let mut alone = Member::alone(1);
    alone.step(Event::Compare);
    assert_eq!((alone.pg.may_compare(), alone.pg.comparing()), (false, None));
    let mut cluster = stored();
    cluster.begin(2, &[1, 2]);
    cluster.settle();
    assert!(!cluster.at(1).pg.may_compare(), "it does not serve yet");
    cluster.at(1).serve(1);
    assert!(cluster.at(1).pg.may_compare());
    cluster.at(3).step(Event::Learn { view: View(2), primary: ServerId(1) });
    cluster.settle();
    // One that was let go is not told so: it follows until the view ends.
    assert!(cluster.at(1).pg.may_compare(), "a learner follows");
    let at = compare(&mut cluster, 1);
    run(&mut cluster);
    assert_eq!(cluster.at(1).outcomes(), [(Compared::Equal, 2)], "of the members at {at:?}");
}
