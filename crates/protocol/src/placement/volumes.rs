//! Where the replicas of LVs go: a new LV's, and those that have to move because a server or disk drains or is
//! gone.
//!
//! # Invariants
//!
//! 1. Replicas lie on distinct domains of the *intended* level: the widest at which the cluster has enough
//!    domains, counting those that are away for now. While one is away, an LV is narrow rather than nearer
//!    together; only if not even `min_copies` fit, the next narrower level is taken.
//! 2. An LV's replica is told to go only in three cases. Enough current ones remain that are up, or its disk is gone for
//!    good, or it has no chunks as it cannot be made. Its primary sees to it that enough are still up. Until one that was
//!    told to go has gone, no other one of that LV is told to that has all: its chunks may have lost the copy there already.
//! 3. What is lost is replaced before it is given up: a group gives copies up in a walk over all that it has. Volumes with more
//!    copies that can be read keep none with fewer from a new place.
//! 4. New servers and disks move nothing here: what moves for balance, or to lie further apart, is [`super::balance`]'s to
//!    plan, and has a copy more until one goes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use larder_types::limits::REPLICAS_MAX;
use larder_types::{DiskId, LvId};

use super::apart::{Ratio, farther, kept, surplus};
use super::copies::{CopyRules, DiskInfo, LvCopy, Room, leaf};
use super::domains::{Domain, Leaf, Level, choose, domain_count, widest};
use super::members::PlacementState;
use super::straw::{Weight, hash};

/// Where a new LV goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LvPlacement {
    /// Level at which the disks share no domain.
    pub level: Level,
    /// A disk for each replica.
    pub disks: Vec<DiskId>,
    /// True if these are fewer than wanted.
    pub narrow: bool,
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

fn candidates(disks: &[DiskInfo]) -> Vec<Leaf> {
    disks.iter().filter(|disk| disk.placement_state == PlacementState::In).map(leaf).collect()
}

/// The level at which the replicas of LVs are to be apart.
pub(super) fn intended_level(disks: &[DiskInfo], rules: CopyRules) -> Level {
    let lasting = disks.iter().filter(|disk| disk.placement_state != PlacementState::Out);
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
    let least = rules.min_copies.max(1);
    let level = levels.find(|level| domain_count(&leaves, *level, least) >= least)?;
    let picks = choose(seed(lv), &leaves, rules.copies, level, &[]);
    let narrow = picks.len() < rules.copies;
    Some(LvPlacement { level, disks: picks.into_iter().map(DiskId).collect(), narrow })
}

/// The same where volumes that take writes are evened for themselves: on disks with less than their ideal number of them, if there
/// are enough that far apart.
#[must_use]
pub fn place_lv_of_shares(
    lv: LvId,
    disks: &[DiskInfo],
    rules: CopyRules,
    written_on: &BTreeMap<DiskId, u64>,
) -> Option<LvPlacement> {
    let candidates = || disks.iter().filter(|disk| disk.placement_state == PlacementState::In);
    let on = |disk: &DiskInfo| written_on.get(&disk.disk).copied().unwrap_or(0);
    let written = candidates().map(on).sum();
    let size = candidates().map(|disk| u64::from(disk.pv_count)).sum();
    let is_below = |disk: &&DiskInfo| {
        Ratio(on(disk), disk.pv_count.into()).cmp(Ratio(written, size)) == Ordering::Less
    };
    let below: Vec<DiskInfo> = candidates().filter(is_below).copied().collect();
    let level = intended_level(disks, rules);
    let is_as_wide = |placed: &LvPlacement| !placed.narrow && placed.level == level;
    let placed = place_lv(lv, &below, rules).filter(is_as_wide);
    placed.or_else(|| place_lv(lv, disks, rules))
}

pub(super) fn seed(lv: LvId) -> u64 {
    hash(LV_SEED, &[u64::from(lv.0)])
}

/// The facts by which the next change of an LV is decided.
struct PlacementFacts<'a> {
    disks: BTreeMap<DiskId, &'a DiskInfo>,
    intended: Level,
    /// Disks for new replicas, each with the PVs that it has left.
    candidates: BTreeMap<DiskId, (Leaf, u32)>,
    /// Domains of the intended level in which they are.
    open: BTreeSet<Domain>,
    uses: Uses<'a>,
}

impl PlacementFacts<'_> {
    /// A PV of a disk is taken.
    fn take(&mut self, disk: DiskId) {
        let Some((leaf, free)) = self.candidates.get_mut(&disk) else { return };
        *free -= 1;
        if *free == 0 {
            leaf.weight = Weight(0);
            self.open = open(&self.candidates, self.intended);
        }
    }
}

fn open(candidates: &BTreeMap<DiskId, (Leaf, u32)>, level: Level) -> BTreeSet<Domain> {
    let leaves = candidates.values().map(|(leaf, _)| leaf);
    leaves.filter(|leaf| leaf.weight > Weight(0)).map(|leaf| leaf.domain(level)).collect()
}

/// Volumes that take writes: where they and the full ones are evened each for themselves, those of a volume's kind count.
#[derive(Debug, Clone, Copy)]
pub struct Shares<'a> {
    /// Those volumes.
    pub written: &'a BTreeSet<LvId>,
    /// Their copies on each disk.
    pub on: &'a BTreeMap<DiskId, u64>,
}

/// PVs in use on each disk, without those whose copies are on their way out.
struct Uses<'a> {
    all: BTreeMap<DiskId, u64>,
    /// The same of volumes that take writes, if these count for themselves.
    written: Option<(&'a BTreeSet<LvId>, BTreeMap<DiskId, u64>)>,
}

impl<'a> Uses<'a> {
    fn new(lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo], shares: Option<Shares<'a>>) -> Self {
        let used = |disk: &DiskInfo| u64::from(disk.pv_count.saturating_sub(disk.pv_free));
        let on = |of: &Shares<'_>, disk: &DiskInfo| of.on.get(&disk.disk).copied().unwrap_or(0);
        let written = shares
            .map(|of| (of.written, disks.iter().map(|disk| (disk.disk, on(&of, disk))).collect()));
        let all = disks.iter().map(|disk| (disk.disk, used(disk))).collect();
        let mut uses = Self { all, written };
        for (lv, copies) in lvs {
            let ordered = copies.iter().filter(|copy| copy.ordered);
            ordered.for_each(|copy| uses.lessen(*lv, copy.disk));
        }
        uses
    }

    /// Returns the volumes that count on a disk beside a volume's copy.
    fn of(&self, lv: LvId, disk: DiskId) -> u64 {
        let all = self.all[&disk];
        match &self.written {
            None => all,
            Some((written, on)) if written.contains(&lv) => on[&disk],
            Some((_, on)) => all.saturating_sub(on[&disk]),
        }
    }

    fn lessen(&mut self, lv: LvId, disk: DiskId) {
        let written = self.written.as_mut().filter(|(written, _)| written.contains(&lv));
        let written = written.and_then(|(_, on)| on.get_mut(&disk));
        for used in self.all.get_mut(&disk).into_iter().chain(written) {
            *used = used.saturating_sub(1);
        }
    }
}

/// The next change of each LV that needs one, those with the fewest good copies first; at most `limit`. Copies that were
/// ordered to go do so beside them, and no more copies go at a time than that.
#[must_use]
pub fn plan_moves(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    limit: usize,
) -> Vec<LvMove> {
    plan(lvs, disks, rules, |_| limit, None)
}

/// The same where some are being filled already: each counts for those that have as many good copies, or more.
#[must_use]
pub fn plan_moves_beside(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    limit: usize,
    filling: &Filling,
) -> Vec<LvMove> {
    plan(lvs, disks, rules, |good| limit.saturating_sub(filling.up_to(good)), None)
}

/// The same where volumes that take writes and full ones are evened each for themselves.
#[must_use]
pub fn plan_moves_of_shares(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    limit: usize,
    shares: Shares<'_>,
) -> Vec<LvMove> {
    plan(lvs, disks, rules, |_| limit, Some(shares))
}

fn plan(
    lvs: &[(LvId, Vec<LvCopy>)],
    disks: &[DiskInfo],
    rules: CopyRules,
    limit_of: impl Fn(usize) -> usize,
    shares: Option<Shares<'_>>,
) -> Vec<LvMove> {
    let intended = intended_level(disks, rules);
    let candidates = disks.iter().filter(|disk| disk.placement_state == PlacementState::In);
    let by_id: BTreeMap<DiskId, &DiskInfo> = disks.iter().map(|disk| (disk.disk, disk)).collect();
    let candidates = candidates.map(|disk| (disk.disk, (leaf(disk), disk.pv_free))).collect();
    let mut facts = PlacementFacts {
        disks: by_id.clone(),
        intended,
        open: open(&candidates, intended),
        candidates,
        uses: Uses::new(lvs, disks, shares),
    };
    let mut order: Vec<(usize, &(LvId, Vec<LvCopy>))> =
        lvs.iter().map(|lv| (good(&lv.1, &by_id), lv)).collect();
    order.sort_by_key(|(good, (lv, _))| (*good, *lv));
    // One that is lost gives up nothing that somebody could read.
    let leaves = |copies: &[LvCopy]| {
        copies.iter().any(|copy| copy.ordered && by_id.contains_key(&copy.disk))
    };
    let lasting = |copies: &[LvCopy]| {
        let lasts = |copy: &&LvCopy| copy.current && lasts(copy, &by_id);
        copies.iter().filter(lasts).count()
    };
    let leaving = lvs.iter().filter(|(_, copies)| leaves(copies)).count();
    let (mut moves, mut begun) = (Vec::new(), 0);
    for (good, (lv, copies)) in order {
        let limit = limit_of(good);
        // One that has enough for good could only lose a copy.
        let may_begin =
            begun < limit && (lasting(copies) < rules.copies || begun + leaving < limit);
        if !may_begin && !leaves(copies) {
            continue;
        }
        // A place is sought only where it may be taken: that looks at all disks.
        let next = next_move(*lv, copies, &facts, rules, begun < limit);
        let dropped = |replica: usize| copies.iter().find(|copy| copy.replica == replica);
        match next {
            Some(LvMove::Drop(_, replica)) if dropped(replica).is_some_and(|it| it.ordered) => {}
            Some(LvMove::Drop(..)) if good >= rules.copies && begun + leaving >= limit => continue,
            Some(_) if begun >= limit => continue,
            Some(LvMove::Drop(_, replica)) => {
                begun += 1;
                dropped(replica).into_iter().for_each(|it| facts.uses.lessen(*lv, it.disk));
            }
            Some(LvMove::Add(_, disk)) => {
                begun += 1;
                facts.take(disk);
            }
            None => {}
        }
        moves.extend(next);
    }
    moves
}

fn next_move(
    lv: LvId,
    copies: &[LvCopy],
    facts: &PlacementFacts<'_>,
    rules: CopyRules,
    may_add: bool,
) -> Option<LvMove> {
    let PlacementFacts { disks, candidates, uses, .. } = facts;
    let used = |disk| uses.of(lv, disk);
    let lasts = |copy: &&LvCopy| lasts(copy, disks);
    let lasting: Vec<&LvCopy> = copies.iter().filter(lasts).collect();
    let current = lasting.iter().filter(|copy| copy.current).count();
    let is_coming = |copy: &&LvCopy| is_coming(copy, disks);
    if let Some(stuck) = copies.iter().find(|copy| is_stuck(copy, disks)) {
        return Some(LvMove::Drop(lv, stuck.replica));
    }
    // One that is away may be lost yet, and what is there of a copy all that is left then.
    let is_whole = |copy: &&&LvCopy| copy.current && disks[&copy.disk].up;
    if lasting.iter().filter(is_whole).count() >= rules.copies
        && copies.iter().all(|copy| disks.contains_key(&copy.disk))
        && let Some(full) = lasting.iter().find(|copy| !is_coming(copy))
    {
        return Some(LvMove::Drop(lv, full.replica));
    }
    let free = || -> Vec<Leaf> {
        let is_free = |leaf: &Leaf| copies.iter().all(|copy| copy.disk.0 != leaf.id);
        candidates.values().map(|(leaf, _)| *leaf).filter(is_free).collect()
    };
    // Those that stay may lie nearer together than they have to: one was to go, had not another gone.
    if copies.len() > lasting.len() && lasting.len() >= rules.copies {
        let stay = kept(&lasting, rules.copies, disks, &used);
        // A copy that leaves is told to stay again for it: not for a disk that may turn out to take nothing, time and
        // again.
        let is_sure = |leaf: &Leaf| disks[&DiskId(leaf.id)].room == Room::Some;
        let sure: Vec<Leaf> = free().into_iter().filter(is_sure).collect();
        if let Some((_, disk)) = farther(seed(lv), &stay, disks, &sure, &used) {
            return Some(LvMove::Add(lv, disk));
        }
    }
    let gone = copies.iter().filter(|copy| !disks.contains_key(&copy.disk));
    if let Some(gone) = gone.min_by_key(|copy| copy.ordered) {
        let seeks = may_add && current < rules.copies;
        let place = seeks.then(|| new_place(lv, copies, &free, facts, rules));
        return place.flatten().or(Some(LvMove::Drop(lv, gone.replica)));
    }
    if current >= rules.copies {
        // Enough for good: one that is empty or drains goes, else one too many.
        let leaving = copies.iter().filter(|copy| !lasts(copy));
        let leaving =
            leaving.min_by_key(|copy| (!copy.emptied, disks[&copy.disk].up, !copy.ordered));
        let has_wider = lasting.len() > rules.copies;
        if leaving.is_some() && lasting.len() > current {
            return None; // the copy that leaves stays until that one has everything
        }
        // It may be all that is left once those that are away are lost.
        let may_be_told = lasting.iter().filter(is_whole).count() >= rules.copies;
        if leaving.is_some_and(|copy| !may_be_told && !copy.emptied && !copy.ordered) {
            return None;
        }
        let has_more = leaving.is_none() && has_wider;
        let goes = has_more.then(|| surplus(&lasting, disks, rules, &used));
        let goes = goes.flatten();
        return leaving.or(goes).map(|copy| LvMove::Drop(lv, copy.replica));
    }
    may_add.then(|| new_place(lv, copies, &free, facts, rules)).flatten()
}

/// A place for a copy that an LV lacks, if there is one and none is being filled.
fn new_place(
    lv: LvId,
    copies: &[LvCopy],
    free: &dyn Fn() -> Vec<Leaf>,
    facts: &PlacementFacts<'_>,
    rules: CopyRules,
) -> Option<LvMove> {
    let PlacementFacts { disks, .. } = facts;
    let lasting: Vec<&LvCopy> = copies.iter().filter(|copy| lasts(copy, disks)).collect();
    let current = lasting.iter().filter(|copy| copy.current).count();
    // One that is filled as far as its disk has room stays until another has everything.
    let coming: Vec<&LvCopy> =
        lasting.iter().copied().filter(|copy| is_coming(copy, disks)).collect();
    if coming.len() >= rules.copies || coming.len() > current {
        return None; // one is being filled
    }
    // Several may lie on disks that became full, one after the other. Those that are to leave do not keep others from coming.
    if lasting.len() > 2 * rules.copies || copies.len() >= REPLICAS_MAX {
        return None;
    }
    if !has_source(copies, disks) {
        return None;
    }
    let taken: Vec<Leaf> = coming.iter().map(|copy| leaf(disks[&copy.disk])).collect();
    let is_new = |open: &Domain| taken.iter().all(|leaf| leaf.domain(facts.intended) != *open);
    if !facts.open.iter().any(is_new) {
        return None;
    }
    let pick = choose(seed(lv), &free(), 1, facts.intended, &taken);
    pick.first().map(|disk| LvMove::Add(lv, DiskId(*disk)))
}

/// Copies that can be read.
fn good(copies: &[LvCopy], disks: &BTreeMap<DiskId, &DiskInfo>) -> usize {
    let is_up = |copy: &LvCopy| disks.get(&copy.disk).is_some_and(|disk| disk.up);
    copies.iter().filter(|copy| copy.current && !copy.emptied && is_up(copy)).count()
}

/// True if a copy counts for good.
fn lasts(copy: &LvCopy, disks: &BTreeMap<DiskId, &DiskInfo>) -> bool {
    let is_there =
        disks.get(&copy.disk).is_some_and(|disk| disk.placement_state != PlacementState::Out);
    is_there && !copy.emptied && !is_stuck(copy, disks)
}

/// True if a copy cannot be made, as its disk has no room for it: it counts for nothing, and goes first. One that is there is
/// filled as far as it goes, for it may be all that a disk had room for.
fn is_stuck(copy: &LvCopy, disks: &BTreeMap<DiskId, &DiskInfo>) -> bool {
    let has_none = disks.get(&copy.disk).is_some_and(|disk| disk.room.takes_none());
    !copy.current && !copy.made && has_none
}

/// True if a copy has everything, or its disk has room for the rest.
fn is_coming(copy: &LvCopy, disks: &BTreeMap<DiskId, &DiskInfo>) -> bool {
    copy.current || disks.get(&copy.disk).is_some_and(|disk| disk.room != Room::None)
}

/// True if a copy could be filled from another.
fn has_source(copies: &[LvCopy], disks: &BTreeMap<DiskId, &DiskInfo>) -> bool {
    good(copies, disks) > 0
}

/// Volumes of which a copy is being filled that may come to last, counted by their good copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filling(BTreeMap<usize, usize>);

impl Filling {
    /// The number of volumes with a copy being filled.
    #[must_use]
    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    /// Those with so many good copies, or fewer.
    #[must_use]
    pub fn up_to(&self, good: usize) -> usize {
        self.0.range(..=good).map(|(_, count)| count).sum()
    }
}

/// Volumes of which a copy is being filled that may come to last. On disks that are gone, leave or have no room none does, nor
/// from servers that are all down: such ones hold up no others.
#[must_use]
pub fn filling(lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo]) -> Filling {
    let disks: BTreeMap<DiskId, &DiskInfo> = disks.iter().map(|disk| (disk.disk, disk)).collect();
    let mut filling = Filling::default();
    for (_, copies) in lvs.iter().filter(|(_, copies)| is_filling(copies, &disks)) {
        *filling.0.entry(good(copies, &disks)).or_default() += 1;
    }
    filling
}

/// True if a volume lacks a copy, and one is being filled that may come to last.
#[must_use]
pub fn repairs(lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo], rules: CopyRules) -> bool {
    let disks: BTreeMap<DiskId, &DiskInfo> = disks.iter().map(|disk| (disk.disk, disk)).collect();
    let lacks = |copies: &[LvCopy]| copies.iter().filter(|it| it.current).count() < rules.copies;
    lvs.iter().any(|(_, copies)| lacks(copies) && is_filling(copies, &disks))
}

fn is_filling(copies: &[LvCopy], disks: &BTreeMap<DiskId, &DiskInfo>) -> bool {
    let is_filled = |copy: &LvCopy| !copy.current && lasts(copy, disks) && is_coming(copy, disks);
    copies.iter().any(is_filled) && has_source(copies, disks)
}

/// Volumes of which more copies last than wanted.
#[must_use]
pub fn wider(lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo], rules: CopyRules) -> usize {
    let disks: BTreeMap<DiskId, &DiskInfo> = disks.iter().map(|disk| (disk.disk, disk)).collect();
    let lasting = |copies: &[LvCopy]| copies.iter().filter(|copy| lasts(copy, &disks)).count();
    lvs.iter().filter(|(_, copies)| lasting(copies) > rules.copies).count()
}

#[cfg(test)]
#[path = "volumes/tests.rs"]
mod tests;
