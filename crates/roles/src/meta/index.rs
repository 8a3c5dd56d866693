//! The index and the table of buckets, as machines read and write them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use larder_kv::{Batch, Kv, KvError, KvReader, LsmKv};
use larder_protocol::index::Visit;
use larder_protocol::manager::state::{MapVersion, Topology};
use larder_protocol::{Changes, Index, IndexError};
use larder_types::{BucketId, BucketState, Epoch, RegionId};
use parking_lot::RwLock;

use crate::limits::{KV_CACHE_BYTES, KV_CACHE_FILLED_PART};
use crate::manager::LocalManager;
use crate::managers::Managers;
use crate::planted::{Bug, has};

/// The source of the table of buckets.
pub(super) enum Buckets {
    /// The map of this process.
    Here(Arc<LocalManager>),
    /// The cluster's map.
    Apart(LiveBuckets),
}

/// The live buckets of the cluster, collected once for each map.
pub(super) struct LiveBuckets {
    pub(super) managers: Arc<dyn Managers>,
    known: RwLock<(MapVersion, BTreeMap<BucketId, Epoch>)>,
}

impl LiveBuckets {
    pub(super) fn new(managers: Arc<dyn Managers>) -> Self {
        let known = RwLock::new(known_in(&managers.map()));
        Self { managers, known }
    }

    fn epoch(&self, bucket: BucketId) -> Option<Epoch> {
        let map = self.managers.map();
        {
            let known = self.known.read();
            // Another thread may know a later map already.
            if known.0 >= map.version {
                return known.1.get(&bucket).copied();
            }
        }
        let mut known = self.known.write();
        if known.0 < map.version {
            *known = known_in(&map);
        }
        known.1.get(&bucket).copied()
    }
}

impl LiveBuckets {
    fn has(&self, bucket: BucketId) -> bool {
        self.managers.map().buckets.values().any(|record| record.id == bucket)
    }

    /// Returns true if the map has or had this bucket: ids are given in order.
    fn is_aware_of(&self, bucket: BucketId) -> bool {
        bucket <= self.managers.map().next.bucket
    }
}

fn known_in(map: &Topology) -> (MapVersion, BTreeMap<BucketId, Epoch>) {
    let live = map.buckets.values().filter(|bucket| bucket.state == BucketState::Live);
    (map.version, live.map(|bucket| (bucket.id, bucket.epoch)).collect())
}

/// The port that the machines read and write through.
pub(super) struct IndexPort {
    pub(super) kv: LsmKv,
    pub(super) buckets: Buckets,
    /// True if the whole index fitted its cache when its size was measured last.
    fits_cache: AtomicBool,
    /// True if the whole index was read since the start.
    is_read: AtomicBool,
}

impl IndexPort {
    pub(super) fn new(kv: LsmKv, buckets: Buckets) -> Self {
        let (fits_cache, is_read) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { kv, buckets, fits_cache, is_read }
    }

    /// Returns true if by the cluster's map a bucket is being deleted, or is gone. A bucket that the map never had is neither.
    pub(super) fn is_ended(&self, bucket: BucketId) -> bool {
        match &self.buckets {
            Buckets::Here(_) => false,
            Buckets::Apart(_) if has(Bug::ShowsDeletedBuckets) => false,
            Buckets::Apart(live) => live.epoch(bucket).is_none() && live.is_aware_of(bucket),
        }
    }

    /// Returns true if by the cluster's map a bucket is gone: another bucket may have its name, and its rows say nothing about
    /// that one.
    pub(super) fn is_gone(&self, bucket: BucketId) -> bool {
        match &self.buckets {
            Buckets::Here(_) => false,
            Buckets::Apart(live) => self.is_ended(bucket) && !live.has(bucket),
        }
    }

    /// The version of the map that the buckets are taken from.
    pub(super) fn map_version(&self) -> u64 {
        match &self.buckets {
            Buckets::Here(manager) => manager.map().map.version,
            Buckets::Apart(live) => live.managers.map().version.0,
        }
    }

    /// Measures the index's size.
    pub(super) fn measure(&self) {
        let fits = self.kv.disk_bytes() <= KV_CACHE_BYTES / KV_CACHE_FILLED_PART;
        self.fits_cache.store(fits, Ordering::Relaxed);
    }

    /// Notes that all rows were read.
    pub(super) fn was_read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    /// Returns true if a row may be read on a task that must not block. An index that fits its
    /// cache is in it, or at least in the page cache, once it was read.
    pub(super) fn is_in_memory(&self) -> bool {
        self.is_read.load(Ordering::Relaxed) && self.fits_cache.load(Ordering::Relaxed)
    }
}

impl Index for IndexPort {
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        self.kv.get(row).map_err(index_error)
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), IndexError> {
        self.kv.scan(from, to, visit).map_err(index_error)
    }

    fn write(&self, changes: Changes) -> Result<(), IndexError> {
        let (rows, positions) = changes.into_parts();
        let mut batch = Batch::new();
        for (row, value) in positions {
            batch.position(&row, &value);
        }
        for (row, value) in rows {
            match value {
                Some(value) => batch.put(&row, &value),
                None => batch.delete(&row),
            }
        }
        self.kv.apply(&batch).map_err(index_error)
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        match &self.buckets {
            Buckets::Here(manager) => manager.map().live_epoch(bucket),
            Buckets::Apart(buckets) => buckets.epoch(bucket),
        }
    }

    fn is_damaged(&self) -> bool {
        matches!(self.buckets, Buckets::Here(_)) && self.kv.damage().is_some()
    }

    fn region(&self) -> RegionId {
        match &self.buckets {
            Buckets::Here(manager) => manager.region(),
            Buckets::Apart(buckets) => buckets.managers.map().number(),
        }
    }
}

pub(super) fn index_error(error: KvError) -> IndexError {
    IndexError(error.to_string())
}
