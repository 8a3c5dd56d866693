//! The LVs that are badly fragmented, and the places in them where a chunk may move (ADR 24).
//!
//! ```text
//!  before  ##..#.###..#..##.#..#.#...      live: as many blocks as are named
//!  after   ##############............      what ended above that lies below it
//! ```
//!
//! # Invariants
//!
//! 1. A chunk moves only from where it ends above the LV's live blocks to where all of it lies below them. So each move
//!    brings its end down, and without clients there is a last one.
//! 2. It moves within its LV: to the same replicas.
//! 3. It gets no more extents than it had, or than [`MOVE_EXTENTS_MAX`].

use std::collections::BTreeMap;

use larder_types::{Chunk, Extent, LvId, OpId};

use super::{FreeRuns, Lv, VolumeGroup};
use crate::limits::{
    COMPACT_AGAIN_PART, FRAGMENTED_FREE_PERCENT, FRAGMENTED_PIECES, FRAGMENTED_SCATTERED_PERCENT,
    MOVE_EXTENTS_MAX, REQUEST_WINDOW,
};

/// From when on an LV counts as badly fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragmentation {
    /// At least so many percent of it are free.
    pub free_percent: u64,
    /// At least so many percent of what is free lie in pieces that are too short.
    pub scattered_percent: u64,
    /// The largest chunk that was asked for of late would need more than so many of them.
    pub pieces: u32,
}

impl Default for Fragmentation {
    fn default() -> Self {
        Self {
            free_percent: FRAGMENTED_FREE_PERCENT,
            scattered_percent: FRAGMENTED_SCATTERED_PERCENT,
            pieces: FRAGMENTED_PIECES,
        }
    }
}

/// The largest chunk that a group was asked for of late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LargestRequest {
    now: u32,
    before: u32,
    count: u32,
}

impl LargestRequest {
    /// A chunk of so many blocks was asked for.
    pub(super) fn note(&mut self, blocks: u32) {
        self.now = self.now.max(blocks);
        self.count += 1;
        if self.count >= REQUEST_WINDOW {
            *self = Self { before: self.now, ..Self::default() };
        }
    }

    fn largest(self) -> u32 {
        self.now.max(self.before)
    }
}

/// The time at which an LV was compacted last, by the blocks that became free in it since it joined its group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CompactionPace {
    /// Blocks freed, less those returned unused that wait: a return of unused blocks frees nothing.
    pub(super) released: i64,
    /// The number of blocks that had become free when it was compacted last.
    compacted: Option<i64>,
}

impl CompactionPace {
    /// As if it had not been compacted yet.
    pub(super) fn due(self) -> Self {
        Self { compacted: None, ..self }
    }
}

impl FreeRuns {
    /// Returns true if at least so many percent of what is free lie in runs shorter than this. Counted from the longest on:
    /// where space is not scattered a few of them decide.
    fn is_scattered(&self, shorter_than: u32, percent: u64) -> bool {
        let long_max = u64::from(self.blocks) * 100u64.saturating_sub(percent);
        let mut long = 0;
        for &(len, _) in self.by_len.range((shorter_than, 0)..).rev() {
            long += u64::from(len);
            if long * 100 > long_max {
                return false;
            }
        }
        self.blocks > 0
    }

    /// Takes blocks that all lie below this one: in one run, the tightest first, else in a few, the longest first.
    fn allocate_below(&mut self, need: u32, below: u32, extents_max: usize) -> Option<Vec<Extent>> {
        let whole = self.whole_below(need, below).map(|extent| vec![extent]);
        let extents = whole.or_else(|| self.parts_below(need, below, extents_max))?;
        for &extent in &extents {
            assert!(extent.end() <= below, "{extent:?} does not lie below {below}");
            self.claim(extent).expect("the run was found free");
        }
        Some(extents)
    }

    fn whole_below(&self, need: u32, below: u32) -> Option<Extent> {
        let mut least = need;
        loop {
            let &(len, first) = self.by_len.range((least, 0)..).next()?;
            let extent = Extent { first, blocks: need };
            if extent.end() <= below {
                return Some(extent);
            }
            // Of this length it was the first: the others lie higher.
            least = len + 1;
        }
    }

    fn parts_below(&self, need: u32, below: u32, extents_max: usize) -> Option<Vec<Extent>> {
        let (mut extents, mut missing, mut longer) = (Vec::new(), need, u32::MAX);
        while let Some(&(len, _)) = self.by_len.range(..(longer, 0)).next_back() {
            for &(_, first) in self.by_len.range((len, 0)..=(len, u32::MAX)) {
                let extent = Extent { first, blocks: len.min(missing) };
                if extent.end() > below {
                    break;
                }
                extents.push(extent);
                missing -= extent.blocks;
                if missing == 0 {
                    return Some(extents);
                }
                if extents.len() == extents_max {
                    return None;
                }
            }
            if (extents_max - extents.len()) as u64 * u64::from(len) < u64::from(missing) {
                return None;
            }
            longer = len;
        }
        None
    }
}

impl Lv {
    /// Blocks that are in use: where they would end if there were no holes between them.
    fn live_blocks(&self) -> u32 {
        self.taken_blocks() - self.waiting_blocks
    }

    /// Blocks in use above the live ones, about: what would have to move for all to lie below.
    fn high_blocks(&self) -> u64 {
        let live = self.live_blocks();
        let free = |runs: &FreeRuns| {
            let above = runs.by_start.range(live..).map(|(_, len)| u64::from(*len));
            above.sum::<u64>()
        };
        let free = free(&self.runs) + self.withheld.as_ref().map_or(0, |it| free(&it.runs));
        let freed = u64::from(self.waiting_blocks) + u64::from(self.resting.blocks());
        u64::from(self.info.blocks - live).saturating_sub(free + freed)
    }

    fn is_fragmented(&self, from: Fragmentation, asked: u32) -> bool {
        let free = self.runs.blocks();
        let piece = asked.div_ceil(from.pieces.max(1));
        // A chunk that any piece holds needs nothing better.
        piece > 1
            && self.unread.is_none()
            && self.takes_objects()
            && u64::from(free) * 100 >= u64::from(self.info.blocks) * from.free_percent
            && self.runs.is_scattered(piece, from.scattered_percent)
    }

    /// Returns true if enough became free in it since it was compacted last: what could not be moved then cannot be now either.
    fn is_due(&self) -> bool {
        let enough = i64::from(self.info.blocks / COMPACT_AGAIN_PART);
        self.pace.compacted.is_none_or(|before| self.pace.released - before >= enough)
    }
}

impl VolumeGroup {
    /// Returns the number of LVs that are badly fragmented.
    #[must_use]
    pub fn fragmented(&self, from: Fragmentation) -> usize {
        let asked = self.asked.largest();
        self.lvs.values().filter(|lv| lv.is_fragmented(from, asked)).count()
    }

    /// LVs that are badly fragmented and are to be compacted now, each with the blocks that lie high in it, about.
    pub(crate) fn begin_compaction(&mut self, from: Fragmentation) -> BTreeMap<LvId, u64> {
        let asked = self.asked.largest();
        let is_due = |lv: &Lv| lv.is_due() && lv.is_fragmented(from, asked);
        let due = self.lvs.iter_mut().filter(|(_, lv)| is_due(lv));
        due.map(|(&id, lv)| {
            lv.pace.compacted = Some(lv.pace.released);
            (id, lv.high_blocks())
        })
        .collect()
    }

    /// An LV is to be compacted again soon: something could not be moved that can be in a moment.
    pub(crate) fn compact_again(&mut self, lv: LvId) {
        if let Some(lv) = self.lvs.get_mut(&lv) {
            lv.pace = lv.pace.due();
        }
    }

    /// Returns true if a chunk ends above the live blocks of its LV.
    pub(crate) fn is_high(&self, chunk: &Chunk) -> bool {
        let end = chunk.extents.iter().map(Extent::end).max().unwrap_or(0);
        self.lvs.get(&chunk.lv).is_some_and(|lv| end > lv.live_blocks())
    }

    /// A chunk did not move: the blocks that it was to have wait for the floors, as if this op had freed them.
    pub(crate) fn give_back(&mut self, lv: LvId, extents: &[Extent], at: OpId, at_once: bool) {
        if let Some(lv) = self.lvs.get_mut(&lv) {
            let blocks = extents.iter().map(|extent| i64::from(extent.blocks));
            lv.pace.released -= blocks.sum::<i64>();
        }
        self.free(lv, extents, at, at_once);
    }

    /// Takes blocks for a chunk that lies high, below the live blocks of its LV.
    pub(crate) fn place_below(&mut self, chunk: &Chunk) -> Option<Vec<Extent>> {
        if !self.is_high(chunk) {
            return None;
        }
        let lv = self.lvs.get_mut(&chunk.lv).filter(|lv| lv.takes_objects())?;
        let need = chunk.extents.iter().map(|extent| extent.blocks).sum();
        let extents_max = MOVE_EXTENTS_MAX.max(chunk.extents.len());
        let below = lv.live_blocks();
        lv.runs.allocate_below(need, below, extents_max)
    }
}

#[cfg(test)]
mod tests;
