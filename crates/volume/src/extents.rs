//! Arithmetic of extents inside one PV.

use larder_types::Extent;
use larder_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, CHUNK_EXTENTS_MAX};

/// True if the extents lie inside `pv_blocks`, do not overlap, and cover `len` bytes exactly.
pub(crate) fn cover(extents: &[Extent], len: u32, pv_blocks: u32) -> bool {
    if len == 0 || len > CHUNK_BYTES_MAX || extents.len() > CHUNK_EXTENTS_MAX {
        return false;
    }
    let mut blocks = 0u64;
    for (index, extent) in extents.iter().enumerate() {
        let overlaps = |other: &Extent| extent.first < other.end() && other.first < extent.end();
        if !is_inside(extent, pv_blocks) || extents[..index].iter().any(overlaps) {
            return false;
        }
        blocks += u64::from(extent.blocks);
    }
    blocks == u64::from(len.div_ceil(BLOCK_BYTES))
}

/// True if an extent is not empty and ends inside the PV. Must hold before [`Extent::end`] is asked.
pub(crate) fn is_inside(extent: &Extent, pv_blocks: u32) -> bool {
    extent.blocks > 0 && extent.first.checked_add(extent.blocks).is_some_and(|end| end <= pv_blocks)
}

/// Byte offset of an extent in its PV.
pub(crate) fn offset(extent: &Extent) -> u64 {
    u64::from(extent.first) * u64::from(BLOCK_BYTES)
}

/// The parts of the PV that hold bytes `from..from + len` of what the extents hold together: offset in
/// the PV and length, in order. Ends early where the extents end.
pub(crate) fn parts(
    extents: &[Extent],
    from: u64,
    len: u64,
) -> impl Iterator<Item = (u64, usize)> + '_ {
    let mut skip = from;
    let mut left = len;
    extents.iter().filter_map(move |extent| {
        let skipped = skip.min(extent.bytes());
        skip -= skipped;
        let take = left.min(extent.bytes() - skipped);
        left -= take;
        (take > 0).then(|| (offset(extent) + skipped, take as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u32, blocks: u32) -> Extent {
        Extent { first, blocks }
    }

    #[test]
    fn extents_must_cover_exactly_inside_the_pv() {
        assert!(cover(&[extent(0, 1)], 1, 10));
        assert!(cover(&[extent(8, 2)], 8192, 10));
        assert!(cover(&[extent(8, 2), extent(0, 1)], 8193, 10));
        assert!(!cover(&[extent(0, 1)], 0, 10), "no data");
        assert!(!cover(&[extent(0, 2)], 4096, 10), "a block too many");
        assert!(!cover(&[extent(0, 1)], 4097, 10), "a block too few");
        assert!(!cover(&[extent(9, 2)], 8192, 10), "behind the end");
        assert!(!cover(&[extent(u32::MAX, 2)], 8192, u32::MAX), "an end that overflows");
        assert!(!cover(&[extent(3, 0), extent(0, 1)], 1, 10), "an empty extent");
        assert!(!cover(&[extent(0, 2), extent(1, 1)], 12288, 10), "an overlap");
        assert!(!cover(&[], 1, 10));
        let many: Vec<_> = (0..65).map(|first| extent(first * 2, 1)).collect();
        assert!(!cover(&many, 65 * 4096, 1000), "too many extents");
        assert!(cover(&many[..64], 64 * 4096, 1000));
    }

    #[test]
    fn parts_follow_the_extents() {
        let extents = [extent(10, 1), extent(2, 2)];
        let parts = |from, len| super::parts(&extents, from, len).collect::<Vec<_>>();
        assert_eq!(parts(0, 12288), [(40960, 4096), (8192, 8192)]);
        assert_eq!(parts(4000, 200), [(44960, 96), (8192, 104)]);
        assert_eq!(parts(4096, 1), [(8192, 1)]);
        assert_eq!(parts(12000, 1000), [(16096, 288)]);
        assert_eq!(parts(12288, 1), []);
        assert_eq!(parts(5, 0), []);
    }
}
