//! Gets pieces of blobs and bundles: from the cache, else with one request, which readers share
//! that want the same. It gets more ahead of those that read keys in their order.
//!
//! # Invariants
//!
//! 1. Pieces that somebody waits for are asked for once, however many wait; a request goes on
//!    though they go away.
//! 2. The bytes of all requests under way are bounded.
//! 3. Only pieces that verified are kept in the cache. Those that come from the backend are not
//!    verified yet: the reader does that.
//! 4. Reading ahead makes a request longer, never one more. It takes bodies that lie behind in the
//!    same blob, as far as at least half of the bytes are of keys that come next.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;
use larder_types::codec::decode;
use larder_types::rows as keys;
use larder_types::{BucketId, ObjectKey};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::backend::{Backend, Unread};
use crate::counters::{add, count};
use crate::error::PackError;
use crate::format::entry::{Content, Place};
use crate::format::rows::PackedVersion;
use crate::format::sums::verifies;
use crate::ids::BlobId;
use crate::index::Index;
use crate::limits::{AHEAD_KEYS_MAX, SEQUENCE_STEP_MAX, SHARED_BYTES_MAX};
use crate::read::cache::{Cache, key as piece_key};
use crate::read::sequences::{Sequence, Sequences};

/// Gets pieces of blobs.
pub(crate) struct Fetcher {
    backend: Backend,
    index: Arc<Index>,
    cache: Option<Arc<Cache>>,
    ahead_bytes: u64,
    flights: Mutex<HashMap<BlobId, Vec<Arc<Flight>>>>,
    sequences: Mutex<Sequences>,
    /// Bytes that may come at once.
    room: Arc<Semaphore>,
}

/// The pieces that a reader wants.
pub(crate) struct PieceRequest<'a> {
    /// The blob, or what stands for the bundle.
    pub(crate) blob: BlobId,
    /// Its name in the backend.
    pub(crate) name: &'a str,
    pub(crate) place: &'a Place,
    /// Numbers of the pieces.
    pub(crate) pieces: Range<u64>,
    /// The object that the bytes are of, if they are one object's from its beginning.
    pub(crate) reader: Option<(BucketId, &'a ObjectKey)>,
}

/// A request under way.
struct Flight {
    range: Range<u64>,
    landed: watch::Receiver<Option<Landed>>,
}

#[derive(Debug, Clone)]
enum Landed {
    Bytes(Bytes),
    Missing,
    Failed(String),
}

/// A body, and those of its pieces that a request brings.
type Coming = (Place, Range<u64>);

impl PieceRequest<'_> {
    /// Bytes of the blob.
    fn range(&self) -> Range<u64> {
        let step = u64::from(self.place.sum_bytes);
        let end = (self.pieces.end * step).min(self.place.len);
        self.place.offset + self.pieces.start * step..self.place.offset + end
    }
}

impl Fetcher {
    pub(crate) fn new(
        backend: Backend,
        index: Arc<Index>,
        cache: Option<Arc<Cache>>,
        ahead_bytes: u64,
    ) -> Self {
        Self {
            backend,
            index,
            cache,
            ahead_bytes,
            flights: Mutex::default(),
            sequences: Mutex::default(),
            room: Arc::new(Semaphore::new(SHARED_BYTES_MAX as usize)),
        }
    }

    /// Bytes that the cache has.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.bytes())
    }

    /// The bytes wanted; `anew` if those that came before were wrong.
    pub(crate) async fn bytes(
        self: &Arc<Self>,
        wanted: &PieceRequest<'_>,
        anew: bool,
    ) -> Result<Bytes, Unread> {
        let counters = self.backend.counters();
        if let Some(cache) = self.cache.as_ref().filter(|_| !anew) {
            let found = cache.read(wanted.blob, wanted.place, wanted.pieces.clone()).await;
            if let Some(bytes) = found {
                count(&counters.cache_hits);
                add(&counters.cache_hit_bytes, bytes.len() as u64);
                return Ok(bytes);
            }
        }
        let range = wanted.range();
        let flight = match self.under_way(wanted.blob, &range).filter(|_| !anew) {
            Some(flight) => {
                count(&counters.cache_joined);
                flight
            }
            None => {
                count(&counters.cache_misses);
                self.take_off(wanted, anew)
            }
        };
        let mut landed = flight.landed.clone();
        let landed = landed.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
        match landed {
            Some(Landed::Bytes(bytes)) => {
                let from = (range.start - flight.range.start) as usize;
                Ok(bytes.slice(from..from + (range.end - range.start) as usize))
            }
            Some(Landed::Missing) => Err(Unread::Missing),
            Some(Landed::Failed(reason)) => Err(failed(wanted.name, reason)),
            None => Err(failed(wanted.name, "the request was broken off".to_owned())),
        }
    }

    fn under_way(&self, blob: BlobId, range: &Range<u64>) -> Option<Arc<Flight>> {
        let flights = self.flights.lock();
        let covers = |flight: &&Arc<Flight>| {
            flight.range.start <= range.start && flight.range.end >= range.end
        };
        flights.get(&blob)?.iter().find(covers).cloned()
    }

    /// Begins a request, for what is wanted and what is likely to be wanted next. If another began one meanwhile
    /// that covers it, that one.
    fn take_off(self: &Arc<Self>, wanted: &PieceRequest<'_>, anew: bool) -> Arc<Flight> {
        let mut range = wanted.range();
        let mut coming = vec![(wanted.place.clone(), wanted.pieces.clone())];
        if !anew && let Some((bucket, key)) = wanted.reader {
            let ahead = self.ahead(wanted, bucket, key);
            if let Some((last, pieces)) = ahead.last() {
                let end = last.offset + last.len;
                add(&self.backend.counters().ahead_bytes, end - range.end);
                debug_assert_eq!(pieces.end, last.sums.len() as u64);
                range.end = end;
            }
            coming.extend(ahead);
        }
        let (tell, landed) = watch::channel(None);
        let flight = Arc::new(Flight { range, landed });
        let mut flights = self.flights.lock();
        let of_blob = flights.entry(wanted.blob).or_default();
        let wanted_range = wanted.range();
        let covers = |other: &&Arc<Flight>| {
            other.range.start <= wanted_range.start && other.range.end >= wanted_range.end
        };
        if let Some(other) = of_blob.iter().find(covers).filter(|_| !anew) {
            return other.clone();
        }
        of_blob.push(flight.clone());
        drop(flights);
        let (fetcher, blob, name) = (self.clone(), wanted.blob, wanted.name.to_owned());
        let (begun, bound) = (flight.clone(), flight.range.clone());
        tokio::spawn(async move {
            fetcher.fly(blob, &name, bound, coming, &tell).await;
            // Only now that the cache has it, so that no read in between requests it again.
            let mut flights = fetcher.flights.lock();
            if let Some(of_blob) = flights.get_mut(&blob) {
                of_blob.retain(|other| !Arc::ptr_eq(other, &begun));
                if of_blob.is_empty() {
                    flights.remove(&blob);
                }
            }
        });
        flight
    }

    async fn fly(
        &self,
        blob: BlobId,
        name: &str,
        range: Range<u64>,
        coming: Vec<Coming>,
        tell: &watch::Sender<Option<Landed>>,
    ) {
        // The semaphore is never closed.
        let Ok(_room) = self.room.acquire_many((range.end - range.start) as u32).await else {
            return;
        };
        let landed = match self.backend.read_uploaded(name, range.clone()).await {
            Ok(bytes) => Landed::Bytes(bytes),
            Err(Unread::Missing) => Landed::Missing,
            Err(Unread::Failed(error)) => Landed::Failed(error.to_string()),
        };
        tell.send_replace(Some(landed.clone()));
        if let (Landed::Bytes(bytes), Some(cache)) = (landed, &self.cache) {
            cache.keep(verified(blob, &range, &bytes, &coming)).await;
        }
    }

    /// Returns the bodies of the next keys that lie behind in the same blob, if keys are read in
    /// their order.
    fn ahead(&self, wanted: &PieceRequest<'_>, bucket: BucketId, key: &ObjectKey) -> Vec<Coming> {
        if self.ahead_bytes == 0 || self.cache.is_none() {
            return Vec::new();
        }
        let before = self.sequences.lock().before(bucket, key);
        let before = before.filter(|before| self.follows(before, key));
        let steps = before.as_ref().map_or(0, |before| before.steps.saturating_add(1));
        let mut to = Sequence { bucket, last: key.clone(), steps };
        let budget = to.ahead_bytes(self.ahead_bytes);
        let mut coming = Vec::new();
        if budget > 0 {
            (to.last, coming) = self.next_keys(wanted, bucket, key, budget);
        }
        self.sequences.lock().goes_on(before.as_ref(), to);
        coming
    }

    /// Returns true if a key is among the next few of a sequence.
    fn follows(&self, sequence: &Sequence, key: &ObjectKey) -> bool {
        let (mut steps, mut found) = (0, false);
        self.visit_after(sequence.bucket, &sequence.last, |next, _| {
            steps += 1;
            found = next == *key;
            if found || next > *key || steps >= SEQUENCE_STEP_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        found
    }

    /// Bodies of the keys behind `key` that are worth reading with it, by their place, and the last of those keys.
    fn next_keys(
        &self,
        wanted: &PieceRequest<'_>,
        bucket: BucketId,
        key: &ObjectKey,
        budget: u64,
    ) -> (ObjectKey, Vec<Coming>) {
        let (from, mut seen, mut bytes) = (wanted.range().end, 0, 0);
        let mut found = Vec::new();
        self.visit_after(bucket, key, |next, content| {
            seen += 1;
            if let Content::Run(place) = content
                && place.container == wanted.place.container
                && (from..from + budget).contains(&place.offset)
                && place.offset + place.len <= from + budget
                && !self.cache.as_ref().is_some_and(|cache| cache.has(wanted.blob, &place))
            {
                bytes += place.len;
                found.push((next, place));
            }
            match seen < AHEAD_KEYS_MAX && bytes < budget {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        found.sort_unstable_by_key(|(_, place)| place.offset);
        found.truncate(worthwhile(from, found.iter().map(|(_, place)| place)));
        let last = found.iter().map(|(key, _)| key).max().unwrap_or(key).clone();
        let all = |(_, place): (_, Place)| {
            let pieces = 0..place.sums.len() as u64;
            (place, pieces)
        };
        (last, found.into_iter().map(all).collect())
    }

    /// Visits the keys behind a key in its bucket. A row that cannot be read ends it: a read itself
    /// will say so.
    fn visit_after(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        mut visit: impl FnMut(ObjectKey, Content) -> ControlFlow<()>,
    ) {
        let from = keys::after_key(b'V', bucket, key.as_bytes());
        let end = keys::prefix_end(&keys::bucket(b'V', bucket));
        let scanned = self.index.scan(&from, end.as_deref(), &mut |row, value| {
            let key = keys::parse_keyed(row).map(|(_, key, _)| key);
            match (key, decode::<PackedVersion>("a version's row", value)) {
                (Some(key), Ok(version)) => visit(key, version.content),
                _ => ControlFlow::Break(()),
            }
        });
        if let Err(error) = scanned {
            tracing::warn!(%error, "readahead could not read the index");
        }
    }
}

fn failed(name: &str, reason: String) -> Unread {
    Unread::Failed(PackError::Backend { operation: "read", name: name.to_owned(), reason })
}

/// Returns how many of these places, in ascending order behind `from`, a longer request takes
/// along: as many as are at least half of its bytes.
fn worthwhile<'a>(from: u64, places: impl Iterator<Item = &'a Place>) -> usize {
    let (mut useful, mut end, mut worth) = (0, from, 0);
    for (number, place) in places.enumerate() {
        // Two keys may have the same bytes, after a copy.
        useful += place.len.min((place.offset + place.len).saturating_sub(end));
        end = end.max(place.offset + place.len);
        if useful * 2 >= end - from {
            worth = number + 1;
        }
    }
    worth
}

/// The pieces of what came that verify.
fn verified(
    blob: BlobId,
    range: &Range<u64>,
    bytes: &Bytes,
    coming: &[Coming],
) -> Vec<(crate::read::cache::PieceKey, Bytes)> {
    let mut good = Vec::new();
    for (place, pieces) in coming {
        let step = u64::from(place.sum_bytes);
        for index in pieces.clone() {
            let from = place.offset + index * step;
            let to = (from + step).min(place.offset + place.len);
            if from < range.start || to > range.end {
                continue;
            }
            let piece = bytes.slice((from - range.start) as usize..(to - range.start) as usize);
            if verifies(place, index, &piece) {
                good.push((piece_key(blob, place, index), piece));
            }
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::Container;

    fn place(offset: u64, len: u64) -> Place {
        let container = Container::Blob(BlobId::default());
        Place { container, offset, len, seed: 0, sum_bytes: 65_536, sums: Vec::new() }
    }

    fn worth(places: &[(u64, u64)]) -> usize {
        let places: Vec<_> = places.iter().map(|(offset, len)| place(*offset, *len)).collect();
        worthwhile(100, places.iter())
    }

    #[test]
    fn half_of_what_is_read_ahead_is_of_use() {
        assert_eq!(worth(&[]), 0);
        assert_eq!(worth(&[(100, 10), (110, 10)]), 2, "side by side");
        assert_eq!(worth(&[(110, 10), (130, 10)]), 2, "every other one");
        assert_eq!(worth(&[(100, 10), (500, 10)]), 1, "the second is far away");
        assert_eq!(worth(&[(500, 10)]), 0);
        assert_eq!(worth(&[(120, 10), (130, 10)]), 2, "the first pays with the second");
        assert_eq!(worth(&[(110, 10), (110, 10), (150, 10)]), 2, "the same bytes count once");
    }
}
