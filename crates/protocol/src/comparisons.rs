//! Times at which a server compares the indexes of the groups that it leads (ADR 20). It compares one group at a time,
//! each twice within the period, and begins with the one that it has not tried for longest.
//!
//! Nothing of it is kept over a restart; so that groups which are late in the order have their turn where servers
//! restart often, each run begins at another place.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{OpId, PgId};

use crate::digest::Compared;

/// Times that each group is compared within the period.
const ROUNDS: u64 = 2;

/// The state of a group's comparisons.
#[derive(Debug)]
struct ComparedGroup {
    /// Since when this server leads it, or has run.
    since_ms: u64,
    /// The time at which it was last begun; `None` if it is to be begun before the others.
    tried_ms: Option<u64>,
    /// The time at which its members were last found equal.
    equal_ms: Option<u64>,
    /// They were found to differ since.
    differs: bool,
}

/// Counts of comparisons, by their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcomes {
    /// Comparisons that were begun.
    pub begun: u64,
    /// Those in which all members were equal.
    pub equal: u64,
    /// Those in which a member differed from more than half of all.
    pub odd: u64,
    /// Those in which members differed, and no more than half had the same rows.
    pub unclear: u64,
    /// Those that ended without a result.
    pub void: u64,
}

/// See the module's head. Times are milliseconds of a clock that never goes back.
#[derive(Debug)]
pub struct Comparisons {
    period_ms: u64,
    first: PgId,
    /// The next is begun no earlier.
    next_ms: u64,
    under_way: Option<(PgId, OpId)>,
    known: BTreeMap<PgId, ComparedGroup>,
    outcomes: Outcomes,
}

impl Comparisons {
    /// A run begins, with this group.
    #[must_use]
    pub fn new(period_ms: u64, first: PgId) -> Self {
        Self {
            period_ms,
            first,
            next_ms: 0,
            under_way: None,
            known: BTreeMap::new(),
            outcomes: Outcomes::default(),
        }
    }

    /// Notes which groups this server leads. What it knew of one that another leads now is void.
    pub fn leads(&mut self, now_ms: u64, led: &BTreeSet<PgId>) {
        self.known.retain(|pg, _| led.contains(pg));
        for pg in led {
            self.known.entry(*pg).or_insert(ComparedGroup {
                since_ms: now_ms,
                tried_ms: None,
                equal_ms: None,
                differs: false,
            });
        }
    }

    /// Groups to be compared now, in this order: one of them, if it can be. None while a comparison is under way.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<PgId> {
        if self.under_way.is_some() || now_ms < self.next_ms {
            return Vec::new();
        }
        let mut due: Vec<PgId> = self.known.keys().copied().collect();
        let place = |pg: &PgId| pg.0.wrapping_sub(self.first.0);
        due.sort_by_key(|pg| (self.known[pg].tried_ms, place(pg)));
        due
    }

    /// One was begun, at this op.
    pub fn begun(&mut self, now_ms: u64, pg: PgId, at: OpId) {
        self.under_way = Some((pg, at));
        self.outcomes.begun += 1;
        self.next_ms = now_ms + self.period_ms / (ROUNDS * self.known.len().max(1) as u64);
        if let Some(known) = self.known.get_mut(&pg) {
            known.tried_ms = Some(now_ms);
        }
    }

    /// The one under way.
    #[must_use]
    pub fn under_way(&self) -> Option<(PgId, OpId)> {
        self.under_way
    }

    /// One is over; without effect if it is not the one under way.
    pub fn ended(&mut self, now_ms: u64, pg: PgId, at: OpId, outcome: Compared) {
        if self.under_way.take_if(|it| *it == (pg, at)).is_none() {
            return;
        }
        let count = match outcome {
            Compared::Equal => &mut self.outcomes.equal,
            Compared::Odd(_) => &mut self.outcomes.odd,
            Compared::Unclear => &mut self.outcomes.unclear,
            Compared::Void => &mut self.outcomes.void,
        };
        *count += 1;
        let Some(known) = self.known.get_mut(&pg) else { return };
        match outcome {
            Compared::Equal => (known.equal_ms, known.differs) = (Some(now_ms), false),
            // By its next turn it is mended: that is looked at first.
            Compared::Odd(_) => (known.tried_ms, known.differs) = (None, true),
            Compared::Unclear => known.differs = true,
            Compared::Void => {}
        }
    }

    /// Milliseconds within which every group is to be compared.
    #[must_use]
    pub fn period_ms(&self) -> u64 {
        self.period_ms
    }

    /// Returns the counts of comparisons, by their results.
    #[must_use]
    pub fn outcomes(&self) -> Outcomes {
        self.outcomes
    }

    /// Groups that this server leads; those of them that it has found equal.
    #[must_use]
    pub fn groups(&self) -> (usize, usize) {
        let equal = self.known.values().filter(|it| it.equal_ms.is_some() && !it.differs);
        (self.known.len(), equal.count())
    }

    /// Groups whose members were found to differ, and not equal since.
    pub fn differing(&self) -> impl Iterator<Item = PgId> {
        self.known.iter().filter(|(_, it)| it.differs).map(|(pg, _)| *pg)
    }

    /// Milliseconds since the members of each group were found equal, of the one where that is longest; for one of which
    /// that is not known, since this server leads it.
    #[must_use]
    pub fn oldest_ms(&self, now_ms: u64) -> u64 {
        let age = |it: &ComparedGroup| now_ms.saturating_sub(it.equal_ms.unwrap_or(it.since_ms));
        self.known.values().map(age).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use larder_types::{OpSeq, ServerId, View};

    use super::*;

    const AT: OpId = OpId { view: View(1), seq: OpSeq(9) };

    fn three() -> Comparisons {
        let mut comparisons = Comparisons::new(6000, PgId(2));
        comparisons.leads(0, &(1..=3).map(PgId).collect());
        comparisons
    }

    fn ids(pgs: &[u32]) -> Vec<PgId> {
        pgs.iter().copied().map(PgId).collect()
    }

    #[test]
    fn each_has_its_turn_twice_within_the_period_one_at_a_time() {
        let mut comparisons = three();
        assert_eq!(comparisons.due(0), ids(&[2, 3, 1]), "from where the run begins");
        comparisons.begun(0, PgId(2), AT);
        assert_eq!(comparisons.due(5000), [], "one is under way");
        comparisons.ended(500, PgId(2), AT, Compared::Equal);
        assert_eq!(comparisons.due(999), []);
        assert_eq!(comparisons.due(1000), ids(&[3, 1, 2]));
        comparisons.begun(1000, PgId(3), AT);
        comparisons.ended(1000, PgId(3), AT, Compared::Void);
        comparisons.begun(2000, PgId(1), AT);
        comparisons.ended(2500, PgId(1), AT, Compared::Equal);
        assert_eq!(comparisons.due(3000), ids(&[2, 3, 1]));
        assert_eq!((comparisons.groups(), comparisons.oldest_ms(3000)), ((3, 2), 3000));
        let outcomes = Outcomes { begun: 3, equal: 2, void: 1, ..Outcomes::default() };
        assert_eq!(comparisons.outcomes(), outcomes);
    }

    #[test]
    fn a_differing_group_is_compared_next_and_reported_until_equal() {
        let mut comparisons = three();
        comparisons.begun(0, PgId(3), AT);
        comparisons.ended(10, PgId(3), AT, Compared::Odd(ServerId(1)));
        comparisons.begun(1000, PgId(1), AT);
        comparisons.ended(1000, PgId(1), AT, Compared::Unclear);
        assert_eq!(comparisons.differing().collect::<Vec<_>>(), ids(&[1, 3]));
        assert_eq!(comparisons.due(2000)[..2], ids(&[2, 3])[..], "before one that was tried");
        comparisons.begun(2000, PgId(3), AT);
        comparisons.ended(2000, PgId(3), AT, Compared::Equal);
        assert_eq!(comparisons.differing().collect::<Vec<_>>(), ids(&[1]));
    }

    #[test]
    fn of_a_group_that_another_leads_nothing_is_known() {
        let mut comparisons = three();
        comparisons.begun(0, PgId(3), AT);
        comparisons.leads(100, &BTreeSet::from([PgId(1)]));
        comparisons.ended(200, PgId(3), OpId::default(), Compared::Equal);
        assert_eq!(comparisons.under_way(), Some((PgId(3), AT)), "that was another");
        comparisons.ended(200, PgId(3), AT, Compared::Unclear);
        assert_eq!((comparisons.under_way(), comparisons.differing().count()), (None, 0));
        comparisons.leads(5000, &(1..=3).map(PgId).collect());
        assert_eq!((comparisons.groups(), comparisons.oldest_ms(5000)), ((3, 0), 5000));
    }
}
