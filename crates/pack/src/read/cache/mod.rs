//! A cache of pieces of packed bodies that were read from blobs. It is on disk, and each piece has a checksum.
//!
//! The cache is empty after a start, as memory alone says what it has. Nothing is synced.
//!
//! # Invariants
//!
//! 1. A piece leaves only if the sum of its body verifies: whatever became of the file, no other bytes are given out.
//! 2. One thread at a time writes.
//! 3. Nobody waits for a cache that fails: it is not used any more, and reads go to the backend.

mod cache_file;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use parking_lot::Mutex;

pub(crate) use cache_file::PieceKey;
use cache_file::{CacheFile, CacheSlot, Kind, Reservation};

use crate::counters::{Counters, count};
use crate::format::entry::Place;
use crate::format::sums::verifies;
use crate::ids::BlobId;

/// Directory of the file.
const DIR: &str = "cache";
/// The file.
const FILE: &str = "cache/pieces";

/// A cache of pieces.
pub(crate) struct Cache {
    file: Arc<dyn DiskFile>,
    cache_file: Mutex<CacheFile>,
    writing: Mutex<()>,
    failed: AtomicBool,
    counters: Arc<Counters>,
}

impl Cache {
    /// An empty one of so many bytes, in a directory; what an earlier one had is gone.
    pub(crate) fn open(
        disk: &dyn Disk,
        bytes: u64,
        counters: Arc<Counters>,
    ) -> Result<Self, DiskError> {
        Self::clear(disk)?;
        disk.create_dir(DIR)?;
        let file = disk.open(FILE, OpenMode::CreateNew)?;
        let (cache_file, writing) = (Mutex::new(CacheFile::new(bytes)), Mutex::new(()));
        Ok(Self { file, cache_file, writing, failed: AtomicBool::new(false), counters })
    }

    /// Gives back what an earlier one took of the disk.
    pub(crate) fn clear(disk: &dyn Disk) -> Result<(), DiskError> {
        match disk.remove(FILE) {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Bytes that it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache_file.lock().bytes()
    }

    /// Returns true if it has a body's first piece: then there is little reason to read it ahead.
    pub(crate) fn has(&self, blob: BlobId, place: &Place) -> bool {
        self.cache_file.lock().has(&PieceKey { blob, offset: place.offset })
    }

    /// The pieces of these numbers of a body, one behind the other, if it has them all and they verify.
    pub(crate) async fn read(
        self: &Arc<Self>,
        blob: BlobId,
        place: &Place,
        pieces: Range<u64>,
    ) -> Option<Bytes> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let keys: Vec<_> = pieces.clone().map(|index| key(blob, place, index)).collect();
        let spots = {
            let mut cache_file = self.cache_file.lock();
            keys.iter().map(|key| cache_file.find(key)).collect::<Option<Vec<_>>>()?
        };
        let bytes = self.read_spots(&spots).await?;
        let mut at = 0;
        for ((index, key), spot) in pieces.zip(&keys).zip(&spots) {
            let end = at + spot.len as usize;
            if !verifies(place, index, &bytes[at..end]) {
                self.drop_bad(key, *spot);
                return None;
            }
            at = end;
        }
        Some(bytes)
    }

    async fn read_spots(self: &Arc<Self>, spots: &[CacheSlot]) -> Option<Bytes> {
        let len = spots.iter().map(|spot| spot.len as usize).sum();
        let mut bytes = vec![0; len];
        match read_all(spots, &mut bytes, |at, part| self.file.read_cached_at(at, part)) {
            Ok(true) => return Some(bytes.into()),
            Ok(false) => {}
            Err(error) => return self.fail(&error),
        }
        let (cache, spots) = (self.clone(), spots.to_vec());
        let read = tokio::task::spawn_blocking(move || {
            let read = |at, part: &mut [u8]| cache.file.read_at(at, part).map(Some);
            read_all(&spots, &mut bytes, read).map(|whole| whole.then_some(bytes))
        });
        match read.await {
            Ok(Ok(bytes)) => bytes.map(Bytes::from),
            Ok(Err(error)) => self.fail(&error),
            Err(_stopped) => None,
        }
    }

    /// A piece that does not verify, unless its place was given to another meanwhile.
    fn drop_bad(&self, key: &PieceKey, spot: CacheSlot) {
        let mut cache_file = self.cache_file.lock();
        if cache_file.find(key) == Some(spot) {
            cache_file.forget(key);
            count(&self.counters.cache_bad);
            tracing::warn!(blob = %key.blob, key.offset, "a cached piece failed verification and was dropped");
        }
    }

    /// Keeps pieces that verified. Waits until they are written.
    pub(crate) async fn keep(self: &Arc<Self>, pieces: Vec<(PieceKey, Bytes)>) {
        if self.failed.load(Ordering::Relaxed) || pieces.is_empty() {
            return;
        }
        let cache = self.clone();
        let written = tokio::task::spawn_blocking(move || cache.write(pieces));
        match written.await {
            // Without room nothing is kept, until there is some.
            Ok(Ok(()) | Err(DiskError::Full { .. })) | Err(_) => {}
            Ok(Err(error)) => {
                let _none: Option<()> = self.fail(&error);
            }
        }
    }

    fn write(&self, pieces: Vec<(PieceKey, Bytes)>) -> Result<(), DiskError> {
        let _alone = self.writing.lock();
        let mut due: VecDeque<_> = {
            let cache_file = self.cache_file.lock();
            let new = pieces.into_iter().filter(|(key, _)| !cache_file.has(key));
            new.map(|(key, bytes)| (cache_file.kind(&key), key, bytes)).collect()
        };
        while let Some((kind, key, bytes)) = due.pop_front() {
            let spot = loop {
                let room = self.cache_file.lock().reserve(kind, bytes.len() as u32);
                match room {
                    Reservation::Here(spot) => break spot,
                    Reservation::GaveUp(stay) => {
                        for (key, spot) in stay {
                            let mut bytes = vec![0; spot.len as usize];
                            self.file.read_at(spot.at, &mut bytes)?;
                            due.push_back((Kind::Kept, key, bytes.into()));
                        }
                    }
                }
            };
            self.file.write_at(spot.at, &[IoSlice::new(&bytes)])?;
            self.cache_file.lock().show(key, spot);
        }
        Ok(())
    }

    fn fail<T>(&self, error: &DiskError) -> Option<T> {
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the read cache was disabled: every read goes to the backend");
        }
        None
    }
}

/// The key of a body's piece.
pub(crate) fn key(blob: BlobId, place: &Place, index: u64) -> PieceKey {
    PieceKey { blob, offset: place.offset + index * u64::from(place.sum_bytes) }
}

/// Fills `into` with all spots; false if `read` has one not at hand, or not whole.
fn read_all(
    spots: &[CacheSlot],
    into: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<Option<usize>, DiskError>,
) -> Result<bool, DiskError> {
    let mut rest = into;
    for spot in spots {
        let (part, behind) = rest.split_at_mut(spot.len as usize);
        if read(spot.at, part)? != Some(spot.len as usize) {
            return Ok(false);
        }
        rest = behind;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use larder_env::RealDisk;

    use super::*;
    use crate::format::entry::Container;
    use crate::format::sums::BodySums;
    use crate::ids::WorkerId;
    use crate::limits::CACHE_BYTES_MIN;

    const BLOB: BlobId = BlobId { worker: WorkerId(1), seq: 1 };

    fn opened() -> (tempfile::TempDir, Arc<Cache>) {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        let cache = Cache::open(&disk, CACHE_BYTES_MIN, Arc::default()).unwrap();
        (dir, Arc::new(cache))
    }

    fn body(seed: u8, len: usize, offset: u64) -> (Place, Bytes) {
        let bytes = Bytes::from(vec![seed; len]);
        let sums = BodySums::of(u64::from(seed), 1000, std::slice::from_ref(&bytes));
        (sums.placed(Container::Blob(BLOB), offset), bytes)
    }

    async fn keep(cache: &Arc<Cache>, place: &Place, bytes: &Bytes) {
        let pieces = (0..place.sums.len()).map(|index| {
            let from = index * 1000;
            let piece = bytes.slice(from..(from + 1000).min(bytes.len()));
            (key(BLOB, place, index as u64), piece)
        });
        cache.keep(pieces.collect()).await;
    }

    #[tokio::test]
    async fn a_body_is_read_whole_or_in_pieces_and_not_before_it_was_kept() {
        let (_dir, cache) = opened();
        let (place, bytes) = body(7, 2500, 50);
        assert_eq!(cache.read(BLOB, &place, 0..3).await, None);
        keep(&cache, &place, &bytes).await;
        assert_eq!(cache.read(BLOB, &place, 0..3).await, Some(bytes.clone()));
        assert_eq!(cache.read(BLOB, &place, 1..2).await, Some(bytes.slice(1000..2000)));
        assert!(cache.has(BLOB, &place));
        assert_eq!(cache.bytes(), 2500);
    }

    #[tokio::test]
    async fn other_bytes_are_never_given_out() {
        let (dir, cache) = opened();
        let (place, bytes) = body(7, 2500, 0);
        keep(&cache, &place, &bytes).await;
        let path = dir.path().join(FILE);
        let mut file = std::fs::read(&path).unwrap();
        file[1500] ^= 1;
        std::fs::write(&path, file).unwrap();
        assert_eq!(cache.read(BLOB, &place, 0..1).await, Some(bytes.slice(..1000)));
        assert_eq!(cache.read(BLOB, &place, 0..3).await, None);
        assert_eq!(cache.counters.cache_bad.load(Ordering::Relaxed), 1);
        keep(&cache, &place, &bytes).await;
        assert_eq!(cache.read(BLOB, &place, 0..3).await, Some(bytes));
        // Another body that is said to lie there.
        let (other, _) = body(8, 2500, 0);
        assert_eq!(cache.read(BLOB, &other, 0..3).await, None);
    }

    #[tokio::test]
    async fn it_stays_within_its_bytes_and_is_empty_after_a_start() {
        let (dir, cache) = opened();
        let mut last = None;
        for number in 0..3 * CACHE_BYTES_MIN / 100_000 {
            let (place, bytes) = body(number as u8, 100_000, number * 100_000);
            keep(&cache, &place, &bytes).await;
            last = Some((place, bytes));
        }
        let (place, bytes) = last.unwrap();
        assert_eq!(cache.read(BLOB, &place, 0..100).await, Some(bytes));
        let file = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
        assert!(file <= CACHE_BYTES_MIN, "{file}");
        drop(cache);
        let disk = RealDisk::open(dir.path()).unwrap();
        let cache = Cache::open(&disk, CACHE_BYTES_MIN, Arc::default()).unwrap();
        assert_eq!(Arc::new(cache).read(BLOB, &place, 0..100).await, None);
    }
}
