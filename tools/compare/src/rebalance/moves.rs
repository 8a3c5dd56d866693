//! Asks the planner for moves, and carries them out at once.

use std::collections::BTreeSet;

use larder_protocol::limits::BALANCE_LVS_MAX;
use larder_protocol::placement::{
    Balance, CopyMove, DiskInfo, LvCopy, LvMove, Shares, plan_balance, plan_moves,
    plan_moves_of_shares,
};
use larder_types::LvId;

use super::cluster::{Cluster, RULES, copy};
use super::measure::Moved;

/// The planner of moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planner {
    /// Nothing does.
    None,
    /// The managers' planner, with so many points by which the use of two disks has to differ.
    Use { spread_percent: u64 },
    /// The same one, which evens volumes that take writes and full ones each for themselves, and has new ones go where few are
    /// written. No manager asks for that.
    Shares { spread_percent: u64 },
}

/// Moves of one plan. Managers begin two at a time, and plan again: here they are carried out before the next plan either way.
const SHIFTS_MAX: usize = 256;

/// Moves volumes until nothing is planned, or so many have moved.
pub(super) fn rebalance(cluster: &mut Cluster, planner: Planner, volumes_max: u64) -> Moved {
    let (spread_percent, by_kind) = match planner {
        Planner::None => return Moved::default(),
        Planner::Use { spread_percent } => (spread_percent, false),
        Planner::Shares { spread_percent } => (spread_percent, true),
    };
    let mut moved = Moved::default();
    let written = cluster.written();
    // Volumes that were looked at since the last move.
    let (mut first, mut barren) = (0, 0);
    while barren < cluster.lvs.len() && moved.volumes < volumes_max {
        let limit = SHIFTS_MAX.min((volumes_max - moved.volumes) as usize);
        let of = Balance {
            lvs: &cluster.lvs,
            written: &written,
            written_on: by_kind.then_some(&cluster.written_on),
            disks: &cluster.disks,
            rules: RULES,
            spread_percent,
            first,
            lvs_max: BALANCE_LVS_MAX,
        };
        let plan = plan_balance(&of, limit);
        for shift in &plan.shifts {
            perform(cluster, *shift, &written, by_kind);
            moved.volumes += 1;
            moved.mib += cluster.used_mib(shift.lv);
            if written.contains(&shift.lv) {
                moved.written_volumes += 1;
                moved.written_mib += cluster.used_mib(shift.lv);
            }
        }
        barren = if plan.shifts.is_empty() { barren + BALANCE_LVS_MAX } else { 0 };
        if plan.shifts.len() < limit {
            first = plan.next;
        }
        if plan.is_whole && plan.shifts.is_empty() {
            break;
        }
    }
    moved
}

/// Gives a volume a copy more, and drops the one that the managers would have go then.
fn perform(cluster: &mut Cluster, shift: CopyMove, written: &BTreeSet<LvId>, by_kind: bool) {
    let is_written = written.contains(&shift.lv);
    let copies = &mut cluster.lvs[shift.lv.0 as usize].1;
    let free = (0..).find(|at| copies.iter().all(|copy| copy.replica != *at));
    copies.push(copy(free.unwrap_or_default(), shift.to));
    let lvs = [(shift.lv, copies.clone())];
    cluster.count(shift.to, is_written, 1);
    let disk = |copy: &LvCopy| cluster.disks[copy.disk.0 as usize];
    let disks: Vec<DiskInfo> = lvs[0].1.iter().map(disk).collect();
    let steps = match by_kind {
        true => {
            let shares = Shares { written, on: &cluster.written_on };
            plan_moves_of_shares(&lvs, &disks, RULES, 1, shares)
        }
        false => plan_moves(&lvs, &disks, RULES, 1),
    };
    let [LvMove::Drop(_, replica)] = steps[..] else {
        panic!("{shift:?} is followed by {steps:?}")
    };
    let copies = &mut cluster.lvs[shift.lv.0 as usize].1;
    let at = copies.iter().position(|copy| copy.replica == replica);
    let gone = copies.remove(at.expect("the copy is there")).disk;
    assert_eq!(gone, shift.from, "what goes is what was planned to");
    cluster.count(gone, is_written, -1);
}
