//! The distance between a volume's copies, by the domains that they share. It decides which copy goes if there is one too
//! many, and where a new one increases it.
//!
//! # Invariants
//!
//! 1. Levels nest: a disk that shares its domain with none of the others at one level shares it with none at any narrower
//!    one. So the widest level at which it is alone says all that its going costs, and all that its coming gains.
//! 2. The copy that goes leaves the others at least as far apart, at every level, as if any other went.
//! 3. A disk takes the place of a copy only if it is alone at a level as wide at least: no level has fewer domains then.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use larder_types::DiskId;

use super::copies::{CopyRules, DiskInfo, LvCopy, Room, leaf};
use super::domains::{Domain, Leaf, Level, choose};

/// A fraction; the denominator is not 0.
#[derive(Clone, Copy)]
pub(super) struct Ratio(pub(super) u64, pub(super) u64);

impl Ratio {
    pub(super) fn cmp(self, other: Self) -> Ordering {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        product(self.0, other.1).cmp(&product(other.0, self.1))
    }
}

/// By how much the sum of `used² / size` falls when a disk gives a PV.
pub(super) fn gain(used: u64, size: u64) -> Ratio {
    Ratio((2 * used).saturating_sub(1), size.max(1))
}

/// The widest level at which a disk shares its domain with none of others: at the narrowest it does with none.
pub(super) fn alone_at<'a>(
    disk: &DiskInfo,
    others: impl Iterator<Item = &'a DiskInfo> + Clone,
) -> Level {
    let is_alone = |level: Level| {
        let domain = domain(disk, level);
        others.clone().all(|other| self::domain(other, level) != domain)
    };
    Level::ALL.into_iter().find(|level| is_alone(*level)).unwrap_or(Level::Leaf)
}

pub(super) fn domain(disk: &DiskInfo, level: Level) -> Domain {
    Leaf { id: disk.disk.0, domains: disk.domains, weight: disk.weight }.domain(level)
}

/// The widest level at which one of these copies is alone.
fn alone<'a>(
    copy: &LvCopy,
    copies: &'a [&'a LvCopy],
    disks: &'a BTreeMap<DiskId, &'a DiskInfo>,
) -> Level {
    let (disk, replica) = (disks[&copy.disk], copy.replica);
    let others = copies.iter().filter(move |other| other.replica != replica);
    alone_at(disk, others.map(|other| disks[&other.disk]))
}

/// Of a volume with a copy too many the one that goes: of those without which the others lie farthest apart, that on the
/// fullest disk.
pub(super) fn fullest<'a>(
    copies: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    used: &dyn Fn(DiskId) -> u64,
) -> Option<&'a LvCopy> {
    let load = |copy: &LvCopy| gain(used(copy.disk), disks[&copy.disk].pv_count.into());
    copies.iter().copied().max_by(|a, b| {
        let nearer = alone(a, copies, disks).cmp(&alone(b, copies, disks));
        let order = nearer.then(load(a).cmp(load(b)));
        order.then((!a.current, Reverse(a.disk)).cmp(&(!b.current, Reverse(b.disk))))
    })
}

/// The copy that goes, of a volume that has more than wanted. That is the one that was told to, else one that is being
/// filled on a disk without room. Else it is that of the fullest disk, or of one without room whose going leaves the others
/// as far apart. `None` while a copy that stays is being filled, unless that one goes. `None` also while fewer of those that
/// stay than wanted have everything and are on servers that are up.
pub(super) fn surplus<'a>(
    lasting: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    rules: CopyRules,
    used: &dyn Fn(DiskId) -> u64,
) -> Option<&'a LvCopy> {
    let is_whole = |copy: &&LvCopy| copy.current && disks[&copy.disk].up;
    let whole = lasting.iter().filter(|copy| is_whole(copy)).count();
    if lasting.iter().all(|copy| copy.current) && whole < rules.copies {
        return None;
    }
    let is_stuck = |copy: &&&LvCopy| !copy.current && disks[&copy.disk].room == Room::None;
    let ordered = lasting.iter().find(|copy| copy.ordered);
    let goes = ordered.or_else(|| lasting.iter().find(is_stuck)).copied();
    let goes = goes.or_else(|| {
        let fullest = fullest(lasting, disks, used)?;
        // It may lack what was put since its disk had room, and so hold up another that goes.
        let at = alone(fullest, lasting, disks);
        let mark_full = |copy: &&&LvCopy| {
            disks[&copy.disk].room == Room::None && alone(copy, lasting, disks) == at
        };
        Some(lasting.iter().find(mark_full).copied().unwrap_or(fullest))
    })?;
    let others = || lasting.iter().filter(|copy| copy.replica != goes.replica);
    let is_filled = others().all(|copy| copy.current);
    let whole = others().filter(|copy| is_whole(copy)).count();
    ((!goes.current || is_filled) && whole >= rules.copies).then_some(goes)
}

/// The copies that are left once all surplus ones are gone.
pub(super) fn kept<'a>(
    copies: &[&'a LvCopy],
    wanted: usize,
    disks: &BTreeMap<DiskId, &DiskInfo>,
    used: &dyn Fn(DiskId) -> u64,
) -> Vec<&'a LvCopy> {
    let mut kept = copies.to_vec();
    while kept.len() > wanted
        && let Some(goes) = fullest(&kept, disks, used)
    {
        kept.retain(|copy| copy.replica != goes.replica);
    }
    kept
}

/// The domains, from the widest level to the narrowest, in which disks take something.
pub(super) type Open = [BTreeSet<Domain>; Level::ALL.len()];

pub(super) fn open(takers: &[&DiskInfo]) -> Open {
    Level::ALL.map(|level| takers.iter().map(|disk| domain(disk, level)).collect())
}

/// True if one of these copies could lie further from the others, with the domains alone to go by.
pub(super) fn could_be_further_apart(
    copies: &[&LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    open: &Open,
) -> bool {
    let Some(alone) = copies.iter().map(|copy| alone(copy, copies, disks)).max() else {
        return false;
    };
    let is_new = |domain: &Domain| {
        copies.iter().all(|copy| self::domain(disks[&copy.disk], domain.0) != *domain)
    };
    let wider = Level::ALL.into_iter().filter(|level| *level < alone);
    wider.into_iter().any(|level| open[level as usize].iter().any(is_new))
}

/// A disk for one copy more that sets a volume further apart, once the copy goes that is the nearest to the others; that
/// copy, and the disk.
pub(super) fn farther<'a>(
    seed: u64,
    copies: &[&'a LvCopy],
    disks: &BTreeMap<DiskId, &DiskInfo>,
    takers: &[Leaf],
    used: &dyn Fn(DiskId) -> u64,
) -> Option<(&'a LvCopy, DiskId)> {
    let goes = fullest(copies, disks, used)?;
    let alone = alone(goes, copies, disks);
    let stays = copies.iter().filter(|copy| copy.replica != goes.replica);
    let stay: Vec<Leaf> = stays.map(|copy| leaf(disks[&copy.disk])).collect();
    Level::ALL.into_iter().filter(|level| *level < alone).find_map(|level| {
        let is_new = |leaf: &&Leaf| {
            let domain = leaf.domain(level);
            copies.iter().all(|copy| self::domain(disks[&copy.disk], level) != domain)
        };
        let takers: Vec<Leaf> = takers.iter().filter(is_new).copied().collect();
        let to = choose(seed, &takers, 1, level, &stay).first().map(|disk| DiskId(*disk))?;
        Some((goes, to))
    })
}
