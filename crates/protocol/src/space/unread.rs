//! LVs of which the rows are still to be read: what lies above their high-water marks is given at once, the rest when it is
//! known what rows name.
//!
//! # Invariants
//!
//! 1. Below the mark nothing is given but what was freed since the group began.
//! 2. What is found free below the mark is so all the time until it is found: nobody could be given it. So it is read
//!    from the index as it was when the group began, whatever was done since.
//! 3. A row or an open put that names a block above the mark beyond those of open puts is a contradiction.

use std::collections::BTreeMap;

use larder_types::{Chunk, Extent, LvId};

use super::{FreeRuns, LvInfo, VolumeGroup};
use crate::rebuild::SpaceFault;

/// What is not known of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unread {
    /// The mark: which blocks below are named is not known.
    below: u32,
    /// Blocks above that were free when the group began.
    above: u32,
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
        let (lv, below) = (info.lv, mark.min(info.blocks));
        // All are claimed of all blocks, so that two that overlap below the mark are found too.
        let mut runs = FreeRuns::whole(info.blocks);
        for extent in open.flat_map(|chunk| &chunk.extents) {
            runs.claim(*extent).map_err(|extent| SpaceFault::Overlap { lv, extent })?;
        }
        let runs = runs.split_off(below);
        let unread = Unread { below, above: runs.blocks() };
        self.add(info, runs);
        if let Some(lv) = self.lvs.get_mut(&lv) {
            lv.unread = Some(unread);
        }
        Ok(())
    }

    /// Whether there is an LV of which the rows are still to be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.lvs.values().any(|lv| lv.unread.is_some())
    }

    /// What was free in an LV when the group began, by rows and open puts.
    ///
    /// # Errors
    /// [`SpaceFault`] if a row named blocks above the mark: they may have been given since.
    pub(crate) fn complete(&mut self, id: LvId, mut free: FreeRuns) -> Result<(), SpaceFault> {
        let Some(lv) = self.lvs.get_mut(&id) else { return Ok(()) };
        let Some(unread) = lv.unread else { return Ok(()) };
        if free.split_off(unread.below).blocks() != unread.above {
            return Err(SpaceFault::AboveMark { lv: id, mark: unread.below });
        }
        lv.unread = None;
        // They were free all the time.
        lv.pace.released -= i64::from(free.blocks());
        for (first, blocks) in free.by_start {
            lv.release(Extent { first, blocks });
        }
        Ok(())
    }

    /// Of each LV the block from which on all are free.
    pub(crate) fn tops(&self) -> BTreeMap<LvId, u32> {
        let top = |lv: &super::Lv| {
            let last = lv.runs.by_start.last_key_value();
            let at_end = last.filter(|(first, len)| *first + *len == lv.info.blocks);
            // What is withheld lies at the end, and may have holes.
            at_end.filter(|_| lv.withheld.is_none()).map_or(lv.info.blocks, |(first, _)| *first)
        };
        assert!(!self.is_unread(), "what rows name is known");
        self.lvs.iter().map(|(id, lv)| (*id, top(lv))).collect()
    }

    /// Blocks below the marks of LVs of which the rows are still to be read.
    pub(super) fn unread_blocks(&self) -> u64 {
        self.lvs.values().filter_map(|lv| lv.unread).map(|unread| u64::from(unread.below)).sum()
    }
}

#[cfg(test)]
mod tests {
    use larder_types::{BootId, DiskId, GrantKey, OpSeq, PvId, ServerId, View};

    use super::super::{NoSpace, Replica};
    use super::*;
    use crate::manager::state::{MapVersion, ReplicaState};
    use larder_types::limits::BLOCK_BYTES;

    const LV: LvId = LvId(1);

    fn info() -> LvInfo {
        let (server, boot, disk, pv) = (ServerId(0), BootId(1), DiskId(0), PvId(0));
        let replica = Replica { server, boot, disk, pv, state: ReplicaState::Current };
        LvInfo { lv: LV, blocks: 1000, replicas: vec![replica], as_of: MapVersion(1) }
    }

    fn chunk(first: u32, blocks: u32) -> Chunk {
        let op = GrantKey { view: View(1), seq: OpSeq(1) };
        Chunk {
            grant: larder_types::Grant { pg: larder_types::PgId(0), op, attempt: 0 },
            seed: 0,
            lv: LV,
            extents: vec![Extent { first, blocks }],
            len: blocks * BLOCK_BYTES,
            sums: Vec::new(),
            holders: larder_types::Holders(1),
        }
    }

    fn opened(mark: u32, open: &[Chunk]) -> VolumeGroup {
        let mut group = VolumeGroup::new(View(1));
        group.add_above(info(), mark, open.iter()).unwrap();
        group.floor_acknowledged(LV, 0, GrantKey { view: View(1), seq: OpSeq(0) });
        group
    }

    fn free_but(named: &[Chunk]) -> FreeRuns {
        let mut free = FreeRuns::whole(1000);
        for extent in named.iter().flat_map(|chunk| &chunk.extents) {
            free.claim(*extent).unwrap();
        }
        free
    }

    #[test]
    fn only_what_lies_above_the_mark_is_given_until_the_rows_are_read() {
        let open = [chunk(290, 20)];
        let mut group = opened(300, &open);
        assert!(group.is_unread());
        let (_, extents) = group.allocate(690 * BLOCK_BYTES, 0).unwrap();
        assert_eq!(extents, [Extent { first: 310, blocks: 690 }], "not what an open put has");
        assert_eq!(group.allocate(1, 0), Err(NoSpace::Unread), "below is no space yet");
        group.complete(LV, free_but(&[chunk(0, 100), open[0].clone()])).unwrap();
        assert!(!group.is_unread());
        assert_eq!(group.usage().free, 190);
        let (_, extents) = group.allocate(10 * BLOCK_BYTES, 0).unwrap();
        assert_eq!(extents, [Extent { first: 100, blocks: 10 }]);
    }

    #[test]
    fn what_is_freed_meanwhile_is_used_once() {
        let mut group = opened(300, &[]);
        let (freed, floor) =
            (Extent { first: 50, blocks: 10 }, |seq| GrantKey { view: View(1), seq: OpSeq(seq) });
        group.free(LV, &[freed], floor(5), false);
        group.floor_acknowledged(LV, 0, floor(6));
        let (_, extents) = group.allocate(10 * BLOCK_BYTES, 0).unwrap();
        assert_eq!(extents, [freed], "it is the tightest run");
        // The rows are those of before: they name it.
        group.complete(LV, free_but(&[chunk(0, 100)])).unwrap();
        assert_eq!(group.usage().free, 900, "it is used again");
        assert_eq!(group.tops()[&LV], 100);
    }

    #[test]
    fn a_row_above_the_mark_is_a_contradiction() {
        let mut group = opened(300, &[]);
        let fault = SpaceFault::AboveMark { lv: LV, mark: 300 };
        assert_eq!(group.complete(LV, free_but(&[chunk(295, 6)])), Err(fault));
        let open = [chunk(10, 5), chunk(14, 2)];
        let (lv, extent) = (LV, Extent { first: 14, blocks: 2 });
        let mut group = VolumeGroup::new(View(1));
        assert_eq!(
            group.add_above(info(), 300, open.iter()),
            Err(SpaceFault::Overlap { lv, extent })
        );
    }

    #[test]
    fn an_lv_without_a_mark_is_given_whole_and_one_that_is_all_below_not_at_all() {
        let mut group = opened(0, &[]);
        group.allocate(7 * BLOCK_BYTES, 0).unwrap();
        let fault = SpaceFault::AboveMark { lv: LV, mark: 0 };
        assert_eq!(group.complete(LV, free_but(&[chunk(5, 1)])), Err(fault), "no row names any");
        group.complete(LV, FreeRuns::whole(1000)).unwrap();
        assert_eq!(group.tops()[&LV], 7);
        let mut group = opened(u32::MAX, &[]);
        assert_eq!(group.allocate(1, 0), Err(NoSpace::Unread));
        assert_eq!(group.usage().unread, 1000);
        group.complete(LV, FreeRuns::whole(1000)).unwrap();
        assert_eq!((group.usage().free, group.usage().unread), (1000, 0));
    }
}
