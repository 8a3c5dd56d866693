//! Checks of the machine's own state after each step.

use std::collections::BTreeSet;

use larder_types::{HybridClock, RegionId};

use super::{Name, Peer, Pull};

impl Pull {
    /// Checks the bounds, in few steps.
    pub(super) fn check(&self) {
        let queued = self.queued();
        let waiting = self.wants.len().checked_sub(self.busy).expect("what is under way is wanted");
        assert!(queued >= waiting, "what waits is in the queue of a region that told of it");
        let is_bounded = |peer: &Peer| {
            peer.stuck <= self.bounds.stuck
                && peer.unnamed.is_bounded(&self.bounds)
                && peer.stuck + peer.unnamed.len() <= peer.claims
        };
        assert!(self.peers.values().all(is_bounded), "claims that cannot be taken are bounded");
    }

    /// Checks all claims and wants, which takes long where there are many.
    pub(super) fn check_queues(&self) {
        for (region, peer) in &self.peers {
            let named = self.all_claims().filter(|claim| claim.region == *region);
            let of_region: Vec<_> = named.chain(peer.unnamed.claims()).collect();
            let of_region = || of_region.iter();
            let unnamed = peer.unnamed.claims().count();
            assert_eq!(unnamed, peer.unnamed.len(), "those without a bucket here are counted");
            assert_eq!(of_region().count(), peer.claims, "each claim has a place");
            let stuck = of_region().filter(|claim| claim.is_stuck).count();
            assert_eq!(stuck, peer.stuck, "those that are stuck have one of their own");
            let listed = self.streams_of(*region).map(|(_, stream)| stream.listed).sum::<usize>();
            let of_comparisons = of_region().filter(|claim| claim.at.is_none()).count();
            assert_eq!(of_comparisons, listed, "a comparison's holds up one journal");
        }
        let (mut busy, mut places) = (0, BTreeSet::new());
        for (name, want) in &self.wants {
            match want.waits_since() {
                Some(clock) => {
                    let place = |region| (region, want.lane(), clock, name);
                    places.extend(want.regions().map(place));
                }
                None => busy += 1,
            }
        }
        assert_eq!(busy, self.busy, "each want waits or is under way");
        let of_peer = |(region, peer): (&RegionId, &Peer)| {
            let is_place = |(lane, (clock, name)): (_, &(HybridClock, Name))| {
                places.contains(&(*region, lane, *clock, name))
            };
            peer.queue.iter().all(is_place)
        };
        assert!(self.peers.iter().all(of_peer), "what is queued waits");
        assert_eq!(
            places.len(),
            self.queued(),
            "what waits may be asked of each region that told of it"
        );
    }

    fn queued(&self) -> usize {
        self.peers.values().map(|peer| peer.queue.len()).sum()
    }
}
