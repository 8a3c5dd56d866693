//! What there is: buckets, versions, uploads, parts, blobs. One place where changes are applied.
//!
//! # Invariants
//!
//! 1. A change is applied wholly or not at all, together with how far the index is then.
//! 2. A part's row is there while its upload is open or its completed object is its key's version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use larder_kv::{Batch, FlushReport, Kv, KvError, KvReader, LsmKv, Progress};
use larder_types::codec::{decode, encode};
use larder_types::rows::{self as keys, NULL_VERSION};
use larder_types::{BucketId, BucketName, BucketRecord, ObjectKey, UploadId, UploadRow};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;

use crate::entry::{BlobId, Change, Content, Entry, WorkerId};
use crate::error::PackError;
use crate::limits::REMOVED_ROWS_MAX;
use crate::rows::{self, Applied, BlobRow, PackedPart, PackedVersion};

/// The index of a packed store.
pub(crate) struct Index {
    kv: LsmKv,
    buckets: RwLock<BTreeMap<BucketName, BucketRecord>>,
}

impl Index {
    /// Opens the index in a directory, or makes an empty one; and how far it is.
    pub(crate) fn open(path: &Path) -> Result<(Self, Option<Applied>), PackError> {
        let kv = LsmKv::open(path, larder_kv::limits::CACHE_BYTES)?;
        let applied = row(&kv, "how far the index is", &rows::applied())?;
        let mut buckets = BTreeMap::new();
        let mut damaged = None;
        kv.scan(
            b"N",
            keys::prefix_end(b"N").as_deref(),
            &mut |_, value| match decode::<BucketRecord>("a bucket's row", value) {
                Ok(record) => {
                    buckets.insert(record.name.clone(), record);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    damaged = Some(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        match damaged {
            Some(error) => Err(error.into()),
            None => Ok((Self { kv, buckets: RwLock::new(buckets) }, applied)),
        }
    }

    pub(crate) fn bucket(&self, name: &BucketName) -> Option<BucketRecord> {
        self.buckets.read().get(name).cloned()
    }

    pub(crate) fn bucket_id(&self, name: &BucketName) -> Option<BucketId> {
        self.buckets.read().get(name).map(|record| record.id)
    }

    pub(crate) fn buckets(&self) -> Vec<BucketRecord> {
        self.buckets.read().values().cloned().collect()
    }

    pub(crate) fn version(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<PackedVersion>, PackError> {
        row(&self.kv, "a version's row", &keys::version(bucket, key, NULL_VERSION))
    }

    pub(crate) fn upload(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<Option<UploadRow>, PackError> {
        row(&self.kv, "an upload's row", &keys::upload(bucket, key, upload))
    }

    pub(crate) fn part(
        &self,
        bucket: BucketId,
        upload: UploadId,
        number: u16,
    ) -> Result<Option<PackedPart>, PackError> {
        row(&self.kv, "a part's row", &keys::part(bucket, upload, number))
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
        row(&self.kv, "a blob's row", &rows::blob(id))
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

    /// Applies a change of `worker`; then the index is as far as `applied` says. While it is rebuilt it says
    /// nothing of that: half an index is none.
    pub(crate) fn apply(
        &self,
        worker: WorkerId,
        entry: &Entry,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        let mut batch = Batch::new();
        let op = entry.op(worker);
        match &entry.change {
            Change::BucketMade(record) => {
                batch.put(&rows::bucket(record.id), &encode(record));
                self.buckets.write().insert(record.name.clone(), record.clone());
            }
            Change::BucketRemoved(bucket) => self.remove_bucket(*bucket, &mut batch)?,
            Change::Put { bucket, key, metax, content } => {
                let keep = match content {
                    Content::Parts { upload, .. } => Some(*upload),
                    Content::Run(_) => None,
                };
                self.end_version(*bucket, key, keep, &mut batch)?;
                let row = PackedVersion { op, metax: metax.clone(), content: content.clone() };
                batch.put(&keys::version(*bucket, key, NULL_VERSION), &encode(&row));
            }
            Change::Deleted { bucket, key } => {
                self.end_version(*bucket, key, None, &mut batch)?;
                batch.delete(&keys::version(*bucket, key, NULL_VERSION));
            }
            Change::UploadBegun { bucket, row } => {
                batch.put(&keys::upload(*bucket, &row.key, row.upload), &encode(row));
            }
            Change::PartPut { bucket, upload, number, metax, place } => {
                let row = PackedPart { op, metax: metax.clone(), place: place.clone() };
                batch.put(&keys::part(*bucket, *upload, *number), &encode(&row));
            }
            Change::UploadAborted { bucket, key, upload } => {
                batch.delete(&keys::upload(*bucket, key, *upload));
                self.remove_parts(*bucket, *upload, |_| true, &mut batch)?;
            }
            Change::UploadCompleted { bucket, key, upload, metax, parts } => {
                self.end_version(*bucket, key, Some(*upload), &mut batch)?;
                let unnamed =
                    |number| parts.binary_search_by_key(&number, |part| part.number).is_err();
                self.remove_parts(*bucket, *upload, unnamed, &mut batch)?;
                batch.delete(&keys::upload(*bucket, key, *upload));
                let content = Content::Parts { upload: *upload, parts: parts.clone() };
                let row = PackedVersion { op, metax: metax.clone(), content };
                batch.put(&keys::version(*bucket, key, NULL_VERSION), &encode(&row));
            }
        }
        self.commit(batch, applied)
    }

    /// A blob is in the backend.
    pub(crate) fn add_blob(
        &self,
        id: BlobId,
        row: &BlobRow,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        let mut batch = Batch::new();
        batch.put(&rows::blob(id), &encode(row));
        self.commit(batch, applied)
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

    /// The index is as far as this, whatever it shows.
    pub(crate) fn set_applied(&self, applied: &Applied) -> Result<(), PackError> {
        self.commit(Batch::new(), Some(applied))
    }

    fn commit(&self, mut batch: Batch, applied: Option<&Applied>) -> Result<(), PackError> {
        if let Some(applied) = applied {
            batch.position(&rows::applied(), &encode(applied));
        }
        Ok(self.kv.apply(&batch)?)
    }

    /// Removes the parts of a version that is replaced, unless what replaces it has the same.
    fn end_version(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        keep: Option<UploadId>,
        batch: &mut Batch,
    ) -> Result<(), PackError> {
        match self.version(bucket, key)?.map(|version| version.content) {
            Some(Content::Parts { upload, .. }) if keep != Some(upload) => {
                self.remove_parts(bucket, upload, |_| true, batch)
            }
            _ => Ok(()),
        }
    }

    fn remove_parts(
        &self,
        bucket: BucketId,
        upload: UploadId,
        which: impl Fn(u16) -> bool,
        batch: &mut Batch,
    ) -> Result<(), PackError> {
        let from = keys::parts(bucket, upload);
        let end = keys::prefix_end(&from);
        self.kv.scan(&from, end.as_deref(), &mut |row, _| {
            if keys::part_number(row).is_some_and(&which) {
                batch.delete(row);
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    /// Removes a bucket's record with `batch`, its uploads and parts before: it has nothing else. Cut off in
    /// between, it is done again, as the index is not as far.
    fn remove_bucket(&self, bucket: BucketId, batch: &mut Batch) -> Result<(), PackError> {
        self.buckets.write().retain(|_, record| record.id != bucket);
        for table in [b'U', b'P', b'V'] {
            let from = keys::bucket(table, bucket);
            let end = keys::prefix_end(&from);
            loop {
                let mut removed = Batch::new();
                self.kv.scan(&from, end.as_deref(), &mut |row, _| {
                    removed.delete(row);
                    match removed.len() < REMOVED_ROWS_MAX {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                })?;
                if removed.is_empty() {
                    break;
                }
                self.kv.apply(&removed)?;
            }
        }
        batch.delete(&rows::bucket(bucket));
        Ok(())
    }
}

fn row<T: DeserializeOwned>(
    kv: &LsmKv,
    what: &'static str,
    key: &[u8],
) -> Result<Option<T>, PackError> {
    match kv.get(key)? {
        Some(value) => Ok(Some(decode(what, &value)?)),
        None => Ok(None),
    }
}
