//! Space for a put, and the replicas that are to be given its data.

use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Chunk, Extent, Grant, Holders, LvId};

use super::Pg;
use super::calls::Step;
use crate::limits::{NARROW_AGAIN_MS, NARROW_MS, POOL_EMPTY_MS};
use crate::message::{Effect, Outbox, Refusal};
use crate::space::{NoSpace, VolumeGroup};

impl Pg {
    /// Space and a grant for the next op.
    pub(super) fn grant(
        &mut self,
        (len, seed, sums): (u32, u64, &[u64]),
        enough: u8,
        out: &mut Outbox,
    ) -> Result<Chunk, Step> {
        assert!(len > 0 && len <= CHUNK_BYTES_MAX, "a chunk has 1 to {CHUNK_BYTES_MAX} bytes");
        let grant = Grant { pg: self.id, op: self.next_id(), attempt: 0 };
        match self.allocate(len, usize::from(enough), out) {
            Ok((lv, extents, holders)) => {
                Ok(Chunk { grant, seed, lv, extents, len, sums: sums.to_vec(), holders })
            }
            Err(NoSpace::Opening) => Err(Step::Starve),
            Err(NoSpace::TooNarrow) => Err(Step::Refuse(Refusal::TooFewCopies)),
            Err(NoSpace::NeedLv) => {
                self.need_lv(out);
                self.raise_floors(true, out);
                Err(Step::Starve)
            }
            Err(NoSpace::DiskFull) => {
                self.raise_floors(true, out);
                if self.space.as_ref().is_some_and(VolumeGroup::regains) {
                    return Err(Step::Starve);
                }
                if self.pool_empty_ms.is_some_and(|since| self.now_ms < since + POOL_EMPTY_MS) {
                    return Err(Step::Refuse(Refusal::Full));
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
        let space = self.space.as_mut().expect("a serving primary knows its space");
        let wide = space.allocate(len, replicas_min);
        match wide {
            Ok((lv, extents)) => {
                self.wider_due_ms = None;
                let space = self.space.as_ref().expect("it was just asked");
                Ok((lv, extents, space.present(lv)))
            }
            Err(NoSpace::NeedLv) => {
                let narrow = space.allocate_on_most(len, replicas_min).ok_or(NoSpace::NeedLv)?;
                self.grants_on_most += 1;
                let now_ms = self.now_ms;
                let due_ms = self.wider_due_ms.get_or_insert(now_ms.saturating_add(NARROW_MS));
                if now_ms >= *due_ms {
                    *due_ms = now_ms.saturating_add(NARROW_AGAIN_MS);
                    self.need_lv(out);
                }
                Ok(narrow)
            }
            Err(why) => Err(why),
        }
    }

    fn need_lv(&mut self, out: &mut Outbox) {
        if !self.lv_asked {
            self.lv_asked = true;
            out.push(Effect::NeedLv);
        }
    }
}
