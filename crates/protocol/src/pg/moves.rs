//! Compaction: moves chunks within a badly fragmented LV, so that its free space becomes contiguous (ADR 24).
//!
//! ```text
//!  begin_compaction ─▶ the driver visits every row ─▶ consider_move ─▶ Move: read a good copy, write it ─▶ Moved ─┐
//!                                                                                                              ▼
//!                     the row has the new place, the old one waits for the floors ◀── applied ◀─── Op::Moved
//! ```
//!
//! # Invariants
//!
//! 1. The copies are written under a grant like that of a copy that was missing (`refill.rs`): below every op that can
//!    free the chunk *or give the new place back*. So a late one never meets another object's bytes.
//! 2. A row is given a new place only after every replica of the LV has a durable copy there. Also it must still have
//!    the chunk that was copied, which its grant says: each place has a grant of its own.
//! 3. A new place belongs to the row, or waits for the floors, or is under way here. Nothing is stored before the op:
//!    what is under way when a view ends was never named, and its writes are refused in the next.
//! 4. Where copies are missing, or are to go, nothing moves; and no replica is said to be filled or vacated while
//!    anything does.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{Chunk, ChunkMove, Extent, Grant, Holders, LvId, Op, OpId};

use super::Pg;
use super::batch::{Batch, MoveCounts};
use crate::index::{Index, IndexError};
use crate::ledger::Blocks;
use crate::limits::{MOVES_MAX, MOVES_PER_OP_MAX, TAIL_OPS_MAX};
use crate::message::{Effect, Outbox};
use crate::row::with_chunk;
use crate::space::Fragmentation;

/// The attempt of the grant of every move's copies: no put has as many, and no other copy has it.
const MOVE_ATTEMPT: u32 = u32::MAX - 1;

/// A chunk that is to be copied to a new place in its LV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Row of the index that has the chunk.
    pub row: Bytes,
    /// The chunk as it lies, with its sums.
    pub chunk: Chunk,
    /// Replicas to read from: any that verifies. All are to be written to.
    pub replicas: Holders,
    /// The new place: runs of blocks in the order of the data.
    pub extents: Vec<Extent>,
    /// The grant under which the copies are written.
    pub grant: Grant,
}

/// A chunk whose copies are being made.
#[derive(Debug)]
struct ActiveMove {
    /// Grant of the chunk.
    chunk: Grant,
    lv: LvId,
    extents: Vec<Extent>,
    replicas: Holders,
    /// The grant under which the copies are written.
    grant: Grant,
}

/// The LVs that are to be compacted, and the bytes to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartedCompaction {
    /// The number of LVs that are compacted.
    pub lvs: usize,
    /// Bytes of chunks that lie too high in them, about.
    pub bytes: u64,
}

/// The memory of a primary about all this, for one view.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// LVs that are being compacted.
    lvs: BTreeSet<LvId>,
    /// By row.
    under_way: BTreeMap<Bytes, ActiveMove>,
    /// Chunks whose copies are durable, and which have no op yet.
    copied: Vec<ChunkMove>,
}

impl Moves {
    /// The oldest grant of copies under way.
    pub(super) fn oldest(&self) -> Option<larder_types::OpSeq> {
        self.under_way.values().map(|under_way| under_way.grant.op.seq).min()
    }

    /// Chunks that are being copied, or have no op yet.
    pub(super) fn len(&self) -> usize {
        self.under_way.len() + self.copied.len()
    }

    pub(super) fn has_copied(&self) -> bool {
        !self.copied.is_empty()
    }
}

impl Pg {
    /// Begins to compact LVs that are badly fragmented; none while copies are missing, or chunks still move.
    pub fn begin_compaction(&mut self, from: Fragmentation) -> StartedCompaction {
        let may_begin = self.serves() && !self.has_copies_to_make() && !self.is_moving();
        let Some(space) = self.space.as_mut().filter(|_| may_begin) else {
            return StartedCompaction::default();
        };
        let lvs = space.begin_compaction(from);
        let bytes = lvs.values().sum::<u64>() * u64::from(BLOCK_BYTES);
        self.moves.lvs = lvs.into_keys().collect();
        StartedCompaction { lvs: self.moves.lvs.len(), bytes }
    }

    /// Every row was considered.
    pub fn end_compaction(&mut self) {
        self.moves.lvs.clear();
    }

    /// Returns the number of its LVs that are badly fragmented.
    #[must_use]
    pub fn fragmented(&self, from: Fragmentation) -> usize {
        let space = self.space.as_ref().filter(|_| self.serves());
        space.map_or(0, |space| space.fragmented(from))
    }

    /// Returns counts of the chunks that this member has moved, by their outcomes.
    #[must_use]
    pub fn move_counts(&self) -> MoveCounts {
        self.move_counts
    }

    /// Looks at a chunk that a row has; returns how it is to be moved, if it is. The driver copies it, and says
    /// [`crate::Event::Moved`].
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn consider_move(
        &mut self,
        row: &[u8],
        chunk: &Chunk,
        index: &dyn Index,
    ) -> Result<Option<Box<Move>>, IndexError> {
        if !self.moves.lvs.contains(&chunk.lv) || !self.serves() {
            return Ok(None);
        }
        let is_high = self.space.as_ref().is_some_and(|space| space.is_high(chunk));
        if is_high && self.has_copies_to_make() {
            self.compact_again(chunk.lv);
            return Ok(None);
        }
        if !is_high || self.moves.under_way.contains_key(row) || self.is_refilled_anywhere(row) {
            return Ok(None);
        }
        let Some(chunk) = self.shown(row, chunk.grant, index)? else { return Ok(None) };
        Ok(self.lower(row, chunk))
    }

    fn compact_again(&mut self, lv: LvId) {
        if let Some(space) = &mut self.space {
            space.compact_again(lv);
        }
    }

    fn lower(&mut self, row: &[u8], chunk: Chunk) -> Option<Box<Move>> {
        let at = OpId { view: self.view, seq: self.applied.seq.next() };
        let suspected = self.suspected(self.space.as_ref()?, &chunk);
        let is_pressed =
            self.moves.under_way.len() >= MOVES_MAX || self.tail.len() >= TAIL_OPS_MAX / 2;
        let space = self.space.as_mut()?;
        if !space.need(&chunk, suspected).is_met() || space.present(chunk.lv).is_empty() {
            return None;
        }
        if is_pressed || space.is_raised_above(chunk.lv, at) {
            space.compact_again(chunk.lv);
            return None;
        }
        let extents = space.place_below(&chunk)?;
        let (row, replicas) = (Bytes::copy_from_slice(row), space.present(chunk.lv));
        let grant = Grant { pg: self.id, op: at, attempt: MOVE_ATTEMPT };
        let under_way = ActiveMove {
            chunk: chunk.grant,
            lv: chunk.lv,
            extents: extents.clone(),
            replicas,
            grant,
        };
        self.moves.under_way.insert(row.clone(), under_way);
        Some(Box::new(Move { row, chunk, replicas, extents, grant }))
    }

    /// The copies of a chunk are durable at its new place, on all its replicas, or are not.
    pub(super) fn moved(&mut self, row: Bytes, grant: Grant, is_copied: bool, out: &mut Outbox) {
        if self.moves.under_way.get(&row).is_none_or(|under_way| under_way.grant != grant) {
            return;
        }
        let Some(under_way) = self.moves.under_way.remove(&row) else { return };
        let ActiveMove { chunk, lv, extents, replicas, .. } = under_way;
        let now = OpId { view: self.view, seq: self.applied.seq.next() };
        let Some(space) = self.space.as_mut() else { return };
        if is_copied && space.is_held_by(lv, replicas) {
            self.moves.copied.push(ChunkMove { row, grant: chunk, lv, extents, holders: replicas });
        } else {
            // No op was logged. The next to be applied is not below the copies' grant, which is what counts.
            space.give_back(lv, &extents, now, self.planted.reuses_moves_at_once());
        }
        if self.moves.copied.len() >= MOVES_PER_OP_MAX {
            self.flush_moves(out);
        }
    }

    /// Logs the new places that wait.
    pub(super) fn flush_moves(&mut self, out: &mut Outbox) {
        while self.serves() && self.moves.has_copied() && self.has_capacity_for_own() {
            let count = self.moves.copied.len().min(MOVES_PER_OP_MAX);
            let moves = self.moves.copied.drain(..count).collect();
            self.append_op(Op::Moved { moves }, None, out);
            out.push(Effect::SyncSoon);
        }
        if self.serves() && self.moves.has_copied() {
            self.make_room(out);
        }
    }

    /// Returns true if the index does not show yet what becomes of some chunk that moves.
    pub(super) fn is_moving(&self) -> bool {
        self.moves.len() > 0 || self.tail.iter().any(|tail| is_moved(&tail.entry.op))
    }

    /// A batch of ops was applied; what others have moved counts with them.
    pub(super) fn count_moves(&mut self, MoveCounts { moved, void }: MoveCounts) {
        if self.space.is_some() {
            self.move_counts.moved += moved;
            self.move_counts.void += void;
        }
    }

    /// The next ops to be applied whose blocks a planted bug frees at once.
    pub(super) fn reused_at_once(&self, count: usize) -> BTreeSet<OpId> {
        let bug = self.planted.reuses_moves_at_once();
        let moved = self.tail.iter().take(count).filter(|tail| bug && is_moved(&tail.entry.op));
        moved.map(|tail| tail.entry.id).collect()
    }
}

fn is_moved(op: &Op) -> bool {
    matches!(op, Op::Moved { .. })
}

impl Batch<'_> {
    /// A chunk lies elsewhere from now on, if its row still has it: what it leaves is freed. Else its new place is.
    pub(super) fn move_chunk(
        &mut self,
        to: &ChunkMove,
        grant: Grant,
        is_unchecked: bool,
    ) -> Result<(), IndexError> {
        let ChunkMove { row, lv, extents, holders, .. } = to;
        let now = grant.op;
        let (mut left, mut lies) = (None, None);
        if let Some(value) = self.changes.get(self.index, row)? {
            let new = with_chunk(row, &value, &mut |chunk| {
                if chunk.grant == to.grant || is_unchecked {
                    left = Some(chunk.clone());
                    chunk.grant = grant;
                    chunk.lv = *lv;
                    chunk.extents.clone_from(extents);
                    chunk.holders = *holders;
                    lies = Some(chunk.clone());
                }
            })?;
            if let Some(new) = new.filter(|_| lies.is_some()) {
                self.changes.put(row.to_vec(), new);
            }
        }
        let blocks = Blocks { lv: *lv, extents: extents.clone(), holders: *holders };
        self.name(row, blocks.clone(), now);
        match left {
            Some(left) => {
                self.moves.moved += 1;
                self.free_chunk(row, &left, now);
            }
            None => {
                self.moves.void += 1;
                self.free(row, blocks, now);
            }
        }
        Ok(())
    }
}
