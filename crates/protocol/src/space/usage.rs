//! How much of a volume group is used, and for what.

use super::{Lv, VolumeGroup};

/// Blocks of a volume group, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUse {
    /// Blocks of all LVs.
    pub total: u64,
    /// Free ones.
    pub free: u64,
    /// Freed ones that wait for the floors, or for the rows to be read.
    pub waiting: u64,
    /// Free ones that are not given, for want of room on a disk.
    pub withheld: u64,
    /// Those of which is not known yet whether rows name them: below the high-water marks, while the rows are read.
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
        self.lvs.values().fold(SpaceUse::default(), |sum, lv| SpaceUse {
            total: sum.total + u64::from(lv.info.blocks),
            free: sum.free + u64::from(lv.runs.blocks()),
            waiting: sum.waiting + u64::from(lv.waiting_blocks),
            withheld: sum.withheld + u64::from(lv.withheld_blocks()),
            unread: sum.unread + u64::from(lv.unread_blocks()),
        })
    }
}
