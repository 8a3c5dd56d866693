//! Verifying a chunk on the device: in the order of commands for a put in doubt, beside them for a scrub.

use larder_env::DiskError;
use larder_types::Chunk;
use larder_types::limits::SUM_BYTES;

use crate::command::{Answer, Refusal, Verdict};
use crate::error::ReadError;
use crate::execute::Part;
use crate::extents;
use crate::limits::VERIFY_READ_BYTES;
use crate::reader::{Mismatch, VolumeReader, verify_range};
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
        if !is_whole(chunk, self.superblock.pv_blocks()) {
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
        let (file, from_cache) = (self.file.clone(), self.planted.verifies_from_cache());
        let verified = &mut self.counters.bytes_verified;
        first_bad_sum(chunk, base, &mut |offset, bytes| {
            let read = if from_cache {
                file.read_at(offset, bytes)
            } else {
                file.read_device_at(offset, bytes)
            };
            *verified += read.as_ref().map_or(0, |read| *read as u64);
            read
        })
    }
}

impl VolumeReader {
    /// Compares what the device has of a chunk with its checksums, past the page cache where that can be done; blocks.
    /// What was acknowledged is synced; of what is being written now this says nothing.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn verify(&self, chunk: &Chunk) -> Result<Result<(), Mismatch>, ReadError> {
        let base =
            *self.bases.read().get(&chunk.lv).ok_or(ReadError::UnknownLv { lv: chunk.lv })?;
        if !is_whole(chunk, self.pv_blocks) {
            return Err(ReadError::OutOfRange { lv: chunk.lv });
        }
        let mut read = |offset, bytes: &mut [u8]| self.file.read_device_at(offset, bytes);
        let first_bad = first_bad_sum(chunk, base, &mut read)?;
        Ok(first_bad.map_or(Ok(()), |sum_index| Err(Mismatch { sum_index })))
    }
}

/// True if a chunk's extents lie in its PV and hold it, and there is a sum for each piece.
fn is_whole(chunk: &Chunk, pv_blocks: u32) -> bool {
    extents::cover(&chunk.extents, chunk.len, pv_blocks)
        && chunk.sums.len() == chunk.len.div_ceil(SUM_BYTES) as usize
}

type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<usize, DiskError> + 'a;

/// Index of the first sum that what lies at a chunk's extents does not match, in a PV that begins at `base`.
fn first_bad_sum(
    chunk: &Chunk,
    base: u64,
    read_at: &mut ReadAt<'_>,
) -> Result<Option<u32>, DiskError> {
    let mut window = vec![0; chunk.len.min(VERIFY_READ_BYTES) as usize];
    for from in (0..chunk.len).step_by(VERIFY_READ_BYTES as usize) {
        let wanted = (chunk.len - from).min(VERIFY_READ_BYTES) as usize;
        let read = fill(chunk, base, from, &mut window[..wanted], read_at)?;
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

/// Reads until `bytes` are full or the device ends.
fn fill(
    chunk: &Chunk,
    base: u64,
    from: u32,
    bytes: &mut [u8],
    read_at: &mut ReadAt<'_>,
) -> Result<usize, DiskError> {
    let mut filled = 0;
    for (offset, len) in extents::parts(&chunk.extents, u64::from(from), bytes.len() as u64) {
        let read = read_at(base + offset, &mut bytes[filled..filled + len])?;
        filled += read;
        if read < len {
            break;
        }
    }
    Ok(filled)
}
