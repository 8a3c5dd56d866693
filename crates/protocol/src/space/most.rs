//! Space on most replicas of an LV while others are out of reach.
//!
//! # Invariants
//!
//! 1. What is given was free on *every* replica when the view began, or became free when every replica's floor was above
//!    what freed it. A late write of an earlier view may still reach a replica that is away, where nothing of this grant
//!    lies; it is over before that one answers its next `Open`, and only then is it given a copy.
//! 2. Each replica that is given something has answered its `Open` in this view.

use larder_types::limits::BLOCK_BYTES;
use larder_types::{Extent, Holders, LvId};

use super::{Lv, VolumeGroup};

impl Lv {
    /// The replicas within reach of an LV as wide as the widest, if they are most of it and can take objects.
    fn most(&self, widest: usize) -> Option<Holders> {
        let within = self.present.without(self.gone);
        let is_open = within.iter().all(|replica| self.floors[replica].is_some());
        let is_most = self.present.count() == widest && 2 * within.count() > widest;
        let takes = !self.gone.is_empty() && self.leaving.is_empty() && !self.is_full();
        (takes && is_open && is_most).then_some(within)
    }
}

impl VolumeGroup {
    /// Blocks for `bytes` of data on the replicas within reach of an LV of which others are not, at least so many: for
    /// when no LV has all of its own.
    pub fn allocate_on_most(
        &mut self,
        bytes: u32,
        replicas_min: usize,
    ) -> Option<(LvId, Vec<Extent>, Holders)> {
        let (need, widest) = (bytes.div_ceil(BLOCK_BYTES).max(1), self.widest());
        self.lvs.iter_mut().find_map(|(&id, lv)| {
            let within = lv.most(widest).filter(|within| within.count() >= replicas_min)?;
            Some((id, lv.runs.allocate(need)?, within))
        })
    }

    /// Whether it has space on most replicas of an LV of which others are out of reach.
    #[must_use]
    pub fn has_most(&self) -> bool {
        let widest = self.widest();
        self.lvs.values().any(|lv| lv.most(widest).is_some())
    }

    /// Fewer replicas are an LV that was drawn while servers were away: most of those may be too few.
    fn widest(&self) -> usize {
        self.lvs.values().map(|lv| lv.present.count()).max().unwrap_or(0)
    }
}
