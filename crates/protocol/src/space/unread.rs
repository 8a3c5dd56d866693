//! LVs whose rows are not all read yet: blocks above their high-water marks are allocated at once, blocks below when
//! all rows have been seen.
//!
//! # Invariants
//!
//! 1. Below its mark an LV gives nothing before the rows are read. What was freed there meanwhile is held back: another row
//!    may name it too.
//! 2. When they are read, a block of the LV is named, has an open put, waits, rests, or is free: never two of these. A block for
//!    which this does not hold is a contradiction, and the LV gives nothing any more.

use std::collections::BTreeMap;

use larder_types::{Chunk, Extent, LvId};

use super::resting::Rest;
use super::{FreeRuns, Lv, SpaceFault, VolumeGroup};
use crate::lv::LvInfo;

/// The part of an LV that is not known.
#[derive(Debug)]
pub(super) struct Unread {
    /// The mark: which blocks below are named is not known.
    mark: u32,
    /// Extents from below the mark that were freed since, and that no late write can reach any more. They do not overlap,
    /// so that there are no more than blocks.
    held: Vec<Extent>,
    held_blocks: u32,
}

impl Unread {
    /// Holds an extent back, if it begins below the mark.
    pub(super) fn holds(&mut self, extent: Extent) -> bool {
        let is_below = extent.first < self.mark;
        if is_below {
            self.held.push(extent);
            self.held_blocks += extent.blocks;
        }
        is_below
    }
}

impl FreeRuns {
    fn extents(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(|(&first, &blocks)| Extent { first, blocks })
    }

    /// Where the last run begins, if it reaches to this end.
    fn last_start(&self, end: u32) -> Option<u32> {
        let (&start, &len) = self.by_start.range(..end).next_back()?;
        (start + len == end).then_some(start)
    }
}

impl Lv {
    pub(super) fn unread_blocks(&self) -> u32 {
        let unread = self.unread.as_ref();
        unread.map_or(0, |unread| unread.mark.saturating_sub(unread.held_blocks))
    }

    /// The block from which on all are free.
    fn top(&self) -> u32 {
        let withheld = self.withheld.as_ref().map(|withheld| &withheld.runs);
        let ends = withheld.into_iter().chain([&self.runs]);
        ends.fold(self.info.blocks, |end, runs| runs.last_start(end).unwrap_or(end))
    }

    /// The rows are read: they name these blocks, and open puts have these.
    fn complete(&mut self, used: impl Iterator<Item = Extent>, rest: Rest) -> Result<(), Extent> {
        let Some(Unread { mark, held, held_blocks }) = self.unread.take() else { return Ok(()) };
        let waiting = self.waiting.iter().map(|(_, extent)| *extent);
        let mut free = FreeRuns::whole(self.info.blocks);
        let freed = waiting.chain(self.resting.extents()).chain(held.iter().copied());
        used.chain(freed).try_for_each(|it| free.claim(it))?;
        // Of what is given meanwhile only this is known to be free.
        let mut above = free.split_off(mark);
        let withheld = self.withheld.iter().flat_map(|withheld| withheld.runs.extents());
        self.runs.extents().chain(withheld).try_for_each(|run| above.claim(run))?;
        self.waiting_blocks -= held_blocks;
        free.extents().for_each(|extent| self.put_in(extent));
        held.into_iter().for_each(|extent| self.rest(extent, rest));
        Ok(())
    }
}

impl VolumeGroup {
    /// Adds an LV of whose rows only the mark is known, and which of its blocks these open puts have.
    ///
    /// # Errors
    /// [`SpaceFault`] if two of them have one block, or one a block that there is not.
    pub(crate) fn add_above<'a>(
        &mut self,
        info: LvInfo,
        mark: u32,
        open: impl Iterator<Item = &'a Chunk>,
    ) -> Result<(), SpaceFault> {
        let (lv, mark) = (info.lv, mark.min(info.blocks));
        // All are claimed of all blocks, so that two that overlap below the mark are found too.
        let mut free = FreeRuns::whole(info.blocks);
        for extent in open.flat_map(|chunk| &chunk.extents) {
            free.claim(*extent).map_err(|extent| SpaceFault::Overlap { lv, extent })?;
        }
        self.add(info, free.split_off(mark));
        if let Some(lv) = self.lvs.get_mut(&lv) {
            lv.unread = Some(Unread { mark, held: Vec::new(), held_blocks: 0 });
        }
        Ok(())
    }

    /// An LV of which the rows are still to be read.
    pub(crate) fn unread(&self) -> Option<LvId> {
        self.lvs.iter().find(|(_, lv)| lv.unread.is_some()).map(|(lv, _)| *lv)
    }

    /// The rows of an LV are read: `used` is what they name now, and what open puts have.
    ///
    /// # Errors
    /// [`SpaceFault`] if a block of it is used twice, or is free as well.
    pub(crate) fn complete(
        &mut self,
        id: LvId,
        used: impl Iterator<Item = Extent>,
    ) -> Result<(), SpaceFault> {
        let rest = self.rest_now();
        let Some(lv) = self.lvs.get_mut(&id) else { return Err(SpaceFault::UnknownLv { lv: id }) };
        lv.complete(used, rest).map_err(|extent| SpaceFault::Overlap { lv: id, extent })
    }

    /// Of each LV the block from which on all are free.
    pub(crate) fn tops(&self) -> BTreeMap<LvId, u32> {
        self.lvs.iter().map(|(id, lv)| (*id, lv.top())).collect()
    }
}

#[cfg(test)]
mod tests;
