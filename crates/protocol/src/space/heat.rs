//! Statistics of a group's volumes that rank the urgency of copies: how much they are read, and how often replicas
//! fail.
//!
//! # Invariants
//!
//! 1. Nothing here affects correctness: it decides which copies are made first.
//! 2. The number of changes only grows while a view lasts: a reader that has seen one number learns from another that
//!    there are changes.

use std::collections::BTreeMap;

use larder_types::LvId;

use super::VolumeGroup;
use crate::limits::{HEAT_HALF_MS, HOT_READS};

/// Reads of what lies in a volume, of late: their number is halved every [`HEAT_HALF_MS`].
#[derive(Debug, Clone, Copy, Default)]
struct Heat {
    reads: u64,
    since_ms: u64,
}

impl Heat {
    fn cooled(self, now_ms: u64) -> Self {
        let halvings = now_ms.saturating_sub(self.since_ms) / HEAT_HALF_MS;
        let reads = self.reads >> halvings.min(u64::from(u64::BITS) - 1);
        Self { reads, since_ms: self.since_ms + halvings * HEAT_HALF_MS }
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Notes {
    heats: BTreeMap<LvId, Heat>,
    changes: u64,
}

impl Notes {
    /// Copies are gone, or out of reach, or can be made where they could not.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }
}

impl VolumeGroup {
    /// Something that lies in an LV is read.
    pub fn note_read(&mut self, lv: LvId, now_ms: u64) {
        if self.lvs.contains_key(&lv) {
            let heat = self.notes.heats.entry(lv).or_default();
            let cooled = heat.cooled(now_ms);
            *heat = Heat { reads: cooled.reads.saturating_add(1), ..cooled };
        }
    }

    /// Returns true if much of what lies in an LV is read.
    #[must_use]
    pub fn is_hot(&self, lv: LvId, now_ms: u64) -> bool {
        self.notes.heats.get(&lv).is_some_and(|heat| heat.cooled(now_ms).reads >= HOT_READS)
    }

    /// Returns true if there is such an LV.
    #[must_use]
    pub fn has_hot(&self, now_ms: u64) -> bool {
        self.notes.heats.keys().any(|lv| self.is_hot(*lv, now_ms))
    }

    /// Returns the number of times that copies went or could be made again in this view: replicas that were lost, went out
    /// of reach, came or opened.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.notes.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_for_less_the_longer_ago_they_were() {
        let mut heat = Heat { reads: 1000, since_ms: 500 };
        assert_eq!(heat.cooled(500 + HEAT_HALF_MS - 1).reads, 1000);
        assert_eq!(heat.cooled(500 + HEAT_HALF_MS).reads, 500);
        heat = heat.cooled(500 + 3 * HEAT_HALF_MS + 7);
        assert_eq!((heat.reads, heat.since_ms), (125, 500 + 3 * HEAT_HALF_MS));
        assert_eq!(heat.cooled(u64::MAX).reads, 0);
        assert_eq!(heat.cooled(0).reads, 125, "a clock that stood still halves nothing");
    }
}
