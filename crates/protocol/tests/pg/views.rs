//! Several members: the commit point, and levelling at the start of a view.

use crate::gaps::UNRESPONSIVE_SOONEST;
use crate::support::{Member, origin};
use larder_protocol::limits::{SILENT_TICKS_MAX, UNRESPONSIVE_TICKS_MAX};
use larder_protocol::pg::{LogGap, Origin, Recovering, Role};
use larder_protocol::{Event, Refusal};
use larder_types::{BootId, Op, OpId, OpSeq, PgId, ServerId, View};

/// Three members, by id from 1.
pub struct Cluster(Vec<Member>);

impl Cluster {
    fn new() -> Self {
        Self((1..=3).map(Member::new).collect())
    }

    pub fn at(&mut self, id: u32) -> &mut Member {
        &mut self.0[id as usize - 1]
    }

    pub fn begin(&mut self, view: u64, members: &[u32]) {
        for id in members {
            self.at(*id).begin(view, members);
        }
    }

    /// Delivers what `from` has sent, to those in `to`; the rest is lost.
    pub fn deliver(&mut self, from: u32, to: &[u32]) {
        self.at(from).serve_snapshots();
        for (whom, message) in self.at(from).messages() {
            if to.contains(&whom.0) {
                self.at(whom.0).step(Event::Peer { from: ServerId(from), message });
            }
        }
    }

    /// Syncs, delivers and ticks until everybody has everything.
    pub fn settle(&mut self) {
        for _ in 0..6 {
            for id in 1..=3 {
                self.at(id).settle();
                self.at(id).flush();
                self.at(id).step(Event::Tick);
                self.deliver(id, &[1, 2, 3]);
            }
        }
    }

    pub fn serving(primary: u32, others: [u32; 2]) -> Self {
        let mut cluster = Self::new();
        cluster.begin(1, &[primary, others[0], others[1]]);
        cluster.settle();
        cluster.at(primary).serve(1);
        cluster
    }

    /// A new machine in place of a member.
    pub fn replace(&mut self, id: u32) {
        *self.at(id) = Member::new(id);
    }

    pub fn restart(&mut self, id: u32) {
        let member = std::mem::replace(self.at(id), Member::new(id));
        *self.at(id) = member.restart();
    }
}

/// The ops of a member's log, with what was cut left out.
fn log_of(member: &Member) -> Vec<(u64, u64)> {
    let mut ids: Vec<(u64, u64)> = Vec::new();
    for (entry, _) in &member.log {
        ids.retain(|(_, seq)| *seq < entry.id.seq.0);
        ids.push((entry.id.view.0, entry.id.seq.0));
    }
    ids
}

#[test]
fn an_op_is_answered_when_it_is_durable_on_every_member() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let put = cluster.at(1).put_inline("k", "one");
    cluster.at(1).sync();
    cluster.deliver(1, &[2, 3]);
    cluster.at(2).sync();
    cluster.deliver(2, &[1]);
    assert_eq!(cluster.at(1).answers(put), [], "one member has it in memory only");
    cluster.at(3).sync();
    cluster.deliver(3, &[1]);
    assert!(cluster.at(1).is_done(put));
}

#[test]
fn what_was_lost_on_the_way_is_sent_again() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let put = cluster.at(1).put_inline("k", "one");
    cluster.deliver(1, &[3]);
    cluster.at(1).put_inline("k", "two");
    cluster.settle();
    assert!(cluster.at(1).is_done(put));
    let rows: Vec<_> = (1..=3).map(|id| cluster.at(id).row("k")).collect();
    assert!(rows[0].is_some() && rows.iter().all(|row| *row == rows[0]));
}

#[test]
fn a_primary_that_learns_its_view_last_has_the_others_reports() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for (id, view) in [(3, 2), (3, 3), (2, 3)] {
        cluster.at(id).begin(view, &[1, 2, 3]);
        cluster.deliver(id, &[1]);
    }
    cluster.at(1).begin(3, &[1, 2, 3]);
    assert_eq!(log_of(cluster.at(1)).last(), Some(&(3, 2)), "the view's start, without a tick");

    // Reports for another view, or of those that are no members, do not count.
    cluster.settle();
    cluster.at(2).begin(4, &[1, 2, 3]);
    cluster.at(3).begin(4, &[1, 2, 3]);
    cluster.deliver(2, &[1]);
    cluster.deliver(3, &[1]);
    cluster.at(1).begin(5, &[1, 2]);
    assert_eq!(log_of(cluster.at(1)).last(), Some(&(3, 2)));
}

/// The primary of view 1 alone has puts of one key. View 2 is without it, and of its two members one alone has the
/// view's start.
fn diverged(texts: &[&str]) -> Cluster {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for text in texts {
        cluster.at(1).put_inline("k", text);
    }
    cluster.at(1).sync();
    cluster.at(1).messages();
    cluster.at(2).begin(2, &[2, 3]);
    cluster.at(3).begin(2, &[2, 3]);
    cluster.deliver(3, &[2]);
    cluster.at(2).sync();
    cluster.at(2).messages();
    cluster
}

#[test]
fn logs_that_diverged_in_two_views_level_to_the_longest_by_view_then_position() {
    let mut cluster = diverged(&["a", "b", "c"]);
    assert_eq!(log_of(cluster.at(1)), [(1, 1), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(log_of(cluster.at(2)), [(1, 1), (2, 2)]);
    // View 3 has all three: the shorter log of the later view wins.
    cluster.begin(3, &[3, 1, 2]);
    cluster.settle();
    for id in 1..=3 {
        assert_eq!(log_of(cluster.at(id)), [(1, 1), (2, 2), (3, 3)], "member {id}");
    }
    assert_eq!(cluster.at(3).pg.role(), Role::Active);
}

#[test]
fn a_new_primary_takes_the_longest_log_of_one_view() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.at(1).put_inline("k", "one");
    cluster.at(1).sync();
    cluster.deliver(1, &[2]);
    cluster.at(2).sync();
    cluster.begin(2, &[3, 1, 2]);
    cluster.settle();
    assert_eq!(cluster.at(3).pg.role(), Role::Active);
    assert!(cluster.at(3).row("k").is_some(), "it was durable at another member");
}

#[test]
fn an_acknowledgement_before_levelling_counts_for_nothing() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.at(1).put_inline("k", "one");
    cluster.deliver(1, &[2, 3]);
    cluster.begin(2, &[1, 2, 3]);
    cluster.at(2).messages();
    cluster.at(3).messages();
    // Reports are lost; a sync that was under way is acknowledged in the new view.
    cluster.at(2).sync();
    cluster.deliver(2, &[1]);
    cluster.at(1).step(Event::Tick);
    assert_eq!(cluster.at(1).messages(), [], "it does not know yet whose log is the longest");
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
}

#[test]
fn reports_that_come_twice_do_not_stop_a_primary() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.begin(2, &[1, 2, 3]);
    let reports = cluster.at(2).messages();
    cluster.deliver(3, &[1]);
    for _ in 0..2 {
        for (_, message) in reports.clone() {
            cluster.at(1).step(Event::Peer { from: ServerId(2), message });
        }
    }
    // Everything that it sends at first is lost.
    cluster.at(1).messages();
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
}

#[test]
fn a_returning_primary_does_not_lead_in_its_old_view() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    cluster.restart(1);
    cluster.at(1).begin(1, &[1, 2, 3]);
    assert_eq!(cluster.at(1).pg.role(), Role::Down, "ops that it issued there may be lost");
    cluster.begin(2, &[1, 2, 3]);
    cluster.settle();
    assert_eq!(cluster.at(1).pg.role(), Role::Active);
}

#[test]
fn a_primary_of_an_older_view_commits_nothing() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    // Members 2 and 3 are in view 2, of which the old primary has not heard.
    for id in [2, 3] {
        cluster.at(id).begin(2, &[2, 1, 3]);
    }
    let put = cluster.at(1).put_inline("k", "one");
    cluster.settle();
    assert_eq!(cluster.at(1).answers(put), []);
    cluster.at(1).begin(2, &[2, 1, 3]);
    assert_eq!(cluster.at(1).refusal(put), Refusal::NotPrimary);
}

#[test]
fn a_backup_comes_back_into_the_view_in_which_it_went() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let put = cluster.at(1).put_inline("k", "one");
    cluster.deliver(1, &[2, 3]);
    cluster.restart(2);
    cluster.at(2).begin(1, &[1, 2, 3]);
    assert_eq!(cluster.at(2).pg.role(), Role::Backup);
    cluster.settle();
    assert!(cluster.at(1).is_done(put));
    assert_eq!(cluster.at(2).row("k"), cluster.at(1).row("k"));
}

#[test]
fn a_removed_member_that_returns_drops_what_nobody_else_has() {
    let mut cluster = diverged(&["lost"]);
    cluster.begin(3, &[2, 1, 3]);
    cluster.settle();
    assert_eq!(cluster.at(1).row("k"), None);
    assert_eq!(cluster.at(1).pg.commit(), OpSeq(3));
    cluster.restart(1);
    assert_eq!(log_of(cluster.at(1)), [(1, 1), (2, 2), (3, 3)]);
    assert_eq!(cluster.at(1).pg.commit(), OpSeq(3), "a restart finds the log as it was cut");
}

#[test]
fn a_log_that_ends_before_what_the_index_shows_is_refused() {
    let applied = OpId { view: View(3), seq: OpSeq(9) };
    let recover = |logged: &[u64]| {
        let mut recovering =
            Recovering::new(Origin { pg: PgId(2), ..origin(ServerId(0), applied, None) });
        for seq in logged {
            let id = OpId { view: View(3), seq: OpSeq(*seq) };
            let op = Op::ViewStart { members: vec![ServerId(0)], boot: BootId(1) };
            recovering.replay(id, op, OpSeq(*seq));
        }
        recovering.finish().map(|_| ())
    };
    assert_eq!(recover(&[]), Ok(()), "all of it may have been freed");
    assert_eq!(recover(&[8, 9]), Ok(()));
    let lost = LogGap::End { pg: PgId(2), last: OpSeq(8), applied: OpSeq(9) };
    assert_eq!(recover(&[7, 8]), Err(lost));
}

#[test]
fn a_primary_reports_unresponsive_members() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let tick_without_3 = |cluster: &mut Cluster| {
        for id in 1..=2 {
            cluster.at(id).settle();
            cluster.at(id).step(Event::Tick);
            cluster.deliver(id, &[1, 2]);
        }
    };
    let unheard = |cluster: &mut Cluster| cluster.at(1).pg.unheard().collect::<Vec<_>>();
    for _ in 0..UNRESPONSIVE_SOONEST {
        tick_without_3(&mut cluster);
        assert_eq!(unheard(&mut cluster), [], "it may have much to do");
    }
    for _ in UNRESPONSIVE_SOONEST..=UNRESPONSIVE_TICKS_MAX {
        tick_without_3(&mut cluster);
    }
    assert_eq!(unheard(&mut cluster), [ServerId(3)]);
    cluster.settle();
    assert_eq!(unheard(&mut cluster), [], "it was heard");
    // Nor can it level a view without it.
    cluster.begin(2, &[1, 2, 3]);
    for _ in 0..=UNRESPONSIVE_TICKS_MAX {
        tick_without_3(&mut cluster);
    }
    assert_eq!(unheard(&mut cluster), [ServerId(3)]);
    assert_eq!(cluster.at(2).pg.unheard().count(), 0, "only a primary waits for others");
    cluster.begin(3, &[1, 2]);
    cluster.settle();
    assert_eq!(unheard(&mut cluster), [], "it is no member any more");
}

#[test]
fn a_member_that_receives_nothing_is_reported_though_it_sends() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    let mut reported = Vec::new();
    for _ in 0..SILENT_TICKS_MAX + 2 * UNRESPONSIVE_TICKS_MAX {
        for id in 1..=3 {
            cluster.at(id).settle();
            cluster.at(id).step(Event::Tick);
            cluster.deliver(id, &[1, 2]);
        }
        reported.push(cluster.at(1).pg.unheard().collect::<Vec<_>>());
    }
    let before = reported.iter().take_while(|unheard| unheard.is_empty()).count();
    let (soonest, latest) = (UNRESPONSIVE_SOONEST as usize, UNRESPONSIVE_TICKS_MAX as usize);
    assert!((soonest..=latest).contains(&before), "it may have much to do: {before}");
    let after = &reported[before..];
    assert!(after.iter().all(|unheard| unheard == &[ServerId(3)]), "{after:?}");
}
