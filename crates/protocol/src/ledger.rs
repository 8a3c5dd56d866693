//! The blocks that a PG's rows name, kept op by op at every member: whoever comes to lead begins to serve without
//! reading its index, however many objects there are (ADR 22).
//!
//! ```text
//!            ledger_read, then the driver's walk over a snapshot of the index
//!  Unknown ─────────────────────────────────▶ Reading ─────────────▶ Known
//!     ▲                                          │ changes wait        │ each change
//!     └───── a change does not fit: Contradicts ◀┴─────────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. What is known is what a walk over the PG's rows at its applied position would find: the index is the truth, and
//!    nothing of this is stored.
//! 2. A change takes effect exactly once: those that the snapshot of a walk shows already are passed over.
//! 3. One block is named once. A change that would break this makes the ledger void, never an allocator wrong.

use std::collections::BTreeMap;

use larder_types::{Chunk, Extent, Holders, LvId, OpId};

use crate::index::IndexError;
use crate::limits::LEDGER_CHANGES_MAX;
use crate::pg::chunk_in;
use crate::rebuild::{Space, SpaceFault};
use crate::space::{FreeRuns, LvInfo};

/// Where a chunk lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lv: LvId,
    pub(crate) extents: Vec<Extent>,
    pub(crate) holders: Holders,
}

impl From<&Chunk> for Blocks {
    fn from(chunk: &Chunk) -> Self {
        Self { lv: chunk.lv, extents: chunk.extents.clone(), holders: chunk.holders }
    }
}

/// What an op did to the blocks that rows name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A row names a chunk.
    Named(Blocks),
    /// Nothing names it any more.
    Freed(Blocks),
    /// It has other holders than before.
    Held { lv: LvId, before: Holders, after: Holders },
}

/// Runs of blocks that are named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct NamedRuns(BTreeMap<u32, u32>);

impl NamedRuns {
    /// Joins an extent with its neighbours; fails if any of it is named already.
    fn insert(&mut self, extent: Extent) -> Result<(), Extent> {
        let (mut first, mut end) = (extent.first, extent.end());
        if extent.blocks == 0 || end < first {
            return Err(extent);
        }
        if let Some((&before, until)) = self.0.range_mut(..end).next_back() {
            if *until > first {
                return Err(extent);
            }
            if *until == first {
                first = before;
            }
        }
        if let Some(until) = self.0.remove(&end) {
            end = until;
        }
        self.0.insert(first, end);
        Ok(())
    }

    /// Takes an extent out; fails unless all of it is named.
    fn remove(&mut self, extent: Extent) -> Result<(), Extent> {
        let (first, end) = (extent.first, extent.end());
        let Some((&start, until)) = self.0.range_mut(..=first).next_back() else {
            return Err(extent);
        };
        let last = *until;
        if extent.blocks == 0 || last < end {
            return Err(extent);
        }
        *until = first;
        if start == first {
            self.0.remove(&start);
        }
        if end < last {
            self.0.insert(end, last);
        }
        Ok(())
    }

    /// What is left of an LV of so many blocks.
    fn rest(&self, blocks: u32) -> Result<FreeRuns, Extent> {
        let mut free = FreeRuns::whole(blocks);
        for (&first, &end) in &self.0 {
            free.claim(Extent { first, blocks: end - first })?;
        }
        Ok(free)
    }
}

/// What rows name in one LV.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Named {
    runs: NamedRuns,
    /// Chunks, by the replicas that hold them.
    chunks: BTreeMap<Holders, u32>,
}

impl Named {
    fn count(&mut self, holders: Holders) {
        *self.chunks.entry(holders).or_default() += 1;
    }

    fn uncount(&mut self, lv: LvId, holders: Holders) -> Result<(), SpaceFault> {
        let chunks = self.chunks.get_mut(&holders).ok_or(SpaceFault::Uncounted { lv })?;
        *chunks -= 1;
        if *chunks == 0 {
            self.chunks.remove(&holders);
        }
        Ok(())
    }
}

/// What a PG's rows name, by LV.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedBlocks {
    lvs: BTreeMap<LvId, Named>,
}

impl NamedBlocks {
    /// Takes a chunk that a row names.
    ///
    /// # Errors
    /// [`SpaceFault`] if a row that was taken before names one of its blocks.
    pub fn note(&mut self, chunk: &Chunk) -> Result<(), SpaceFault> {
        self.name(&chunk.into())
    }

    fn take(&mut self, change: &Change) -> Result<(), SpaceFault> {
        match change {
            Change::Named(blocks) => self.name(blocks),
            Change::Freed(blocks) => self.free(blocks),
            Change::Held { lv, before, after } => self.hold(*lv, *before, *after),
        }
    }

    fn name(&mut self, blocks: &Blocks) -> Result<(), SpaceFault> {
        let named = self.lvs.entry(blocks.lv).or_default();
        named.count(blocks.holders);
        let mut extents = blocks.extents.iter();
        extents.try_for_each(|extent| named.runs.insert(*extent)).map_err(overlap(blocks.lv))
    }

    fn free(&mut self, blocks: &Blocks) -> Result<(), SpaceFault> {
        let lv = blocks.lv;
        let named = self.lvs.get_mut(&lv).ok_or(SpaceFault::UnknownLv { lv })?;
        named.uncount(lv, blocks.holders)?;
        let mut extents = blocks.extents.iter();
        extents.try_for_each(|extent| named.runs.remove(*extent)).map_err(overlap(lv))?;
        if named.chunks.is_empty() {
            self.lvs.remove(&lv);
        }
        Ok(())
    }

    fn hold(&mut self, lv: LvId, before: Holders, after: Holders) -> Result<(), SpaceFault> {
        let named = self.lvs.get_mut(&lv).ok_or(SpaceFault::UnknownLv { lv })?;
        named.uncount(lv, before)?;
        named.count(after);
        Ok(())
    }

    /// What a PG with these LVs may allocate from, while the chunks of these puts are open.
    ///
    /// # Errors
    /// [`SpaceFault`] if two name one block, or one names a block that no LV has.
    pub fn space<'a>(
        &self,
        lvs: impl Iterator<Item = LvInfo>,
        open: impl Iterator<Item = &'a Chunk>,
    ) -> Result<Space, SpaceFault> {
        let none = Named::default();
        let (mut of_lvs, mut is_as_wanted) = (BTreeMap::new(), true);
        for info in lvs {
            let (lv, present) = (info.lv, info.present());
            let named = self.lvs.get(&lv).unwrap_or(&none);
            is_as_wanted &= named.chunks.keys().all(|holders| *holders == present);
            let free = named.runs.rest(info.blocks).map_err(overlap(lv))?;
            of_lvs.insert(lv, (info, free));
        }
        if let Some(&lv) = self.lvs.keys().find(|lv| !of_lvs.contains_key(lv)) {
            return Err(SpaceFault::UnknownLv { lv });
        }
        for chunk in open {
            let lv = chunk.lv;
            let (_, free) = of_lvs.get_mut(&lv).ok_or(SpaceFault::UnknownLv { lv })?;
            let mut extents = chunk.extents.iter();
            extents.try_for_each(|extent| free.claim(*extent)).map_err(overlap(lv))?;
        }
        Ok(Space { lvs: of_lvs.into_values().collect(), is_as_wanted })
    }
}

fn overlap(lv: LvId) -> impl Fn(Extent) -> SpaceFault {
    move |extent| SpaceFault::Overlap { lv, extent }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: State,
    /// Walks begun so far.
    walks: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    /// A walk is under way; what was applied since it was begun, each with its op.
    Reading(Vec<(OpId, Change)>),
    Known(NamedBlocks),
    Contradicts(SpaceFault),
}

impl Ledger {
    /// Nothing is named: the rows come with a snapshot.
    pub(crate) fn begin_empty(&mut self) {
        self.walks += 1;
        self.state = State::Known(NamedBlocks::default());
    }

    /// A walk is to be begun over a snapshot of the index that is taken after this; its number.
    pub(crate) fn begin_walk(&mut self) -> u64 {
        self.walks += 1;
        self.state = State::Reading(Vec::new());
        self.walks
    }

    /// The walk has found this; the snapshot that it read shows everything up to an op.
    pub(crate) fn end_walk(&mut self, walk: u64, found: Result<NamedBlocks, SpaceFault>, at: OpId) {
        if walk != self.walks {
            return;
        }
        let State::Reading(waiting) = std::mem::take(&mut self.state) else { return };
        self.settle(found);
        let missing = waiting.into_iter().filter(|(op, _)| *op > at);
        missing.for_each(|(op, change)| self.take(op, change));
    }

    /// A row of a snapshot that this member takes.
    pub(crate) fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        if let State::Known(named) = &mut self.state
            && let Some(chunk) = chunk_in(row, value)?
            && let Err(fault) = named.note(&chunk)
        {
            self.state = State::Contradicts(fault);
        }
        Ok(())
    }

    /// Takes what an op did.
    pub(crate) fn take(&mut self, op: OpId, change: Change) {
        match &mut self.state {
            State::Known(named) => {
                if let Err(fault) = named.take(&change) {
                    self.state = State::Contradicts(fault);
                }
            }
            State::Reading(waiting) if waiting.len() < LEDGER_CHANGES_MAX => {
                waiting.push((op, change));
            }
            State::Reading(_) => self.state = State::Unknown,
            State::Unknown | State::Contradicts(_) => {}
        }
    }

    /// Whether it hears of changes at all.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.state, State::Known(_) | State::Reading(_))
    }

    pub(crate) fn known(&self) -> Option<&NamedBlocks> {
        if let State::Known(named) = &self.state { Some(named) } else { None }
    }

    pub(crate) fn fault(&self) -> Option<SpaceFault> {
        if let State::Contradicts(fault) = &self.state { Some(*fault) } else { None }
    }

    fn settle(&mut self, found: Result<NamedBlocks, SpaceFault>) {
        self.state = found.map_or_else(State::Contradicts, State::Known);
    }
}

#[cfg(test)]
mod tests;
