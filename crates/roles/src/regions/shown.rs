//! Reads entries as the store shows them, wherever its rows are.
//!
//! Each region has its buckets in the order of its own ids. So for a comparison the asking region reads its rows in the
//! answering region's order.
//!
//! # Invariants
//!
//! 1. Each change that a journal has told shows. A single node reads the index that it read the journal from. In a
//!    cluster the primary at that time settles rows before it answers with them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::region::{Entry, Id, KeyRows, Name, Range, Slot};
use larder_types::codec::decode;
use larder_types::{
    BucketId, BucketName, BucketRecord, BucketState, Epoch, ObjectKey, OpSeq, Passed, PgId,
    RegionId, Sharing, Tombstone, rows,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::TOKENS_PG;
use super::runs::{Rows, Slice, Span, Unreadable};
use crate::limits::{REGION_CHECK_MS, REGION_LATE_MS, REGION_RECHECK_MS, REGION_SLICE_ROWS_MAX};
use crate::proxy::{JournalRequest, Proxy, RegionAccess, Scan, ScanStep};
use crate::wire::JournalShown;

/// A key, and the tombstone of its null version.
pub(super) type KeyTombstone = (BucketId, ObjectKey, Tombstone);

/// Names of buckets, by their ids.
pub(super) type BucketNames = BTreeMap<BucketId, BucketName>;

/// The buckets of a version of the map.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    all: BucketNames,
    /// Those that take changes, which other regions are told of.
    live: BucketNames,
    /// The epochs of these: one that was closed meanwhile is told again, as a region may have deleted its
    /// own.
    epochs: BTreeMap<BucketId, Epoch>,
    /// Those that are being deleted.
    closed: BTreeMap<BucketId, BucketRecord>,
    /// Those that this region alone has.
    local: BTreeSet<BucketId>,
    /// Those that other regions are to have.
    sharing: Vec<BucketRecord>,
}

impl Buckets {
    pub(super) fn of(records: Vec<BucketRecord>) -> Self {
        let mut buckets = Self::default();
        for record in records {
            buckets.all.insert(record.id, record.name.clone());
            if record.is_local() {
                buckets.local.insert(record.id);
            }
            if matches!(record.sharing, Sharing::Opening | Sharing::Renewing) {
                buckets.sharing.push(record.clone());
            }
            match record.state {
                BucketState::Live if record.is_local() => {}
                BucketState::Live => {
                    buckets.live.insert(record.id, record.name);
                    buckets.epochs.insert(record.id, record.epoch);
                }
                BucketState::Deleting => _ = buckets.closed.insert(record.id, record),
            }
        }
        buckets
    }

    /// All names.
    pub(super) fn all(&self) -> &BucketNames {
        &self.all
    }

    /// Names that other regions are told.
    pub(super) fn live(&self) -> &BucketNames {
        &self.live
    }

    /// Those that this region alone has.
    pub(super) fn local(&self) -> &BTreeSet<BucketId> {
        &self.local
    }

    /// Those that other regions are to have, and that are not shared in all respects yet.
    pub(super) fn sharing(&self) -> &[BucketRecord] {
        &self.sharing
    }

    /// Returns true if other regions' changes to a bucket of that name have to wait. The regions are being asked if
    /// they have one, or this region's is being deleted, and theirs may be created here then.
    pub(super) fn waits(&self, id: BucketId) -> bool {
        let is_opening = |it: &BucketRecord| it.id == id && it.sharing == Sharing::Opening;
        self.local.contains(&id)
            && (self.closed.contains_key(&id) || self.sharing.iter().any(is_opening))
    }

    /// Those that other regions have, or are to have, also if they are being deleted.
    pub(super) fn shared(&self) -> impl Iterator<Item = BucketId> {
        self.all.keys().copied().filter(|id| !self.local.contains(id))
    }

    /// Returns true if a region that has those needs no update.
    pub(super) fn reports_the_same(&self, other: &Self) -> bool {
        (&self.live, &self.epochs) == (&other.live, &other.epochs)
    }

    /// Returns true if a bucket is being deleted.
    pub(super) fn is_closed(&self, id: BucketId) -> bool {
        self.closed.contains_key(&id)
    }
}

/// See the module's head.
pub(super) struct PublishedState<R: RegionAccess> {
    proxy: Arc<Proxy<R>>,
    /// As of a version of the map.
    buckets: Mutex<(u64, Arc<Buckets>)>,
    /// Time until which lookups are short, after one that was late.
    late_until: Mutex<Option<Instant>>,
}

impl<R: RegionAccess> PublishedState<R> {
    pub(super) fn new(proxy: Arc<Proxy<R>>) -> Self {
        let buckets = Mutex::new((u64::MAX, Arc::default()));
        Self { proxy, buckets, late_until: Mutex::default() }
    }

    pub(super) fn access(&self) -> &R {
        self.proxy.access()
    }

    pub(super) fn own(&self) -> RegionId {
        self.access().region()
    }

    pub(super) fn pg_count(&self) -> u32 {
        self.access().pg_count()
    }

    /// The PG of a key.
    pub(super) fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        self.access().pg_of(bucket, key)
    }

    /// A bucket's id.
    pub(super) fn bucket(&self, name: &BucketName) -> Option<BucketId> {
        self.access().bucket(name, |record| record.id)
    }

    /// All buckets.
    pub(super) fn buckets(&self) -> Arc<Buckets> {
        // Read before the buckets: one that is made meanwhile is seen at the next look.
        let version = self.access().map_version();
        let mut known = self.buckets.lock();
        if known.0 != version {
            *known = (version, Arc::new(Buckets::of(self.access().buckets())));
        }
        known.1.clone()
    }

    /// Buckets that are being deleted.
    pub(super) fn closed(&self) -> Vec<BucketRecord> {
        self.buckets().closed.values().cloned().collect()
    }

    /// Returns true if a bucket was deleted; false if it is there, or this process does not know it yet.
    pub(super) fn is_deleted(&self, id: BucketId) -> bool {
        // Asked first: a bucket that is made meanwhile counts as not known.
        let was_given = self.access().was_given(id);
        was_given && !self.buckets().all.contains_key(&id)
    }

    /// Reads keys' rows; `None` for a key whose rows are unknown for now. After a late lookup it waits less: primaries
    /// may be away.
    pub(super) async fn all_kept(&self, keys: &[(BucketId, ObjectKey)]) -> Vec<Option<KeyRows>> {
        let begun = Instant::now();
        let is_late = self.late_until.lock().is_some_and(|until| begun < until);
        let max_wait_ms = if is_late { REGION_RECHECK_MS } else { REGION_CHECK_MS };
        let deadline = begun + Duration::from_millis(max_wait_ms);
        let kept = self.access().kept(keys, deadline).await;
        // A short look says nothing of who is late: a server takes longer than that for a key that is in doubt.
        if !is_late && kept.iter().any(Option::is_none) && Instant::now() >= deadline {
            let until = Instant::now() + Duration::from_millis(REGION_LATE_MS);
            *self.late_until.lock() = Some(until);
        }
        kept
    }

    /// Reads a key's rows.
    pub(super) async fn kept(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<KeyRows, ObjectError> {
        let kept = self.all_kept(&[(bucket, key.clone())]).await.pop().flatten();
        let reason = || "what is here of the key is not known yet".to_owned();
        kept.ok_or_else(|| ObjectError::Unavailable { reason: reason() })
    }

    /// Makes a key's entry from its rows.
    pub(super) fn entry_of(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        kept: &KeyRows,
    ) -> Option<Entry> {
        kept.entry(self.own(), self.pg_of(bucket, key))
    }

    /// Reads journals of PGs, without those for which no primary answers now.
    pub(super) async fn journals(
        &self,
        ask: &JournalRequest,
    ) -> Result<Vec<(PgId, JournalShown)>, ObjectError> {
        self.access().journals(ask).await
    }

    /// Finds the first outcome of a PG's journal from an op on, up to another.
    pub(super) async fn first_outcome(
        &self,
        pg: PgId,
        (from, upto): (OpSeq, OpSeq),
    ) -> Result<Option<OpSeq>, ObjectError> {
        let (from, behind) = (rows::outcome(pg, from), rows::outcome(pg, upto.next()));
        let found = self.access().rows_from(pg, from, &behind, 1).await?;
        Ok(found.first().and_then(|(row, _)| rows::parse_outcome(row)).map(|(_, op)| op))
    }

    /// Reads a slice of the null versions' tombstones from a row on; also returns the row behind it, unless they end there.
    pub(super) async fn tombstones(
        &self,
        from: Option<Vec<u8>>,
    ) -> Result<(Vec<KeyTombstone>, Option<Vec<u8>>), Unreadable> {
        let from = from.unwrap_or_else(|| b"T".to_vec());
        let (mut found, mut count, mut next) = (Vec::new(), 0, None);
        self.visit(&from, b"U", REGION_SLICE_ROWS_MAX, |row, value| {
            if count == REGION_SLICE_ROWS_MAX {
                next = Some(row.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            count += 1;
            let form = || Unreadable::Form(row.escape_ascii().to_string());
            let (bucket, key, slot) = rows::parse_version(row).ok_or_else(form)?;
            if slot.is_unversioned() {
                found.push((bucket, key, decode("tombstone", value)?));
            }
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        Ok((found, next))
    }

    /// Reads the noted positions in other regions' journals.
    pub(super) async fn passed(&self) -> Result<Vec<Passed>, Unreadable> {
        let mut found = Vec::new();
        let (from, to) =
            (rows::passed_by(TOKENS_PG), rows::prefix_end(&rows::passed_by(TOKENS_PG)));
        let (from, to, wanted) = (from, to.as_deref(), REGION_SLICE_ROWS_MAX);
        let scan = Scan { pg: Some(TOKENS_PG), settle: false, from, to, wanted };
        self.scan(scan, |_, value| {
            found.push(Passed::decode(value)?);
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        Ok(found)
    }

    /// Reads the first ids of a range in the order of their rows, with bucket ids as there. `buckets` are those to
    /// read: their ids there, in order, and here.
    pub(super) async fn ids(
        &self,
        buckets: &BTreeMap<BucketId, BucketId>,
        range: &Range,
        ids_max: usize,
    ) -> Result<Vec<Id>, Unreadable> {
        self.ids_until(buckets, range, ids_max, None).await.map(|(ids, _)| ids)
    }

    /// Like [`PublishedState::ids`], until a time; also returns the place where it broke off, if it did.
    pub(super) async fn ids_until(
        &self,
        buckets: &BTreeMap<BucketId, BucketId>,
        range: &Range,
        ids_max: usize,
        until: Option<Instant>,
    ) -> Result<(Vec<Id>, Option<Vec<u8>>), Unreadable> {
        let (mut ids, mut is_begun) = (Vec::new(), false);
        for (there, here) in buckets {
            let mut rest = Span::of(range, *there, *here);
            while ids.len() < ids_max
                && let Some(span) = rest.take()
            {
                // At least one slice is read, however slow it is: the walk comes to an end.
                if is_begun && until.is_some_and(|until| Instant::now() >= until) {
                    return Ok((ids, Some(span.place(*there, *here))));
                }
                is_begun = true;
                let rows_max = REGION_SLICE_ROWS_MAX.min(ids_max - ids.len());
                let slice = Slice::read(self, *here, span, rows_max).await?;
                let of_keys = slice.keys.into_iter().filter_map(|(key, kept)| {
                    let entry = self.entry_of(*here, &key, &kept)?;
                    Some(entry.id(Name { bucket: *there, key, slot: Slot::Null }))
                });
                ids.extend(of_keys);
                rest = slice.rest;
            }
        }
        ids.truncate(ids_max);
        Ok((ids, None))
    }

    /// Visits rows, until `visit` breaks off.
    async fn scan<V>(&self, scan: Scan<'_>, mut visit: V) -> Result<(), Unreadable>
    where
        V: FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable> + Send,
    {
        let mut failed = None;
        let scanned = self.access().scan(scan, |row, value| match visit(row, value) {
            Ok(ControlFlow::Continue(())) => ScanStep::Next,
            Ok(ControlFlow::Break(())) => ScanStep::Stop,
            Err(error) => {
                failed = Some(error);
                ScanStep::Stop
            }
        });
        scanned.await?;
        failed.map_or(Ok(()), Err)
    }
}

impl<R: RegionAccess> Rows for PublishedState<R> {
    async fn visit<V>(
        &self,
        from: &[u8],
        to: &[u8],
        wanted: usize,
        visit: V,
    ) -> Result<(), Unreadable>
    where
        V: FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable> + Send,
    {
        let scan = Scan { pg: None, settle: false, from: from.to_vec(), to: Some(to), wanted };
        self.scan(scan, visit).await
    }
}
