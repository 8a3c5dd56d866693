//! Writes of data: judged, reserved for, and handed to the disk without a copy.

use bytes::Bytes;
use larder_env::DiskError;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{Extent, Grant, LvId};

use crate::command::{Answer, Refusal, Verdict};
use crate::extents;
use crate::limits::{RESERVE_PART, RESERVE_STEP_MAX, RESERVE_STEP_MIN};
use crate::part::{Part, Space};
use crate::volume::Volume;

static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// A write as it was commanded.
pub(crate) struct Write<'a> {
    pub lv: LvId,
    pub grant: &'a Grant,
    pub extents: &'a [Extent],
    pub data: &'a [Bytes],
    pub len: u32,
}

impl Volume {
    pub(crate) fn write<'a>(
        &mut self,
        write: &Write<'a>,
        part: &mut Part<'a, '_>,
    ) -> Result<Verdict, DiskError> {
        let Some(pv) = self.pvs.get(&write.lv) else { return Ok(Err(Refusal::UnknownLv)) };
        if let Err(refusal) = pv.admit(write.grant) {
            return Ok(Err(refusal));
        }
        let data_bytes: usize = write.data.iter().map(Bytes::len).sum();
        if data_bytes != write.len as usize
            || !extents::cover(write.extents, write.len, self.superblock.pv_blocks())
        {
            return Ok(Err(Refusal::OutOfRange));
        }
        let base = pv.base;
        if let Some(pv) = self.pvs.get_mut(&write.lv) {
            pv.note_write(*write.grant);
        }
        if self.reserve(write)? == Space::Full || self.queue(base, write, part)? == Space::Full {
            return Ok(Err(Refusal::Full));
        }
        Ok(Ok(Answer::Written))
    }

    /// Reserves the PV's space up to the write's end, in steps that grow with the PV. Where a step is more
    /// than the volume may grow by, or than the disk has, it reserves what the write needs and no more.
    fn reserve(&mut self, write: &Write<'_>) -> Result<Space, DiskError> {
        let pv = self.pvs.get_mut(&write.lv).expect("the write was admitted");
        let end = write.extents.iter().map(Extent::end).max().unwrap_or(0);
        if end <= pv.reserved_blocks {
            return Ok(Space::Enough);
        }
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(BLOCK_BYTES);
        let (from, need) = (bytes(pv.reserved_blocks), bytes(end));
        let recorded = bytes(pv.header.provisioned_blocks);
        let part = (from / RESERVE_PART).next_multiple_of(RESERVE_STEP_MIN);
        let step = from + part.clamp(RESERVE_STEP_MIN, RESERVE_STEP_MAX);
        let wanted = step.max(recorded).max(need.next_multiple_of(RESERVE_STEP_MIN));
        // Reserving what an earlier run has reserved takes no space.
        for to in [wanted.min(self.superblock.pv_bytes), recorded, need] {
            let grows = to.saturating_sub(recorded);
            if to < need || grows > self.growth_bytes {
                continue;
            }
            match self.file.allocate(pv.base + from, to - from) {
                Ok(()) => {}
                Err(DiskError::Full { .. }) => continue,
                Err(error) => return Err(error),
            }
            self.growth_bytes -= grows;
            self.unsynced = true;
            pv.reserved_blocks = (to / u64::from(BLOCK_BYTES)) as u32;
            if to > recorded {
                pv.header.provisioned_blocks = pv.reserved_blocks;
                self.counters.provisioned_bytes += to - recorded;
                if !pv.dirty {
                    pv.dirty = true;
                    self.dirty.push(write.lv);
                }
            }
            return Ok(Space::Enough);
        }
        Ok(Space::Full)
    }

    /// Hands the write's bytes to the current run, extent by extent, and zeros behind the last.
    fn queue<'a>(
        &mut self,
        base: u64,
        write: &Write<'a>,
        part: &mut Part<'a, '_>,
    ) -> Result<Space, DiskError> {
        let owner = part.done.len();
        let mut pieces = write.data.iter();
        let mut piece: &'a [u8] = &[];
        let mut left = u64::from(write.len);
        for extent in write.extents {
            let mut at = base + extents::offset(extent);
            let end = at + extent.bytes();
            while at < end {
                while piece.is_empty() && left > 0 {
                    piece = pieces.next().expect("the pieces are as long as they say");
                }
                let source = if left > 0 { piece } else { &ZEROS[..] };
                let (now, later) = source.split_at(source.len().min((end - at) as usize));
                if !part.run.continues_at(at) && self.write_run(part)? == Space::Full {
                    return Ok(Space::Full);
                }
                part.run.add(at, now, owner);
                at += now.len() as u64;
                if left > 0 {
                    left -= now.len() as u64;
                    piece = later;
                }
            }
        }
        assert_eq!(left, 0, "the extents cover the data");
        Ok(Space::Enough)
    }
}
