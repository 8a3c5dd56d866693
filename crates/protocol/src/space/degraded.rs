//! Space on most replicas of an LV while others are out of reach, or have no room on their disks.
//!
//! # Invariants
//!
//! 1. What is given was free on *every* replica when the view began, or became free when every replica's floor was above
//!    what freed it. A late write of an earlier view may still reach a replica that is away, where nothing of this grant
//!    lies. It is over before that one answers its next `Open`, and only then is it given a copy.
//! 2. Each replica that is given something has answered its `Open` in this view.

use larder_types::limits::BLOCK_BYTES;
use larder_types::{DiskId, Extent, Holders, LvId};

use super::{Lv, VolumeGroup};
use crate::limits::REFUSED_MS;

impl Lv {
    /// Replicas whose disks had no room a short while ago.
    pub(super) fn crowded(&self) -> Holders {
        self.withheld.as_ref().map_or(Holders::default(), |withheld| withheld.crowded)
    }

    /// The replicas within reach, and with room, of an LV as wide as the widest is to be, if they are most of it and can
    /// take objects.
    fn most(&self, widest: usize) -> Option<Holders> {
        let others = self.gone.union(self.crowded());
        let within = self.present.without(others);
        let is_open = within.iter().all(|replica| self.floors[replica].is_some());
        let is_most = self.is_most(within, widest);
        let takes = !others.is_empty() && self.leaving.is_empty() && !self.is_full();
        (takes && is_open && is_most).then_some(within)
    }

    /// True if these are most of its replicas, of which there are as many as the widest is to have, or more while it moves.
    fn is_most(&self, replicas: Holders, widest: usize) -> bool {
        self.present.count() >= widest && 2 * replicas.count() > self.present.count()
    }

    /// True if this LV, one of the widest, has room on most of its replicas, counting those that are out of reach, or gets
    /// some with them. Freed space is given again once each has raised its floor.
    fn awaits_replicas(&self, widest: usize) -> bool {
        let is_most = self.is_most(self.present.without(self.crowded()), widest);
        let has_room = !self.is_full_but_for(self.waiting_blocks);
        !self.gone.is_empty() && is_most && self.leaving.is_empty() && has_room
    }
}

impl Lv {
    /// Blocks for replicas that have room also for what is withheld.
    fn allocate_on_most(&mut self, need: u32) -> Option<Vec<Extent>> {
        let withheld = self.withheld.as_mut().filter(|withheld| !withheld.crowded.is_empty());
        self.runs.allocate(need).or_else(|| withheld?.runs.allocate(need))
    }
}

impl VolumeGroup {
    /// Returns true if a disk refused data a moment ago. It may take other data, where it has given room before; but a
    /// put that it refused would else be given one place on it after the other.
    #[must_use]
    pub fn refused_lately(&self, now_ms: u64) -> bool {
        self.refused.keys().any(|&disk| self.is_refusing(disk, now_ms))
    }

    fn is_refusing(&self, disk: DiskId, now_ms: u64) -> bool {
        let refused_ms = self.refused.get(&disk);
        refused_ms.is_some_and(|refused_ms| now_ms < refused_ms.saturating_add(REFUSED_MS))
    }

    /// Blocks for `bytes` of data in an LV of at least so many replicas, none on a disk that refused data a moment ago.
    pub fn allocate_degraded(
        &mut self,
        bytes: u32,
        replicas_min: usize,
        now_ms: u64,
    ) -> Option<(LvId, Vec<Extent>)> {
        let need = bytes.div_ceil(BLOCK_BYTES).max(1);
        self.asked.note(need);
        let lies_beside = |(_, lv): &(&LvId, &Lv)| {
            let refuses = |at: usize| self.is_refusing(lv.info.replicas[at].disk, now_ms);
            lv.takes_objects()
                && lv.present.count() >= replicas_min
                && !lv.present.iter().any(refuses)
        };
        let beside: Vec<LvId> = self.lvs.iter().filter(lies_beside).map(|(id, _)| *id).collect();
        beside.into_iter().find_map(|id| Some((id, self.lvs.get_mut(&id)?.runs.allocate(need)?)))
    }

    /// Blocks for `bytes` of data on the replicas within reach of an LV, at least so many, of which others are not or
    /// have no room. It is for when no LV has all of its own. Those come first that lie beside disks that refused data a
    /// moment ago.
    pub fn allocate_on_most(
        &mut self,
        bytes: u32,
        replicas_min: usize,
        now_ms: u64,
    ) -> Option<(LvId, Vec<Extent>, Holders)> {
        let (need, widest) = (bytes.div_ceil(BLOCK_BYTES).max(1), self.widest());
        let most = |(&id, lv): (&LvId, &Lv)| {
            let within = lv.most(widest).filter(|within| within.count() >= replicas_min)?;
            let refuses = |at: usize| self.is_refusing(lv.info.replicas[at].disk, now_ms);
            Some((within.iter().any(refuses), id, within))
        };
        let mut found: Vec<(bool, LvId, Holders)> = self.lvs.iter().filter_map(most).collect();
        found.sort_by_key(|(refuses, id, _)| (*refuses, *id));
        let free = found.iter().find_map(|&(_, id, within)| {
            Some((id, self.lvs.get_mut(&id)?.allocate_on_most(need)?, within))
        });
        free.or_else(|| {
            found.iter().find_map(|&(_, id, within)| {
                let lv = self.lvs.get_mut(&id).filter(|lv| lv.rests_since(need).is_some())?;
                Some((id, lv.allocate_resting(need)?, within))
            })
        })
    }

    /// Returns true if it has space on most replicas of an LV of which others are out of reach, or have no room.
    #[must_use]
    pub fn has_most(&self) -> bool {
        let widest = self.widest();
        self.lvs.values().any(|lv| lv.most(widest).is_some())
    }

    /// True if calls that wait for space may have some in a moment, without another LV: what was freed comes back, rows are
    /// read, or an LV opens.
    #[must_use]
    pub fn has_some_soon(&self) -> bool {
        let opens = || self.lvs.values().any(Lv::is_opening);
        self.regains() || self.unread().is_some() || opens()
    }

    /// True if an LV gives space again once its replicas that are out of reach return.
    #[must_use]
    pub fn awaits_replicas(&self) -> bool {
        let widest = self.widest();
        self.lvs.values().any(|lv| lv.awaits_replicas(widest))
    }

    /// Fewer replicas are an LV that was drawn while servers were away: most of those may be too few. What one has more while
    /// it moves counts for nothing, or no other one would be wide enough meanwhile.
    fn widest(&self) -> usize {
        let width = |lv: &Lv| lv.present.count().min(usize::from(lv.info.copies));
        self.lvs.values().map(width).max().unwrap_or(0)
    }
}
