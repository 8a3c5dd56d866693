//! Where the replicas of LVs go: a new LV's, and those that have to move because a server or disk drains or is
//! gone.
//!
//! # Invariants
//!
//! 1. Replicas lie on distinct domains of the *intended* level: the widest at which the cluster has enough
//!    domains, counting those that are away for now. While one is away, an LV is narrow rather than nearer
//!    together; only if not even `min_copies` fit, the next narrower level is taken.
//! 2. An LV's replica is dropped only when enough current ones remain, or its disk is gone for good.
//! 3. New servers and disks move nothing.

use std::collections::BTreeMap;

use larder_types::{DiskId, LvId, ServerId};

use super::domains::{FailureDomains, Leaf, Level, choose, domain_count, widest};
use super::members::Standing;
use super::straw::{Weight, hash};

/// A disk of a data server. One that is gone for good is not among the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskInfo {
    /// The disk.
    pub disk: DiskId,
    /// Its server.
    pub server: ServerId,
    /// Where the server is.
    pub domains: FailureDomains,
    /// Its share.
    pub weight: Weight,
    /// PVs it has.
    pub pv_count: u32,
    /// PVs without an LV.
    pub pv_free: u32,
    /// How far it counts; that of its server if that is worse.
    pub standing: Standing,
}

/// How many replicas an LV has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRules {
    /// As wanted.
    pub copies: usize,
    /// Least that a new LV may have.
    pub min_copies: usize,
}

/// Where a new LV goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LvPlacement {
    /// Level at which the disks share no domain.
    pub level: Level,
    /// A disk for each replica.
    pub disks: Vec<DiskId>,
    /// Whether these are fewer than wanted.
    pub narrow: bool,
}

/// A replica of an LV, for the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LvCopy {
    /// Its index in the LV.
    pub replica: usize,
    /// Its disk.
    pub disk: DiskId,
    /// Whether it has everything that the LV holds.
    pub current: bool,
    /// Whether it was emptied already, for an order that was taken back: it is to go, and counts for nothing.
    pub emptied: bool,
}

/// One change of an LV's replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LvMove {
    /// Fill a new replica on this disk.
    Add(LvId, DiskId),
    /// Forget the replica of this index.
    Drop(LvId, usize),
}

const LV_SEED: u64 = 0x4C56;

/// Candidates weigh as much as they have room, so that disks fill up together.
fn leaf(disk: &DiskInfo) -> Leaf {
    // A server says what its disk weighs and holds: all numbers are possible.
    let room = u128::from(disk.weight.0) * 1024 * u128::from(disk.pv_free);
    let room = room.checked_div(u128::from(disk.pv_count)).unwrap_or(0);
    let least = u128::from(disk.weight > Weight(0) && disk.pv_free > 0);
    let weight = Weight(u32::try_from(room.max(least)).unwrap_or(u32::MAX));
    Leaf { id: disk.disk.0, domains: disk.domains, weight }
}

fn candidates(disks: &[DiskInfo]) -> Vec<Leaf> {
    disks.iter().filter(|disk| disk.standing == Standing::In).map(leaf).collect()
}

/// The level at which the replicas of LVs are to be apart.
fn intended_level(disks: &[DiskInfo], rules: CopyRules) -> Level {
    let lasting = disks.iter().filter(|disk| disk.standing != Standing::Out);
    let leaves: Vec<Leaf> = lasting
        .map(|disk| Leaf { id: disk.disk.0, domains: disk.domains, weight: disk.weight })
        .collect();
    widest(&leaves, rules.copies).unwrap_or(Level::Leaf)
}

/// Disks for a new LV; `None` if the pool is empty.
#[must_use]
pub fn place_lv(lv: LvId, disks: &[DiskInfo], rules: CopyRules) -> Option<LvPlacement> {
    let leaves = candidates(disks);
    let intended = intended_level(disks, rules);
    let mut levels = Level::ALL.into_iter().filter(|level| *level >= intended);
    let level = levels.find(|level| domain_count(&leaves, *level) >= rules.min_copies.max(1))?;
    let picks = choose(seed(lv), &leaves, rules.copies, level, &[]);
    let narrow = picks.len() < rules.copies;
    Some(LvPlacement { level, disks: picks.into_iter().map(DiskId).collect(), narrow })
}

fn seed(lv: LvId) -> u64 {
    hash(LV_SEED, &[u64::from(lv.0)])
}

/// The next change of each LV that needs one, those with the fewest good copies first; at most `limit`.
#[must_use]
pub fn plan_moves(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    limit: usize,
) -> Vec<LvMove> {
    let by_id: BTreeMap<DiskId, &DiskInfo> = disks.iter().map(|disk| (disk.disk, disk)).collect();
    let intended = intended_level(disks, rules);
    let mut candidates: BTreeMap<DiskId, (Leaf, u32)> = disks
        .iter()
        .filter(|disk| disk.standing == Standing::In)
        .map(|disk| (disk.disk, (leaf(disk), disk.pv_free)))
        .collect();
    let good = |copies: &[LvCopy]| {
        copies
            .iter()
            .filter(|copy| copy.current && !copy.emptied && by_id.contains_key(&copy.disk))
            .count()
    };
    let mut order: Vec<&(LvId, Vec<LvCopy>)> = lvs.iter().collect();
    order.sort_by_key(|(lv, copies)| (good(copies), *lv));
    let mut moves = Vec::new();
    for (lv, copies) in order {
        if moves.len() == limit {
            break;
        }
        let next = next_move(*lv, copies, &by_id, &candidates, (intended, rules));
        if let Some(LvMove::Add(_, disk)) = next
            && let Some((leaf, free)) = candidates.get_mut(&disk)
        {
            *free -= 1;
            if *free == 0 {
                leaf.weight = Weight(0);
            }
        }
        moves.extend(next);
    }
    moves
}

fn next_move(
    lv: LvId,
    copies: &[LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    candidates: &BTreeMap<DiskId, (Leaf, u32)>,
    (intended, rules): (Level, CopyRules),
) -> Option<LvMove> {
    if let Some(gone) = copies.iter().find(|copy| !disks.contains_key(&copy.disk)) {
        return Some(LvMove::Drop(lv, gone.replica));
    }
    let lasts = |copy: &&LvCopy| !copy.emptied && disks[&copy.disk].standing != Standing::Out;
    let lasting: Vec<&LvCopy> = copies.iter().filter(lasts).collect();
    let current = lasting.iter().filter(|copy| copy.current).count();
    if current >= rules.copies {
        // Enough for good: one that drains goes, else one too many.
        let leaving = copies.iter().find(|copy| !lasts(copy));
        let surplus = lasting.last().copied().filter(|_| lasting.len() > rules.copies);
        return leaving.or(surplus).map(|copy| LvMove::Drop(lv, copy.replica));
    }
    if lasting.len() >= rules.copies || lasting.len() > current {
        return None; // one is being filled
    }
    let taken: Vec<Leaf> = lasting.iter().map(|copy| leaf(disks[&copy.disk])).collect();
    let free = candidates.values().filter(|(leaf, _)| copies.iter().all(|c| c.disk.0 != leaf.id));
    let free: Vec<Leaf> = free.map(|(leaf, _)| *leaf).collect();
    let picks = choose(seed(lv), &free, 1, intended, &taken);
    picks.first().map(|disk| LvMove::Add(lv, DiskId(*disk)))
}
