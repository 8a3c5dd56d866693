//! Volumes that take writes and full ones, evened each for themselves: as Ambry has it, whose disks have an ideal number of
//! partitions of either kind. What is written is read most too, so that the use of disks alone does not even requests.
//!
//! # Invariants
//!
//! 1. A kind is evened as if disks held nothing else, by the rules of [`super`]. Only a disk above its ideal number gives,
//!    only one below takes, and each move lessens the sum of `number² / size` of its kind. It changes no number of the other
//!    kind, so that the two sums fall together: moving ends.
//! 2. The copy that goes is that of the disk with most of the kind
//!    ([`plan_moves_of_shares`](crate::placement::plan_moves_of_shares)). The comparison that began a move also ends it,
//!    unless the volume became full meanwhile: then the copy that came may be the one that goes.
//!
//! No manager plans so. Before one does, [`Plan::set_apart`] has to go by the ideal number of full volumes. As it is, a
//! small third machine is filled past its share, and new volumes find no three machines.

use std::cmp::Ordering;
use std::mem::swap;

use larder_types::LvId;

use super::{CopyMove, Load, LvCopy, Plan, Ratio, seed};
use crate::limits::SHARES_SPREAD_PERCENT;

/// The volumes that are evened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    All,
    Written,
    Full,
}

impl Load {
    /// Returns the volumes that count beside a volume: all, or those of its kind if kinds are evened.
    pub(super) fn of_kind(&self, by_kind: bool, is_written: bool) -> u64 {
        match (by_kind, is_written) {
            (false, _) => self.used,
            (true, true) => self.written,
            (true, false) => self.used.saturating_sub(self.written),
        }
    }
}

impl<'a> Plan<'a> {
    /// Moves of volumes that take writes, and then of full ones, each kind as if disks held nothing else.
    pub(super) fn even_shares(&mut self, limit: usize) -> Vec<CopyMove> {
        for load in self.loads.values_mut() {
            let written = load.written.min(load.used);
            (load.used, load.aside) = (written, load.used - written);
        }
        (self.kind, self.by_chance) = (Kind::Written, self.has_new());
        let Ratio(written, size) = self.ideal();
        self.written_spread = Ratio(written * SHARES_SPREAD_PERCENT, size * 100);
        let mut shifts = self.even_out(limit);
        self.loads.values_mut().for_each(|load| swap(&mut load.used, &mut load.aside));
        (self.kind, self.by_chance) = (Kind::Full, true);
        (self.on, self.barren) = Default::default();
        shifts.extend(self.even_out(limit - shifts.len()));
        shifts
    }

    /// True if a disk has less than half of its ideal number: it is new. Volumes that are nearly empty would all fill up there
    /// later, and be read little until then: it gets some by chance.
    fn has_new(&self) -> bool {
        let Ratio(ideal, size) = self.ideal();
        let half = Ratio(ideal, 2 * size);
        let is_new = |load: &Load| Ratio(load.used, load.size).cmp(half) == Ordering::Less;
        self.loads.values().any(|load| load.takes && is_new(load))
    }

    /// By how much the uses of two disks have to differ for a move from one to the other.
    pub(super) fn spread(&self) -> Ratio {
        match self.kind {
            Kind::Written => self.written_spread,
            Kind::All | Kind::Full => Ratio(self.of.spread_percent, 100),
        }
    }

    /// Of volumes that suit as well the one with the highest goes first.
    pub(super) fn turn(&self, lv: LvId) -> u64 {
        if self.by_chance { seed(lv) } else { lv.0.into() }
    }

    /// Has those that go first stand last.
    pub(super) fn order(&mut self) {
        if self.by_chance {
            for lvs in self.on.values_mut() {
                lvs.sort_by_cached_key(|(lv, _)| seed(*lv));
            }
        }
    }

    /// All volumes that take writes.
    pub(super) fn written(&self) -> Vec<&'a (LvId, Vec<LvCopy>)> {
        let lvs = self.of.lvs;
        let of_id = |id: &LvId| lvs.binary_search_by_key(id, |(lv, _)| *lv).ok().map(|at| &lvs[at]);
        self.of.written.iter().filter_map(of_id).collect()
    }
}
