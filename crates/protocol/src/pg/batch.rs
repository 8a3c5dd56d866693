//! A batch of ops to be written into the index, with its effects on rows, space and counts until the write is done.
//! Each kind of ops has its effects in a file of its own, beside the calls that it comes from; all of them add to this.

use larder_types::{Chunk, Extent, LvId, OpId, PgId};

use super::departed::BatchDeparted;
use crate::index::{Changes, Index};
use crate::ledger::{Blocks, Change, Changed, Ledger, Recount, Resized};

/// A batch of ops on its way into the index.
pub(super) struct Batch<'a> {
    pub(super) pg: PgId,
    pub(super) index: &'a dyn Index,
    pub(super) changes: Changes,
    /// The changes of the batch's ops to the blocks that rows name, in order.
    pub(super) blocks: Vec<Changed<Change>>,
    /// Changes of keys' objects by ops of the batch: where rows are asked for, each by itself.
    pub(super) resized: Vec<Changed<Recount>>,
    /// The same of the first bucket, in sum: ops of one batch are mostly of one.
    pub(super) recount: Option<Recount>,
    /// True if anybody wants to know of more than what is freed.
    keeps_ledger: bool,
    /// Objects are counted.
    keeps_counts: bool,
    /// Changes must name their rows.
    pub(super) wants_rows: bool,
    /// Where chunks end that ops of the batch name.
    pub(super) ends: Vec<(LvId, u32)>,
    /// Counts of chunks that were to move, by their outcomes.
    pub(super) moves: MoveCounts,
    /// Outcomes of windows of pieces.
    pub(super) coalesced: CoalesceCounts,
    /// Rows that the op under way removes.
    pub(super) removal: Removal,
    /// Rows of large objects, as the batch leaves them.
    pub(super) rows_done: RowsDone,
    /// More rows than these are those of a large object.
    pub(super) step_rows: u32,
    /// Rows of objects that ended, if they are to be kept for reads under way.
    pub(super) departed: BatchDeparted,
}

/// Rows that an op removes.
#[derive(Debug, Default)]
pub(super) struct Removal {
    /// The most that it may remove, once that was looked up.
    pub(super) rows_max: Option<u32>,
    /// Rows that it has removed so far.
    pub(super) rows: u32,
}

/// The outcome of a batch of ops for rows of large objects.
#[derive(Debug, Default)]
pub(super) struct RowsDone {
    /// It left some that are to go by later ops.
    pub(super) leaves_garbage: bool,
    /// It made, or removed, an object of more rows than a step.
    pub(super) has_large: bool,
    /// Rows removed by [`Op::Reap`](larder_types::Op::Reap).
    pub(super) reaped: u64,
}

/// Counts of chunks whose new place was logged, by their outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveCounts {
    /// Chunks that lie in the new place now.
    pub moved: u64,
    /// Chunks that were gone when the op was applied: the new place is free.
    pub void: u64,
}

/// Outcomes of windows of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoalesceCounts {
    /// Pieces that became part of another.
    pub pieces: u64,
    /// Windows that were no more what they had been.
    pub void: u64,
}

impl<'a> Batch<'a> {
    /// An empty batch of a member that keeps this ledger, and has large objects removed in steps of so many rows.
    pub(super) fn new(pg: PgId, index: &'a dyn Index, ledger: &Ledger, step_rows: u32) -> Self {
        Self {
            pg,
            index,
            changes: Changes::default(),
            blocks: Vec::new(),
            resized: Vec::new(),
            recount: None,
            keeps_ledger: ledger.keeps_blocks(),
            keeps_counts: ledger.keeps_counts(),
            wants_rows: ledger.wants_rows(),
            ends: Vec::new(),
            moves: MoveCounts::default(),
            coalesced: CoalesceCounts::default(),
            removal: Removal::default(),
            rows_done: RowsDone::default(),
            step_rows,
            departed: BatchDeparted::default(),
        }
    }

    /// The object of a key's row has come, gone, or got another size.
    pub(super) fn resize(&mut self, row: &[u8], change: Resized, op: OpId) {
        if !self.keeps_counts {
            return;
        }
        if self.wants_rows {
            self.resized.push(Changed { op, row: row.to_vec(), change: change.into() });
            return;
        }
        let left = match &mut self.recount {
            Some(recount) => recount.join(change.into()),
            none => {
                *none = Some(change.into());
                None
            }
        };
        if let Some(change) = left {
            self.resized.push(Changed { op, row: Vec::new(), change });
        }
    }

    pub(super) fn changed(&mut self, row: &[u8], change: Change, op: OpId) {
        let row = if self.wants_rows { row.to_vec() } else { Vec::new() };
        self.blocks.push(Changed { op, row, change });
    }

    /// A row names blocks from now on.
    pub(super) fn name(&mut self, row: &[u8], blocks: Blocks, now: OpId) {
        let end = blocks.extents.iter().map(Extent::end).max();
        self.ends.extend(end.map(|end| (blocks.lv, end)));
        if self.keeps_ledger {
            self.changed(row, Change::Named(blocks), now);
        }
    }

    pub(super) fn free_chunk(&mut self, row: &[u8], chunk: &Chunk, now: OpId) {
        self.free(row, chunk.into(), now);
    }

    /// A row names blocks no more, and no other has them.
    pub(super) fn free(&mut self, row: &[u8], blocks: Blocks, now: OpId) {
        self.changed(row, Change::Freed(blocks), now);
    }

    /// A row has another row's chunk from now on.
    pub(super) fn hand_on(&mut self, from: &[u8], to: &[u8], chunk: &Chunk, now: OpId) {
        if self.keeps_ledger {
            self.changed(from, Change::Left(chunk.into()), now);
            self.changed(to, Change::Named(chunk.into()), now);
        }
    }
}
