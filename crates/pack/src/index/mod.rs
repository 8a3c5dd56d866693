//! The index: buckets, versions, uploads, parts, blobs, and which versions and parts have which
//! bytes. Changes are applied in one place, `apply.rs`.
//!
//! # Invariants
//!
//! 1. A change is applied wholly or not at all, together with how far the index is then.
//! 2. A part's row is there while its upload is open or its completed object is its key's version.
//! 3. Half an index is none: only one that says how far it is, in a layout that this release reads, is used. One of a later
//!    release stops a start: it is not rebuilt.
//! 4. An index that is open says the layout of this release, or none yet: durably, unless the disk is full. A process has no
//!    number before that.

pub(crate) mod apply;
pub(crate) mod extent_refs;
pub(crate) mod list;
#[cfg(test)]
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use larder_kv::{Batch, FlushReport, Kv, KvError, KvReader, LsmKv, Progress};
use larder_types::codec::{decode, encode};
use larder_types::rows::{self as keys, UNVERSIONED};
use larder_types::{
    BucketId, BucketName, BucketRecord, CodecError, ObjectKey, UploadId, UploadRow,
};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;

use crate::error::PackError;
use crate::format::entry::Container;
use crate::format::rows::{
    self, Applied, BlobContent, BlobRow, Holder, PackedPart, PackedVersion, RetiredRow,
};
use crate::format::upload_unit::{BundleContent, UploadUnit};
use crate::ids::{BlobId, ProcessId, StandaloneId};
use crate::index::extent_refs::ExtentRefs;
use crate::limits::REMOVED_ROWS_MAX;

/// Called with each row; says if the visit goes on.
type Visiting<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, PackError> + 'a;

/// The index of a packed store.
pub(crate) struct Index {
    pub(crate) kv: Box<dyn Kv>,
    pub(crate) buckets: RwLock<BTreeMap<BucketName, BucketRecord>>,
    ended: EndedBundles,
}

/// The row that an index keeps of a bundle that was uploaded, once nothing in it is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBundles {
    /// Kept until the bundle is removed: this worker removes it, and tells others its name until then.
    Kept,
    /// None: another worker removes it at a time that is not announced.
    Forgotten,
}

impl Index {
    /// Opens the index in a directory, or makes an empty one; and how far it is.
    pub(crate) fn open(path: &Path) -> Result<(Self, Option<Applied>), PackError> {
        Self::over(Box::new(LsmKv::open(path, larder_kv::limits::CACHE_BYTES)?))
    }

    /// The same for what another worker has, over its rows.
    pub(crate) fn of_another(kv: Box<dyn Kv>) -> Result<(Self, Option<Applied>), PackError> {
        let (index, applied) = Self::over(kv)?;
        let index = Self { ended: EndedBundles::Forgotten, ..index };
        if applied.is_some() {
            // Earlier releases left them.
            index.forget_ended_bundles()?;
        }
        Ok((index, applied))
    }

    /// As [`Index::open`], over a store of rows that is at hand.
    pub(crate) fn over(kv: Box<dyn Kv>) -> Result<(Self, Option<Applied>), PackError> {
        match row::<u32>(&*kv, "the layout of the index", &rows::layout())? {
            Some(rows::LAYOUT) => {}
            Some(rows::LAYOUT_UNMARKED) => {
                let mut batch = Batch::new();
                batch.put(&rows::layout(), &encode(&rows::LAYOUT));
                kv.apply(&batch)?;
                match kv.flush() {
                    // Blobs that wait must be able to leave a full disk. The markers stop an
                    // earlier build by themselves.
                    Err(error @ KvError::Full { .. }) => {
                        tracing::warn!(%error, "the index's new layout will be recorded once there is space");
                    }
                    flushed => {
                        flushed?;
                    }
                }
            }
            Some(found) if found > rows::LAYOUT => {
                let (name, known) = ("the index".to_owned(), rows::LAYOUT);
                return Err(PackError::Version { name, found, known });
            }
            _ => return Ok((Self::of_rows(kv), None)),
        }
        let applied = row(&*kv, "how far the index is", &rows::applied())?;
        let index = Self::of_rows(kv);
        index.read_buckets()?;
        Ok((index, applied))
    }

    fn of_rows(kv: Box<dyn Kv>) -> Self {
        Self { kv, buckets: RwLock::default(), ended: EndedBundles::Kept }
    }

    /// Counts who has which bytes, for one batch.
    pub(crate) fn ledger(&self) -> ExtentRefs<'_> {
        ExtentRefs::new(&*self.kv, self.ended)
    }

    /// Reads what it keeps in memory from its rows.
    pub(crate) fn read_buckets(&self) -> Result<(), PackError> {
        let mut buckets = BTreeMap::new();
        self.visit(b"N", &mut |_, value| {
            let record = decode::<BucketRecord>("a bucket's row", value)?;
            buckets.insert(record.name.clone(), record);
            Ok(ControlFlow::Continue(()))
        })?;
        *self.buckets.write() = buckets;
        Ok(())
    }

    /// Visits the rows that begin with `prefix`, of one state; the first error ends it.
    pub(crate) fn visit(&self, prefix: &[u8], visit: &mut Visiting<'_>) -> Result<(), PackError> {
        self.visit_between(prefix, keys::prefix_end(prefix).as_deref(), visit)
    }

    /// The same with those from one row to another, or to the last.
    pub(crate) fn visit_between(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visiting<'_>,
    ) -> Result<(), PackError> {
        let mut failed = None;
        self.kv.scan(from, to, &mut |row, value| {
            visit(row, value).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        })?;
        failed.map_or(Ok(()), Err)
    }

    pub(crate) fn bucket(&self, name: &BucketName) -> Option<BucketRecord> {
        self.buckets.read().get(name).cloned()
    }

    pub(crate) fn bucket_id(&self, name: &BucketName) -> Option<BucketId> {
        self.buckets.read().get(name).map(|record| record.id)
    }

    pub(crate) fn bucket_by_id(&self, id: BucketId) -> Option<BucketRecord> {
        self.buckets.read().values().find(|record| record.id == id).cloned()
    }

    pub(crate) fn buckets(&self) -> Vec<BucketRecord> {
        self.buckets.read().values().cloned().collect()
    }

    pub(crate) fn version(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<PackedVersion>, PackError> {
        row(&*self.kv, "a version's row", &keys::version(bucket, key, UNVERSIONED))
    }

    /// The version of a row's key.
    pub(crate) fn version_at(&self, key: &[u8]) -> Result<Option<PackedVersion>, PackError> {
        row(&*self.kv, "a version's row", key)
    }

    pub(crate) fn upload(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<Option<UploadRow>, PackError> {
        row(&*self.kv, "an upload's row", &keys::upload(bucket, key, upload))
    }

    pub(crate) fn part(
        &self,
        bucket: BucketId,
        upload: UploadId,
        number: u16,
    ) -> Result<Option<PackedPart>, PackError> {
        row(&*self.kv, "a part's row", &keys::part(bucket, upload, number))
    }

    /// Parts with numbers above `after`, in ascending order.
    pub(crate) fn parts(
        &self,
        bucket: BucketId,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<Vec<(u16, PackedPart)>, PackError> {
        let from = keys::part(bucket, upload, after.saturating_add(1));
        let end = keys::prefix_end(&keys::parts(bucket, upload));
        let (mut parts, mut damaged) = (Vec::new(), None);
        self.kv.scan(&from, end.as_deref(), &mut |row, value| {
            if parts.len() >= max {
                return ControlFlow::Break(());
            }
            match (rows::upload_of_part(row), decode::<PackedPart>("a part's row", value)) {
                (Some((_, number)), Ok(part)) => parts.push((number, part)),
                (_, found) => {
                    let unnamed = || PackError::damaged("a part's row", "its key names no part");
                    damaged = Some(found.err().map_or_else(unnamed, PackError::from));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        damaged.map_or(Ok(parts), Err)
    }

    pub(crate) fn blob(&self, id: BlobId) -> Result<Option<BlobRow>, PackError> {
        row(&*self.kv, "a blob's row", &rows::blob(id))
    }

    pub(crate) fn blob_content(&self, id: BlobId) -> Result<Option<BlobContent>, PackError> {
        let content = self.kv.get(&rows::content(id))?;
        Ok(content.map(|value| BlobContent::decode(&value)).transpose()?)
    }

    /// Blobs that count: their contents, oldest first. A rebuild reads these and no others.
    pub(crate) fn standing(&self) -> Result<Vec<(BlobId, BlobContent)>, PackError> {
        let retired: BTreeSet<_> = self.retired()?.into_iter().map(|(id, _)| id).collect();
        let mut blobs = self.of_blobs(b"C", "what a blob has", BlobContent::decode)?;
        blobs.retain(|(id, _)| !retired.contains(id));
        Ok(blobs)
    }

    /// Blobs that were retired and are not known to be gone.
    pub(crate) fn retired(&self) -> Result<Vec<(BlobId, RetiredRow)>, PackError> {
        let what = "a retired blob's row";
        self.of_blobs(b"G", what, |value| decode(what, value))
    }

    /// Blobs that were uploaded and are not known to be gone.
    pub(crate) fn uploaded(&self) -> Result<Vec<(BlobId, BlobRow)>, PackError> {
        let what = "a blob's row";
        self.of_blobs(b"B", what, |value| decode(what, value))
    }

    /// Returns true if a blob is in the backend, or was until it was retired; else it waits to be
    /// uploaded. It must be a blob of which there are or were changes here.
    pub(crate) fn is_uploaded(&self, id: BlobId) -> Result<bool, PackError> {
        let is_there = self.blob(id)?.is_some() || self.blob_content(id)?.is_none();
        Ok(is_there || self.kv.get(&rows::retired(id))?.is_some())
    }

    /// Bundles of which something is live, in the order of their names.
    pub(crate) fn bundles(&self) -> Result<Vec<(StandaloneId, BundleContent)>, PackError> {
        let mut bundles = Vec::new();
        self.visit(b"O", &mut |row, value| {
            let id = rows::parse_bundle(row);
            let unnamed = || PackError::damaged("a bundle's row", "its key names no bundle");
            let content: BundleContent = decode("what a bundle has", value)?;
            if content.live > 0 {
                bundles.push((id.ok_or_else(unnamed)?, content));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(bundles)
    }

    fn of_blobs<T>(
        &self,
        table: &[u8],
        what: &'static str,
        decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ) -> Result<Vec<(BlobId, T)>, PackError> {
        let mut blobs = Vec::new();
        self.visit(table, &mut |row, value| {
            let id = rows::parse_blob(row);
            let id = id.ok_or_else(|| PackError::damaged(what, "its key names no blob"))?;
            blobs.push((id, decode(value)?));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(blobs)
    }

    /// Up to `max` of those that have bytes within, from `offset` on, in the order of offsets.
    pub(crate) fn holders(
        &self,
        container: Container,
        offset: u64,
        max: usize,
    ) -> Result<Vec<(u64, Holder)>, PackError> {
        let prefix = rows::held_within(container);
        let from = rows::held_at(container, offset);
        let (mut holders, mut is_damaged) = (Vec::new(), false);
        self.kv.scan(&from, keys::prefix_end(&prefix).as_deref(), &mut |row, _| {
            if holders.len() >= max {
                return ControlFlow::Break(());
            }
            match rows::parse_held(&row[prefix.len()..]) {
                Some(holder) => holders.push(holder),
                None => is_damaged = true,
            }
            if is_damaged { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        match is_damaged {
            true => Err(PackError::damaged("the index", "a row names no holder of bytes")),
            false => Ok(holders),
        }
    }

    pub(crate) fn has_objects(&self, bucket: BucketId) -> Result<bool, PackError> {
        let from = keys::bucket(b'V', bucket);
        let mut found = false;
        self.kv.scan(&from, keys::prefix_end(&from).as_deref(), &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Visits rows in their order, of one state.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut larder_kv::Visit<'_>,
    ) -> Result<(), PackError> {
        Ok(self.kv.scan(from, to, visit)?)
    }

    /// A blob is in the backend, and its bundles are.
    pub(crate) fn add_blob(
        &self,
        id: BlobId,
        row: &BlobRow,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        let mut batch = Batch::new();
        batch.put(&rows::blob(id), &encode(row));
        self.add_bundles(id, row.process, batch, applied)
    }

    /// A process has uploaded the bundles of a blob.
    pub(crate) fn add_bundles(
        &self,
        id: BlobId,
        process: ProcessId,
        mut batch: Batch,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        for unit in UploadUnit::bundles() {
            let Container::Own(bundle) = unit.container(id) else { continue };
            if let Some(content) = self.bundle(bundle)?.filter(|of| of.process != process) {
                batch.put(&rows::bundle(bundle), &encode(&BundleContent { process, ..content }));
            }
        }
        self.commit(batch, applied)
    }

    /// The content of a bundle; `None` if nothing in it is live and it was not uploaded, or was
    /// removed, or is another worker's.
    pub(crate) fn bundle(&self, id: StandaloneId) -> Result<Option<BundleContent>, PackError> {
        row(&*self.kv, "what a bundle has", &rows::bundle(id))
    }

    /// The name of a bundle that is in the backend.
    pub(crate) fn bundle_path(&self, id: StandaloneId) -> Result<String, PackError> {
        Ok(id.path_of(self.bundle_process(id)?.unwrap_or_default()))
    }

    /// The process that uploaded a bundle. If nothing in it was live when it was uploaded, its blob
    /// says so; `None` if that is gone too.
    pub(crate) fn bundle_process(&self, id: StandaloneId) -> Result<Option<ProcessId>, PackError> {
        if let Some(content) = self.bundle(id)? {
            return Ok(Some(content.process));
        }
        let blob = match id.bundle() {
            Some((blob, _)) => self.blob(blob)?,
            None => None,
        };
        Ok(blob.map(|row| row.process))
    }

    /// Forgets a bundle that a process uploaded, before it is removed: nothing in it is live, and nobody reads it.
    pub(crate) fn forget_bundle(
        &self,
        id: StandaloneId,
        process: ProcessId,
    ) -> Result<(), PackError> {
        let content = self.bundle(id)?.filter(|content| content.process == process);
        let Some(content) = content else { return Ok(()) };
        if content.live > 0 {
            let reason = format!("nothing holds it, and {} bytes of it are live", content.live);
            return Err(PackError::damaged(id.path_of(process), reason));
        }
        let mut batch = Batch::new();
        batch.delete(&rows::bundle(id));
        self.commit(batch, None)
    }

    /// Forgets bundles in which nothing is live, in an index that keeps none: rows of its owner, as a backup has them.
    pub(crate) fn forget_ended_bundles(&self) -> Result<(), PackError> {
        if self.ended == EndedBundles::Kept {
            return Ok(());
        }
        loop {
            let mut batch = Batch::new();
            self.visit(b"O", &mut |row, value| {
                if decode::<BundleContent>("what a bundle has", value)?.live == 0 {
                    batch.delete(row);
                }
                let is_full = batch.len() == REMOVED_ROWS_MAX;
                Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            self.commit(batch, None)?;
        }
    }

    /// A blob that a rebuild finds in the backend was retired.
    pub(crate) fn add_retired(&self, id: BlobId, row: &RetiredRow) -> Result<(), PackError> {
        let mut batch = Batch::new();
        batch.put(&rows::retired(id), &encode(row));
        self.commit(batch, None)
    }

    /// Removes every row.
    pub(crate) fn clear(&self) -> Result<(), PackError> {
        loop {
            let mut batch = Batch::new();
            self.kv.scan(&[], None, &mut |row, _| {
                batch.delete(row);
                match batch.len() < REMOVED_ROWS_MAX {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
            if batch.is_empty() {
                self.buckets.write().clear();
                return Ok(());
            }
            self.kv.apply(&batch)?;
        }
    }

    /// A reader of the rows as they are now.
    pub(crate) fn snapshot(&self) -> Result<Box<dyn KvReader>, PackError> {
        Ok(self.kv.snapshot()?)
    }

    /// Makes everything applied before the call durable.
    pub(crate) fn flush(&self) -> Result<FlushReport, KvError> {
        self.kv.flush()
    }

    pub(crate) fn maintain(&self) -> Result<Progress, KvError> {
        self.kv.maintain()
    }

    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.kv.unflushed_bytes()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.kv.disk_bytes()
    }

    /// A retired blob is in the backend no longer.
    pub(crate) fn forget_blob(&self, id: BlobId) -> Result<(), PackError> {
        let mut batch = Batch::new();
        for row in [rows::blob(id), rows::content(id), rows::retired(id)] {
            batch.delete(&row);
        }
        self.commit(batch, None)
    }

    /// The index is whole, and as far as this.
    pub(crate) fn set_applied(&self, applied: &Applied) -> Result<(), PackError> {
        let mut batch = Batch::new();
        batch.put(&rows::layout(), &encode(&rows::LAYOUT));
        self.commit(batch, Some(applied))
    }

    pub(crate) fn commit(
        &self,
        mut batch: Batch,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        if let Some(applied) = applied {
            batch.position(&rows::applied(), &encode(applied));
        }
        Ok(self.kv.apply(&batch)?)
    }
}

fn row<T: DeserializeOwned>(
    kv: &dyn Kv,
    what: &'static str,
    key: &[u8],
) -> Result<Option<T>, PackError> {
    match kv.get(key)? {
        Some(value) => Ok(Some(decode(what, &value)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;
    use larder_kv::{FlushFault, SimKv};
    use larder_types::{HybridClock, OpSeq};

    #[test]
    fn a_blob_waits_while_there_are_changes_of_it_and_nothing_says_where_it_is() {
        let index = Index::over(Box::new(SimKv::default())).unwrap().0;
        let id = BlobId { worker: WorkerId(3), seq: 4 };
        let (seq, clock) = (OpSeq(7), HybridClock(8));
        let first_clock = Some(clock);
        let content = BlobContent { first: seq, first_clock, last: seq, clock, end: 5, live: 5 };
        let put = |row: Vec<u8>, value: Vec<u8>| {
            let mut batch = Batch::new();
            batch.put(&row, &value);
            index.commit(batch, None).unwrap();
        };
        put(rows::content(id), content.encode());
        assert!(!index.is_uploaded(id).unwrap());
        // As a backup has it that was made before the upload, with the footers since.
        put(rows::retired(id), encode(&RetiredRow { retired_ms: 1, by: id }));
        assert!(index.is_uploaded(id).unwrap());
        index.forget_blob(id).unwrap();
        assert!(index.is_uploaded(id).unwrap(), "it was retired and removed");
        put(rows::content(id), content.encode());
        index.add_blob(id, &BlobRow::NONE, None).unwrap();
        assert!(index.is_uploaded(id).unwrap());
    }

    /// An index that says that it has a layout, as a process finds it.
    fn of_layout(layout: Option<u32>) -> Result<(Index, Option<Applied>), PackError> {
        let kv = SimKv::default();
        let mut batch = Batch::new();
        if let Some(layout) = layout {
            batch.put(&rows::layout(), &encode(&layout));
        }
        batch.position(&rows::applied(), &encode(&Applied::default()));
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
        Index::over(Box::new(kv))
    }

    #[test]
    fn an_index_of_an_earlier_layout_is_none_and_one_of_a_later_stops_a_start() {
        let applied = |layout| of_layout(layout).unwrap().1;
        assert_eq!(applied(Some(rows::LAYOUT)), Some(Applied::default()));
        assert_eq!(applied(Some(1)), None);
        assert_eq!(applied(None), None, "the first releases wrote none");
        let error = of_layout(Some(rows::LAYOUT + 1)).err().unwrap();
        assert!(matches!(error, PackError::Version { found: 4, known: 3, .. }), "{error}");
    }

    #[test]
    fn an_index_of_the_last_layout_is_used_also_on_a_full_disk() {
        let kv = SimKv::default();
        let mut batch = Batch::new();
        batch.put(&rows::layout(), &encode(&rows::LAYOUT_UNMARKED));
        batch.position(&rows::applied(), &encode(&Applied::default()));
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
        kv.fail_next_flush(FlushFault::Full);
        let (index, applied) = Index::over(Box::new(kv)).unwrap();
        assert_eq!(applied, Some(Applied::default()));
        index.flush().unwrap();
        assert_eq!(row::<u32>(&*index.kv, "layout", &rows::layout()).unwrap(), Some(rows::LAYOUT));
    }

    #[test]
    fn an_index_from_before_processes_had_numbers_is_used_and_not_by_an_earlier_build_any_more() {
        let (index, applied) = of_layout(Some(2)).unwrap();
        assert_eq!(applied, Some(Applied::default()));
        // An earlier build asks this of what is durable: it takes an index of another layout for
        // none.
        assert_eq!(index.kv.unflushed_bytes(), 0);
        let layout = row::<u32>(&*index.kv, "layout", &rows::layout()).unwrap();
        assert_eq!(layout, Some(3));
    }
}
