//! Which volumes move so that disks are as full as their sizes allow: a new disk takes its share, and a full cluster
//! with an empty disk gets room for new volumes.
//!
//! It follows the rebalancing of Ambry (SIGMOD 2016, section 3): each disk has an ideal use, its share of all PVs by its
//! size; disks above it give volumes, and the disk furthest below it takes them. Volumes that take writes and volumes
//! that are full are told apart, so that each disk gives what it has more of than the disk that takes it.
//!
//! # Invariants
//!
//! 1. Only a disk above its ideal gives, and only one below its ideal takes.
//! 2. Each move lessens the sum of `used² / size` over all disks, so that moving ends and nothing moves back. Whether a
//!    copy too many is the one to go ([`surplus`]) is decided by the same comparison, from what is there: a manager that
//!    begins to lead goes on with moves that it never heard of.
//! 3. A move leaves the copies of a volume as far apart as volumes are to be, or further apart than they were.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId};

use super::domains::{Domain, Leaf, Level};
use super::members::Standing;
use super::straw::Weight;
use super::volumes::{CopyRules, DiskInfo, LvCopy, intended_level, leaf};

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
    /// Those of the used whose volumes take writes.
    written: u64,
    /// PVs that can be taken now.
    free: u32,
    takes: bool,
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

/// The copy that goes, of a volume that has more than wanted: the one that was told to, else that of the fullest disk, if
/// the others stay apart. `None` while a copy that stays is being filled.
pub(super) fn surplus<'a>(
    lasting: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    level: Level,
    used: &dyn Fn(DiskId) -> u64,
) -> Option<&'a LvCopy> {
    let load = |copy: &LvCopy| gain(used(copy.disk), disks[&copy.disk].pv_count.into());
    let apart = |without: &LvCopy| {
        let others = lasting.iter().filter(|copy| copy.replica != without.replica);
        let domains: Vec<Domain> =
            others.map(|copy| leaf(disks[&copy.disk]).domain(level)).collect();
        domains.iter().collect::<BTreeSet<_>>().len()
    };
    let fullest = || {
        lasting.iter().copied().max_by(|a, b| {
            let farther = apart(a).cmp(&apart(b));
            let order = farther.then(load(a).cmp(load(b)));
            order.then((!a.current, Reverse(a.disk)).cmp(&(!b.current, Reverse(b.disk))))
        })
    };
    let goes = lasting.iter().copied().find(|copy| copy.ordered).or_else(fullest)?;
    let waits = goes.current && lasting.iter().any(|copy| !copy.current);
    (!waits).then_some(goes)
}

/// Volumes whose copies all are there, and no more than wanted.
fn rests(copies: &[LvCopy], rules: CopyRules, loads: &BTreeMap<DiskId, Load>) -> bool {
    copies.len() <= rules.copies
        && copies.iter().all(|copy| copy.current && !copy.emptied && loads.contains_key(&copy.disk))
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
}

/// The next moves for balance; at most `limit`, and none if disks are as even as they can be.
#[must_use]
pub fn plan_balance(of: &Balance<'_>, limit: usize) -> Vec<Shift> {
    let mut plan = Plan::new(of);
    let mut shifts = Vec::new();
    while shifts.len() < limit
        && let Some(shift) = plan.next()
    {
        plan.carry_out(shift);
        shifts.push(shift);
    }
    shifts
}

struct Plan<'a> {
    of: &'a Balance<'a>,
    leaves: BTreeMap<DiskId, Leaf>,
    loads: BTreeMap<DiskId, Load>,
    /// Volumes that lie on a disk and may move.
    on: BTreeMap<DiskId, BTreeSet<LvId>>,
    copies: BTreeMap<LvId, &'a [LvCopy]>,
    level: Level,
}

impl<'a> Plan<'a> {
    fn new(of: &'a Balance<'a>) -> Self {
        let level = intended_level(of.disks, of.rules);
        let there = || of.disks.iter().filter(|it| it.standing != Standing::Out && it.pv_count > 0);
        let load = |disk: &DiskInfo| Load {
            used: u64::from(disk.pv_count.saturating_sub(disk.pv_free)),
            size: disk.pv_count.into(),
            written: 0,
            free: disk.pv_free,
            takes: disk.standing == Standing::In && disk.weight > Weight(0),
        };
        let mut plan = Self {
            of,
            leaves: there().map(|disk| (disk.disk, leaf(disk))).collect(),
            loads: there().map(|disk| (disk.disk, load(disk))).collect(),
            on: BTreeMap::new(),
            copies: BTreeMap::new(),
            level,
        };
        let by_id: BTreeMap<DiskId, &DiskInfo> = there().map(|disk| (disk.disk, disk)).collect();
        for (lv, copies) in of.lvs {
            let is_there = |copy: &&LvCopy| by_id.contains_key(&copy.disk) && !copy.emptied;
            let lasting: Vec<&LvCopy> = copies.iter().filter(is_there).collect();
            for copy in &lasting {
                let load = plan.loads.get_mut(&copy.disk).expect("a disk that is there");
                load.written += u64::from(of.written.contains(lv));
            }
            if rests(copies, of.rules, &plan.loads) {
                plan.copies.insert(*lv, copies);
                for copy in copies {
                    plan.on.entry(copy.disk).or_default().insert(*lv);
                }
            } else if lasting.len() > of.rules.copies {
                // It moves already, and what goes of it is as good as gone.
                let settled: Vec<LvCopy> =
                    lasting.iter().map(|copy| LvCopy { current: true, ..**copy }).collect();
                let settled: Vec<&LvCopy> = settled.iter().collect();
                let used = |disk| plan.loads[&disk].used;
                if let Some(goes) = surplus(&settled, &by_id, level, &used)
                    && let Some(load) = plan.loads.get_mut(&goes.disk)
                {
                    load.used = load.used.saturating_sub(1);
                }
            }
        }
        plan
    }

    /// Disks above their ideal, the fullest first, and disks below it that take something, the emptiest first.
    fn sides(&self) -> [Vec<(DiskId, Load)>; 2] {
        let used: u64 = self.loads.values().map(|load| load.used).sum();
        let size: u64 = self.loads.values().map(|load| load.size).sum();
        let ideal = Ratio(used, size.max(1));
        let against = |load: &Load| Ratio(load.used, load.size).cmp(ideal);
        let all = || self.loads.iter().map(|(disk, load)| (*disk, *load));
        let mut above: Vec<_> =
            all().filter(|(_, load)| against(load) == Ordering::Greater).collect();
        let mut below: Vec<_> = all()
            .filter(|(_, load)| against(load) == Ordering::Less && load.takes && load.free > 0)
            .collect();
        above.sort_by(|(_, a), (_, b)| gain(b.used, b.size).cmp(gain(a.used, a.size)));
        below.sort_by(|(_, a), (_, b)| cost(a.used, a.size).cmp(cost(b.used, b.size)));
        [above, below]
    }

    fn next(&self) -> Option<Shift> {
        let [above, below] = self.sides();
        for (from, gives) in &above {
            let improves = |takes: &Load| {
                gain(gives.used, gives.size).cmp(cost(takes.used, takes.size)) == Ordering::Greater
            };
            let wide = |takes: &Load| {
                let percent = |load: &Load| load.used * 100 / load.size;
                gives.used >= gives.size || percent(gives) > percent(takes) + self.of.spread_percent
            };
            // Disks below come emptiest first: where one is not worth it, no other is.
            let worth = below.iter().take_while(|(_, takes)| improves(takes) && wide(takes));
            let mut shifts = worth.filter_map(|to| {
                let lv = self.choose((*from, gives), *to)?;
                Some(Shift { lv, from: *from, to: to.0 })
            });
            if let Some(shift) = shifts.next() {
                return Some(shift);
            }
        }
        None
    }

    /// The volume that goes from one disk to another: of the kind of which the one has most against the other, or one that
    /// takes writes if room is wanted at once; of these the one drawn last, which holds least.
    fn choose(&self, (from, gives): (DiskId, &Load), (to, takes): (DiskId, Load)) -> Option<LvId> {
        let excess = |of: fn(&Load) -> u64| {
            i128::from(of(gives)) * i128::from(takes.size)
                - i128::from(of(&takes)) * i128::from(gives.size)
        };
        let (written, full) =
            (excess(|load| load.written), excess(|load| load.used.saturating_sub(load.written)));
        let wants_written = gives.used >= gives.size || written > full;
        let domain = |disk: DiskId| self.leaves[&disk].domain(self.level);
        // Else another copy than this disk's would be the one to go.
        let goes_first = |other: DiskId| {
            let load = self.loads[&other];
            let order = gain(load.used, load.size).cmp(gain(gives.used, gives.size));
            order.then(from.cmp(&other)) == Ordering::Greater && domain(from) != domain(to)
        };
        let fits = |lv: &&LvId| {
            let copies = self.copies.get(lv).copied().unwrap_or(&[]);
            copies
                .iter()
                .map(|copy| copy.disk)
                .filter(|disk| *disk != from)
                .all(|disk| disk != to && domain(disk) != domain(to) && !goes_first(disk))
        };
        let is_wanted = |lv: &LvId| self.of.written.contains(lv) == wants_written;
        let there = self.on.get(&from)?.iter().filter(fits);
        there.copied().min_by_key(|lv| (!is_wanted(lv), Reverse(*lv)))
    }

    fn carry_out(&mut self, shift: Shift) {
        let written = u64::from(self.of.written.contains(&shift.lv));
        for (disk, takes) in [(shift.from, false), (shift.to, true)] {
            let load = self.loads.get_mut(&disk).expect("a disk that was chosen");
            if takes {
                (load.used, load.written, load.free) =
                    (load.used + 1, load.written + written, load.free - 1);
            } else {
                (load.used, load.written) = (load.used - 1, load.written.saturating_sub(written));
            }
        }
        // A volume moves once in a plan.
        self.on.values_mut().for_each(|lvs| {
            lvs.remove(&shift.lv);
        });
    }
}

#[cfg(test)]
mod tests;
