//! Space for a put, and the replicas that are to be given its data.

use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Chunk, Extent, Grant, Holders, LvId};

use super::Pg;
use super::mutation::Step;
use crate::limits::{NARROW_AGAIN_MS, NARROW_MS, POOL_EMPTY_MS, UNREAD_MS};
use crate::message::{Effect, Outbox, Refusal};
use crate::space::{NoSpace, VolumeGroup};

impl Pg {
    /// Space and a grant for the next op.
    pub(super) fn grant(
        &mut self,
        (len, seed, sums): (u32, u64, &[u64]),
        required_copies: u8,
        out: &mut Outbox,
    ) -> Result<Chunk, Step> {
        assert!(len > 0 && len <= CHUNK_BYTES_MAX, "a chunk has 1 to {CHUNK_BYTES_MAX} bytes");
        let grant = Grant { pg: self.id, op: self.next_id(), attempt: 0 };
        let required_copies = usize::from(required_copies);
        let chunk = |lv, extents, holders| Chunk {
            grant,
            seed,
            lv,
            extents,
            len,
            sums: sums.to_vec(),
            holders,
        };
        match self.allocate(len, required_copies, out) {
            Ok((lv, extents, holders)) => Ok(chunk(lv, extents, holders)),
            Err(NoSpace::Opening) => Err(Step::Starve),
            Err(NoSpace::TooNarrow) => match self.allocate_on_most(len, required_copies, out) {
                Some((lv, extents, holders)) => Ok(chunk(lv, extents, holders)),
                None => Err(Step::Refuse(Refusal::TooFewCopies)),
            },
            Err(why @ (NoSpace::NeedLv | NoSpace::Unread)) => {
                self.note_short();
                self.raise_floors(true, out);
                let may_draw = why == NoSpace::NeedLv || self.may_draw_unread();
                if may_draw && !self.reaps_first() {
                    self.need_lv(out);
                }
                Err(Step::Starve)
            }
            Err(NoSpace::DiskFull) => {
                self.note_short();
                self.raise_floors(true, out);
                if self.space.as_ref().is_some_and(VolumeGroup::regains) {
                    return Err(Step::Starve);
                }
                if let Some((lv, extents, holders)) =
                    self.allocate_on_most(len, required_copies, out)
                {
                    return Ok(chunk(lv, extents, holders));
                }
                if self.reaper.has_garbage() {
                    return Err(Step::Starve);
                }
                if self.pool_empty_ms.is_some_and(|since| self.now_ms < since + POOL_EMPTY_MS) {
                    return Err(Step::Refuse(self.no_space()));
                }
                // Other disks may have room.
                self.need_lv(out);
                Err(Step::Starve)
            }
        }
    }

    /// Blocks in an LV, and the replicas that are to be given the data.
    fn allocate(
        &mut self,
        len: u32,
        replicas_min: usize,
        out: &mut Outbox,
    ) -> Result<(LvId, Vec<Extent>, Holders), NoSpace> {
        let now_ms = self.now_ms;
        let space = self.space.as_mut().expect("a serving primary knows its space");
        if space.refused_lately(now_ms) {
            if let Some((lv, extents)) = space.allocate_degraded(len, replicas_min, now_ms) {
                let holders = space.present(lv);
                self.wider_due_ms = None;
                return Ok((lv, extents, holders));
            }
            if let Some(narrow) = self.allocate_on_most(len, replicas_min, out) {
                return Ok(narrow);
            }
        }
        let space = self.space.as_mut().expect("a serving primary knows its space");
        let wide = space.allocate(len, replicas_min);
        match wide {
            Ok((lv, extents)) => {
                self.wider_due_ms = None;
                let space = self.space.as_ref().expect("it was just asked");
                Ok((lv, extents, space.present(lv)))
            }
            Err(why @ (NoSpace::NeedLv | NoSpace::Unread)) => {
                self.allocate_on_most(len, replicas_min, out).ok_or(why)
            }
            Err(why) => Err(why),
        }
    }

    /// Blocks in an LV of which most replicas can take data; after a while of that, where another would be wider, it is
    /// asked for.
    fn allocate_on_most(
        &mut self,
        len: u32,
        replicas_min: usize,
        out: &mut Outbox,
    ) -> Option<(LvId, Vec<Extent>, Holders)> {
        let now_ms = self.now_ms;
        let space = self.space.as_mut().expect("a serving primary knows its space");
        let narrow = space.allocate_on_most(len, replicas_min, now_ms)?;
        self.grants_on_most += 1;
        let due_ms = self.wider_due_ms.get_or_insert(now_ms.saturating_add(NARROW_MS));
        if now_ms >= *due_ms {
            *due_ms = now_ms.saturating_add(NARROW_AGAIN_MS);
            self.need_lv(out);
        }
        Some(narrow)
    }

    /// The refusal of a put while the pool is empty: to retry if space returns with servers that are out of reach.
    pub(super) fn no_space(&self) -> Refusal {
        let waits = |space: &VolumeGroup| space.has_most() || space.awaits_replicas();
        if self.space.as_ref().is_some_and(waits) { Refusal::TooFewCopies } else { Refusal::Full }
    }

    /// Blocks for data that no op tells of. The caller sees to it that a row names them, and has the marks written before
    /// ([`Pg::write_marks`]). What no row names is free again when the space is derived anew.
    ///
    /// # Errors
    /// [`NoSpace`].
    pub fn reserve(&mut self, bytes: u32) -> Result<(LvId, Vec<Extent>), NoSpace> {
        let space = self.space.as_mut().ok_or(NoSpace::Opening)?;
        let (lv, extents) = space.allocate(bytes, 0)?;
        if let Some(marks) = &mut self.high_water {
            extents.iter().for_each(|extent| marks.raise(lv, extent.end()));
        }
        Ok((lv, extents))
    }

    /// Returns true if it asks for another LV though rows that are being read may leave space in those that it has.
    fn may_draw_unread(&self) -> bool {
        let is_soon_read = self.now_ms < self.early_ms.saturating_add(UNREAD_MS);
        let is_empty = |since_ms: u64| self.now_ms < since_ms.saturating_add(POOL_EMPTY_MS);
        !is_soon_read && !self.pool_empty_ms.is_some_and(is_empty)
    }

    fn need_lv(&mut self, out: &mut Outbox) {
        if !self.lv_requested {
            self.lv_requested = true;
            out.push(Effect::NeedLv);
        }
    }
}
