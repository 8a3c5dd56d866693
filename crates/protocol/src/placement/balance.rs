//! Moves of volumes so that their copies lie apart, and so that disks are as full as their sizes allow. A new disk takes
//! its share, and a full cluster with an empty disk gets room for new volumes.
//!
//! A volume whose copies could lie further apart moves first, whatever the use of disks. It was made while machines were
//! away or without room, or a disk was lost while it moved. The others move for the use of disks alone.
//!
//! It follows the rebalancing of Ambry (SIGMOD 2016, section 3). Each disk has an ideal use, its share of all PVs by its
//! size. Disks above it give volumes, and the disk furthest below it takes them. Volumes that are full move; one that
//! takes writes would take no objects while a copy of it goes, and its group would draw another. It moves only from a disk
//! that is full, and only while there is no room for a new volume. A disk is full when its PVs are all in use, or when it has no
//! room for more.
//!
//! A caller that says how many copies of such volumes each disk has ([`Balance::written_on`]) has both kinds evened, each for
//! itself ([`shares`]). No manager does: a volume takes no objects while it moves.
//!
//! # Invariants
//!
//! 1. For use, or of either kind, only a disk above its ideal gives, and only one below its ideal takes.
//! 2. Each such move lessens the sum of `used² / size` over all disks. Each other one sets a volume further apart, which
//!    none brings nearer together again: moving ends, and nothing moves back. The same comparison decides which of the
//!    copies is the one too many ([`fullest`]), from what is there. So a manager that begins to lead goes on with moves that
//!    it never heard of.
//! 3. A move leaves the copies of a volume as far apart as they were, or further apart, at every level of domains. A volume
//!    that has fewer copies than wanted does not move: its new copy would be none too many.
//! 4. A plan looks at no more volumes than its caller allows, but at all that take writes where these are evened for
//!    themselves. It never looks more than [`BALANCE_CANDIDATES_MAX`] times at anything, whatever the volumes and disks.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId};

use self::shares::Kind;
use super::apart::{Ratio, alone_at, could_be_further_apart, domain, farther, fullest, gain, open};
use super::copies::{CopyRules, DiskInfo, LvCopy, Room, leaf};
use super::domains::{Domain, Level};
use super::members::PlacementState;
use super::straw::Weight;
use super::volumes::{intended_level, seed};
use crate::limits::{APART_FILL_PERCENT, BALANCE_CANDIDATES_MAX, BALANCE_TRIED_MAX};

/// A copy of a volume goes from one disk to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyMove {
    /// The volume.
    pub lv: LvId,
    /// Disk that gives.
    pub from: DiskId,
    /// Disk that takes.
    pub to: DiskId,
}

/// A disk, with what it has once planned moves are through.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// The number that is evened: PVs in use, or those of the kind of volumes that is evened now.
    used: u64,
    /// PVs in use that do not count among those.
    aside: u64,
    /// Copies of volumes that take writes.
    written: u64,
    size: u64,
    /// PVs that can be taken now.
    free: u32,
    /// New volumes may lie there.
    is_open: bool,
    /// The same, and it had room of late.
    takes: bool,
    /// Its file system is full, whatever places it has.
    lacks_room: bool,
    domain: Domain,
}

/// By how much it rises when a disk takes one.
fn cost(used: u64, size: u64) -> Ratio {
    Ratio(2 * used + 1, size.max(1))
}

impl Load {
    fn gain(&self) -> Ratio {
        gain(self.used, self.size)
    }

    fn cost(&self) -> Ratio {
        cost(self.used, self.size)
    }

    fn is_full(&self) -> bool {
        self.lacks_room || self.used + self.aside >= self.size
    }

    /// True if the sum of squares falls when this one gives to another.
    fn improves(&self, takes: &Self) -> bool {
        self.gain().cmp(takes.cost()) == Ordering::Greater
    }

    /// True if their uses differ by so much, or this one is full.
    fn is_wide(&self, takes: &Self, Ratio(spread, whole): Ratio) -> bool {
        let percents =
            |used: u64, size: u64| u128::from(whole) * u128::from(used) * u128::from(size);
        let spread = u128::from(spread) * u128::from(self.size) * u128::from(takes.size);
        self.is_full()
            || percents(self.used, takes.size) >= percents(takes.used, self.size) + spread
    }
}

/// The state that [`plan_balance`] looks at.
#[derive(Debug, Clone, Copy)]
pub struct Balance<'a> {
    /// Volumes with their copies.
    pub lvs: &'a [(LvId, Vec<LvCopy>)],
    /// Volumes that take writes; the others are full.
    pub written: &'a BTreeSet<LvId>,
    /// Copies of these by disk. If given, volumes that take writes and full ones are evened separately, and volumes
    /// stand in the order of their ids; else the use of disks is evened.
    pub written_on: Option<&'a BTreeMap<DiskId, u64>>,
    /// Disks that are not gone.
    pub disks: &'a [DiskInfo],
    /// Copies of a volume.
    pub rules: CopyRules,
    /// Points by which the use of two disks has to differ for a move from one to the other, unless the fuller one is full.
    pub spread_percent: u64,
    /// Place among the volumes of the first that is looked at.
    pub first: usize,
    /// Volumes that are looked at, from there on and then from the beginning.
    pub lvs_max: usize,
}

/// Moves for balance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Planned {
    /// The next ones, in their order.
    pub shifts: Vec<CopyMove>,
    /// Place among the volumes where the next plan is to go on.
    pub next: usize,
    /// True if all was looked at that could move: else there may be more.
    pub is_whole: bool,
    /// Volumes of those looked at that lie nearer together than they could, and stay: they take writes, or the disks farther
    /// away have had their share.
    pub near: usize,
}

/// The next moves for balance; at most `limit`, and none if disks are as even as they can be.
#[must_use]
pub fn plan_balance(of: &Balance<'_>, limit: usize) -> Planned {
    let unseen = Planned { next: of.first, ..Planned::default() };
    if limit == 0 || of.disks.is_empty() {
        return unseen;
    }
    let mut plan = Plan::new(of);
    let mut shifts = plan.set_apart(limit);
    shifts.extend(match of.written_on {
        Some(_) => plan.even_shares(limit - shifts.len()),
        None => plan.even_out(limit - shifts.len()),
    });
    let is_whole = plan.seen == of.lvs.len() && plan.looks < BALANCE_CANDIDATES_MAX;
    let next = (of.first + plan.seen).checked_rem(of.lvs.len()).unwrap_or(0);
    Planned { shifts, next, is_whole, near: plan.near }
}

struct Plan<'a> {
    of: &'a Balance<'a>,
    kind: Kind,
    /// True if of volumes that suit as well one goes by chance, and not the one drawn last.
    by_chance: bool,
    /// By how much disks have to differ for one that takes writes to move.
    written_spread: Ratio,
    /// The level at which volumes are to be apart.
    intended: Level,
    by_id: BTreeMap<DiskId, &'a DiskInfo>,
    loads: BTreeMap<DiskId, Load>,
    /// Volumes that lie on a disk which could give, and may move.
    on: BTreeMap<DiskId, Vec<&'a (LvId, Vec<LvCopy>)>>,
    /// Volumes move once in a plan.
    moved: BTreeSet<LvId>,
    /// Disks that can give nothing.
    barren: BTreeSet<DiskId>,
    /// Volumes that were looked at.
    seen: usize,
    looks: usize,
    /// Of those that were looked at, such as lie nearer together than they could, and do not move.
    near: usize,
}

/// The rank of a volume by how well it suits: the lowest goes first.
type Rank = (usize, bool, Reverse<u64>);

/// A disk that takes something, with its place among those: the emptiest is the first.
#[derive(Debug, Clone, Copy)]
struct Taker {
    place: usize,
    disk: DiskId,
    load: Load,
}

/// The receiving disks of one domain.
struct Takers {
    domain: Domain,
    disks: Vec<Taker>,
}

/// The disks that give and those that take.
struct Sides {
    /// Disks above their ideal that are worth a move, the fullest first.
    above: Vec<(DiskId, Load)>,
    /// For each level from the widest to the intended one the domains with disks below it, that with the emptiest first.
    below: Vec<Vec<Takers>>,
}

impl<'a> Plan<'a> {
    fn new(of: &'a Balance<'a>) -> Self {
        let intended = intended_level(of.disks, of.rules);
        let there = || {
            of.disks
                .iter()
                .filter(|it| it.placement_state != PlacementState::Out && it.pv_count > 0)
        };
        let load = |disk: &DiskInfo| {
            let is_open = disk.placement_state == PlacementState::In && disk.weight > Weight(0);
            Load {
                used: u64::from(disk.pv_count.saturating_sub(disk.pv_free)),
                aside: 0,
                written: of.written_on.and_then(|on| on.get(&disk.disk)).copied().unwrap_or(0),
                size: disk.pv_count.into(),
                free: disk.pv_free,
                is_open,
                takes: is_open && disk.room == Room::Some,
                lacks_room: disk.room == Room::None,
                domain: domain(disk, intended),
            }
        };
        let mut plan = Self {
            of,
            kind: Kind::All,
            by_chance: false,
            written_spread: Ratio(0, 1),
            intended,
            by_id: there().map(|disk| (disk.disk, disk)).collect(),
            loads: there().map(|disk| (disk.disk, load(disk))).collect(),
            on: BTreeMap::new(),
            moved: BTreeSet::new(),
            barren: BTreeSet::new(),
            seen: 0,
            looks: of.disks.len(),
            near: 0,
        };
        plan.count_moving();
        plan
    }

    /// A copy that moves already, or was left by a disk that is full again, is as good as gone from where it goes.
    fn count_moving(&mut self) {
        for (lv, copies) in self.of.lvs.iter().filter(|lv| lv.1.len() > self.of.rules.copies) {
            self.looks += copies.len();
            let is_there = |copy: &&LvCopy| self.by_id.contains_key(&copy.disk) && !copy.emptied;
            let lasting: Vec<&LvCopy> = copies.iter().filter(is_there).collect();
            if lasting.len() <= self.of.rules.copies || self.looks >= BALANCE_CANDIDATES_MAX {
                continue;
            }
            let is_written = self.of.written.contains(lv);
            let used = |disk| self.loads[&disk].of_kind(self.of.written_on.is_some(), is_written);
            let ordered = lasting.iter().copied().find(|copy| copy.ordered);
            let goes = ordered.or_else(|| fullest(&lasting, &self.by_id, &used));
            if let Some(load) = goes.and_then(|copy| self.loads.get_mut(&copy.disk)) {
                load.used = load.used.saturating_sub(1);
                load.written = load.written.saturating_sub(is_written.into());
            }
        }
    }

    /// The volumes that this plan may look at.
    fn window(&self) -> impl Iterator<Item = &'a (LvId, Vec<LvCopy>)> + use<'a> {
        let (before, from) = self.of.lvs.split_at(self.of.first.min(self.of.lvs.len()));
        from.iter().chain(before).take(self.of.lvs_max)
    }

    /// True if all copies that a volume is to have are whole, and stay.
    fn is_at_rest(&self, copies: &[LvCopy]) -> bool {
        let rests = |copy: &LvCopy| {
            let is_whole = copy.current && !copy.emptied && !copy.ordered;
            is_whole && self.loads.contains_key(&copy.disk)
        };
        copies.len() == self.of.rules.copies && copies.iter().all(rests)
    }

    /// Use of all disks.
    fn ideal(&self) -> Ratio {
        let used: u64 = self.loads.values().map(|load| load.used).sum();
        let size: u64 = self.loads.values().map(|load| load.size).sum();
        Ratio(used, size.max(1))
    }

    /// Disks that take something, or those of them that are used less than this.
    fn takers(&self, below: Option<Ratio>) -> Vec<&'a DiskInfo> {
        let takes = |disk: &&&DiskInfo| {
            let load = &self.loads[&disk.disk];
            let is_below = |ideal| Ratio(load.used, load.size).cmp(ideal) == Ordering::Less;
            load.takes && load.free > 0 && below.is_none_or(is_below)
        };
        self.by_id.values().filter(takes).copied().collect()
    }

    /// Moves of volumes that lie nearer together than they have to.
    ///
    /// They go to disks below their ideal alone, or below [`APART_FILL_PERCENT`] if they lie on a single machine. Else a
    /// small machine would be filled to the last PV, and have no room for what is made, or made again, on three machines.
    fn set_apart(&mut self, limit: usize) -> Vec<CopyMove> {
        let ideal = self.ideal();
        let fill = Ratio(APART_FILL_PERCENT, 100);
        let fill = if fill.cmp(ideal) == Ordering::Less { ideal } else { fill };
        let any = open(&self.takers(None));
        let (below, spare) = (open(&self.takers(Some(ideal))), open(&self.takers(Some(fill))));
        let mut shifts = Vec::new();
        for (lv, copies) in self.window() {
            if shifts.len() == limit || self.looks >= BALANCE_CANDIDATES_MAX {
                break;
            }
            (self.looks, self.seen) = (self.looks + 1, self.seen + 1);
            if !self.is_at_rest(copies) {
                continue;
            }
            let copies: Vec<&LvCopy> = copies.iter().collect();
            if !could_be_further_apart(&copies, &self.by_id, &any) {
                continue;
            }
            self.near += 1;
            let machine = |copy: &&LvCopy| domain(self.by_id[&copy.disk], Level::Machine);
            let is_on_one = copies.iter().map(machine).collect::<BTreeSet<_>>().len() == 1;
            let (bound, open) = if is_on_one { (fill, &spare) } else { (ideal, &below) };
            let is_held = self.of.written.contains(lv) && !is_on_one;
            if is_held || !could_be_further_apart(&copies, &self.by_id, open) {
                continue;
            }
            self.looks += self.loads.len();
            let takers = self.takers(Some(bound));
            let takers: Vec<_> = takers.into_iter().map(leaf).collect();
            let is_written = self.of.written.contains(lv);
            let used = |disk| self.loads[&disk].of_kind(self.of.written_on.is_some(), is_written);
            if let Some((goes, to)) = farther(seed(*lv), &copies, &self.by_id, &takers, &used) {
                let shift = CopyMove { lv: *lv, from: goes.disk, to };
                self.perform(shift);
                shifts.push(shift);
                self.near -= 1;
            }
        }
        shifts
    }

    /// Moves from fuller disks to emptier ones.
    fn even_out(&mut self, limit: usize) -> Vec<CopyMove> {
        let mut shifts = Vec::new();
        let sides = self.sides();
        if sides.above.is_empty() || limit == 0 {
            return shifts;
        }
        self.examine_lvs(&sides);
        while shifts.len() < limit
            && self.looks < BALANCE_CANDIDATES_MAX
            && let Some(shift) = self.next()
        {
            self.perform(shift);
            shifts.push(shift);
        }
        shifts
    }

    fn sides(&mut self) -> Sides {
        self.looks += self.loads.len();
        let ideal = self.ideal();
        let against = |load: &Load| Ratio(load.used, load.size).cmp(ideal);
        let all = || self.loads.iter().map(|(disk, load)| (*disk, *load));
        let mut below: Vec<(DiskId, Load)> = all()
            .filter(|(_, load)| against(load) == Ordering::Less && load.takes && load.free > 0)
            .collect();
        below.sort_by(|(_, a), (_, b)| a.cost().cmp(b.cost()));
        // Of the first so many the one that is used least, for its size.
        let mut least: Vec<Load> = Vec::with_capacity(below.len());
        for (_, load) in &below {
            let use_of = |load: &Load| Ratio(load.used, load.size);
            let before =
                least.last().filter(|it| use_of(it).cmp(use_of(load)) != Ordering::Greater);
            least.push(before.copied().unwrap_or(*load));
        }
        let spread = self.spread();
        let is_worth = |load: &Load| {
            let improved = below.partition_point(|(_, takes)| load.improves(takes));
            let least = improved.checked_sub(1).map(|last| &least[last]);
            least.is_some_and(|takes| load.is_wide(takes, spread))
        };
        let gives = |(disk, load): &(DiskId, Load)| {
            let is_above = against(load) == Ordering::Greater;
            is_above && !self.barren.contains(disk) && is_worth(load)
        };
        let mut above: Vec<(DiskId, Load)> = all().filter(gives).collect();
        above.sort_by(|(_, a), (_, b)| b.gain().cmp(a.gain()));
        let levels = Level::ALL.into_iter().filter(|level| *level <= self.intended);
        let below = levels.map(|level| self.by_domain(level, &below)).collect();
        Sides { above, below }
    }

    fn by_domain(&self, level: Level, below: &[(DiskId, Load)]) -> Vec<Takers> {
        let mut at: BTreeMap<Domain, usize> = BTreeMap::new();
        let mut domains: Vec<Takers> = Vec::new();
        for (place, (disk, load)) in below.iter().enumerate() {
            let domain = domain(self.by_id[disk], level);
            let index = *at.entry(domain).or_insert(domains.len());
            if index == domains.len() {
                domains.push(Takers { domain, disks: Vec::new() });
            }
            domains[index].disks.push(Taker { place, disk: *disk, load: *load });
        }
        domains
    }

    /// Finds the volumes that may move, among those to be looked at.
    fn examine_lvs(&mut self, sides: &Sides) {
        let gives: BTreeSet<DiskId> = sides.above.iter().map(|(disk, _)| *disk).collect();
        let mut seen = 0;
        let is_written = self.kind == Kind::Written;
        for lv in if is_written { self.written() } else { self.window().collect() } {
            if self.looks >= BALANCE_CANDIDATES_MAX {
                break;
            }
            (self.looks, seen) = (self.looks + 1, seen + 1);
            if self.is_at_rest(&lv.1) {
                for copy in lv.1.iter().filter(|copy| gives.contains(&copy.disk)) {
                    self.on.entry(copy.disk).or_default().push(lv);
                }
            }
        }
        if !is_written {
            self.seen = self.seen.min(seen);
        }
        self.order();
    }

    fn next(&mut self) -> Option<CopyMove> {
        let sides = self.sides();
        let is_short = self.is_short();
        for from in &sides.above {
            if let Some(shift) = self.give(from, &sides.below, is_short) {
                return Some(shift);
            }
            self.barren.insert(from.0);
            if self.looks >= BALANCE_CANDIDATES_MAX {
                break;
            }
        }
        None
    }

    /// True if a new volume would find too few domains with room, once planned moves are through.
    fn is_short(&self) -> bool {
        let open = self.loads.values().filter(|load| load.is_open && !load.is_full());
        open.map(|load| load.domain).collect::<BTreeSet<_>>().len() < self.of.rules.copies
    }

    /// A volume that goes from a disk: to the emptiest that takes one of it, and of these volumes the one drawn last.
    fn give(
        &mut self,
        (from, gives): &(DiskId, Load),
        below: &[Vec<Takers>],
        is_short: bool,
    ) -> Option<CopyMove> {
        let wants_written = match self.kind {
            Kind::All => is_short && gives.is_full(),
            kind => kind == Kind::Written,
        };
        let mut best: Option<(Rank, CopyMove)> = None;
        for (lv, copies) in self.on.get(from)?.iter().rev() {
            let is_written = self.of.written.contains(lv);
            let is_other =
                is_written != wants_written && (is_written || self.kind == Kind::Written);
            if self.moved.contains(lv) || is_other {
                continue;
            }
            if self.looks >= BALANCE_CANDIDATES_MAX {
                break;
            }
            let (looks, found) = self.target((*from, gives), copies, below);
            self.looks += looks;
            if let Some((rank, to)) = found {
                let key = (rank, is_written != wants_written, Reverse(self.turn(*lv)));
                if best.as_ref().is_none_or(|(known, _)| key < *known) {
                    best = Some((key, CopyMove { lv: *lv, from: *from, to }));
                }
                if (key.0, key.1) == (0, false) {
                    break;
                }
            }
        }
        best.map(|(_, shift)| shift)
    }

    /// Where a copy of a volume may go, with that disk's place; and how many looks that took.
    fn target(
        &self,
        (from, gives): (DiskId, &Load),
        copies: &[LvCopy],
        below: &[Vec<Takers>],
    ) -> (usize, Option<(usize, DiskId)>) {
        let others = copies.iter().map(|copy| copy.disk).filter(|disk| *disk != from);
        let others = others.map(|disk| self.by_id[&disk]);
        let level = self.intended.min(alone_at(self.by_id[&from], others.clone()));
        let others: Vec<Domain> = others.map(|disk| domain(disk, level)).collect();
        let (mut looks, mut tried) = (copies.len(), 0);
        for takers in &below[level as usize] {
            looks += 1;
            // Those of the next domains cost more.
            if !gives.improves(&takers.disks[0].load) || tried >= BALANCE_TRIED_MAX {
                break;
            }
            if others.contains(&takers.domain) {
                continue;
            }
            tried += 1;
            let spread = self.spread();
            let is_worth = |takes: &Load| gives.improves(takes) && gives.is_wide(takes, spread);
            let mut tries = takers.disks.iter().take(BALANCE_TRIED_MAX);
            looks += tries.len();
            if let Some(to) = tries.find(|taker| is_worth(&taker.load)) {
                looks += copies.len();
                let goes = self.is_first_to_go(from, to.disk, copies);
                return (looks, goes.then_some((to.place, to.disk)));
            }
        }
        (looks, None)
    }

    /// True if the copy on a disk is the one that goes, once another has one too.
    fn is_first_to_go(&self, from: DiskId, to: DiskId, copies: &[LvCopy]) -> bool {
        let replica = copies.iter().map(|copy| copy.replica).max().unwrap_or(0) + 1;
        let new = LvCopy::whole(replica, to);
        let all: Vec<&LvCopy> = copies.iter().chain([&new]).collect();
        let used = |disk| self.loads[&disk].used + u64::from(disk == to);
        fullest(&all, &self.by_id, &used).is_some_and(|goes| goes.disk == from)
    }

    fn perform(&mut self, shift: CopyMove) {
        let written = u64::from(self.of.written.contains(&shift.lv));
        if let Some(load) = self.loads.get_mut(&shift.from) {
            load.used = load.used.saturating_sub(1);
            load.written = load.written.saturating_sub(written);
        }
        if let Some(load) = self.loads.get_mut(&shift.to) {
            (load.used, load.free) = (load.used + 1, load.free.saturating_sub(1));
            load.written += written;
        }
        self.moved.insert(shift.lv);
    }
}

mod shares;
#[cfg(test)]
mod tests;
