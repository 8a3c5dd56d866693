//! Changes that cannot be applied now, and those beyond the limit of them.
//!
//! A full store accepts no bytes, a region may be unable to read an object that it announced, and a clock may be ahead
//! for long. Such claims are stuck: they are looked at again and again. They have a bound of their own, and so take no
//! room of others. Beyond it a claim is dropped. Its journal is followed on, while the token stays before it. Once half
//! of the stuck claims are settled the machine goes back to the first that was dropped, from where all is told again.
//! What was taken meanwhile is here by then. The same goes for outcomes whose buckets are not known here. Of a
//! comparison's claims that are dropped another comparison finds what is still not here.

use larder_types::{PgId, RegionId};

use super::wants::Claim;
use super::{JournalState, Pull, Source};
use crate::limits::{REGION_BACK_MS_MAX, REGION_HELD_MS, REGION_POLL_MS, REGION_STUCK_MAX};

impl Pull {
    /// Holds a claim that cannot be taken now, and looks at it again later; drops it if too many are held.
    pub(super) fn hold_stuck(&mut self, now_ms: u64, mut claim: Claim) {
        if !claim.is_stuck {
            let peer = self.peers.get_mut(&claim.region).expect("who told of it is known");
            if peer.stuck == REGION_STUCK_MAX {
                return self.drop_claim(&claim);
            }
            peer.stuck += 1;
            claim.is_stuck = true;
        }
        self.held.push((now_ms + REGION_HELD_MS, claim));
    }

    /// Forgets the places that a claim had among those of its region.
    pub(super) fn release(&mut self, claim: &Claim) {
        let peer = self.peers.get_mut(&claim.region).expect("who told of it is known");
        assert!(peer.claims > 0, "each claim is counted");
        peer.claims -= 1;
        if claim.is_stuck {
            peer.stuck -= 1;
        }
    }

    /// Drops a claim. Its entry is found again: told by its journal, or by another comparison.
    fn drop_claim(&mut self, claim: &Claim) {
        self.release(claim);
        let source = claim.source();
        let stream = self.streams.get_mut(&source).expect("who told of it is followed");
        match claim.at {
            Some(at) if at.era == stream.era => stream.skip(at.op, claim.id.bytes),
            Some(_) => {}
            None => {
                assert!(stream.listed > 0, "each claim of a comparison is counted");
                stream.listed -= 1;
                // A journal that is followed tells it itself.
                if stream.course != JournalState::Followed {
                    stream.is_incomplete = true;
                    let peer = self.peers.get_mut(&source.region).expect("it is known");
                    peer.comparison.iter_mut().for_each(|it| it.has_missed(source.pg));
                }
            }
        }
    }

    /// Drops held claims which a comparison that is about to begin finds again: those of earlier ones, and of journals that are
    /// void since.
    pub(super) fn drop_found_again(&mut self, region: RegionId) {
        let streams = &self.streams;
        let is_found_again = |(_, claim): &mut (u64, Claim)| {
            let is_of_era = claim.at.is_some_and(|at| at.era == streams[&claim.source()].era);
            claim.region == region && !is_of_era
        };
        let dropped: Vec<_> = self.held.extract_if(.., is_found_again).collect();
        dropped.iter().for_each(|(_, claim)| self.drop_claim(claim));
    }

    /// True if so few claims of a region are stuck that what was dropped is to be found again.
    pub(super) fn may_go_back(&self, region: RegionId) -> bool {
        2 * self.peers[&region].stuck <= REGION_STUCK_MAX
    }

    /// Has outcomes whose buckets are not known told again: soon, as buckets are made at once, and ever more seldom while one
    /// cannot be.
    pub(super) fn go_back_later(&mut self, now_ms: u64, region: RegionId) {
        let peer = self.peers.get_mut(&region).expect("who told of it is known");
        if peer.back_ms.is_none() {
            peer.back_pause_ms = (2 * peer.back_pause_ms).clamp(REGION_POLL_MS, REGION_BACK_MS_MAX);
            peer.back_ms = Some(now_ms + peer.back_pause_ms);
        }
    }

    /// Goes back to what was passed over, if it is time. No ids are asked for meanwhile: an answer would be taken for one from
    /// there on.
    pub(super) fn go_back(&mut self, now_ms: u64, region: RegionId) {
        let is_time = match self.peers[&region].back_ms {
            // However many claims are stuck: what waits for its bucket is not.
            Some(back_ms) => back_ms <= now_ms,
            None => self.may_go_back(region),
        };
        if !is_time {
            return;
        }
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        let mut has_all = true;
        for (_, stream) in streams.take_while(|(source, _)| source.region == region) {
            has_all &= stream.skipped.is_none() && stream.left.0 == 0;
            stream.go_back();
        }
        let peer = self.peers.get_mut(&region).expect("it is known");
        peer.back_ms = None;
        if has_all {
            peer.back_pause_ms = 0;
        }
    }
}
