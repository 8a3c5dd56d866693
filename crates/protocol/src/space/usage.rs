//! How many blocks of a volume group are what, for metrics.

use super::{Lv, VolumeGroup};

/// Blocks of a volume group, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUse {
    /// Blocks of all LVs.
    pub total: u64,
    /// Free ones.
    pub free: u64,
    /// Freed ones that wait for the floors.
    pub waiting: u64,
    /// Free ones that are not given, for want of room on a disk.
    pub withheld: u64,
    /// Those below the marks of LVs of which the rows are still to be read: what of it is free is not known.
    pub unread: u64,
}

impl VolumeGroup {
    /// Blocks that are not free, of every replica that is there.
    #[must_use]
    pub fn copied(&self) -> u64 {
        let copied = |lv: &Lv| {
            let used = lv.info.blocks - lv.runs.blocks() - lv.withheld_blocks();
            u64::from(used) * lv.info.present().count() as u64
        };
        self.lvs.values().map(copied).sum()
    }

    /// Blocks by state.
    #[must_use]
    pub fn usage(&self) -> SpaceUse {
        let unread = self.unread_blocks();
        self.lvs.values().fold(SpaceUse { unread, ..SpaceUse::default() }, |sum, lv| SpaceUse {
            total: sum.total + u64::from(lv.info.blocks),
            free: sum.free + u64::from(lv.runs.blocks()),
            waiting: sum.waiting + u64::from(lv.waiting_blocks),
            withheld: sum.withheld + u64::from(lv.withheld_blocks()),
            ..sum
        })
    }
}
