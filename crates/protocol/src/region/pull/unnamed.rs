//! Claims on entries whose buckets are not known here.
//!
//! A region may have a bucket that this one has not made yet, or cannot make. Claims on its entries are kept under the bucket's
//! id there. The region is asked for its buckets again: soon, and ever more seldom for each bucket. Once a bucket is known
//! here its claims are taken. Those beyond the bounds are passed over: they are found again once their bucket is known, or
//! once the region has it no more.
//!
//! # Invariants
//!
//! 1. No claim here is looked up or fetched: its bucket's id means nothing in this region.
//! 2. Claims are bounded, those of one bucket besides, and so are buckets.
//! 3. The pause of one bucket delays no other bucket.

use std::collections::BTreeMap;

use larder_types::{BucketId, RegionId};

use super::lack::Lack;
use super::requests::{Query, Request};
use super::wants::Claim;
use super::{Bounds, Effect, LocalBucket, LocalEntries, Name, Pull};
use crate::limits::{REGION_BACK_MS_MAX, REGION_BUCKETS_FOUND_MAX, REGION_POLL_MS};

/// A bucket of another region that is not known here.
#[derive(Debug)]
struct Bucket {
    claims: Vec<Claim>,
    /// Claims on it were passed over.
    has_more: bool,
    /// Time from which on it is looked for again, and the time for which that was put off.
    due_ms: u64,
    pause_ms: u64,
}

/// The claims of one region, by their buckets there.
#[derive(Debug, Default)]
pub(super) struct Unnamed {
    buckets: BTreeMap<BucketId, Bucket>,
    /// Claims of all.
    count: usize,
}

impl Unnamed {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.buckets.values().flat_map(|bucket| &bucket.claims)
    }

    pub(super) fn is_bounded(&self, bounds: &Bounds) -> bool {
        self.count <= bounds.unnamed && self.buckets.len() <= bounds.unnamed
    }

    /// Keeps a claim. Gives it back if it is to be passed over: true with it if its bucket has a place, and is looked for.
    fn insert(&mut self, now_ms: u64, bounds: &Bounds, claim: Claim) -> Option<(bool, Claim)> {
        let there = claim.id.name.bucket;
        if !self.buckets.contains_key(&there) && self.buckets.len() == bounds.unnamed {
            return Some((false, claim));
        }
        let (due_ms, pause_ms) = (now_ms + REGION_POLL_MS, REGION_POLL_MS);
        let new = || Bucket { claims: Vec::new(), has_more: false, due_ms, pause_ms };
        let bucket = self.buckets.entry(there).or_insert_with(new);
        if self.count == bounds.unnamed || bucket.claims.len() == bounds.unnamed_of_bucket {
            bucket.has_more = true;
            return Some((true, claim));
        }
        bucket.claims.push(claim);
        self.count += 1;
        None
    }

    fn remove(&mut self, there: BucketId) -> Option<Bucket> {
        let bucket = self.buckets.remove(&there)?;
        self.count -= bucket.claims.len();
        Some(bucket)
    }

    /// Takes out claims.
    pub(super) fn extract(&mut self, which: impl Fn(&Claim) -> bool) -> Vec<Claim> {
        let mut taken = Vec::new();
        for bucket in self.buckets.values_mut() {
            taken.extend(bucket.claims.extract_if(.., |claim| which(claim)));
        }
        self.count -= taken.len();
        taken
    }

    /// The buckets that are to be looked for now.
    fn due(&self, now_ms: u64) -> Vec<BucketId> {
        let due = self.buckets.iter().filter(|(_, bucket)| bucket.due_ms <= now_ms);
        due.map(|(there, _)| *there).take(REGION_BUCKETS_FOUND_MAX).collect()
    }

    fn put_off(&mut self, now_ms: u64, there: BucketId) {
        let Some(bucket) = self.buckets.get_mut(&there) else { return };
        bucket.pause_ms = (2 * bucket.pause_ms).min(REGION_BACK_MS_MAX);
        bucket.due_ms = now_ms + bucket.pause_ms;
    }
}

impl Pull {
    /// Keeps a claim on an entry whose bucket is not known here, or passes it over.
    pub(super) fn keep_unnamed(&mut self, now_ms: u64, claim: Claim) {
        let bounds = self.bounds;
        let peer = self.peers.get_mut(&claim.region).expect("who told of it is known");
        if let Some((is_looked_for, claim)) = peer.unnamed.insert(now_ms, &bounds, claim) {
            if !is_looked_for {
                peer.again.begin(now_ms);
            }
            let lack = if is_looked_for { Lack::Name } else { Lack::Place };
            self.drop_claim(&claim, lack);
        }
    }

    /// Asks a region for its buckets, if one that is not known here is to be looked for.
    pub(super) fn look_for_buckets(
        &mut self,
        now_ms: u64,
        region: RegionId,
        out: &mut Vec<Effect>,
    ) {
        let is_asked =
            |it: &Request| it.region == region && matches!(it.what, Query::Buckets { .. });
        if self.peers[&region].unnamed.buckets.is_empty() || self.requests.values().any(is_asked) {
            return;
        }
        let buckets = self.peers[&region].unnamed.due(now_ms);
        if !buckets.is_empty() {
            let request = self.begin(now_ms, region, Query::Buckets(buckets.clone()));
            out.push(Effect::FindBuckets { region, request, buckets });
        }
    }

    /// Takes the claims on entries of buckets that are known here by now.
    pub(super) fn found_buckets(
        &mut self,
        now_ms: u64,
        request: u64,
        found: &BTreeMap<BucketId, LocalBucket>,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, asked)) = self.answered(request, |what| match what {
            Query::Buckets(buckets) => Some(std::mem::take(buckets)),
            _ => None,
        }) else {
            return;
        };
        for there in asked {
            let unnamed = &mut self.peers.get_mut(&region).expect("who is asked is known").unnamed;
            let Some(found) = found.get(&there) else {
                unnamed.put_off(now_ms, there);
                continue;
            };
            // A comparison may have taken it out.
            let Some(bucket) = unnamed.remove(there) else { continue };
            let is_dropped = *found == LocalBucket::Gone && !bucket.claims.is_empty();
            let has_more = bucket.has_more || is_dropped;
            for mut claim in bucket.claims {
                match *found {
                    LocalBucket::Shared(id) => {
                        claim.id.name.bucket = id;
                        self.take(now_ms, claim, here, out);
                    }
                    // Nothing is taken into a local bucket (ADR 49).
                    LocalBucket::Local => self.settle(&claim, out),
                    // Its journals tell what became of it, as does another comparison.
                    LocalBucket::Gone => self.drop_claim(&claim, Lack::Name),
                }
            }
            if has_more {
                self.find_again(region, Lack::Name);
            }
        }
    }

    /// The names here of what is taken with an answer to [`Effect::FindBuckets`].
    pub(super) fn names_found(
        &self,
        request: u64,
        found: &BTreeMap<BucketId, LocalBucket>,
    ) -> Vec<Name> {
        let Some(Request { region, what: Query::Buckets(asked), .. }) = self.requests.get(&request)
        else {
            return Vec::new();
        };
        let unnamed = &self.peers[region].unnamed;
        let mut names = Vec::new();
        for there in asked {
            let (Some(LocalBucket::Shared(id)), Some(bucket)) =
                (found.get(there), unnamed.buckets.get(there))
            else {
                continue;
            };
            let name = |claim: &Claim| Name { bucket: *id, ..claim.id.name.clone() };
            names.extend(bucket.claims.iter().map(name));
        }
        names
    }
}
