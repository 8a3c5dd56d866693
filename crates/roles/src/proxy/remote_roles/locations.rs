//! A cache of objects' locations by their last METAX: bytes are requested together with METAX, as Cheetah's clients do,
//! which saves one of two round trips.
//!
//! # Invariants
//!
//! 1. Bytes that were read so are given out only if METAX, which is asked after the request came, names the same version: its op and
//!    its checksums. Otherwise the cache has cost a read, and is of no other consequence.
//! 2. Once METAX is there, such a read is waited for only if METAX names the same place and the same
//!    copies. It is waited for no longer than until another copy would be asked. Then the object is read as
//!    if nothing had been known of it.
//! 3. At most [`LOCATIONS_MAX`] are kept, each under a hash of its name. Of two names with one hash the one
//!    has the other's location, which is as wrong as an old one.
//! 4. Reads of no use are few: each takes as much [`Credit`] when it begins as twenty of use give, which
//!    get theirs back. Without any nothing is read ahead of METAX.
//! 5. A wrong location says nothing about copies, disks or servers: none is suspected for it ([`Certainty`]). One that gave nothing is
//!    forgotten, so that the next get reads what METAX names, and suspects what is wrong there.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use larder_objects::ObjectError;
use larder_protocol::scheduler::SizeClass;
use larder_protocol::validation::check_chunk;
use larder_types::{Body, BucketId, Chunk, ObjectKey, OpId, PgId, VersionRow};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::copies::Certainty;
use super::counters::count;
use super::planted::{self, Bug};
use super::{RemoteRoles, RoleAccess, single_flight};
use crate::limits::{LOCATED_BYTES_MAX, LOCATIONS_MAX};

/// A version and its only chunk.
#[derive(Debug)]
struct Location {
    op: OpId,
    chunk: Chunk,
}

impl Location {
    /// Of an object that is worth it: its bytes are in one chunk, and take no longer than METAX.
    fn of(row: &VersionRow) -> Option<Self> {
        match &row.body {
            Body::Chunk(chunk) if chunk.len <= LOCATED_BYTES_MAX => {
                // A meta server may say of it what it likes.
                check_chunk(chunk).ok()?;
                Some(Self { op: row.op, chunk: chunk.clone() })
            }
            _ => None,
        }
    }

    /// Compares it with METAX.
    fn compare(&self, row: Option<&VersionRow>) -> Now {
        match row.filter(|row| row.op == self.op).map(|row| &row.body) {
            Some(Body::Chunk(chunk)) if *chunk == self.chunk => Now::Same,
            Some(Body::Chunk(Chunk { seed, len, sums, .. }))
                if (seed, len, sums) == (&self.chunk.seed, &self.chunk.len, &self.chunk.sums) =>
            {
                Now::Moved
            }
            _ => Now::Other,
        }
    }
}

/// A remembered location, as METAX has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Now {
    /// All of it is so.
    Same,
    /// It is the version, and lies elsewhere or has other copies.
    Moved,
    /// It is another version, or none.
    Other,
}

/// The reads that may still be of no use: one of use gives a twentieth of the cost of such a one.
#[derive(Debug)]
struct Credit(AtomicU32);

impl Credit {
    const COST: u32 = 20;
    /// That of the reads that may be under way at once before any was of use.
    const MAX: u32 = 2_000 * Self::COST;

    /// Takes what a read costs, if there is as much.
    fn spend(&self) -> bool {
        let spent = |credit: u32| credit.checked_sub(Self::COST);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).is_ok()
    }

    fn earn(&self, credit: u32) {
        let earned = |has: u32| Some((has + credit).min(Self::MAX));
        let _always_changed = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earned);
    }
}

type LocationCache = Cache<u64, Arc<Location>, UnitWeighter, BuildHasherDefault<DefaultHasher>>;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Locations {
    known: LocationCache,
    credit: Credit,
}

impl Default for Locations {
    fn default() -> Self {
        let known = Cache::with(
            LOCATIONS_MAX,
            LOCATIONS_MAX as u64,
            UnitWeighter,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        );
        Self { known, credit: Credit(AtomicU32::new(Credit::MAX)) }
    }
}

impl Locations {
    fn slot(bucket: BucketId, key: &ObjectKey) -> u64 {
        xxh3_64_with_seed(key.as_str().as_bytes(), bucket.0)
    }

    /// Keeps what METAX says of a name, and tells what is so of what was known.
    fn remember(
        &self,
        slot: u64,
        known: Option<&Arc<Location>>,
        row: Option<&VersionRow>,
    ) -> Option<Now> {
        let now = known.map(|known| known.compare(row));
        if now == Some(Now::Same) {
            return now;
        }
        match row.and_then(Location::of) {
            Some(location) => self.known.insert(slot, Arc::new(location)),
            None => drop(self.known.remove(&slot)),
        }
        now
    }
}

/// Finds a key's version, and reads it meanwhile where it lay, if that is known. The bytes are the version's, if there are any.
pub(super) async fn find_and_read(
    remote: &RemoteRoles,
    (pg, bucket, key): (PgId, BucketId, &ObjectKey),
) -> Result<(Option<VersionRow>, Option<Bytes>), ObjectError> {
    let (locations, slot) = (&remote.locations, Locations::slot(bucket, key));
    let known = locations.known.get(&slot);
    let Some(known) = known.as_ref().filter(|_| locations.credit.spend()) else {
        let row = remote.find(pg, bucket, key).await?;
        if locations.remember(slot, known.as_ref(), row.as_ref()) == Some(Now::Same) {
            locations.credit.earn(1);
        }
        return Ok((row, None));
    };
    count(&remote.counters().located_reads);
    let chunk = &known.chunk;
    let read = single_flight::read(remote, chunk, 0..chunk.len, Certainty::Remembered);
    let (mut find, mut read) = (pin!(remote.find(pg, bucket, key)), Box::pin(read));
    let mut bytes = None;
    let row = loop {
        tokio::select! {
            biased;
            row = &mut find => break row?,
            outcome = &mut read, if bytes.is_none() => bytes = Some(outcome.ok()),
        }
    };
    let now = locations.remember(slot, Some(known), row.as_ref());
    let bytes = match (now, bytes) {
        (Some(Now::Same | Now::Moved), Some(bytes)) => bytes,
        (Some(Now::Same), None) => {
            let max_wait = remote.replicas.reads.hedge_after(SizeClass::of(chunk.len.into()));
            timeout(max_wait, read).await.ok().and_then(Result::ok)
        }
        (_, Some(bytes)) if planted::has(Bug::BelievesLocations) => bytes,
        _ => None,
    };
    match bytes.is_some() {
        true => {
            locations.credit.earn(Credit::COST + 1);
            count(&remote.counters().located_reads_used);
        }
        false if now == Some(Now::Same) => drop(locations.known.remove(&slot)),
        false => {}
    }
    Ok((row, bytes))
}

#[cfg(test)]
mod tests {
    use larder_types::{ETag, Extent, Grant, Holders, HybridClock, LvId, Metax};
    use larder_types::{OpSeq, View};

    use super::*;

    fn row(seq: u64, attempt: u32, len: u32) -> VersionRow {
        let op = OpId { view: View(1), seq: OpSeq(seq) };
        let chunk = Chunk {
            grant: Grant { pg: PgId(0), op, attempt },
            seed: seq,
            lv: LvId(0),
            extents: vec![Extent { first: attempt, blocks: len.div_ceil(4096) }],
            len,
            sums: vec![0; len.div_ceil(65_536) as usize],
            holders: Holders(0b11),
        };
        let metax = Metax::new(u64::from(len), HybridClock(1), ETag::Md5([0; 16]));
        VersionRow { op, metax, body: Body::Chunk(chunk) }
    }

    fn known(locations: &Locations, slot: u64) -> Option<(OpId, u32)> {
        locations.known.get(&slot).map(|it| (it.op, it.chunk.grant.attempt))
    }

    #[test]
    fn what_metax_says_last_is_known() {
        let (locations, slot) = (Locations::default(), 7);
        let (first, moved, next) = (row(1, 0, 5000), row(1, 1, 5000), row(2, 0, 5000));
        locations.remember(slot, None, Some(&first));
        assert_eq!(known(&locations, slot), Some((first.op, 0)));
        // Each with what was known before it.
        let turns = [(&first, 0, Now::Same), (&moved, 1, Now::Moved), (&next, 0, Now::Other)];
        for (row, attempt, now) in turns {
            let before = locations.known.get(&slot);
            assert_eq!(locations.remember(slot, before.as_ref(), Some(row)), Some(now));
            assert_eq!(known(&locations, slot), Some((row.op, attempt)));
        }
        let before = locations.known.get(&slot);
        assert_eq!(locations.remember(slot, before.as_ref(), None), Some(Now::Other));
        assert_eq!(known(&locations, slot), None);
    }

    #[test]
    fn large_objects_and_those_in_metax_are_not_known() {
        let (locations, slot) = (Locations::default(), 7);
        locations.remember(slot, None, Some(&row(1, 0, LOCATED_BYTES_MAX)));
        assert!(known(&locations, slot).is_some());
        locations.remember(slot, None, Some(&row(2, 0, LOCATED_BYTES_MAX + 1)));
        assert_eq!(known(&locations, slot), None);
        let inline = VersionRow { body: Body::Inline(Bytes::new()), ..row(3, 0, 1) };
        locations.remember(slot, None, Some(&inline));
        assert_eq!(known(&locations, slot), None);
    }

    #[test]
    fn a_version_is_the_same_where_it_was_moved_to_and_no_other_is() {
        let location = Location::of(&row(1, 0, 5000)).unwrap();
        let now = |row: VersionRow| location.compare(Some(&row));
        let changed = |change: fn(&mut Chunk)| {
            let mut row = row(1, 0, 5000);
            if let Body::Chunk(chunk) = &mut row.body {
                change(chunk);
            }
            row
        };
        assert_eq!(now(row(1, 0, 5000)), Now::Same);
        assert_eq!(now(row(1, 9, 5000)), Now::Moved);
        assert_eq!(now(changed(|chunk| chunk.holders = Holders(0b111))), Now::Moved);
        assert_eq!(now(row(2, 0, 5000)), Now::Other);
        assert_eq!(location.compare(None), Now::Other);
        // An op that another life of the group has used, too.
        assert_eq!(now(changed(|chunk| chunk.seed += 1)), Now::Other);
        assert_eq!(now(changed(|chunk| chunk.sums[0] += 1)), Now::Other);
    }

    #[test]
    fn a_wrong_location_costs_what_twenty_right_ones_give() {
        let credit = Credit(AtomicU32::new(Credit::MAX));
        let mut wrong = 0;
        while credit.spend() {
            wrong += 1;
        }
        assert_eq!(wrong, 2_000);
        for _ in 0..20 {
            assert!(!credit.spend());
            credit.earn(1);
        }
        // One of use, and one that is not.
        assert!(credit.spend());
        credit.earn(Credit::COST + 1);
        assert!(credit.spend() && !credit.spend());
    }

    #[test]
    fn the_same_key_of_another_bucket_lies_elsewhere() {
        let key = ObjectKey::new("key").unwrap();
        assert_ne!(Locations::slot(BucketId(1), &key), Locations::slot(BucketId(2), &key));
    }
}
