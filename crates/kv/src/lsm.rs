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
//! * A compaction that meets damage leaves its tables as they are: what is whole in them is still read. No other is
//!   begun, as each would leave files that nothing names until the index is opened anew.
//!
//! Must not: decide when to flush, or go on flushing after a flush failed for another reason than a
//! full disk.

mod contents;
mod readers;
mod removal;
mod tables;
mod version_file;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, InternalValue, SeqNo,
    SequenceNumberCounter, ValueType,
};
use parking_lot::Mutex;
use rustix::io::Errno;

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
    /// The first error of a read or of a compaction.
    damage: OnceLock<KvError>,
    /// The error after which nothing is compacted any more.
    uncompactable: OnceLock<KvError>,
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
                damage: OnceLock::new(),
                uncompactable: OnceLock::new(),
                unflushed_bytes: AtomicU64::new(0),
                compaction: Arc::new(compaction),
            }),
        })
    }

    /// The first error that a read or a compaction has met since the index was opened. Some of its bytes are not what was
    /// written, or the disk does not give them. Results of other reads are right all the same.
    #[must_use]
    pub fn damage(&self) -> Option<&KvError> {
        self.inner.damage.get()
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
        let stored = self.tree.get(key, at);
        let stored = stored.map_err(|error| self.unread("reads a row", Some(key), error))?;
        let value = stored.map(|stored| verified_bytes(key, stored.into())).transpose();
        value.inspect_err(|error| self.note_damage(error))
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
            let row = row.into_inner();
            let (key, stored) = row.map_err(|error| self.unread("scans rows", None, error))?;
            let value = verified(&key, &stored).inspect_err(|error| self.note_damage(error))?;
            if visit(&key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    /// The error of a read.
    fn unread(
        &self,
        operation: &'static str,
        key: Option<&[u8]>,
        error: lsm_tree::Error,
    ) -> KvError {
        let is_lost = is_lost(&error);
        let error = KvError::from_engine(operation, key, error);
        if is_lost {
            self.note_damage(&error);
        }
        error
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
        self.tree.flush(&one_at_a_time, self.readers.watermark()).map_err(|error| {
            self.remember(self.named(KvError::from_engine("flushes", None, error)))
        })?;
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
        self.uncompactable.get().cloned().map_or(Ok(()), Err)?;
        let rewritten = self.tree.disk_space().min(COMPACTION_SPACE_BYTES);
        let unflushed = self.unflushed_bytes.load(Ordering::Relaxed);
        self.require_space("compacts", rewritten + unflushed + FLUSH_SPACE_BYTES)?;
        let before = self.tree.current_version().id();
        self.tree
            .compact(Arc::clone(&self.compaction) as _, self.readers.watermark())
            .map_err(|error| self.not_compacted(error))?;
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
        self.tree.get_version_history_lock().maintenance(&self.path, watermark).map_err(|error| {
            self.remember(self.named(KvError::from_engine("drops files", None, error)))
        })
    }

    /// The error of a compaction. One of the system may have come while the version was written, so that nothing may be
    /// flushed after it. Any other comes from reading tables, and changes nothing.
    fn not_compacted(&self, error: lsm_tree::Error) -> KvError {
        let (is_of_system, is_lost) = (matches!(error, lsm_tree::Error::Io(_)), is_lost(&error));
        let error = self.named(KvError::from_engine("compacts", None, error));
        if matches!(error, KvError::Full { .. }) {
            return error;
        }
        if is_lost {
            self.note_damage(&error);
        }
        self.uncompactable.get_or_init(|| error.clone());
        if is_of_system { self.remember(error) } else { error }
    }

    /// An error of the engine. After a full disk the engine may go on only if `current` names the version that it has in
    /// memory. If it had renamed `current` already, it would write that version's file anew, and a crash there would
    /// leave no index.
    fn named(&self, error: KvError) -> KvError {
        let KvError::Full { operation } = error else { return error };
        match version_file::number(&self.path) {
            Ok(number) if number == self.tree.current_version().id() => error,
            found => KvError::Broken {
                operation,
                reason: format!("the disk was full behind the change of the version: {found:?}"),
            },
        }
    }

    /// Keeps the first error that says that bytes are lost.
    fn note_damage(&self, error: &KvError) {
        self.damage.get_or_init(|| error.clone());
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

/// Returns true if an error says that bytes of a file are not what was written, or that the disk does not give them. Others
/// say nothing about the files, as that there are too many of them open.
fn is_lost(error: &lsm_tree::Error) -> bool {
    let lsm_tree::Error::Io(error) = error else { return true };
    let lost = [Errno::IO, Errno::UCLEAN, Errno::BADMSG];
    lost.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
        || matches!(KvError::from_io("reads", error), KvError::Damaged { .. })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CACHE_BYTES;

    fn put(kv: &LsmKv, value: &[u8]) {
        let mut batch = Batch::new();
        batch.put(b"key", value);
        kv.apply(&batch).unwrap();
    }

    #[test]
    fn an_error_that_says_nothing_about_the_files_is_no_damage() {
        let of = |errno: Errno| lsm_tree::Error::Io(errno.into());
        assert!([Errno::IO, Errno::UCLEAN, Errno::NOENT].into_iter().all(|it| is_lost(&of(it))));
        assert!(
            [Errno::MFILE, Errno::NOMEM, Errno::ACCESS].into_iter().all(|it| !is_lost(&of(it)))
        );
    }

    #[test]
    fn a_full_disk_is_no_more_than_that_only_before_the_version_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        put(&kv, b"one");
        kv.flush().unwrap();
        let full = KvError::Full { operation: "flushes" };
        assert_eq!(kv.inner.named(full.clone()), full);
        // As if the engine had renamed `current`, and the disk had been full when the directory was synced.
        let current = dir.path().join("current");
        let before = std::fs::read(&current).unwrap();
        let mut renamed = before.clone();
        renamed[0] += 1;
        std::fs::write(&current, &renamed).unwrap();
        let met = kv.inner.remember(kv.inner.named(full));
        assert!(matches!(met, KvError::Broken { .. }), "{met}");
        put(&kv, b"two");
        assert_eq!(kv.flush(), Err(met), "the version's file is not written anew");
        assert_eq!(std::fs::read(&current).unwrap(), renamed);
        std::fs::write(&current, before).unwrap();
        drop(kv);
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        assert_eq!(kv.get(b"key").unwrap().as_deref(), Some(&b"one"[..]));
    }
}
