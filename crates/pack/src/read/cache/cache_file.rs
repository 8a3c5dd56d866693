//! Decides where the cache has each piece, and which it gives up. Pure.
//!
//! The cache is a row of segments, each written from its beginning to its end and then given up as
//! a whole. A piece that is read for the first time goes where things are on *trial*, a tenth of
//! all segments: a scan passes through there and disturbs nothing else. A piece that is read again
//! while it is there is *kept* when its segment goes; so is one that comes back soon after. Of the
//! segments of kept pieces the oldest goes first, and the pieces that were read in it since stay.
//! Of either at most half a segment stays.
//!
//! # Invariants
//!
//! 1. An entry is shown only once its bytes are written, and gone before its segment is written anew.
//! 2. Segments of either kind are given up in the order in which they were begun.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::BlobId;
use crate::limits::{
    CACHE_PIECE_BYTES, CACHE_REMEMBERED, CACHE_SEGMENT_BYTES_MAX, CACHE_SEGMENT_BYTES_MIN,
    CACHE_SEGMENTS, CACHE_TRIAL_SHARE,
};

/// A piece of a body that lies in a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey {
    pub(crate) blob: BlobId,
    /// Its first byte there.
    pub(crate) offset: u64,
}

/// The segments that a piece goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Trial,
    Kept,
}

/// Bytes of the cache's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheSlot {
    pub(super) at: u64,
    pub(super) len: u32,
}

/// Room for a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// Here; to be written, then shown.
    Here(CacheSlot),
    /// A segment was given up: these go to the kept ones, if their bytes are read before the next call. Ask again.
    GaveUp(Vec<(PieceKey, CacheSlot)>),
}

#[derive(Debug)]
struct Entry {
    spot: CacheSlot,
    segment: usize,
    reads: u8,
}

#[derive(Debug, Default)]
struct Segment {
    used: u64,
    keys: Vec<PieceKey>,
}

/// Segments of one kind, the open one last.
#[derive(Debug)]
struct Row {
    segments: VecDeque<usize>,
    max: usize,
}

#[derive(Debug)]
pub(super) struct CacheFile {
    segment_bytes: u64,
    segments: Vec<Segment>,
    trial: Row,
    kept: Row,
    entries: HashMap<PieceKey, Entry>,
    bytes: u64,
    remembered: VecDeque<PieceKey>,
    is_remembered: HashSet<PieceKey>,
}

impl CacheFile {
    /// An empty one over so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let (least, most) = (CACHE_SEGMENT_BYTES_MIN, CACHE_SEGMENT_BYTES_MAX);
        let segment_bytes = (bytes / CACHE_SEGMENTS).clamp(least, most);
        let count = bytes / segment_bytes;
        assert!(count >= 2, "there is room for both kinds");
        let trial = (count / CACHE_TRIAL_SHARE).max(1);
        let row = |max: u64| Row { segments: VecDeque::new(), max: max as usize };
        Self {
            segment_bytes,
            segments: Vec::new(),
            trial: row(trial),
            kept: row(count - trial),
            entries: HashMap::new(),
            bytes: 0,
            remembered: VecDeque::new(),
            is_remembered: HashSet::new(),
        }
    }

    /// Bytes of what is shown.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has(&self, key: &PieceKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Where a piece is that somebody reads.
    pub(super) fn find(&mut self, key: &PieceKey) -> Option<CacheSlot> {
        let entry = self.entries.get_mut(key)?;
        entry.reads = entry.reads.saturating_add(1);
        Some(entry.spot)
    }

    /// A piece is not what it should be, or is not wanted any more.
    pub(super) fn forget(&mut self, key: &PieceKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= u64::from(entry.spot.len);
        }
    }

    /// Where a piece goes that was read from the backend.
    pub(super) fn kind(&self, key: &PieceKey) -> Kind {
        if self.is_remembered.contains(key) { Kind::Kept } else { Kind::Trial }
    }

    fn row(&mut self, kind: Kind) -> &mut Row {
        match kind {
            Kind::Trial => &mut self.trial,
            Kind::Kept => &mut self.kept,
        }
    }

    /// Finds room for a piece of `len` bytes.
    pub(super) fn reserve(&mut self, kind: Kind, len: u32) -> Reservation {
        assert!(u64::from(len) <= self.segment_bytes, "a piece fits a segment");
        let pieces_max = (self.segment_bytes / CACHE_PIECE_BYTES) as usize;
        if let Some(open) = self.row(kind).segments.back().copied() {
            let segment_at = open as u64 * self.segment_bytes;
            let segment = &mut self.segments[open];
            let fits = segment.used + u64::from(len) <= self.segment_bytes;
            if fits && segment.keys.len() < pieces_max {
                let spot = CacheSlot { at: segment_at + segment.used, len };
                segment.used += u64::from(len);
                return Reservation::Here(spot);
            }
        }
        let row = self.row(kind);
        if row.segments.len() < row.max {
            let new = self.segments.len();
            self.segments.push(Segment::default());
            self.row(kind).segments.push_back(new);
            return self.reserve(kind, len);
        }
        Reservation::GaveUp(self.give_up(kind))
    }

    /// Empties the oldest segment of a kind, which becomes the open one; what of it is to be kept.
    fn give_up(&mut self, kind: Kind) -> Vec<(PieceKey, CacheSlot)> {
        let row = self.row(kind);
        let oldest = row.segments.pop_front().expect("a row that is full has a segment");
        row.segments.push_back(oldest);
        let Segment { keys, .. } = std::mem::take(&mut self.segments[oldest]);
        // Half of a segment at most, so that there is always room for something new.
        let (mut stay, mut stay_bytes) = (Vec::new(), 0);
        for key in keys {
            if self.entries.get(&key).is_none_or(|entry| entry.segment != oldest) {
                continue;
            }
            let Some(entry) = self.entries.remove(&key) else { continue };
            let len = u64::from(entry.spot.len);
            self.bytes -= len;
            if entry.reads > 0 && stay_bytes + len <= self.segment_bytes / 2 {
                stay_bytes += len;
                stay.push((key, entry.spot));
            } else if kind == Kind::Trial {
                self.remember(key);
            }
        }
        stay
    }

    /// A piece was written where there was room for it.
    pub(super) fn show(&mut self, key: PieceKey, spot: CacheSlot) {
        if self.has(&key) {
            return;
        }
        let segment = (spot.at / self.segment_bytes) as usize;
        self.segments[segment].keys.push(key);
        self.bytes += u64::from(spot.len);
        self.entries.insert(key, Entry { spot, segment, reads: 0 });
    }

    fn remember(&mut self, key: PieceKey) {
        if !self.is_remembered.insert(key) {
            return;
        }
        self.remembered.push_back(key);
        if self.remembered.len() > CACHE_REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.is_remembered.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;
    use crate::limits::CACHE_BYTES_MIN;

    const LEN: u32 = 8192;

    fn key(number: u64) -> PieceKey {
        let blob = BlobId { worker: WorkerId(1), seq: 1 };
        PieceKey { blob, offset: number * u64::from(LEN) }
    }

    /// As the cache does it, but for the bytes; every spot that is written must be free.
    fn read(cache_file: &mut CacheFile, number: u64) -> bool {
        let wanted = key(number);
        if cache_file.find(&wanted).is_some() {
            return true;
        }
        let mut due = VecDeque::from([(wanted, cache_file.kind(&wanted))]);
        while let Some((key, kind)) = due.pop_front() {
            let spot = loop {
                match cache_file.reserve(kind, LEN) {
                    Reservation::Here(spot) => break spot,
                    Reservation::GaveUp(stay) => {
                        due.extend(stay.into_iter().map(|(key, _)| (key, Kind::Kept)));
                    }
                }
            };
            let taken = cache_file.entries.values().any(|entry| {
                let (from, to) = (entry.spot.at, entry.spot.at + u64::from(entry.spot.len));
                spot.at < to && from < spot.at + u64::from(LEN)
            });
            assert!(!taken, "a spot that is shown is not written");
            assert!(spot.at + u64::from(spot.len) <= CACHE_BYTES_MIN);
            cache_file.show(key, spot);
        }
        false
    }

    #[test]
    fn a_scan_does_not_flush_what_is_read_again_and_again() {
        let mut cache_file = CacheFile::new(CACHE_BYTES_MIN);
        for _ in 0..2 {
            for hot in 0..64 {
                read(&mut cache_file, hot);
            }
        }
        // Three times what the cache has room for, each once.
        for scanned in 1000..1000 + 3 * CACHE_BYTES_MIN / u64::from(LEN) {
            read(&mut cache_file, scanned);
        }
        let hits = (0..64).filter(|hot| cache_file.has(&key(*hot))).count();
        assert_eq!(hits, 64);
        assert!(cache_file.bytes() <= CACHE_BYTES_MIN);
    }

    #[test]
    fn what_comes_back_soon_after_it_was_given_up_is_kept() {
        let mut cache_file = CacheFile::new(CACHE_BYTES_MIN);
        read(&mut cache_file, 0);
        let mut next = 1;
        while cache_file.has(&key(0)) {
            read(&mut cache_file, next);
            next += 1;
        }
        assert_eq!(cache_file.kind(&key(0)), Kind::Kept);
        assert_eq!(cache_file.kind(&key(next)), Kind::Trial);
        read(&mut cache_file, 0);
        for scanned in next..next + 1000 {
            read(&mut cache_file, scanned);
        }
        assert!(cache_file.has(&key(0)));
    }

    #[test]
    fn of_what_is_kept_the_oldest_that_nobody_reads_goes() {
        let mut cache_file = CacheFile::new(CACHE_BYTES_MIN);
        let room = CACHE_BYTES_MIN / u64::from(LEN);
        for number in 0..2 * room {
            read(&mut cache_file, number);
            read(&mut cache_file, number);
            // The first one is read all the time.
            read(&mut cache_file, 0);
        }
        assert!(cache_file.has(&key(0)));
        assert!(!cache_file.has(&key(1)), "given up for what came later");
        assert!(
            cache_file.bytes() > CACHE_BYTES_MIN / 2,
            "most of the room is used: {}",
            cache_file.bytes()
        );
    }

    #[test]
    fn tiny_pieces_do_not_fill_the_memory() {
        let mut cache_file = CacheFile::new(CACHE_BYTES_MIN);
        for number in 0..3 * CACHE_BYTES_MIN / CACHE_PIECE_BYTES {
            let key = key(number);
            match cache_file.reserve(Kind::Trial, 1) {
                Reservation::Here(spot) => cache_file.show(key, spot),
                Reservation::GaveUp(_) => {}
            }
        }
        assert!(cache_file.entries.len() as u64 <= CACHE_BYTES_MIN / CACHE_PIECE_BYTES);
        assert!(cache_file.remembered.len() <= CACHE_REMEMBERED);
    }

    #[test]
    fn what_is_forgotten_is_gone_and_its_segment_too_later() {
        let mut cache_file = CacheFile::new(CACHE_BYTES_MIN);
        read(&mut cache_file, 1);
        cache_file.forget(&key(1));
        cache_file.forget(&key(1));
        assert_eq!(cache_file.bytes(), 0);
        assert!(!read(&mut cache_file, 1), "it is read anew");
        for number in 2..10_000 {
            read(&mut cache_file, number);
        }
    }
}
