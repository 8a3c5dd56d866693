//! Positions that other regions reported in the journals of this store's PGs.
//!
//! # Invariants
//!
//! 1. A report counts only up to an op that shows here: no region has what it was not told.
//! 2. What counts never goes back.

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::region::Token;
use larder_types::{OpSeq, PgId, RegionId};
use tokio::time::Instant;

use crate::wire::Position;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Reported {
    began: Instant,
    durable: BTreeMap<PgId, BTreeMap<RegionId, Durable>>,
    /// The last op of each PG that shows here, at least.
    shown: BTreeMap<PgId, OpSeq>,
    /// PGs of which a region has come further since this was taken.
    moved: BTreeSet<PgId>,
    /// The last time that each region asked or reported.
    last_report: BTreeMap<RegionId, Instant>,
    /// By region and PG: an outcome that it lacks, and since when that is known.
    lacking: BTreeMap<(RegionId, PgId), (OpSeq, Instant)>,
}

/// Changes of this store that a region lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lacks {
    /// PGs of which it lacks changes.
    pub(super) groups: u32,
    /// Since when it has lacked something of one of these, at least.
    pub(super) since: Option<Instant>,
    /// The last time that it asked or reported, or the start.
    pub(super) last_report: Instant,
}

/// The report of a region about a PG.
#[derive(Debug, Clone, Copy, Default)]
struct Durable {
    /// Up to this op it counts.
    through: OpSeq,
    /// Its last report.
    last: OpSeq,
}

impl Durable {
    /// Counts what shows here; returns whether the region has come further.
    fn count(&mut self, shown: OpSeq) -> bool {
        let now = self.last.min(shown).max(self.through);
        std::mem::replace(&mut self.through, now) != now
    }
}

impl Default for Reported {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            durable: BTreeMap::new(),
            shown: BTreeMap::new(),
            moved: BTreeSet::new(),
            last_report: BTreeMap::new(),
            lacking: BTreeMap::new(),
        }
    }
}

impl Reported {
    /// An op shows here. Answers come in any order, and a new primary may show less for a moment.
    pub(super) fn show(&mut self, pg: PgId, applied: OpSeq) {
        let shown = self.shown.entry(pg).or_default();
        *shown = applied.max(*shown);
        let shown = *shown;
        for durable in self.durable.get_mut(&pg).into_iter().flat_map(BTreeMap::values_mut) {
            if durable.count(shown) {
                self.moved.insert(pg);
            }
        }
    }

    /// Takes a region's report.
    pub(super) fn take(&mut self, from: RegionId, pg: PgId, durable: Token) {
        let shown = self.shown.get(&pg).copied().unwrap_or_default();
        let known = self.durable.entry(pg).or_default().entry(from).or_default();
        known.last = durable.through;
        if known.count(shown) {
            self.moved.insert(pg);
        }
    }

    /// The op of a PG up to which a region has all; `None` if it has reported nothing.
    pub(super) fn of(&self, region: RegionId, pg: PgId) -> Option<OpSeq> {
        self.durable.get(&pg)?.get(&region).map(|durable| durable.through)
    }

    /// The same of several regions. One that has reported nothing is named with op 0: silence is not taken for having all.
    pub(super) fn positions(&self, regions: &[RegionId], pg: PgId) -> Vec<Position> {
        regions.iter().map(|region| (*region, self.of(*region, pg).unwrap_or_default())).collect()
    }

    /// A region asks, or reports.
    pub(super) fn hear(&mut self, from: RegionId) {
        self.last_report.insert(from, Instant::now());
    }

    /// Notes the first outcome of a PG that a region lacks, or that it lacks none, while all is durable there up to a token.
    /// While it goes on it lacks another one each time, and is not late.
    pub(super) fn note_lacking(
        &mut self,
        (from, pg): (RegionId, PgId),
        lacks: Option<OpSeq>,
        durable: Token,
    ) {
        let Some(op) = lacks else {
            self.lacking.remove(&(from, pg));
            return;
        };
        let known = self.lacking.entry((from, pg)).or_insert((op, Instant::now()));
        if durable.through >= known.0 {
            *known = (op, Instant::now());
        }
    }

    /// Returns the changes that a region lacks, of the PGs that it asked for.
    pub(super) fn lacks(&self, region: RegionId) -> Lacks {
        let pgs = (region, PgId(0))..=(region, PgId(u32::MAX));
        let of_region = self.lacking.range(pgs).map(|(_, lacks)| *lacks);
        let last_report = self.last_report.get(&region).copied().unwrap_or(self.began);
        let mut lacks = Lacks { groups: 0, since: None, last_report };
        for (_, since) in of_region {
            lacks.groups += 1;
            lacks.since = Some(lacks.since.map_or(since, |first| first.min(since)));
        }
        lacks
    }

    /// Takes the PGs of which a region has come further.
    pub(super) fn take_moved(&mut self) -> BTreeSet<PgId> {
        std::mem::take(&mut self.moved)
    }

    pub(super) fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PG: PgId = PgId(3);

    fn token(through: u64) -> Token {
        Token { through: OpSeq(through) }
    }

    #[test]
    fn a_report_counts_up_to_what_shows_here_and_for_the_rest_when_that_does() {
        let (mut reported, region) = (Reported::default(), RegionId(2));
        reported.take(region, PG, token(9));
        assert_eq!(reported.of(region, PG), Some(OpSeq(0)), "nothing shows yet");
        assert!(!reported.has_moved());
        reported.show(PG, OpSeq(5));
        assert_eq!(reported.of(region, PG), Some(OpSeq(5)));
        reported.show(PG, OpSeq(4));
        reported.show(PG, OpSeq(20));
        assert_eq!(reported.of(region, PG), Some(OpSeq(9)));
        assert_eq!(reported.take_moved(), BTreeSet::from([PG]));
        reported.take(region, PG, token(7));
        assert_eq!(reported.of(region, PG), Some(OpSeq(9)), "it has them for good");
        assert!(!reported.has_moved());
        reported.show(PG, OpSeq(30));
        assert_eq!(reported.of(region, PG), Some(OpSeq(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_region_lacks_what_shows_here_until_it_has_reported_that() {
        let (mut reported, region, began) = (Reported::default(), RegionId(2), Instant::now());
        let step = Duration::from_secs(1);
        assert_eq!(reported.lacks(region), Lacks { groups: 0, since: None, last_report: began });
        tokio::time::advance(step).await;
        reported.hear(region);
        let last_report = began + step;
        reported.note_lacking((region, PG), None, token(5));
        assert_eq!(reported.lacks(region), Lacks { groups: 0, since: None, last_report });
        reported.note_lacking((region, PG), Some(OpSeq(7)), token(5));
        tokio::time::advance(step).await;
        reported.note_lacking((region, PG), Some(OpSeq(7)), token(6));
        reported.note_lacking((RegionId(3), PG), Some(OpSeq(7)), token(6));
        assert_eq!(
            reported.lacks(region),
            Lacks { groups: 1, since: Some(last_report), last_report }
        );
        // It has the first, and lacks what came since.
        reported.note_lacking((region, PG), Some(OpSeq(9)), token(8));
        let since = Some(began + 2 * step);
        assert_eq!(reported.lacks(region), Lacks { groups: 1, since, last_report });
        reported.note_lacking((region, PG), None, token(9));
        assert_eq!(reported.lacks(region), Lacks { groups: 0, since: None, last_report });
    }

    #[test]
    fn a_region_that_is_silent_has_nothing() {
        let (mut reported, regions) = (Reported::default(), [RegionId(2), RegionId(3)]);
        reported.show(PG, OpSeq(5));
        reported.take(RegionId(2), PG, token(5));
        let wanted = [(RegionId(2), OpSeq(5)), (RegionId(3), OpSeq(0))];
        assert_eq!(reported.positions(&regions, PG), wanted);
        assert_eq!(reported.of(RegionId(3), PG), None);
        assert_eq!(reported.positions(&[], PG), []);
    }
}
