//! Changes that cannot be applied now, and those beyond the limit of them.
//!
//! A full store accepts no bytes, a region may be unable to read an object that it announced, and a clock may be ahead
//! for long. Such claims are stuck: they are looked at again and again, with pauses that grow. They have a bound of their
//! own, and so take no room of others. Their fetches have a queue of their own, and take no turns of others.
//!
//! Beyond the bound a claim is dropped. Its journal is followed on, while the token stays before it. The machine goes
//! back to it once half of the stuck claims are settled, and by time, as others of them may never be. From there all is
//! told again. What was taken meanwhile is here by then. Of a comparison's claims that are dropped another comparison
//! finds what is still not here. The same goes for what is dropped as its bucket is not known here ([`super::unnamed`]).

use larder_types::{PgId, RegionId};

use super::lack::Lack;
use super::wants::Claim;
use super::{JournalState, Pull, Source};
use crate::limits::{REGION_BACK_MS_MAX, REGION_HELD_MS, REGION_HELD_MS_MAX};

/// The time at which what was passed over is found again although nothing has changed.
#[derive(Debug, Default)]
pub(super) struct FindAgain {
    /// Claims were passed over for room since the last time.
    lacks_room: bool,
    due_ms: Option<u64>,
    /// Time for which that was put off last, and the last time.
    pause_ms: u64,
    last_ms: u64,
    /// No comparison begins before, but for journals that are void.
    backoff_until_ms: u64,
}

impl FindAgain {
    /// Puts it off, ever longer while it follows soon upon the last time.
    pub(super) fn begin(&mut self, now_ms: u64) {
        if self.due_ms.is_some() {
            return;
        }
        let is_soon = now_ms.saturating_sub(self.last_ms) <= 2 * self.pause_ms;
        let pause_ms = if is_soon { 2 * self.pause_ms } else { REGION_HELD_MS };
        self.pause_ms = pause_ms.clamp(REGION_HELD_MS, REGION_BACK_MS_MAX);
        self.due_ms = Some(now_ms + self.pause_ms);
    }

    /// A comparison took so long: the next one is put off for as long, so that half of the time is left.
    pub(super) fn rest(&mut self, now_ms: u64, took_ms: u64) {
        self.backoff_until_ms = now_ms + took_ms;
    }

    pub(super) fn is_backing_off(&self, now_ms: u64) -> bool {
        now_ms < self.backoff_until_ms
    }

    fn end(&mut self, now_ms: u64) {
        (self.lacks_room, self.due_ms, self.last_ms) = (false, None, now_ms);
    }
}

impl Pull {
    /// Holds a claim that cannot be taken now, and looks at it again after ever longer pauses; passes it over if too many are held.
    pub(super) fn hold_stuck(&mut self, now_ms: u64, mut claim: Claim) {
        claim.pause_ms = (2 * claim.pause_ms).clamp(REGION_HELD_MS, REGION_HELD_MS_MAX);
        self.hold_for(now_ms, claim.pause_ms, claim);
    }

    /// Holds a claim for so long, as one of those that are stuck.
    pub(super) fn hold_for(&mut self, now_ms: u64, pause_ms: u64, mut claim: Claim) {
        if !claim.is_stuck {
            let peer = self.peers.get_mut(&claim.region).expect("who told of it is known");
            if peer.stuck == self.bounds.stuck {
                peer.again.lacks_room = true;
                peer.again.begin(now_ms);
                return self.drop_claim(&claim, Lack::Room);
            }
            peer.stuck += 1;
            claim.is_stuck = true;
        }
        self.held.push((now_ms + pause_ms, claim));
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

    /// Passes over a claim. Its entry is found again: told by its journal, or by another comparison.
    pub(super) fn drop_claim(&mut self, claim: &Claim, lack: Lack) {
        self.release(claim);
        let source = claim.source();
        let stream = self.streams.get_mut(&source).expect("who told of it is followed");
        match claim.at {
            Some(at) if at.era == stream.era => stream.skip(at.op, claim.id.bytes, lack),
            Some(_) => {}
            None => {
                assert!(stream.listed > 0, "each claim of a comparison is counted");
                stream.listed -= 1;
                // A journal that is followed tells it itself.
                if stream.course != JournalState::Followed {
                    stream.incomplete.add(lack);
                    let peer = self.peers.get_mut(&source.region).expect("it is known");
                    peer.comparison.iter_mut().for_each(|it| it.has_missed(source.pg, lack));
                }
            }
        }
    }

    /// Drops held claims which a comparison that is about to begin finds again: those of earlier ones, and of journals that are
    /// void since.
    pub(super) fn drop_found_again(&mut self, region: RegionId) {
        let streams = &self.streams;
        let is_found_again =
            |claim: &Claim| claim.at.is_none_or(|at| at.era != streams[&claim.source()].era);
        let of_region =
            |(_, claim): &mut (u64, Claim)| claim.region == region && is_found_again(claim);
        let dropped: Vec<_> = self.held.extract_if(.., of_region).collect();
        let peer = self.peers.get_mut(&region).expect("it is known");
        let unnamed = peer.unnamed.extract(is_found_again);
        dropped.iter().for_each(|(_, claim)| self.drop_claim(claim, Lack::Room));
        unnamed.iter().for_each(|claim| self.drop_claim(claim, Lack::Name));
    }

    /// Has what was passed over of a region for this reason found again.
    pub(super) fn find_again(&mut self, region: RegionId, lack: Lack) {
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (_, stream) in streams.take_while(|(source, _)| source.region == region) {
            stream.skipped.iter_mut().for_each(|skipped| skipped.lacks.find_again(lack));
            stream.incomplete.find_again(lack);
        }
    }

    /// Has what was passed over found again, if it is time, or if so few claims of its region are stuck that others have room.
    pub(super) fn look_for_room(&mut self, now_ms: u64, region: RegionId) {
        let peer = self.peers.get_mut(&region).expect("it is known");
        let has_room = peer.again.lacks_room && 2 * peer.stuck <= self.bounds.stuck;
        let is_time = peer.again.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        if !has_room && !is_time {
            return;
        }
        peer.again.end(now_ms);
        // Nothing waits for that time any more: what does is found again as well.
        if has_room {
            self.find_again(region, Lack::Room);
        }
        // The end of a comparison decides when the next one begins.
        let is_comparing = self.peers.get(&region).is_some_and(|peer| peer.comparison.is_some());
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (_, stream) in streams.take_while(|(source, _)| source.region == region) {
            let skipped = stream.skipped.as_mut().map(|skipped| &mut skipped.lacks);
            let incomplete = (!is_comparing).then_some(&mut stream.incomplete);
            for lacks in skipped.into_iter().chain(incomplete) {
                lacks.is_due |= lacks.waits_for_time();
            }
        }
    }

    /// Goes back to what is to be found again. No ids are asked for meanwhile: an answer would be taken for one from there on.
    pub(super) fn go_back(&mut self, region: RegionId) {
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (_, stream) in streams.take_while(|(source, _)| source.region == region) {
            if stream.skipped.is_some_and(|skipped| skipped.lacks.is_due) {
                stream.go_back();
            }
        }
    }
}
