//! Entries as the index shows them.
//!
//! Another region has its buckets in the order of *its* ids. So whoever compares looks at the rows of this store as that
//! region would.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use larder_kv::{KvError, KvReader};
use larder_protocol::region::{Entry, Id, Kept, Name, Range, Slot, kept};
use larder_types::codec::CodecError;
use larder_types::{BucketId, BucketName, ObjectKey, OpSeq, Passed, PgId, RegionId, rows};
use parking_lot::Mutex;

use super::runs::{Slice, Span};
use crate::limits::REGION_SLICE_ROWS_MAX;
use crate::manager::Manager;
use crate::meta::Meta;

/// The index cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Index(#[from] KvError),
    #[error(transparent)]
    Row(#[from] CodecError),
    #[error("row {0} has no such form")]
    Form(String),
}

/// See the module's head.
pub(super) struct Shown {
    meta: Arc<Meta>,
    manager: Arc<Manager>,
    /// Names of buckets, as of a version of the map.
    names: Mutex<(u64, Arc<BTreeMap<BucketId, BucketName>>)>,
}

impl Shown {
    pub(super) fn new(meta: Arc<Meta>, manager: Arc<Manager>) -> Self {
        Self { meta, manager, names: Mutex::new((u64::MAX, Arc::default())) }
    }

    pub(super) fn own(&self) -> RegionId {
        self.meta.region()
    }

    pub(super) fn pg_count(&self) -> u32 {
        self.meta.pg_ids().count() as u32
    }

    /// Changes when there may be outcomes that were not told yet.
    pub(super) fn shows_more(&self) -> tokio::sync::watch::Receiver<u64> {
        self.meta.shows_more()
    }

    /// The last op that the index shows of a PG.
    pub(super) fn applied(&self, pg: PgId) -> OpSeq {
        self.meta.applied(pg).seq
    }

    /// The PG of a key.
    pub(super) fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        self.meta.pg_of(bucket, key)
    }

    /// A bucket's id.
    pub(super) fn bucket(&self, name: &BucketName) -> Option<BucketId> {
        self.manager.map().bucket(name).map(|record| record.id)
    }

    /// All buckets.
    pub(super) fn buckets(&self) -> Arc<BTreeMap<BucketId, BucketName>> {
        let map = self.manager.map();
        let mut names = self.names.lock();
        if names.0 != map.map.version {
            let records = map.map.buckets.values();
            let by_id = records.map(|record| (record.id, record.name.clone())).collect();
            *names = (map.map.version, Arc::new(by_id));
        }
        names.1.clone()
    }

    /// A key's rows.
    pub(super) fn kept(&self, bucket: BucketId, key: &ObjectKey) -> Result<Kept, Unreadable> {
        let kv = self.meta.kv();
        let version = kv.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        let tombstone = kv.get(&kept::tombstone_row(bucket, key))?;
        Ok(Kept::of_values(version.as_deref(), tombstone.as_deref())?)
    }

    /// A key's entry.
    pub(super) fn entry(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<Entry>, Unreadable> {
        Ok(self.kept(bucket, key)?.entry(self.own(), self.meta.pg_of(bucket, key)))
    }

    /// Visits rows from one on, until told to stop.
    pub(super) fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable>,
    ) -> Result<(), Unreadable> {
        scan(self.meta.kv(), from, to, visit)
    }

    /// A row's value.
    pub(super) fn row(&self, row: &[u8]) -> Result<Option<bytes::Bytes>, Unreadable> {
        Ok(self.meta.kv().get(row)?)
    }

    /// Noted positions in journals of other regions.
    pub(super) fn passed(&self) -> Result<Vec<Passed>, Unreadable> {
        let mut found = Vec::new();
        self.scan(b"R", Some(b"S"), |_, value| {
            found.push(Passed::decode(value)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// The first ids of a range in the order of their rows, named as there. `buckets` are those that are looked at: their
    /// ids there, in order, and here.
    pub(super) fn ids(
        &self,
        buckets: &BTreeMap<BucketId, BucketId>,
        range: &Range,
        ids_max: usize,
    ) -> Result<Vec<Id>, Unreadable> {
        let mut ids = Vec::new();
        for (there, here) in buckets {
            let mut rest = Span::of(range, *there, *here);
            while ids.len() < ids_max
                && let Some(span) = rest.take()
            {
                let rows_max = REGION_SLICE_ROWS_MAX.min(ids_max - ids.len());
                let slice = Slice::read(self.meta.kv(), *here, span, rows_max)?;
                let of_keys = slice.keys.into_iter().filter_map(|(key, kept)| {
                    let entry = kept.entry(self.own(), self.meta.pg_of(*here, &key))?;
                    Some(entry.id(Name { bucket: *there, key, slot: Slot::Null }))
                });
                ids.extend(of_keys);
                rest = slice.rest;
            }
        }
        ids.truncate(ids_max);
        Ok(ids)
    }
}

/// Visits rows from one on, until told to stop.
pub(super) fn scan(
    kv: &dyn KvReader,
    from: &[u8],
    to: Option<&[u8]>,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable>,
) -> Result<(), Unreadable> {
    let mut failed = None;
    kv.scan(from, to, &mut |row, value| match visit(row, value) {
        Ok(flow) => flow,
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)
}
