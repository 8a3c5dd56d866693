//! The use of a volume group, and its purposes.

use larder_types::LvId;

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
    /// Freed ones that rest: given only if there are no others.
    pub resting: u64,
    /// Free ones that are not given, for want of room on a disk.
    pub withheld: u64,
    /// Those of which is not known yet whether rows name them: below the high-water marks, while the rows are read.
    pub unread: u64,
}

impl VolumeGroup {
    /// Blocks that are not free, of every replica that is there.
    #[must_use]
    pub fn copied(&self) -> u64 {
        let copied = |lv: &Lv| u64::from(lv.taken_blocks()) * lv.info.present().count() as u64;
        self.lvs.values().map(copied).sum()
    }

    /// Blocks by state.
    #[must_use]
    pub fn usage(&self) -> SpaceUse {
        self.usage_by_lv().fold(SpaceUse::default(), |sum, (_, lv)| SpaceUse {
            total: sum.total + lv.total,
            free: sum.free + lv.free,
            waiting: sum.waiting + lv.waiting,
            resting: sum.resting + lv.resting,
            withheld: sum.withheld + lv.withheld,
            unread: sum.unread + lv.unread,
        })
    }

    /// The same of each LV.
    pub fn usage_by_lv(&self) -> impl Iterator<Item = (LvId, SpaceUse)> {
        self.lvs.iter().map(|(id, lv)| {
            let usage = SpaceUse {
                total: lv.info.blocks.into(),
                free: lv.runs.blocks().into(),
                waiting: lv.waiting_blocks.into(),
                resting: lv.resting.blocks().into(),
                withheld: lv.withheld_blocks().into(),
                unread: lv.unread_blocks().into(),
            };
            (*id, usage)
        })
    }
}
