//! A journal in memory, which answers as meta servers do from its rows.

use std::collections::{BTreeMap, VecDeque};

use larder_protocol::region::journal::{Batch, VoidReason};
use larder_protocol::region::{Id, Token, Void};
use larder_types::{OpSeq, RegionId};

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
    /// A planted fault: it goes on behind a token whose outcomes it has dropped.
    overlooks_overruns: bool,
}

impl Journal {
    /// Makes the journal of a PG whose outcomes up to `before` are lost. It keeps at most `max`.
    pub fn new(before: OpSeq, max: usize, overlooks_overruns: bool) -> Self {
        assert!(max > 0, "a journal keeps some");
        let (outcomes, passed) = (VecDeque::new(), BTreeMap::new());
        Self { outcomes, max, dropped: before, last: before, passed, overlooks_overruns }
    }

    /// Records an outcome, whose op is below the commit point.
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
    pub fn since(&self, token: Token, ids_max: usize) -> Result<Batch, Void> {
        let resume = Token { through: self.last };
        let void = |why| Err(Void { why, resume });
        if token.through > self.last {
            return void(VoidReason::Ahead);
        }
        if token.through < self.dropped && !self.overlooks_overruns {
            return void(VoidReason::Overrun);
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

    /// The last outcome that the journal knows of.
    pub fn last(&self) -> OpSeq {
        self.last
    }

    /// The last op that a region has passed.
    pub fn passed_of(&self, region: RegionId) -> OpSeq {
        self.passed.get(&region).copied().unwrap_or_default()
    }

    /// The last op that all of these regions have passed. Each tombstone of that op, or one before, is in all of them.
    pub fn passed_by_all(&self, regions: impl Iterator<Item = RegionId>) -> OpSeq {
        regions.map(|region| self.passed_of(region)).min().unwrap_or(self.last)
    }
}

mod tests;
