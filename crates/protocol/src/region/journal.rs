//! The journal of a PG: its outcomes behind a token, for other regions that may lack them.
//!
//! # Invariants
//!
//! 1. Outcomes are in the order of their ops, and each op is below the commit point when it is recorded.
//! 2. The asking region gets every outcome behind its token, or hears that the token is void: no outcome is left out.
//! 3. The number of kept outcomes is bounded, however long a region is away.
//! 4. An id is kept as it was recorded, also when its entry is gone.

use std::collections::{BTreeMap, VecDeque};

use larder_types::{OpSeq, RegionId};
use serde::{Deserialize, Serialize};

use super::entry::Id;
use crate::limits::REGION_JOURNAL_OUTCOMES_MAX;
use crate::planted::Planted;

/// A region's position in a PG's journal: it has every outcome up to this op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Token {
    /// The op.
    pub through: OpSeq,
}

/// The answer to a void token. The asking region compares all keys, and goes on from `resume` afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Void {
    /// The fault of the token.
    pub why: Why,
    /// A token that holds now.
    pub resume: Token,
}

/// A fault of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The journal no longer keeps all outcomes behind it.
    Overrun,
    /// It is ahead of the journal, which has lost outcomes that it told.
    Ahead,
}

/// Outcomes behind a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Each with its op.
    pub ids: Vec<(OpSeq, Id)>,
    /// The token once all of these are durable in the asking region.
    pub token: Token,
    /// The last outcome of the journal.
    pub last: OpSeq,
    /// Outcomes behind `token`, and their bytes.
    pub left: (u64, u64),
}

/// See the module's head.
#[derive(Debug)]
pub struct Journal {
    outcomes: VecDeque<(OpSeq, Id)>,
    max: usize,
    /// The last outcome that is kept no longer.
    dropped: OpSeq,
    /// The last op that the journal knows of.
    last: OpSeq,
    passed: BTreeMap<RegionId, OpSeq>,
    planted: Planted,
}

impl Journal {
    /// Makes the journal of a PG whose outcomes up to `before` are lost. It keeps at most `max`, below
    /// [`REGION_JOURNAL_OUTCOMES_MAX`].
    ///
    /// # Panics
    /// If that is none, or more than may be.
    #[must_use]
    pub fn new(before: OpSeq, max: usize, planted: Planted) -> Self {
        assert!((1..=REGION_JOURNAL_OUTCOMES_MAX).contains(&max), "a journal is bounded");
        let (outcomes, passed) = (VecDeque::new(), BTreeMap::new());
        Self { outcomes, max, dropped: before, last: before, passed, planted }
    }

    /// Records an outcome, whose op is below the commit point.
    ///
    /// # Panics
    /// If it is not behind all that are there.
    pub fn record(&mut self, op: OpSeq, id: Id) {
        assert!(op > self.last, "outcomes are recorded in their order");
        self.last = op;
        self.outcomes.push_back((op, id));
        while self.outcomes.len() > self.max {
            let (dropped, _) = self.outcomes.pop_front().expect("there are more than may be");
            self.dropped = dropped;
        }
    }

    /// The outcomes behind a token, for the region that has it.
    ///
    /// # Errors
    /// [`Void`].
    pub fn since(&self, token: Token, ids_max: usize) -> Result<Batch, Void> {
        let resume = Token { through: self.last };
        let void = |why| Err(Void { why, resume });
        if token.through > self.last {
            return void(Why::Ahead);
        }
        if token.through < self.dropped && !self.planted.overlooks_overruns() {
            return void(Why::Overrun);
        }
        let at = self.outcomes.partition_point(|(op, _)| *op <= token.through);
        let ids: Vec<_> = self.outcomes.range(at..).take(ids_max).cloned().collect();
        let left = self.outcomes.range(at + ids.len()..);
        let left = left.fold((0, 0_u64), |(count, bytes), (_, id)| {
            (count + 1, bytes.saturating_add(id.bytes))
        });
        let through =
            if left.0 == 0 { self.last } else { ids.last().map_or(token.through, |it| it.0) };
        Ok(Batch { ids, token: Token { through }, last: self.last, left })
    }

    /// Notes a region's report that all up to a token is durable there.
    pub fn passed(&mut self, region: RegionId, token: Token) {
        let passed = self.passed.entry(region).or_default();
        *passed = token.through.min(self.last).max(*passed);
    }

    /// The last op that all of these regions have passed. Each tombstone of that op, or one before, is in all of them.
    #[must_use]
    pub fn passed_by_all(&self, regions: impl Iterator<Item = RegionId>) -> OpSeq {
        let passed = |region| self.passed.get(&region).copied().unwrap_or_default();
        regions.map(passed).min().unwrap_or(self.last)
    }
}

#[cfg(test)]
#[path = "journal/tests.rs"]
mod tests;
