//! Picks over failure domains: on distinct domains at the widest level that has enough of them.
//!
//! # Invariants
//!
//! 1. No two picks share a domain at the level that the choice says it reached.
//! 2. At the levels above, picks are spread as evenly as candidates allow: no domain takes more than its share
//!    rounded up while another could take it.
//! 3. Candidates of weight 0 are never picked.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use larder_types::RegionId;
use serde::{Deserialize, Serialize};

use super::straw::{Weight, draw, hash, shorter};

/// A rack, within its region.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct RackId(pub u32);

/// A machine, within its rack.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct MachineId(pub u32);

/// The domains that fail together with a server, from wide to narrow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct FailureDomains {
    /// Region or site.
    pub region: RegionId,
    /// Rack in it.
    pub rack: RackId,
    /// Machine in it.
    pub machine: MachineId,
}

/// The distance between picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Each in a region of its own.
    Region,
    /// Each in a rack of its own.
    Rack,
    /// Each on a machine of its own.
    Machine,
    /// Each a candidate of its own: a disk, or a server where members are chosen.
    Leaf,
}

impl Level {
    /// From wide to narrow.
    pub const ALL: [Level; 4] = [Level::Region, Level::Rack, Level::Machine, Level::Leaf];
}

/// A candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its id, unique among the candidates.
    pub id: u32,
    /// Where it is.
    pub domains: FailureDomains,
    /// Its share.
    pub weight: Weight,
}

/// A domain by its path from the top; what is below the level is zero.
pub(super) type Domain = (Level, [u32; 4]);

impl Leaf {
    pub(super) fn domain(&self, level: Level) -> Domain {
        let FailureDomains { region, rack, machine } = self.domains;
        let mut path = [u32::from(region.0), rack.0, machine.0, self.id];
        path[level as usize + 1..].fill(0);
        (level, path)
    }
}

/// The picks, and the distance between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Level at which no two picks share a domain.
    pub level: Level,
    /// Ids in the order of their straws; fewer than wanted if there are no more candidates.
    pub picks: Vec<u32>,
}

/// The widest level at which candidates with a weight have `wanted` domains or more.
#[must_use]
pub fn widest(leaves: &[Leaf], wanted: usize) -> Option<Level> {
    Level::ALL.into_iter().find(|level| domain_count(leaves, *level, wanted) >= wanted)
}

/// Domains of a level that have a candidate with a weight, counted up to `most`: of many candidates few are looked at.
pub(super) fn domain_count(leaves: &[Leaf], level: Level, most: usize) -> usize {
    let mut domains: Vec<Domain> = Vec::new();
    for leaf in leaves.iter().filter(|leaf| leaf.weight > Weight(0)) {
        if domains.len() >= most {
            break;
        }
        let domain = leaf.domain(level);
        if !domains.contains(&domain) {
            domains.push(domain);
        }
    }
    domains.len()
}

/// A candidate with its straw; the one that is taken first is the least.
#[derive(PartialEq, Eq)]
struct Ranked<'a> {
    draw: u64,
    leaf: &'a Leaf,
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let straw = |it: &Self| (it.draw, u64::from(it.leaf.weight.0));
        shorter(straw(self), straw(other)).then(self.leaf.id.cmp(&other.leaf.id))
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Picks `wanted` candidates on distinct domains at the widest level that has as many; all candidates if there
/// are fewer.
#[must_use]
pub fn spread(seed: u64, leaves: &[Leaf], wanted: usize) -> Choice {
    let level = widest(leaves, wanted).unwrap_or(Level::Leaf);
    Choice { level, picks: choose(seed, leaves, wanted, level, &[]) }
}

#[cfg(test)]
thread_local! {
    /// Choices that were made: each draws a straw for every candidate.
    pub(crate) static CHOICES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Picks up to `wanted` candidates on distinct domains of `level`, none of them in a domain that has one of
/// `taken` already.
///
/// Each candidate draws a straw of its own, whatever the level; candidates are taken in the order of their
/// straws where the domains have room. A domain so gets picks by the sum of its weights, and a new candidate in
/// it draws none to its neighbours.
///
/// # Panics
/// If two candidates have one id.
#[must_use]
pub fn choose(seed: u64, leaves: &[Leaf], wanted: usize, level: Level, taken: &[Leaf]) -> Vec<u32> {
    #[cfg(test)]
    CHOICES.with(|choices| choices.set(choices.get() + 1));
    let live = leaves.iter().filter(|leaf| leaf.weight > Weight(0));
    let ranked = live.map(|leaf| Ranked { draw: draw(hash(seed, &[u64::from(leaf.id)])), leaf });
    // Of many candidates nearly always the first few are taken.
    let mut ranked: BinaryHeap<Reverse<Ranked<'_>>> = ranked.map(Reverse).collect();
    // The most that one domain may have: its share rounded up, and one at `level` itself.
    let most = wanted + taken.len();
    let rooms: Vec<(Level, usize)> = Level::ALL
        .into_iter()
        .filter(|at| *at <= level)
        .map(|at| {
            let share = most.div_ceil(domain_count(leaves, at, most).max(1));
            (at, if at == level { 1 } else { share })
        })
        .collect();
    let mut load: BTreeMap<Domain, usize> = BTreeMap::new();
    let count = |leaf: &Leaf, load: &mut BTreeMap<Domain, usize>| {
        rooms.iter().for_each(|(at, _)| *load.entry(leaf.domain(*at)).or_default() += 1);
    };
    taken.iter().for_each(|leaf| count(leaf, &mut load));
    let mut picks = Vec::with_capacity(wanted);
    let fits = |leaf: &Leaf, load: &BTreeMap<Domain, usize>, keeps_shares: bool| {
        let mut counted = rooms.iter().filter(|(at, _)| keeps_shares || *at == level);
        counted.all(|(at, room)| load.get(&leaf.domain(*at)).is_none_or(|n| n < room))
    };
    let mut passed: Vec<&Leaf> = Vec::new();
    let mut last = None;
    while picks.len() < wanted
        && let Some(Reverse(Ranked { leaf, .. })) = ranked.pop()
    {
        assert_ne!(last.replace(leaf.id), Some(leaf.id), "candidates have ids of their own");
        if fits(leaf, &load, true) {
            count(leaf, &mut load);
            picks.push(leaf.id);
        } else {
            passed.push(leaf);
        }
    }
    // Shares give way where they leave too few.
    for leaf in passed {
        if picks.len() < wanted && fits(leaf, &load, false) {
            count(leaf, &mut load);
            picks.push(leaf.id);
        }
    }
    picks
}
