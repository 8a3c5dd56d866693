//! Verifying a chunk on the device.

use larder_env::DiskError;
use larder_types::Chunk;
use larder_types::limits::SUM_BYTES;

use crate::command::{Answer, Refusal};
use crate::execute::{Part, Verdict};
use crate::extents;
use crate::limits::VERIFY_READ_BYTES;
use crate::reader::verify_range;
use crate::volume::Volume;

impl Volume {
    /// Syncs what came before, then compares what the device has with the chunk's checksums.
    pub(crate) fn verify(
        &mut self,
        chunk: &Chunk,
        part: &mut Part<'_, '_>,
    ) -> Result<Verdict, DiskError> {
        let Some(base) = self.pvs.get(&chunk.lv).map(|pv| pv.base) else {
            return Ok(Err(Refusal::UnknownLv));
        };
        if !extents::cover(&chunk.extents, chunk.len, self.superblock.pv_blocks())
            || chunk.sums.len() != chunk.len.div_ceil(SUM_BYTES) as usize
        {
            return Ok(Err(Refusal::OutOfRange));
        }
        self.commit(part)?;
        // That the device cannot be read says nothing about what was written: only a failure to write
        // breaks the disk.
        Ok(match self.first_bad_sum(chunk, base) {
            Ok(None) => Ok(Answer::Verified { boot: self.boot }),
            Ok(Some(first_bad_sum)) => {
                let is_unacknowledged = self.pvs[&chunk.lv].never_wrote(&chunk.grant);
                Ok(Answer::Mismatch { boot: self.boot, first_bad_sum, is_unacknowledged })
            }
            Err(DiskError::PoweredOff) => return Err(DiskError::PoweredOff),
            Err(_) => Err(Refusal::Unreadable),
        })
    }

    fn first_bad_sum(&mut self, chunk: &Chunk, base: u64) -> Result<Option<u32>, DiskError> {
        let mut window = vec![0; chunk.len.min(VERIFY_READ_BYTES) as usize];
        for from in (0..chunk.len).step_by(VERIFY_READ_BYTES as usize) {
            let wanted = (chunk.len - from).min(VERIFY_READ_BYTES) as usize;
            let read = self.read_device(chunk, base, from, &mut window[..wanted])?;
            self.counters.bytes_verified += read as u64;
            // A device that ends early has none of the piece in which it ends.
            let whole = if read == wanted { read } else { read - read % SUM_BYTES as usize };
            let first_sum = from / SUM_BYTES;
            if let Err(mismatch) = verify_range(chunk, first_sum, &window[..whole]) {
                return Ok(Some(mismatch.sum_index));
            }
            if whole < wanted {
                return Ok(Some(first_sum + whole as u32 / SUM_BYTES));
            }
        }
        Ok(None)
    }

    /// Reads past the page cache until `bytes` are full or the device ends.
    fn read_device(
        &self,
        chunk: &Chunk,
        base: u64,
        from: u32,
        bytes: &mut [u8],
    ) -> Result<usize, DiskError> {
        let mut filled = 0;
        for (offset, len) in extents::parts(&chunk.extents, u64::from(from), bytes.len() as u64) {
            let buf = &mut bytes[filled..filled + len];
            let read = if self.planted.verifies_from_cache() {
                self.file.read_at(base + offset, buf)?
            } else {
                self.file.read_device_at(base + offset, buf)?
            };
            filled += read;
            if read < len {
                break;
            }
        }
        Ok(filled)
    }
}
