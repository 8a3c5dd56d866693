//! The lag behind other regions, for operators.

use std::collections::BTreeMap;

use larder_types::{HybridClock, PgId, RegionId};

use super::super::entry::Name;
use super::wants::{Claim, Want};
use super::{Pull, Source, Stream};
use crate::limits::REGION_SILENT_MS;
use crate::now::EventTime;

/// The lag behind one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// Outcomes that are not here yet.
    pub outcomes: u64,
    /// Bytes of the contents that these have.
    pub bytes: u64,
    /// The clock of the oldest that is wanted.
    pub oldest: Option<HybridClock>,
    /// True while all keys are compared, or have to be: the numbers count only what is known to differ.
    pub is_comparing: bool,
}

impl Lag {
    fn add(&mut self, outcomes: u64, bytes: u64) {
        self.outcomes = self.outcomes.saturating_add(outcomes);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Pull {
    /// The claims on entries whose buckets are known here.
    pub(super) fn all_claims(&self) -> impl Iterator<Item = &Claim> {
        let held = self.held.iter().map(|(_, claim)| claim);
        self.wants.values().flat_map(Want::claims).chain(held)
    }

    /// This region's lag behind each other one.
    #[must_use]
    pub fn lags(&self) -> BTreeMap<RegionId, Lag> {
        let mut lags: BTreeMap<RegionId, Lag> = BTreeMap::new();
        for (source, stream) in &self.streams {
            let lag = lags.entry(source.region).or_default();
            lag.add(stream.left.0, stream.left.1);
            stream.skipped.iter().for_each(|skipped| lag.add(skipped.count, skipped.bytes));
            lag.is_comparing |= stream.is_void() || stream.incomplete.any();
        }
        let unnamed = self.peers.values().flat_map(|peer| peer.unnamed.claims());
        for claim in self.all_claims().chain(unnamed) {
            let (lag, clock) = (lags.entry(claim.region).or_default(), claim.id.at.clock);
            lag.add(1, claim.id.bytes);
            lag.oldest = Some(lag.oldest.map_or(clock, |oldest| oldest.min(clock)));
        }
        lags
    }

    /// For each region the oldest entry that it told of and that is not here.
    #[must_use]
    pub fn oldest(&self) -> BTreeMap<RegionId, (HybridClock, &Name)> {
        let mut oldest = BTreeMap::new();
        for claim in self.all_claims() {
            let this = (claim.id.at.clock, &claim.id.name);
            let oldest = oldest.entry(claim.region).or_insert(this);
            *oldest = this.min(*oldest);
        }
        oldest
    }

    /// For each region a PG of it that has not answered for [`REGION_SILENT_MS`], if there is one: its lag is not known.
    #[must_use]
    pub fn silent(&self, now: EventTime) -> BTreeMap<RegionId, PgId> {
        let is_silent = |(source, stream): &(&Source, &Stream)| {
            let since_ms = now.steady_ms.saturating_sub(stream.heard_ms);
            self.peers.contains_key(&source.region) && since_ms > REGION_SILENT_MS
        };
        let silent = self.streams.iter().filter(is_silent);
        silent.map(|(source, _)| (source.region, source.pg)).collect()
    }
}
