//! The index on a log-structured merge tree without a log of its own.
//!
//! # How the invariants are kept
//!
//! * Applies and the sealing of the memtable exclude each other, so that a flush begins between two
//!   batches. The engine syncs each table, the version file and their directories before it renames
//!   the file that names the version: that rename is the boundary of invariant 3.
//! * Every batch has one sequence number. Readers see numbers below [`Readers::visible`], which moves
//!   only after the batch's last row is in. The engine's own notion of what is visible is left
//!   unused: it moves at every flush and compaction, also in the middle of an apply.
//! * Positions wait beside the memtable and go into it when it is sealed, under the same lock. So a table never holds
//!   rows without their positions, nor positions without their rows.
//! * Readers register the number they read at; nothing that the least of them may see is dropped.
//!
//! Must not: decide when to flush, or go on flushing after a flush failed for another reason than a
//! full disk.

mod contents;
mod readers;
mod removal;
mod version_file;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, InternalValue, SeqNo,
    SequenceNumberCounter, ValueType,
};
use parking_lot::Mutex;

use crate::limits::{
    COMPACTION_SPACE_BYTES, FILTER_BITS_PER_KEY, FLUSH_SPACE_BYTES, OPEN_TABLES_MAX, TABLE_BYTES,
    TOP_TABLES,
};
use crate::trailer::{verified, verified_bytes};
use crate::{Batch, FlushReport, Kv, KvError, KvReader, Progress, Visit};
use readers::Readers;

/// The index on disk. Cheap to share by reference; one per directory.
pub struct LsmKv {
    inner: Arc<Inner>,
}

/// The last position of each key since the last flush, with its trailer.
type Positions = BTreeMap<Bytes, Bytes>;

struct Inner {
    tree: AnyTree,
    path: PathBuf,
    /// Numbers batches and the engine's versions.
    next_seqno: SequenceNumberCounter,
    readers: Readers,
    /// Held while a batch goes in and while the memtable is sealed: positions that go into it then.
    apply: Mutex<Positions>,
    /// The error after which nothing may be written any more.
    broken: Mutex<Option<KvError>>,
    unflushed_bytes: AtomicU64,
    compaction: Arc<Leveled>,
}

impl LsmKv {
    /// Opens the index in `path`, or makes an empty one if the directory is missing or empty.
    /// `cache_bytes` bounds the cache of blocks. The caller sees to it that nobody else has the directory open: files
    /// that the index does not name are removed.
    ///
    /// # Errors
    /// [`KvError::Damaged`], [`KvError::Broken`], [`KvError::Full`] or [`KvError::Format`].
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, KvError> {
        make_dir(path).map_err(|error| KvError::from_io("is opened", &error))?;
        removal::finish(path)?;
        version_file::verify(path)?;
        contents::verify(path)?;
        let next_seqno = SequenceNumberCounter::default();
        let tree = Config::new(path, next_seqno.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_TABLES_MAX))))
            .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                BloomConstructionPolicy::BitsPerKey(FILTER_BITS_PER_KEY),
            )))
            .open()
            .map_err(|error| KvError::from_engine("is opened", None, error))?;
        // Number 0 belongs to the version that was opened, which every reader must be able to see.
        next_seqno.fetch_max(tree.get_highest_seqno().map_or(1, |highest| highest + 1));
        let readers = Readers::new(next_seqno.get());
        let compaction =
            Leveled::default().with_table_target_size(TABLE_BYTES).with_l0_threshold(TOP_TABLES);
        Ok(Self {
            inner: Arc::new(Inner {
                tree,
                path: path.to_owned(),
                next_seqno,
                readers,
                apply: Mutex::new(Positions::new()),
                broken: Mutex::new(None),
                unflushed_bytes: AtomicU64::new(0),
                compaction: Arc::new(compaction),
            }),
        })
    }

    /// Removes the index in `path`, which nobody has open, and the directory. If a crash cuts it off, the next
    /// [`LsmKv::open`] finds either the whole index or an empty one.
    ///
    /// # Errors
    /// [`KvError::Broken`] or [`KvError::Full`]: what is left goes at the next call, or when it is opened.
    pub fn remove(path: &Path) -> Result<(), KvError> {
        removal::remove(path)
    }
}

/// Makes the directory, and its entry in its parent durable.
fn make_dir(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::File::open(parent)?.sync_all(),
        _ => std::fs::File::open(".")?.sync_all(),
    }
}

impl KvReader for LsmKv {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let at = self.inner.readers.enter();
        self.inner.get(key, at.seqno)
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        let at = self.inner.readers.enter();
        self.inner.scan(from, to, at.seqno, visit)
    }
}

impl Kv for LsmKv {
    fn snapshot(&self) -> Result<Box<dyn KvReader>, KvError> {
        // With no batch half in, the positions are those of what is seen.
        let positions = self.inner.apply.lock();
        let at = self.inner.readers.enter().detach();
        let (inner, positions) = (Arc::clone(&self.inner), positions.clone());
        Ok(Box::new(Snapshot { inner, positions, at }))
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        self.inner.apply(batch);
        Ok(())
    }

    fn flush(&self) -> Result<FlushReport, KvError> {
        self.inner.flush()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.inner.unflushed_bytes.load(Ordering::Relaxed)
    }

    fn disk_bytes(&self) -> u64 {
        self.inner.tree.disk_space()
    }

    fn maintain(&self) -> Result<Progress, KvError> {
        self.inner.maintain()
    }
}

impl Inner {
    fn get(&self, key: &[u8], at: SeqNo) -> Result<Option<Bytes>, KvError> {
        let stored = self
            .tree
            .get(key, at)
            .map_err(|error| KvError::from_engine("reads a row", Some(key), error))?;
        stored.map(|stored| verified_bytes(key, stored.into())).transpose()
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        at: SeqNo,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
        for row in self.tree.range::<&[u8], _>(range, at, None) {
            let (key, stored) = row
                .into_inner()
                .map_err(|error| KvError::from_engine("scans rows", None, error))?;
            if visit(&key, verified(&key, &stored)?) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        let mut positions = self.apply.lock();
        let seqno = self.next_seqno.next();
        let memtable = self.tree.active_memtable();
        let mut bytes = 0;
        for (key, stored) in batch.changes() {
            bytes += memtable.insert(change(key, stored, seqno)).0;
        }
        for (key, stored) in batch.positions() {
            let stored = Bytes::copy_from_slice(stored);
            if let Some(known) = positions.get_mut(key) {
                *known = stored;
            } else {
                bytes += (key.len() + stored.len()) as u64;
                positions.insert(Bytes::copy_from_slice(key), stored);
            }
        }
        self.unflushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.readers.publish(seqno + 1);
    }

    fn flush(&self) -> Result<FlushReport, KvError> {
        let one_at_a_time = self.tree.get_flush_lock();
        self.still_sound()?;
        let unflushed = self.unflushed_bytes.load(Ordering::Relaxed);
        if unflushed == 0 {
            return Ok(FlushReport { bytes: 0 });
        }
        self.require_space("flushes", unflushed + FLUSH_SPACE_BYTES)?;
        let bytes = {
            let mut positions = self.apply.lock();
            self.settle(&mut positions);
            self.tree.rotate_memtable();
            self.unflushed_bytes.load(Ordering::Relaxed)
        };
        self.tree
            .flush(&one_at_a_time, self.readers.watermark())
            .map_err(|error| self.remember(KvError::from_engine("flushes", None, error)))?;
        assert_eq!(self.tree.sealed_memtable_count(), 0, "what was sealed is in tables");
        self.unflushed_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.release_old_versions()?;
        Ok(FlushReport { bytes })
    }

    /// Puts the positions into the memtable, between two batches: they are of all that it holds.
    fn settle(&self, positions: &mut Positions) {
        let seqno = self.next_seqno.next();
        let memtable = self.tree.active_memtable();
        for (key, stored) in std::mem::take(positions) {
            memtable.insert(change(key, Some(stored), seqno));
        }
        self.readers.publish(seqno + 1);
    }

    fn maintain(&self) -> Result<Progress, KvError> {
        self.still_sound()?;
        let rewritten = self.tree.disk_space().min(COMPACTION_SPACE_BYTES);
        let unflushed = self.unflushed_bytes.load(Ordering::Relaxed);
        self.require_space("compacts", rewritten + unflushed + FLUSH_SPACE_BYTES)?;
        let before = self.tree.current_version().id();
        self.tree
            .compact(Arc::clone(&self.compaction) as _, self.readers.watermark())
            .map_err(|error| self.remember(KvError::from_engine("compacts", None, error)))?;
        if self.tree.current_version().id() == before {
            return Ok(Progress::Idle);
        }
        self.release_old_versions()?;
        Ok(Progress::Worked)
    }

    /// Frees the memtables and tables that no reader can reach any more. Without it a flushed
    /// memtable would stay in memory until the next flush.
    fn release_old_versions(&self) -> Result<(), KvError> {
        {
            // With no batch half in, every number given out so far may be seen.
            let _between_batches = self.apply.lock();
            self.readers.publish(self.next_seqno.get());
        }
        let watermark = self.readers.watermark();
        self.tree
            .get_version_history_lock()
            .maintenance(&self.path, watermark)
            .map_err(|error| self.remember(KvError::from_engine("drops files", None, error)))
    }

    /// Looks for space before it is needed. Files that the engine wrote before it met a full disk stay until the
    /// index is opened again, so trying would make a full disk fuller.
    fn require_space(&self, operation: &'static str, needed: u64) -> Result<(), KvError> {
        let found = rustix::fs::statvfs(&self.path)
            .map_err(|errno| KvError::from_io(operation, &errno.into()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free < needed { Err(KvError::Full { operation }) } else { Ok(()) }
    }

    fn still_sound(&self) -> Result<(), KvError> {
        self.broken.lock().clone().map_or(Ok(()), Err)
    }

    /// Keeps the first error after which nothing may be written any more.
    fn remember(&self, error: KvError) -> KvError {
        if !matches!(error, KvError::Full { .. }) {
            self.broken.lock().get_or_insert_with(|| error.clone());
        }
        error
    }
}

fn change(key: Bytes, stored: Option<Bytes>, seqno: SeqNo) -> InternalValue {
    match stored {
        Some(stored) => InternalValue::from_components(key, stored, seqno, ValueType::Value),
        None => InternalValue::new_tombstone(key, seqno),
    }
}

struct Snapshot {
    inner: Arc<Inner>,
    /// Positions that were in no memtable yet.
    positions: Positions,
    at: SeqNo,
}

impl KvReader for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match self.positions.get(key) {
            Some(stored) => verified_bytes(key, stored.clone()).map(Some),
            None => self.inner.get(key, self.at),
        }
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.inner.scan(from, to, self.at, visit)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.inner.readers.leave(self.at);
    }
}
