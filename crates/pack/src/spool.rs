//! Blobs that are not uploaded: their bodies in files, what their footers will say in memory.
//!
//! # Invariants
//!
//! 1. At most one blob is open: the one with the greatest number. Sealed, a blob takes nothing more.
//! 2. A file is removed only when its blob is in the backend and the index knows it.
//! 3. What a blob is made of depends on its records alone: after a restart the same blob is made.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use larder_metalog::Lsn;
use larder_types::{BucketId, BucketName};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::blob::{FooterHead, encode_footer};
use crate::entry::{BlobId, Entry, WorkerId};
use crate::error::PackError;
use crate::rows::BlobRow;

/// Directory of the files.
const DIR: &str = "spool";
/// Slices that one call of the system writes.
const SLICES_MAX: usize = 512;

/// Blobs that wait.
pub(crate) struct Spool {
    disk: Arc<dyn Disk>,
    worker: WorkerId,
    state: Mutex<State>,
    /// A blob was sealed.
    sealed: Notify,
    /// Every blob of the worker up to this number is uploaded.
    uploaded: watch::Sender<u64>,
    /// Told when there are new changes, or other blobs.
    grown: watch::Sender<()>,
}

/// Entries of a blob that waits.
pub(crate) struct Entries {
    pub(crate) bytes: Vec<u8>,
    /// Whether these are the last of it.
    pub(crate) is_whole: bool,
    /// Bytes of entries behind these that wait, in this blob and later ones.
    pub(crate) behind: u64,
}

#[derive(Default)]
struct State {
    blobs: BTreeMap<u64, Waiting>,
    body_bytes: u64,
    footer_bytes: usize,
}

/// A blob that waits.
struct Waiting {
    file: Option<Arc<dyn DiskFile>>,
    body_bytes: u64,
    entries: Vec<u8>,
    count: u64,
    buckets: BTreeMap<BucketId, BucketName>,
    created_ms: u64,
    /// Since when a change of a client waits.
    since: Option<Instant>,
    /// Where its first record begins, at most.
    first: Lsn,
    sealed: bool,
}

/// A blob ready to go up.
pub(crate) struct Sealed {
    pub(crate) id: BlobId,
    pub(crate) file: Option<Arc<dyn DiskFile>>,
    pub(crate) row: BlobRow,
    /// Footer and trailer.
    pub(crate) tail: Bytes,
}

/// The blob that takes what comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) seq: u64,
    pub(crate) body_bytes: u64,
    pub(crate) footer_bytes: usize,
    /// Since when a change of a client waits. What is only told anew waits for company.
    pub(crate) since: Option<Instant>,
}

impl Spool {
    /// An empty one.
    pub(crate) fn new(disk: Arc<dyn Disk>, worker: WorkerId) -> Result<Self, DiskError> {
        disk.create_dir(DIR)?;
        disk.sync_dir("")?;
        let (uploaded, grown) = (watch::Sender::new(0), watch::Sender::new(()));
        Ok(Self { disk, worker, state: Mutex::default(), sealed: Notify::new(), uploaded, grown })
    }

    /// Bytes of bodies and of footers that wait.
    pub(crate) fn waiting_bytes(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.body_bytes, state.footer_bytes)
    }

    /// Blobs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().blobs.len()
    }

    /// The blob that is open, if one is.
    pub(crate) fn open(&self) -> Option<Open> {
        let state = self.state.lock();
        let (seq, last) = state.blobs.last_key_value()?;
        (!last.sealed).then_some(Open {
            seq: *seq,
            body_bytes: last.body_bytes,
            footer_bytes: last.entries.len(),
            since: last.since,
        })
    }

    /// Writes bodies of blob `seq` from `offset` on and syncs them.
    ///
    /// # Errors
    /// [`DiskError::Full`]: nothing of it counts. Any other: it may not be used any more.
    pub(crate) fn write(
        &self,
        seq: u64,
        offset: u64,
        pieces: &[Bytes],
    ) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = match self.file(seq) {
            Some(file) => file,
            None => self.create(seq)?,
        };
        let mut at = offset;
        for some in pieces.chunks(SLICES_MAX) {
            let slices: Vec<_> = some.iter().map(|piece| IoSlice::new(piece)).collect();
            file.write_at(at, &slices)?;
            at += some.iter().map(|piece| piece.len() as u64).sum::<u64>();
        }
        file.sync()?;
        Ok(file)
    }

    /// The file of a blob that waits; `None` if it is uploaded, or has no bodies.
    pub(crate) fn file(&self, seq: u64) -> Option<Arc<dyn DiskFile>> {
        self.state.lock().blobs.get(&seq).and_then(|blob| blob.file.clone())
    }

    fn create(&self, seq: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = path(seq);
        let file = match self.disk.open(&path, OpenMode::CreateNew) {
            // Begun by a write that was never answered.
            Err(DiskError::Exists { .. }) => self.disk.open(&path, OpenMode::ReadWrite)?,
            opened => opened?,
        };
        self.disk.sync_dir(DIR)?;
        Ok(file)
    }

    /// A change of blob `seq` is durable; its record begins at `first` or behind. `file` is what its body was
    /// written to, if it brought one.
    pub(crate) fn add(
        &self,
        seq: u64,
        bucket: Option<&BucketName>,
        entry: &Entry,
        first: Lsn,
        file: Option<&Arc<dyn DiskFile>>,
    ) {
        let end = entry.change.place().and_then(|place| place.end_in(self.id(seq)));
        let mut state = self.state.lock();
        let state = &mut *state;
        let blob = state.blobs.entry(seq).or_insert_with(|| Waiting {
            file: None,
            body_bytes: 0,
            entries: Vec::new(),
            count: 0,
            buckets: BTreeMap::new(),
            created_ms: entry.clock.ms(),
            since: None,
            first,
            sealed: false,
        });
        assert!(!blob.sealed, "a sealed blob takes nothing more");
        let before = (blob.body_bytes, blob.entries.len());
        blob.body_bytes = blob.body_bytes.max(end.unwrap_or(0));
        if let Some(file) = file {
            blob.file = Some(file.clone());
        }
        let entries = std::mem::take(&mut blob.entries);
        blob.entries = postcard::to_extend(entry, entries).expect("plain data always encodes");
        blob.count += 1;
        if let (Some(id), Some(name)) = (entry.change.bucket(), bucket) {
            blob.buckets.entry(id).or_insert_with(|| name.clone());
        }
        if !entry.change.is_told_anew() && blob.since.is_none() {
            blob.since = Some(Instant::now());
        }
        state.body_bytes += blob.body_bytes - before.0;
        state.footer_bytes += blob.entries.len() - before.1;
        self.grown.send_replace(());
    }

    /// At most `most` bytes of the entries of a blob that waits, from a byte on; `None` if it does not wait,
    /// or has less.
    pub(crate) fn entries(&self, seq: u64, from: u64, most: usize) -> Option<Entries> {
        let state = self.state.lock();
        let blob = state.blobs.get(&seq)?;
        let rest = blob.entries.get(usize::try_from(from).ok()?..)?;
        let bytes = rest[..rest.len().min(most)].to_vec();
        let later = state.blobs.range(seq + 1..).map(|(_, blob)| blob.entries.len());
        let behind = (rest.len() - bytes.len() + later.sum::<usize>()) as u64;
        let is_whole = blob.sealed && bytes.len() == rest.len();
        Some(Entries { bytes, is_whole, behind })
    }

    /// Tells when there are new changes, or other blobs.
    pub(crate) fn grown(&self) -> watch::Receiver<()> {
        self.grown.subscribe()
    }

    /// Closes the open blob, if there is one; gives the greatest number there is.
    pub(crate) fn seal(&self) -> u64 {
        let mut state = self.state.lock();
        let Some(mut last) = state.blobs.last_entry() else { return *self.uploaded.borrow() };
        last.get_mut().sealed = true;
        let seq = *last.key();
        drop(state);
        self.sealed.notify_one();
        self.grown.send_replace(());
        seq
    }

    /// The oldest blob, once it is sealed.
    pub(crate) async fn next_sealed(&self) -> Sealed {
        loop {
            if let Some(sealed) = self.oldest_sealed() {
                return sealed;
            }
            self.sealed.notified().await;
        }
    }

    fn oldest_sealed(&self) -> Option<Sealed> {
        let state = self.state.lock();
        let (seq, blob) = state.blobs.first_key_value()?;
        if !blob.sealed {
            return None;
        }
        let id = self.id(*seq);
        let head = FooterHead {
            created_ms: blob.created_ms,
            entries: blob.count,
            buckets: blob.buckets.iter().map(|(id, name)| (*id, name.clone())).collect(),
        };
        let tail = encode_footer(id, blob.body_bytes, &head, &blob.entries);
        let row = BlobRow {
            created_ms: blob.created_ms,
            footer_offset: blob.body_bytes,
            bytes: blob.body_bytes + tail.len() as u64,
        };
        Some(Sealed { id, file: blob.file.clone(), row, tail: tail.into() })
    }

    /// The oldest blob is in the backend and the index knows it: its file goes. Whoever reads it goes on.
    pub(crate) fn remove(&self, seq: u64) -> Result<(), DiskError> {
        let gone = {
            let mut state = self.state.lock();
            let gone = state.blobs.remove(&seq);
            if let Some(blob) = &gone {
                state.body_bytes -= blob.body_bytes;
                state.footer_bytes -= blob.entries.len();
            }
            gone
        };
        self.uploaded.send_replace(seq);
        self.grown.send_replace(());
        match gone.and_then(|blob| blob.file) {
            Some(_) => self.disk.remove(&path(seq)),
            None => Ok(()),
        }
    }

    /// Below it no record of a blob that waits begins.
    pub(crate) fn first_needed(&self) -> Option<Lsn> {
        self.state.lock().blobs.first_key_value().map(|(_, blob)| blob.first)
    }

    /// Tells through which number blobs are uploaded.
    pub(crate) fn uploaded(&self) -> watch::Receiver<u64> {
        self.uploaded.subscribe()
    }

    /// At a start, with all records read: what waits goes up as it is, and the blobs before it, up to `last`, are
    /// in the backend.
    pub(crate) fn start(&self, last: u64) {
        let mut state = self.state.lock();
        for blob in state.blobs.values_mut() {
            blob.sealed = true;
        }
        let oldest = state.blobs.first_key_value().map(|(seq, _)| *seq);
        self.uploaded.send_replace(oldest.map_or(last, |seq| seq - 1));
    }

    /// At a start, while records are read: the backend has this blob.
    pub(crate) fn forget(&self, seq: u64) {
        let mut state = self.state.lock();
        if let Some(blob) = state.blobs.remove(&seq) {
            state.body_bytes -= blob.body_bytes;
            state.footer_bytes -= blob.entries.len();
        }
    }

    /// At a start: opens the files of the blobs that wait, which must be whole, and removes all others.
    pub(crate) fn open_files(&self) -> Result<(), PackError> {
        let mut state = self.state.lock();
        for name in self.disk.list(DIR)? {
            let seq = u64::from_str_radix(&name, 16).ok().filter(|_| name.len() == 16);
            let waits = |seq| state.blobs.get(&seq).is_some_and(|blob| blob.body_bytes > 0);
            if !seq.is_some_and(waits) {
                self.disk.remove(&format!("{DIR}/{name}"))?;
            }
        }
        for (seq, blob) in state.blobs.iter_mut().filter(|(_, blob)| blob.body_bytes > 0) {
            let file = self.disk.open(&path(*seq), OpenMode::ReadWrite)?;
            let (has, wanted) = (file.len()?, blob.body_bytes);
            if has < wanted {
                let reason = format!("it has {has} bytes of {wanted}");
                return Err(PackError::damaged(path(*seq), reason));
            }
            blob.file = Some(file);
        }
        Ok(())
    }

    fn id(&self, seq: u64) -> BlobId {
        BlobId { worker: self.worker, seq }
    }
}

fn path(seq: u64) -> String {
    format!("{DIR}/{seq:016x}")
}
