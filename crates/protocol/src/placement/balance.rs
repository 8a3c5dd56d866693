//! Which volumes move so that disks are as full as their sizes allow: a new disk takes its share, and a full cluster
//! with an empty disk gets room for new volumes.
//!
//! It follows the rebalancing of Ambry (SIGMOD 2016, section 3): each disk has an ideal use, its share of all PVs by its
//! size; disks above it give volumes, and the disk furthest below it takes them. Volumes that are full move; one that
//! takes writes would take no objects while a copy of it goes, and its group would draw another. It moves only from a disk
//! that is full, and only while there is no room for a new volume.
//!
//! # Invariants
//!
//! 1. Only a disk above its ideal gives, and only one below its ideal takes.
//! 2. Each move lessens the sum of `used² / size` over all disks, so that moving ends and nothing moves back. Which of the
//!    copies is the one too many ([`fullest`]) is decided by the same comparison, from what is there: a manager that begins
//!    to lead goes on with moves that it never heard of.
//! 3. A move leaves the copies of a volume as far apart as they were, or further apart, at every level of domains. A volume that has fewer copies than
//!    wanted does not move: its new copy would be none too many.
//! 4. A plan looks at no more volumes than its caller allows, and never more than [`BALANCE_LOOKS_MAX`] times at anything,
//!    whatever the volumes and disks. Where nothing can move it says so from the loads of disks alone, if it can.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId};

use super::domains::{Domain, Leaf, Level};
use super::members::Standing;
use super::straw::Weight;
use super::volumes::{CopyRules, DiskInfo, LvCopy, Room, intended_level, leaf};
use crate::limits::{BALANCE_LOOKS_MAX, BALANCE_TRIED_MAX};

/// A copy of a volume goes from one disk to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
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
    used: u64,
    size: u64,
    /// PVs that can be taken now.
    free: u32,
    /// New volumes may lie there.
    is_open: bool,
    /// The same, and it had room of late.
    takes: bool,
    domain: Domain,
}

/// A fraction; the denominator is not 0.
#[derive(Clone, Copy)]
struct Ratio(u64, u64);

impl Ratio {
    fn cmp(self, other: Self) -> Ordering {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        product(self.0, other.1).cmp(&product(other.0, self.1))
    }
}

/// By how much the sum of `used² / size` falls when a disk gives a PV.
fn gain(used: u64, size: u64) -> Ratio {
    Ratio((2 * used).saturating_sub(1), size.max(1))
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

    /// True if the sum of squares falls when this one gives to another.
    fn improves(&self, takes: &Self) -> bool {
        self.gain().cmp(takes.cost()) == Ordering::Greater
    }

    /// True if their uses differ by so many points, or this one is full.
    fn is_wide(&self, takes: &Self, spread_percent: u64) -> bool {
        let percents = |used: u64, size: u64| 100 * u128::from(used) * u128::from(size);
        let spread = u128::from(spread_percent) * u128::from(self.size) * u128::from(takes.size);
        self.used >= self.size
            || percents(self.used, takes.size) >= percents(takes.used, self.size) + spread
    }
}

/// How far apart disks lie: the domains that they are in, from the widest level to the narrowest.
pub(super) type Spread = [usize; Level::ALL.len()];

pub(super) fn spread<'a>(disks: impl Iterator<Item = &'a DiskInfo>) -> Spread {
    let disks: Vec<Leaf> = disks.map(leaf).collect();
    Level::ALL.map(|level| {
        let domains = disks.iter().map(|disk| disk.domain(level));
        domains.collect::<BTreeSet<Domain>>().len()
    })
}

/// Of a volume with a copy too many, the one on the fullest disk, if the others stay as far apart as without another one.
pub(super) fn fullest<'a>(
    copies: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    used: &dyn Fn(DiskId) -> u64,
) -> Option<&'a LvCopy> {
    let load = |copy: &LvCopy| gain(used(copy.disk), disks[&copy.disk].pv_count.into());
    let apart = |without: &LvCopy| {
        let others = copies.iter().filter(|copy| copy.replica != without.replica);
        spread(others.map(|copy| disks[&copy.disk]))
    };
    copies.iter().copied().max_by(|a, b| {
        let farther = apart(a).cmp(&apart(b));
        let order = farther.then(load(a).cmp(load(b)));
        order.then((!a.current, Reverse(a.disk)).cmp(&(!b.current, Reverse(b.disk))))
    })
}

/// The copy that goes, of a volume that has more than wanted: the one that was told to, else one that is being filled on a
/// disk without room, else that of the fullest disk. `None` while a copy that stays is being filled, or too few of those
/// that stay are on servers that are up.
pub(super) fn surplus<'a>(
    lasting: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    rules: CopyRules,
    used: &dyn Fn(DiskId) -> u64,
) -> Option<&'a LvCopy> {
    let is_up = |copy: &&&LvCopy| copy.current && disks[&copy.disk].up;
    if lasting.iter().all(|copy| copy.current)
        && lasting.iter().filter(is_up).count() < rules.copies
    {
        return None;
    }
    let is_stuck = |copy: &&&LvCopy| !copy.current && disks[&copy.disk].room == Room::None;
    let ordered = lasting.iter().find(|copy| copy.ordered);
    let goes = ordered.or_else(|| lasting.iter().find(is_stuck)).copied();
    let goes = goes.or_else(|| fullest(lasting, disks, used))?;
    let stays = |copy: &&&LvCopy| copy.replica != goes.replica;
    let is_whole = |copy: &&LvCopy| copy.current && disks[&copy.disk].up;
    let is_filled = lasting.iter().filter(stays).all(|copy| copy.current);
    let whole = lasting.iter().filter(stays).filter(|copy| is_whole(copy)).count();
    (!goes.current || is_filled && whole >= rules.copies).then_some(goes)
}

/// What [`plan_balance`] looks at.
#[derive(Debug, Clone, Copy)]
pub struct Balance<'a> {
    /// Volumes with their copies.
    pub lvs: &'a [(LvId, Vec<LvCopy>)],
    /// Volumes that take writes; the others are full.
    pub written: &'a BTreeSet<LvId>,
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
    pub shifts: Vec<Shift>,
    /// Place among the volumes where the next plan is to go on.
    pub next: usize,
    /// True if all was looked at that could move: else there may be more.
    pub is_whole: bool,
}

/// The next moves for balance; at most `limit`, and none if disks are as even as they can be.
#[must_use]
pub fn plan_balance(of: &Balance<'_>, limit: usize) -> Planned {
    let unseen = Planned { next: of.first, ..Planned::default() };
    if limit == 0 || of.disks.is_empty() {
        return unseen;
    }
    let mut plan = Plan::new(of);
    let shifts = plan.shifts(limit);
    let seen = plan.seen.min(of.lvs.len());
    let is_whole = plan.is_even || seen == of.lvs.len() && plan.looks < BALANCE_LOOKS_MAX;
    let next = (of.first + seen).checked_rem(of.lvs.len()).unwrap_or(0);
    Planned { shifts, next, is_whole }
}

struct Plan<'a> {
    of: &'a Balance<'a>,
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
    /// No two disks differ enough.
    is_even: bool,
    looks: usize,
}

/// How well a volume suits: the lowest goes first.
type Rank = (usize, bool, Reverse<LvId>);

/// Disks of one domain that take something, the emptiest first.
struct Takers {
    domain: Domain,
    disks: Vec<(DiskId, Load)>,
}

/// What gives and what takes.
struct Sides {
    /// Disks above their ideal that are worth a move, the fullest first.
    above: Vec<(DiskId, Load)>,
    /// Domains with disks below it, that with the emptiest disk first.
    below: Vec<Takers>,
}

impl<'a> Plan<'a> {
    fn new(of: &'a Balance<'a>) -> Self {
        let level = intended_level(of.disks, of.rules);
        let there = || of.disks.iter().filter(|it| it.standing != Standing::Out && it.pv_count > 0);
        let load = |disk: &DiskInfo| {
            let is_open = disk.standing == Standing::In && disk.weight > Weight(0);
            Load {
                used: u64::from(disk.pv_count.saturating_sub(disk.pv_free)),
                size: disk.pv_count.into(),
                free: disk.pv_free,
                is_open,
                takes: is_open && disk.room == Room::Some,
                domain: leaf(disk).domain(level),
            }
        };
        let mut plan = Self {
            of,
            by_id: there().map(|disk| (disk.disk, disk)).collect(),
            loads: there().map(|disk| (disk.disk, load(disk))).collect(),
            on: BTreeMap::new(),
            moved: BTreeSet::new(),
            barren: BTreeSet::new(),
            seen: 0,
            is_even: false,
            looks: of.disks.len(),
        };
        plan.count_moving();
        plan
    }

    /// What moves already, or was left by a disk that is full again, is as good as gone from where it goes.
    fn count_moving(&mut self) {
        for (_, copies) in self.of.lvs.iter().filter(|lv| lv.1.len() > self.of.rules.copies) {
            self.looks += copies.len();
            let is_there = |copy: &&LvCopy| self.by_id.contains_key(&copy.disk) && !copy.emptied;
            let lasting: Vec<&LvCopy> = copies.iter().filter(is_there).collect();
            if lasting.len() <= self.of.rules.copies || self.looks >= BALANCE_LOOKS_MAX {
                continue;
            }
            let used = |disk| self.loads[&disk].used;
            let ordered = lasting.iter().copied().find(|copy| copy.ordered);
            let goes = ordered.or_else(|| fullest(&lasting, &self.by_id, &used));
            if let Some(load) = goes.and_then(|copy| self.loads.get_mut(&copy.disk)) {
                load.used = load.used.saturating_sub(1);
            }
        }
    }

    fn shifts(&mut self, limit: usize) -> Vec<Shift> {
        let mut shifts = Vec::new();
        let sides = self.sides();
        self.is_even = sides.above.is_empty();
        if self.is_even {
            return shifts;
        }
        self.look_at_lvs(&sides);
        while shifts.len() < limit
            && self.looks < BALANCE_LOOKS_MAX
            && let Some(shift) = self.next()
        {
            self.carry_out(shift);
            shifts.push(shift);
        }
        shifts
    }

    fn sides(&mut self) -> Sides {
        self.looks += self.loads.len();
        let used: u64 = self.loads.values().map(|load| load.used).sum();
        let size: u64 = self.loads.values().map(|load| load.size).sum();
        let ideal = Ratio(used, size.max(1));
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
        let is_worth = |load: &Load| {
            let improved = below.partition_point(|(_, takes)| load.improves(takes));
            let least = improved.checked_sub(1).map(|last| &least[last]);
            least.is_some_and(|takes| load.is_wide(takes, self.of.spread_percent))
        };
        let gives = |(disk, load): &(DiskId, Load)| {
            let is_above = against(load) == Ordering::Greater;
            is_above && !self.barren.contains(disk) && is_worth(load)
        };
        let mut above: Vec<(DiskId, Load)> = all().filter(gives).collect();
        above.sort_by(|(_, a), (_, b)| b.gain().cmp(a.gain()));
        let mut at: BTreeMap<Domain, usize> = BTreeMap::new();
        let mut domains: Vec<Takers> = Vec::new();
        for (disk, load) in below {
            let place = *at.entry(load.domain).or_insert(domains.len());
            if place == domains.len() {
                domains.push(Takers { domain: load.domain, disks: Vec::new() });
            }
            domains[place].disks.push((disk, load));
        }
        Sides { above, below: domains }
    }

    /// Finds the volumes that may move, among those to be looked at.
    fn look_at_lvs(&mut self, sides: &Sides) {
        let gives: BTreeSet<DiskId> = sides.above.iter().map(|(disk, _)| *disk).collect();
        let (before, from) = self.of.lvs.split_at(self.of.first.min(self.of.lvs.len()));
        for lv in from.iter().chain(before).take(self.of.lvs_max) {
            if self.looks >= BALANCE_LOOKS_MAX {
                break;
            }
            (self.looks, self.seen) = (self.looks + 1, self.seen + 1);
            let is_at_rest = |copy: &LvCopy| {
                let is_whole = copy.current && !copy.emptied && !copy.ordered;
                is_whole && self.loads.contains_key(&copy.disk)
            };
            if lv.1.len() == self.of.rules.copies && lv.1.iter().all(is_at_rest) {
                for copy in lv.1.iter().filter(|copy| gives.contains(&copy.disk)) {
                    self.on.entry(copy.disk).or_default().push(lv);
                }
            }
        }
    }

    fn next(&mut self) -> Option<Shift> {
        let sides = self.sides();
        let is_short = self.is_short();
        for from in &sides.above {
            if let Some(shift) = self.give(from, &sides.below, is_short) {
                return Some(shift);
            }
            self.barren.insert(from.0);
            if self.looks >= BALANCE_LOOKS_MAX {
                break;
            }
        }
        None
    }

    /// True if a new volume would find too few domains with room, once planned moves are through.
    fn is_short(&self) -> bool {
        let open = self.loads.values().filter(|load| load.is_open && load.used < load.size);
        open.map(|load| load.domain).collect::<BTreeSet<_>>().len() < self.of.rules.copies
    }

    /// A volume that goes from a disk: to the emptiest that takes one of it, and of these volumes the one drawn last.
    fn give(
        &mut self,
        (from, gives): &(DiskId, Load),
        below: &[Takers],
        is_short: bool,
    ) -> Option<Shift> {
        let wants_written = is_short && gives.used >= gives.size;
        let mut best: Option<(Rank, Shift)> = None;
        for (lv, copies) in self.on.get(from)?.iter().rev() {
            let is_written = self.of.written.contains(lv);
            if self.moved.contains(lv) || is_written && !wants_written {
                continue;
            }
            if self.looks >= BALANCE_LOOKS_MAX {
                break;
            }
            let (looks, found) = self.target((*from, gives), copies, below);
            self.looks += looks;
            if let Some((rank, to)) = found {
                let key = (rank, is_written != wants_written, Reverse(*lv));
                if best.as_ref().is_none_or(|(known, _)| key < *known) {
                    best = Some((key, Shift { lv: *lv, from: *from, to }));
                }
                if (key.0, key.1) == (0, false) {
                    break;
                }
            }
        }
        best.map(|(_, shift)| shift)
    }

    /// Where a copy of a volume may go, with that domain's place; and how many looks that took.
    fn target(
        &self,
        (from, gives): (DiskId, &Load),
        copies: &[LvCopy],
        below: &[Takers],
    ) -> (usize, Option<(usize, DiskId)>) {
        let others = copies.iter().filter(|copy| copy.disk != from);
        let others: Vec<Domain> = others.map(|copy| self.loads[&copy.disk].domain).collect();
        let (mut looks, mut tried) = (copies.len(), 0);
        for (rank, takers) in below.iter().enumerate() {
            looks += copies.len();
            // Those of the next domains cost more.
            if !gives.improves(&takers.disks[0].1) || tried >= BALANCE_TRIED_MAX {
                break;
            }
            if others.contains(&takers.domain) || self.is_nearer((from, takers.disks[0].0), copies)
            {
                continue;
            }
            tried += 1;
            let spread = self.of.spread_percent;
            let is_worth = |takes: &Load| gives.improves(takes) && gives.is_wide(takes, spread);
            let mut tries = takers.disks.iter().take(BALANCE_TRIED_MAX);
            looks += tries.len();
            if let Some((to, _)) = tries.find(|(_, takes)| is_worth(takes)) {
                looks += copies.len();
                let goes = self.is_first_to_go(from, *to, copies);
                return (looks, goes.then_some((rank, *to)));
            }
        }
        (looks, None)
    }

    /// True if copies lie nearer together at any level, once one is on another disk: all on one machine if the volume is apart by
    /// disks alone.
    fn is_nearer(&self, (from, to): (DiskId, DiskId), copies: &[LvCopy]) -> bool {
        let disks = || copies.iter().map(|copy| copy.disk);
        let of = |disk: DiskId| self.by_id[&disk];
        let before = spread(disks().map(of));
        let after = spread(disks().filter(|disk| *disk != from).chain([to]).map(of));
        after.iter().zip(before).any(|(after, before)| *after < before)
    }

    /// True if the copy on a disk is the one that goes, once another has one too.
    fn is_first_to_go(&self, from: DiskId, to: DiskId, copies: &[LvCopy]) -> bool {
        let replica = copies.iter().map(|copy| copy.replica).max().unwrap_or(0) + 1;
        let new = LvCopy { replica, disk: to, current: true, emptied: false, ordered: false };
        let all: Vec<&LvCopy> = copies.iter().chain([&new]).collect();
        let used = |disk| self.loads[&disk].used + u64::from(disk == to);
        fullest(&all, &self.by_id, &used).is_some_and(|goes| goes.disk == from)
    }

    fn carry_out(&mut self, shift: Shift) {
        if let Some(load) = self.loads.get_mut(&shift.from) {
            load.used = load.used.saturating_sub(1);
        }
        if let Some(load) = self.loads.get_mut(&shift.to) {
            (load.used, load.free) = (load.used + 1, load.free.saturating_sub(1));
        }
        self.moved.insert(shift.lv);
    }
}

#[cfg(test)]
mod tests;
