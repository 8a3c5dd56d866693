//! The content of one simulated file: sparse sectors and the space they take.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Bytes of a sector: what a device writes wholly or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Bytes of a block: the unit in which space is taken.
pub(super) const BLOCK_BYTES: u64 = 4096;

pub(super) type Sector = Arc<[u8; SECTOR_BYTES as usize]>;

/// A length, the sectors that were ever written, and the blocks that are taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
    blocks: Ranges,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of space taken.
    pub(super) fn space(&self) -> u64 {
        self.blocks.total() * BLOCK_BYTES
    }

    /// Bytes of space that a write or allocation of this range would take in addition.
    pub(super) fn space_for(&self, offset: u64, len: u64) -> u64 {
        let (start, end) = block_range(offset, len);
        (end - start - self.blocks.covered(start, end)) * BLOCK_BYTES
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        let (start, end) = block_range(offset, len);
        self.blocks.insert(start, end);
        self.len = self.len.max(offset + len);
    }

    /// Truncates or extends to `len`; truncated bytes are lost for good.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.sectors.split_off(&len.div_ceil(SECTOR_BYTES));
            self.blocks.cut(len.div_ceil(BLOCK_BYTES));
            let kept = (len % SECTOR_BYTES) as usize;
            if let Some(last) = self.sectors.get_mut(&(len / SECTOR_BYTES)) {
                Arc::make_mut(last)[kept..].fill(0);
            }
        }
        self.len = len;
    }

    /// Takes blocks away: they read as zeros, and take no space.
    pub(super) fn punch(&mut self, first: u64, end: u64) {
        let sectors = BLOCK_BYTES / SECTOR_BYTES;
        let gone: Vec<u64> =
            self.sectors.range(first * sectors..end * sectors).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| drop(self.sectors.remove(at)));
        self.blocks.remove(first, end);
    }

    /// Blocks within a range that take space.
    pub(super) fn taken(&self, first: u64, end: u64) -> Vec<u64> {
        self.blocks.within(first, end).collect()
    }

    /// Extends to `len` if shorter.
    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Drops sectors behind the end: no length ever covered them.
    pub(super) fn drop_uncovered(&mut self) {
        let len = std::mem::replace(&mut self.len, u64::MAX);
        self.set_len(len);
    }

    pub(super) fn sector(&self, index: u64) -> Option<&Sector> {
        self.sectors.get(&index)
    }

    /// Sets a sector; `None` makes it zeros.
    pub(super) fn put_sector(&mut self, index: u64, sector: Option<Sector>) {
        match sector {
            Some(sector) => {
                let (start, end) = block_range(index * SECTOR_BYTES, SECTOR_BYTES);
                self.blocks.insert(start, end);
                self.sectors.insert(index, sector);
            }
            None => drop(self.sectors.remove(&index)),
        }
    }

    /// The written sectors within a range.
    pub(super) fn written(&self, range: RangeInclusive<u64>) -> impl Iterator<Item = u64> + '_ {
        self.sectors.range(range).map(|(index, _)| *index)
    }

    /// Number of the written sectors.
    pub(super) fn written_count(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Reads until `buf` is full or the file ends.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        buf.fill(0);
        if len == 0 {
            return 0;
        }
        let end = offset + len as u64;
        for (index, sector) in self.sectors.range(offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES)
        {
            let sector_start = index * SECTOR_BYTES;
            let from = sector_start.max(offset);
            let to = (sector_start + SECTOR_BYTES).min(end);
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(
                &sector[(from - sector_start) as usize..(to - sector_start) as usize],
            );
        }
        len
    }
}

fn block_range(offset: u64, len: u64) -> (u64, u64) {
    (offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES))
}

/// A set of numbers kept as disjoint ranges, start to end.
#[derive(Debug, Clone, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn covered(&self, start: u64, end: u64) -> u64 {
        let overlap = |(from, to): (&u64, &u64)| end.min(*to).saturating_sub(start.max(*from));
        self.0.range(..end).rev().take_while(|(_, to)| **to > start).map(overlap).sum()
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        while let Some((from, to)) = self.0.range(..=end).next_back().map(|(f, t)| (*f, *t))
            && to >= start
        {
            if from <= start && to >= end {
                return;
            }
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let ranges = self.0.range(..end).filter(move |(_, to)| **to > start);
        ranges.flat_map(move |(from, to)| (*from).max(start)..(*to).min(end))
    }

    fn remove(&mut self, start: u64, end: u64) {
        let overlapping: Vec<(u64, u64)> =
            self.0.range(..end).filter(|(_, to)| **to > start).map(|(f, t)| (*f, *t)).collect();
        for (from, to) in overlapping {
            self.0.remove(&from);
            self.insert(from, start.min(to));
            self.insert(end.max(from), to);
        }
    }

    fn cut(&mut self, at: u64) {
        self.0.split_off(&at);
        if let Some(mut last) = self.0.last_entry() {
            let end = (*last.get()).min(at);
            last.insert(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_count_and_cut() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 25), (5, 5), (12, 14)] {
            ranges.insert(start, end);
        }
        assert_eq!(ranges.0, BTreeMap::from([(10, 25), (30, 40)]));
        assert_eq!(ranges.covered(0, 100), 25);
        assert_eq!(ranges.covered(24, 31), 2);
        ranges.insert(22, 35);
        assert_eq!(ranges.0, BTreeMap::from([(10, 40)]));
        ranges.remove(15, 20);
        ranges.remove(38, 50);
        assert_eq!(ranges.0, BTreeMap::from([(10, 15), (20, 38)]));
        assert_eq!(ranges.within(13, 22).collect::<Vec<_>>(), [13, 14, 20, 21]);
        ranges.remove(15, 20);
        assert_eq!(ranges.total(), 23);
        ranges.cut(12);
        assert_eq!(ranges.total(), 2);
        ranges.cut(10);
        assert_eq!(ranges.total(), 0);
    }

    #[test]
    fn what_a_cut_took_away_reads_as_zeros_later() {
        let mut content = Content::default();
        content.grow(1024);
        content.put_sector(0, Some(Arc::new([1; 512])));
        content.put_sector(1, Some(Arc::new([2; 512])));
        content.set_len(100);
        content.set_len(1024);
        let mut bytes = [9; 1024];
        assert_eq!(content.read(0, &mut bytes), 1024);
        assert_eq!(bytes[..100], [1; 100]);
        assert_eq!(bytes[100..], [0; 924]);
    }

    #[test]
    fn sectors_that_no_length_covers_are_dropped() {
        let mut content = Content::default();
        content.grow(600);
        content.put_sector(1, Some(Arc::new([2; 512])));
        content.put_sector(9, Some(Arc::new([3; 512])));
        content.drop_uncovered();
        assert_eq!((content.len(), content.written_count()), (600, 1));
        content.grow(10_000);
        let mut bytes = [0; 1000];
        content.read(512, &mut bytes);
        assert_eq!(bytes[..88], [2; 88]);
        assert_eq!(bytes[88..], [0; 912]);
    }
}
