//! Reading beside the volume's owner, and verifying what was read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_env::DiskFile;
use larder_types::checksum::sum;
use larder_types::limits::SUM_BYTES;
use larder_types::{Chunk, Extent, LvId};
use parking_lot::RwLock;

use crate::buffers::Buffers;
use crate::error::ReadError;
use crate::extents;

/// Gives raw bytes of LVs. Any number may read at once, also while the owner writes; what they read
/// must be verified with [`verify_range`] before anybody believes it.
#[derive(Clone)]
pub struct VolumeReader {
    pub(crate) file: Arc<dyn DiskFile>,
    /// Offset of each LV's PV.
    pub(crate) bases: Arc<RwLock<BTreeMap<LvId, u64>>>,
    pub(crate) pv_blocks: u32,
    pub(crate) buffers: Buffers,
}

/// Whole checksummed pieces of a chunk that contain some range of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumRange {
    /// Index of the first checksum.
    pub first_sum: u32,
    /// First byte, within the chunk.
    pub from_byte: u32,
    /// Bytes.
    pub len: u32,
}

/// Bytes that do not match their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes under checksum {sum_index} are not what was written")]
pub struct Mismatch {
    /// Index of the first checksum that is wrong.
    pub sum_index: u32,
}

impl VolumeReader {
    /// Reads `len` bytes from byte `from_byte` of what `extents` hold together, if the page cache has
    /// them; `None` means that the call would have had to wait.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_cached(
        &self,
        lv: LvId,
        extents: &[Extent],
        from_byte: u32,
        len: u32,
    ) -> Result<Option<Bytes>, ReadError> {
        let mut bytes = self.buffers.take(len as usize);
        let mut filled = 0;
        for (offset, part) in self.parts(lv, extents, from_byte, len)? {
            let buf = &mut bytes[filled..filled + part];
            match self.file.read_cached_at(offset, buf)? {
                None => return Ok(None),
                Some(read) if read < part => return Err(ReadError::Short { lv }),
                Some(_) => filled += part,
            }
        }
        Ok(Some(Bytes::from_owner(bytes)))
    }

    /// As [`VolumeReader::read_cached`], waiting for the device if need be.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(
        &self,
        lv: LvId,
        extents: &[Extent],
        from_byte: u32,
        len: u32,
    ) -> Result<Bytes, ReadError> {
        let mut bytes = self.buffers.take(len as usize);
        let mut filled = 0;
        for (offset, part) in self.parts(lv, extents, from_byte, len)? {
            if self.file.read_at(offset, &mut bytes[filled..filled + part])? < part {
                return Err(ReadError::Short { lv });
            }
            filled += part;
        }
        Ok(Bytes::from_owner(bytes))
    }

    /// Offsets in the file and lengths, which add up to `len`.
    fn parts<'a>(
        &self,
        lv: LvId,
        extents: &'a [Extent],
        from_byte: u32,
        len: u32,
    ) -> Result<impl Iterator<Item = (u64, usize)> + use<'a>, ReadError> {
        let base = *self.bases.read().get(&lv).ok_or(ReadError::UnknownLv { lv })?;
        let inside = extents.iter().all(|extent| extents::is_inside(extent, self.pv_blocks));
        let held: u64 = extents.iter().map(Extent::bytes).sum();
        if !inside || u64::from(from_byte) + u64::from(len) > held {
            return Err(ReadError::OutOfRange { lv });
        }
        let parts = extents::parts(extents, u64::from(from_byte), u64::from(len));
        Ok(parts.map(move |(offset, part)| (base + offset, part)))
    }
}

/// The least whole checksummed pieces of a chunk that contain `range`, cut off at the chunk's end.
///
/// # Panics
/// If the range is empty or leaves the chunk.
#[must_use]
pub fn whole_sums(chunk: &Chunk, range: Range<u32>) -> SumRange {
    assert!(range.start < range.end && range.end <= chunk.len, "a range inside the chunk");
    let first_sum = range.start / SUM_BYTES;
    let from_byte = first_sum * SUM_BYTES;
    let end = range.end.next_multiple_of(SUM_BYTES).min(chunk.len);
    SumRange { first_sum, from_byte, len: end - from_byte }
}

/// Checks whole pieces, as [`whole_sums`] gives them, against the chunk's checksums.
///
/// # Errors
/// [`Mismatch`] with the first wrong piece.
///
/// # Panics
/// If `bytes` are not whole pieces of the chunk from `first_sum` on.
pub fn verify_range(chunk: &Chunk, first_sum: u32, bytes: &[u8]) -> Result<(), Mismatch> {
    let end = first_sum as usize * SUM_BYTES as usize + bytes.len();
    let at_end = end == chunk.len as usize;
    assert!(at_end || bytes.len().is_multiple_of(SUM_BYTES as usize), "only the last is shorter");
    for (index, piece) in (first_sum..).zip(bytes.chunks(SUM_BYTES as usize)) {
        if chunk.sums.get(index as usize) != Some(&sum(chunk.seed, index, piece)) {
            return Err(Mismatch { sum_index: index });
        }
    }
    Ok(())
}
