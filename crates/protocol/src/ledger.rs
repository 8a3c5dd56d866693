//! Blocks that a PG's rows name, and objects of each bucket in them, kept op by op at every member. So a member that comes
//! to lead begins to serve without reading its index, however many objects there are (ADR 22). It also knows the use of each
//! bucket (ADR 57).
//!
//! # Invariants
//!
//! 1. What is known is what a walk over the PG's rows at its applied position would find: the index is the truth, and
//!    nothing of this is stored. While it is read, this holds of the rows before the stretch.
//! 2. One block is named once. A change that would break this makes the ledger of blocks void: no allocator gets a wrong one.
//! 3. Blocks and counts are learnt in one walk, but each may be void, or given up, without the other.

mod counts;
mod followed;

use std::collections::BTreeMap;

use larder_types::{BucketId, Chunk, Extent, Holders, LvId, OpId};

use crate::index::IndexError;
use crate::lv::LvInfo;
use crate::row::contents_of;
use crate::space::{FreeRuns, Space, SpaceFault};
pub use counts::{BucketCounts, CountFault, ObjectCount};
pub(crate) use counts::{Recount, Resized};
pub(crate) use followed::Changed;
use followed::{DerivedState, Followed};

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

/// The change of an op to the blocks that rows name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A row names a chunk.
    Named(Blocks),
    /// Nothing names it any more.
    Freed(Blocks),
    /// Its row has it no more, and the next change says which has it now.
    Left(Blocks),
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

    /// Returns the blocks that are left of an LV of so many blocks.
    fn rest(&self, blocks: u32) -> Result<FreeRuns, Extent> {
        let mut free = FreeRuns::whole(blocks);
        for (&first, &end) in &self.0 {
            free.claim(Extent { first, blocks: end - first })?;
        }
        Ok(free)
    }
}

/// The blocks and chunks that rows name in one LV.
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

    fn absorb(&mut self, other: Self) -> Result<(), Extent> {
        for (holders, count) in other.chunks {
            *self.chunks.entry(holders).or_default() += count;
        }
        let extent = |(first, end): (u32, u32)| Extent { first, blocks: end - first };
        other.runs.0.into_iter().map(extent).try_for_each(|extent| self.runs.insert(extent))
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

/// The blocks and chunks that a PG's rows name, by LV.
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

    /// Blocks of an LV that are named, in order.
    pub(crate) fn of_lv(&self, lv: LvId) -> impl Iterator<Item = Extent> {
        let runs = self.lvs.get(&lv).into_iter().flat_map(|named| &named.runs.0);
        runs.map(|(&first, &end)| Extent { first, blocks: end - first })
    }

    /// Of each LV the block from which on none is named.
    pub(crate) fn tops(&self) -> BTreeMap<LvId, u32> {
        let top = |named: &Named| named.runs.0.values().next_back().copied().unwrap_or(0);
        self.lvs.iter().map(|(&lv, named)| (lv, top(named))).collect()
    }

    /// LVs of which a block is named.
    pub(crate) fn lvs(&self) -> impl Iterator<Item = LvId> {
        self.lvs.keys().copied()
    }

    /// Returns true if every chunk of an LV has these holders.
    pub(crate) fn are_held_by(&self, lv: LvId, present: Holders) -> bool {
        let mut holders = self.lvs.get(&lv).into_iter().flat_map(|named| named.chunks.keys());
        holders.all(|holders| *holders == present)
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

    /// Returns the space that a PG with these LVs may allocate from, while the chunks of these puts are open.
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
            is_as_wanted &= self.are_held_by(lv, present);
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

impl DerivedState for NamedBlocks {
    type Change = Change;
    type Fault = SpaceFault;

    fn take(&mut self, change: &Change) -> Result<(), SpaceFault> {
        match change {
            Change::Named(blocks) => self.name(blocks),
            Change::Freed(blocks) | Change::Left(blocks) => self.free(blocks),
            Change::Held { lv, before, after } => self.hold(*lv, *before, *after),
        }
    }

    fn absorb(&mut self, other: Self) -> Result<(), SpaceFault> {
        other.lvs.into_iter().try_for_each(|(lv, named)| {
            self.lvs.entry(lv).or_default().absorb(named).map_err(overlap(lv))
        })
    }
}

/// Findings in a stretch of rows.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(crate) named: Result<NamedBlocks, SpaceFault>,
    pub(crate) counts: Result<BucketCounts, CountFault>,
}

impl Default for Stretch {
    fn default() -> Self {
        Self { named: Ok(NamedBlocks::default()), counts: Ok(BucketCounts::default()) }
    }
}

impl Stretch {
    /// Takes a row's chunk.
    pub(crate) fn note_chunk(&mut self, chunk: &Chunk) {
        if let Ok(named) = &mut self.named
            && let Err(fault) = named.note(chunk)
        {
            self.named = Err(fault);
        }
    }

    /// Takes a key's object.
    pub(crate) fn note_object(&mut self, bucket: BucketId, size: u64) {
        if let Ok(counts) = &mut self.counts
            && let Err(fault) = counts.note(bucket, size)
        {
            self.counts = Err(fault);
        }
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    blocks: Followed<NamedBlocks>,
    counts: Followed<BucketCounts>,
    /// Walks begun so far.
    walks: u64,
}

impl Ledger {
    /// Nothing is there: the rows come with a snapshot.
    pub(crate) fn begin_empty(&mut self) {
        (self.blocks, self.counts) = (Followed::empty(), Followed::empty());
    }

    /// Nothing is known of blocks any more.
    pub(crate) fn forget(&mut self) {
        self.blocks = Followed::Unknown;
    }

    /// A walk is to be begun over snapshots of the index that are taken after this; its number.
    pub(crate) fn begin_walk(&mut self) -> u64 {
        self.walks += 1;
        self.blocks.begin_walk(self.walks);
        self.counts.begin_walk(self.walks);
        self.walks
    }

    /// The walk has read the rows up to `until`, all of them if there is none, from a snapshot that shows everything up to an
    /// op.
    pub(crate) fn end_stretch(
        &mut self,
        walk: u64,
        Stretch { named, counts }: Stretch,
        at: OpId,
        until: Option<&[u8]>,
    ) {
        self.blocks.end_stretch(walk, named, at, until);
        self.counts.end_stretch(walk, counts, at, until);
    }

    /// A row of a snapshot that this member takes.
    pub(crate) fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let (chunk, object) = contents_of(row, value)?;
        if let Some(chunk) = chunk {
            self.blocks.learn(|named| named.note(&chunk));
        }
        if let Some((bucket, size)) = object {
            self.counts.learn(|counts| counts.note(bucket, size));
        }
        Ok(())
    }

    /// Takes what an op did to blocks.
    pub(crate) fn take(&mut self, changed: Changed<Change>) {
        self.blocks.take(changed);
    }

    /// Takes what ops did to keys' objects.
    pub(crate) fn count(&mut self, changed: Changed<Recount>) {
        self.counts.take(changed);
    }

    /// Returns true if it hears of blocks that are named.
    pub(crate) fn keeps_blocks(&self) -> bool {
        self.blocks.is_kept()
    }

    /// Returns true if it hears of objects.
    pub(crate) fn keeps_counts(&self) -> bool {
        self.counts.is_kept()
    }

    /// Returns true if changes must name their rows.
    pub(crate) fn wants_rows(&self) -> bool {
        self.blocks.wants_rows() || self.counts.wants_rows()
    }

    pub(crate) fn known(&self) -> Option<&NamedBlocks> {
        self.blocks.known()
    }

    pub(crate) fn fault(&self) -> Option<SpaceFault> {
        self.blocks.fault()
    }

    pub(crate) fn counts(&self) -> Option<&BucketCounts> {
        self.counts.known()
    }

    pub(crate) fn count_fault(&self) -> Option<CountFault> {
        self.counts.fault()
    }
}

#[cfg(test)]
mod tests;
