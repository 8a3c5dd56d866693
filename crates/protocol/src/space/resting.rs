//! Freed blocks that rest before they are allocated again, so that reads which began earlier still find their bytes
//! (ADR 76).
//!
//! ```text
//!  freed ──▶ waiting ──every floor is above──▶ resting ──a minute, or space is short──▶ free
//! ```
//!
//! # Invariants
//!
//! 1. What rests could be free: every floor is above what freed it. So no safety depends on a rest, and a clock may end it.
//! 2. No put lacks space because of what rests: before an allocation fails it takes the oldest of it. While a disk has no
//!    room for some block nothing rests, as there may be room where there was some before.
//! 3. At most [`RESTING_EXTENTS_MAX`] extents of an LV rest, and [`LvInfo::resting_max`] blocks. A put is given blocks that
//!    were never written before those that rest. So without a bound overwrites would write each LV of the group to its end,
//!    and the file system would be full of blocks that no other group can use.
//! 4. Nothing new rests while the driver says that little room is left on the disk, and what rests is soon free.

use std::collections::VecDeque;

use larder_types::{Extent, LvId};

use super::{Lv, VolumeGroup};
use crate::limits::{
    RESTING_BLOCKS_MIN, RESTING_EXTENTS_MAX, RESTING_PART, RESTING_PART_MAX, RESTS_ENDED_MAX,
};
use crate::lv::LvInfo;

/// Extents that are given up at once: some of them may be one run with what is free.
const GIVEN_UP_TOGETHER: usize = 16;

/// The time that freed blocks rest, and the time now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest {
    for_ms: u64,
    now_ms: u64,
    /// A disk has no room for some block, or little is left.
    is_crowded: bool,
}

/// Extents of an LV that rest, by the time since when they do; ascending.
#[derive(Debug, Default)]
pub(super) struct Resting {
    extents: VecDeque<(u64, Extent)>,
    blocks: u32,
    /// Blocks that became free before they had rested.
    given_up: u64,
}

impl Resting {
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().map(|(_, extent)| *extent)
    }

    /// The time since when the oldest extent rests.
    fn oldest_ms(&self) -> Option<u64> {
        self.extents.front().map(|(since_ms, _)| *since_ms)
    }

    fn push(&mut self, since_ms: u64, extent: Extent) {
        let is_later = |(before, _): &(u64, Extent)| *before <= since_ms;
        assert!(self.extents.back().is_none_or(is_later), "extents rest in their order");
        assert!(self.extents.len() < RESTING_EXTENTS_MAX, "there is a place for one more");
        self.extents.push_back((since_ms, extent));
        self.blocks += extent.blocks;
    }

    /// Takes out the oldest extent, if it has rested since before some time.
    fn pop_if(&mut self, has_rested: impl Fn(u64) -> bool) -> Option<Extent> {
        let (_, extent) = self.extents.pop_front_if(|(since_ms, _)| has_rested(*since_ms))?;
        self.blocks -= extent.blocks;
        if self.extents.is_empty() {
            self.extents.shrink_to(GIVEN_UP_TOGETHER);
        }
        Some(extent)
    }
}

impl LvInfo {
    /// Blocks of it that rest at most.
    fn resting_max(&self) -> u32 {
        let least = RESTING_BLOCKS_MIN.min(self.blocks / RESTING_PART_MAX);
        least.max(self.blocks / RESTING_PART)
    }
}

impl Lv {
    /// An extent is free, or is to rest before. The oldest that rest make room for it.
    pub(super) fn rest(&mut self, extent: Extent, rest: Rest) {
        if rest.for_ms == 0 {
            return self.release(extent);
        }
        let blocks_max = self.info.resting_max();
        if rest.is_crowded || extent.blocks > blocks_max {
            self.resting.given_up += u64::from(extent.blocks);
            return self.release(extent);
        }
        while self.resting.extents.len() >= RESTING_EXTENTS_MAX
            || self.resting.blocks + extent.blocks > blocks_max
        {
            self.give_oldest().expect("what rests is the reason");
        }
        self.resting.push(rest.now_ms, extent);
    }

    /// The extent that has rested longest is free. Returns its blocks.
    fn give_oldest(&mut self) -> Option<u32> {
        let extent = self.resting.pop_if(|_| true)?;
        self.resting.given_up += u64::from(extent.blocks);
        self.release(extent);
        Some(extent.blocks)
    }

    /// The time since when its oldest blocks rest, if there are so many with those that are free.
    pub(super) fn rests_since(&self, need: u32) -> Option<u64> {
        let since_ms = self.resting.oldest_ms()?;
        (self.runs.blocks() + self.resting.blocks() >= need).then_some(since_ms)
    }

    /// Blocks of which some rested, the oldest.
    pub(super) fn allocate_resting(&mut self, need: u32) -> Option<Vec<Extent>> {
        loop {
            let (mut extents, mut blocks) = (0, 0);
            while extents < GIVEN_UP_TOGETHER || self.runs.blocks() < need {
                let Some(given) = self.give_oldest() else { break };
                (extents, blocks) = (extents + 1, blocks + given);
                if blocks >= need {
                    break;
                }
            }
            if extents == 0 {
                return None;
            }
            if let Some(found) = self.runs.allocate(need) {
                return Some(found);
            }
        }
    }
}

impl VolumeGroup {
    /// Freed blocks rest for so long from now on, unless space is short.
    pub fn rest_for(&mut self, ms: u64) {
        self.rest.for_ms = ms;
    }

    /// Little room is left on the disk, or again more: while it is little nothing rests.
    pub(crate) fn note_free_space(&mut self, is_little: bool) {
        self.rest.is_crowded = is_little;
    }

    /// It is this time now: what is freed rests from then on.
    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.rest.now_ms = self.rest.now_ms.max(now_ms);
    }

    /// The rest of what becomes free now.
    pub(super) fn rest_now(&self) -> Rest {
        let is_withheld = self.lvs.values().any(|lv| lv.withheld.is_some());
        Rest { is_crowded: self.rest.is_crowded || is_withheld, ..self.rest }
    }

    /// Blocks that have rested for so long are free, of [`RESTS_ENDED_MAX`] extents at most. So are all where little room is
    /// left.
    pub(crate) fn end_rests(&mut self, rest_ms: u64) {
        let Rest { now_ms, is_crowded, .. } = self.rest_now();
        let has_rested = |since_ms: u64| now_ms.saturating_sub(since_ms) >= rest_ms;
        let mut left = RESTS_ENDED_MAX;
        for lv in self.lvs.values_mut() {
            while left > 0 {
                if let Some(extent) = lv.resting.pop_if(has_rested) {
                    lv.release(extent);
                } else if !is_crowded || lv.give_oldest().is_none() {
                    break;
                }
                left -= 1;
            }
        }
    }

    /// All that rests is free.
    pub(super) fn rest_no_more(&mut self) {
        for lv in self.lvs.values_mut() {
            while lv.give_oldest().is_some() {}
        }
    }

    /// Blocks of which some rested, in an LV that takes objects on at least so many replicas: where blocks have rested longest.
    pub(super) fn allocate_resting(
        &mut self,
        need: u32,
        replicas_min: usize,
    ) -> Option<(LvId, Vec<Extent>)> {
        let rests_since = |(&id, lv): (&LvId, &Lv)| {
            let takes = lv.present.count() >= replicas_min && lv.takes_objects();
            lv.rests_since(need).filter(|_| takes).map(|since_ms| (since_ms, id))
        };
        let mut rested: Vec<(u64, LvId)> = self.lvs.iter().filter_map(rests_since).collect();
        rested.sort_unstable();
        rested
            .into_iter()
            .find_map(|(_, id)| Some((id, self.lvs.get_mut(&id)?.allocate_resting(need)?)))
    }

    /// Blocks that became free in this view before they had rested, as space was short.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.lvs.values().map(|lv| lv.resting.given_up).sum()
    }
}

#[cfg(test)]
mod tests;
