//! The full comparison: finds what differs between two regions where a token is void.
//!
//! The asking region walks over all keys of the answering region. It gets the sums of runs of entries, in the order of
//! their rows. It compares each with its own sum of the same range, and asks for the ids of runs that differ. Then
//! these go the way of a journal's ids: the same filter, the same fetches, the same merge. Afterwards it goes on with
//! the tokens that held before the walk began.
//!
//! One walk serves all PGs of a region. Rows are in the order of keys, and a PG's keys lie scattered among them: a walk
//! over those of one PG would read them all.
//!
//! # Invariants
//!
//! 1. Tombstones are summed and listed like versions: a version that was purged meanwhile does not stay.
//! 2. Equal sums mean equal entries. Entries that differ without need (a tombstone that one region keeps longer) cost a
//!    list of ids.
//! 3. An answer has a bounded number of runs and ids; the asking region asks for the rest next.

use larder_types::codec::encode;
use larder_types::{VersionSlot, rows};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::entry::{Id, Name, Slot};
use crate::limits::{REGION_REQUEST_IDS_MAX, REGION_RUN_IDS_MAX, REGION_RUNS_MAX};
use crate::planted::Planted;

/// A range of entries in the order of their rows, up to another place or the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Range {
    /// The first place.
    pub from: Vec<u8>,
    /// The first place behind it.
    pub to: Option<Vec<u8>>,
}

impl Range {
    /// True if an entry is in it.
    #[must_use]
    pub fn has(&self, name: &Name) -> bool {
        let place = name.place();
        place >= self.from && self.to.as_ref().is_none_or(|to| place < *to)
    }
}

impl Name {
    /// Its place among entries: that of its row.
    #[must_use]
    pub fn place(&self) -> Vec<u8> {
        let slot = match self.slot {
            Slot::Null => VersionSlot::Unversioned,
            Slot::Version(stamp) => VersionSlot::At(stamp),
        };
        rows::version(self.bucket, &self.key, slot)
    }
}

/// A sum of entries, the same in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sum {
    /// Number of entries.
    pub count: u64,
    /// The sum of their hashes, modulo 2^128.
    pub hash: u128,
}

impl Sum {
    /// Adds an entry.
    pub fn add(&mut self, id: &Id) {
        self.count += 1;
        let hash = xxh3_128(&encode(&(&id.name, id.print)));
        self.hash = self.hash.wrapping_add(hash);
    }

    /// Sums entries.
    pub fn of<'a>(ids: impl Iterator<Item = &'a Id>) -> Self {
        ids.fold(Self::default(), |mut sum, id| {
            sum.add(id);
            sum
        })
    }
}

/// The sums of the runs of a range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summed {
    /// The runs, one after the other from the range's beginning.
    pub runs: Vec<(Range, Sum)>,
    /// The range behind them, if there is more.
    pub rest: Option<Range>,
}

impl Summed {
    /// True if it answers a walk over this range: its runs follow each other from the beginning, up to the rest or the
    /// end.
    #[must_use]
    pub fn covers(&self, range: &Range) -> bool {
        let mut from = Some(&range.from);
        for (run, _) in &self.runs {
            let goes_on =
                from == Some(&run.from) && run.to.as_ref().is_none_or(|to| *to > run.from);
            if !goes_on {
                return false;
            }
            from = run.to.as_ref();
        }
        let is_bounded = (1..=REGION_RUNS_MAX).contains(&self.runs.len());
        is_bounded
            && match &self.rest {
                Some(rest) => from == Some(&rest.from) && rest.to == range.to,
                None => from == range.to.as_ref(),
            }
    }
}

/// Sums a range; `ids` are its entries in their order. The last run goes to the end of the range, so that it covers
/// entries behind the last one that the asking region alone has.
pub fn summed(planted: Planted, range: &Range, ids: impl Iterator<Item = Id>) -> Summed {
    let mut ids = counted(planted, ids).peekable();
    let (mut runs, mut from) = (Vec::new(), range.from.clone());
    loop {
        let mut sum = Sum::default();
        while sum.count < REGION_RUN_IDS_MAX as u64
            && let Some(id) = ids.next()
        {
            sum.add(&id);
        }
        let next = ids.peek().map(|id| id.name.place());
        let to = next.clone().or_else(|| range.to.clone());
        runs.push((Range { from, to }, sum));
        let Some(next) = next else { return Summed { runs, rest: None } };
        if runs.len() == REGION_RUNS_MAX {
            return Summed { runs, rest: Some(Range { from: next, to: range.to.clone() }) };
        }
        from = next;
    }
}

/// The ids of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The first of them.
    pub ids: Vec<Id>,
    /// The range behind them: a run may have grown since it was summed.
    pub rest: Option<Range>,
}

impl Listed {
    /// True if it answers a request for this range.
    #[must_use]
    pub fn covers(&self, range: &Range) -> bool {
        let is_further = |rest: &Range| rest.from > range.from && rest.to == range.to;
        self.ids.len() <= REGION_REQUEST_IDS_MAX && self.rest.as_ref().is_none_or(is_further)
    }
}

/// Lists a range; `ids` are its entries in their order.
pub fn listed(planted: Planted, range: &Range, ids: impl Iterator<Item = Id>) -> Listed {
    let mut rest = counted(planted, ids);
    let ids = rest.by_ref().take(REGION_REQUEST_IDS_MAX).collect();
    let next = rest.next().map(|id| id.name.place());
    let rest = next.map(|from| Range { from, to: range.to.clone() });
    Listed { ids, rest }
}

/// The entries that a comparison counts: all of them.
pub fn counted(planted: Planted, ids: impl Iterator<Item = Id>) -> impl Iterator<Item = Id> {
    ids.filter(move |id| !(id.is_purged && planted.compares_no_tombstones()))
}

#[cfg(test)]
#[path = "compare/tests.rs"]
mod tests;
