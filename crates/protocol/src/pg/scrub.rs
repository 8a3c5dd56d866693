//! Scrubbing: lists the copies to verify, and decides if one that fails verification is damaged. Also reports a group's
//! space.
//!
//! # Invariants
//!
//! 1. A copy is called damaged only if the index shows its chunk *after* it was looked at: its extents were not freed
//!    until then, so nothing else was written there.

use larder_types::limits::BLOCK_BYTES;
use larder_types::{Chunk, ServerId};

use super::Pg;
use crate::index::{Index, IndexError};
use crate::space::Floor;

impl Pg {
    /// The copies of a chunk that can be verified, each with its replica's index and its data server; `None` unless
    /// this member serves. One that is being made anew is left out, and so is one whose disk is gone for good.
    #[must_use]
    pub fn copies_of(&self, row: &[u8], chunk: &Chunk) -> Option<Vec<(usize, ServerId)>> {
        let space = self.space.as_ref().filter(|_| self.serves())?;
        let Some(info) = space.info(chunk.lv) else { return Some(Vec::new()) };
        let holders = chunk.holders.common(info.present()).without(space.lost(chunk.lv));
        let copies = holders.iter().filter(|replica| !self.is_refilled(row, *replica));
        Some(copies.map(|replica| (replica, info.replicas[replica].server)).collect())
    }

    /// Checks a copy of a chunk that did not verify at a replica: returns true if it is damaged. It is not if the chunk
    /// was deleted or moved meanwhile, or the copy is being made anew; `None` unless this member serves.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn is_damaged(
        &self,
        row: &[u8],
        chunk: &Chunk,
        replica: usize,
        index: &dyn Index,
    ) -> Result<Option<bool>, IndexError> {
        let Some(space) = self.space.as_ref().filter(|_| self.serves()) else { return Ok(None) };
        let is_place = |it: &Chunk| it.lv == chunk.lv && it.extents == chunk.extents;
        let shown = self.shown(row, chunk.grant, index)?.filter(is_place);
        let is_holder = shown.is_some_and(|it| it.holders.has(replica));
        let is_there = space.present(chunk.lv).has(replica);
        Ok(Some(is_holder && is_there && !self.is_refilled(row, replica)))
    }

    /// Bytes of blocks that copies take on disks, with those that wait to be used again.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        let blocks = self.space.as_ref().filter(|_| self.serves()).map_or(0, |it| it.copied());
        blocks * u64::from(BLOCK_BYTES)
    }

    /// Floors of its LVs, if this member serves.
    pub fn floors(&self) -> impl Iterator<Item = Floor> {
        let (last, space) = (self.last().seq, self.space.as_ref().filter(|_| self.serves()));
        space.into_iter().flat_map(move |space| space.floors(last))
    }
}
