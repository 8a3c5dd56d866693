//! Looks for deletions behind changes that cannot be taken.
//!
//! A store without room takes no bytes. The deletions that would free some may be told behind as many changes as it remembers. So it
//! goes on through the journal, takes what has no bytes, and passes over the rest. Once there is room for claims it goes back to the
//! first change that it passed over, from where all is told again. What was taken meanwhile is here by then.
//!
//! Journals that are void are compared, and comparisons pass over nothing.

use larder_types::{OpSeq, PgId, RegionId};

use super::super::entry::Id;
use super::super::journal::Token;
use super::wants::Claim;
use super::{Pull, Source, Stream};
use crate::limits::{REGION_ASK_IDS_MAX, REGION_CLAIMS_MAX, REGION_SKIMMED_MAX};

/// Outcomes of a journal that were passed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skipped {
    /// The first of them. The token stays before it.
    pub(super) first: OpSeq,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Stream {
    /// True if an outcome that is told while its region is skimmed is passed over.
    pub(super) fn skips(&mut self, op: OpSeq, id: &Id) -> bool {
        if id.bytes == 0 {
            return false;
        }
        let skipped = self.skipped.get_or_insert(Skipped { first: op, count: 0, bytes: 0 });
        skipped.count += 1;
        skipped.bytes = skipped.bytes.saturating_add(id.bytes);
        true
    }

    /// Goes back to what was passed over.
    fn go_back(&mut self) {
        let Some(Skipped { first, count, bytes }) = self.skipped.take() else { return };
        self.told = Token { through: OpSeq(first.0 - 1) };
        self.left = (self.left.0.saturating_add(count), self.left.1.saturating_add(bytes));
    }
}

impl Pull {
    /// True if a region is to be asked for deletions alone.
    pub(super) fn skims(&self, region: RegionId) -> bool {
        let has_skipped = || self.streams_of(region).any(|(_, stream)| stream.skipped.is_some());
        let is_stuck = || {
            let is_stuck = |claim: &&Claim| claim.region == region && claim.is_untaken;
            !self.has_room(region)
                && 2 * self.all_claims().filter(is_stuck).count() >= REGION_CLAIMS_MAX
        };
        has_skipped() || is_stuck()
    }

    /// True if there is room for the deletions that a region tells.
    pub(super) fn has_room_to_skim(&self, region: RegionId) -> bool {
        self.claims_of(region) + REGION_ASK_IDS_MAX <= REGION_CLAIMS_MAX + REGION_SKIMMED_MAX
    }

    /// Goes back to what was passed over once there is room for half as many claims as there may be. No ids are asked for meanwhile:
    /// an answer would be taken for one from there on.
    pub(super) fn go_back(&mut self, region: RegionId) {
        if 2 * self.claims_of(region) > REGION_CLAIMS_MAX {
            return;
        }
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        let of_region = streams.take_while(|(source, _)| source.region == region);
        of_region.for_each(|(_, stream)| stream.go_back());
    }
}
