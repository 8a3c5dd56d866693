//! Estimates, before a drain begins, how many of its copies the planner can place elsewhere.

use std::collections::BTreeSet;

use larder_types::{DiskId, LvId};

use super::copies::{CopyRules, DiskInfo, LvCopy, Room};
use super::members::PlacementState;
use super::volumes::{LvMove, plan_moves};

/// Plans that follow each other at most: of a volume whose copies all leave each takes two.
const PLANS_MAX: usize = 4 * larder_types::limits::REPLICAS_MAX;

/// The outcome of a drain, had all its copies been moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainOutcome {
    /// Copies of volumes that lie there.
    pub copies: usize,
    /// Of those, such as no other disk has a place for.
    pub stay: usize,
}

/// Moves all that [`plan_moves`] would, and counts what is left on disks that leave. Each copy is filled at once, also one that is
/// being filled already, if its disk has room. Disks that leave are [`PlacementState::Out`] among the disks, like all others that drain,
/// which take places too.
#[must_use]
pub fn leaving(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    leave: &BTreeSet<DiskId>,
) -> DrainOutcome {
    let count = |lvs: &[(LvId, Vec<LvCopy>)]| {
        let copies = lvs.iter().flat_map(|(_, copies)| copies);
        copies.filter(|copy| leave.contains(&copy.disk)).count()
    };
    let copies = count(lvs);
    if copies == 0 {
        return DrainOutcome::default();
    }
    let (mut lvs, mut disks) = (lvs.to_vec(), disks.to_vec());
    let takes = |disk: &&DiskInfo| {
        disk.up && disk.placement_state != PlacementState::Out && disk.room != Room::None
    };
    let taking: BTreeSet<DiskId> = disks.iter().filter(takes).map(|disk| disk.disk).collect();
    for copy in lvs.iter_mut().flat_map(|(_, copies)| copies) {
        copy.current |= taking.contains(&copy.disk);
    }
    for _ in 0..PLANS_MAX {
        let plan = plan_moves(&lvs, &disks, rules, usize::MAX / 2);
        if plan.is_empty() {
            break;
        }
        for step in plan {
            follow(step, &mut lvs, &mut disks);
        }
    }
    DrainOutcome { copies, stay: count(&lvs) }
}

/// Does a step of a plan.
fn follow(step: LvMove, lvs: &mut [(LvId, Vec<LvCopy>)], disks: &mut [DiskInfo]) {
    let (LvMove::Add(lv, _) | LvMove::Drop(lv, _)) = step;
    let Ok(at) = lvs.binary_search_by_key(&lv, |(id, _)| *id) else { return };
    let copies = &mut lvs[at].1;
    match step {
        LvMove::Add(_, to) => {
            let next = copies.iter().map(|copy| copy.replica + 1).max().unwrap_or(0);
            copies.push(LvCopy::whole(next, to));
            let taken = disks.iter_mut().find(|disk| disk.disk == to);
            taken.into_iter().for_each(|disk| disk.pv_free = disk.pv_free.saturating_sub(1));
        }
        LvMove::Drop(_, replica) => {
            let Some(at) = copies.iter().position(|copy| copy.replica == replica) else { return };
            let from = copies.remove(at).disk;
            let freed = disks.iter_mut().find(|disk| disk.disk == from);
            freed.into_iter().for_each(|disk| disk.pv_free += 1);
        }
    }
}

#[cfg(test)]
#[path = "drain/tests.rs"]
mod tests;
