//! Blobs that are not uploaded. Their bodies lie in files, one for each unit; what their footers
//! will say is in memory.
//!
//! # Invariants
//!
//! 1. At most one blob is open: the one with the greatest number. Sealed, a blob takes nothing more.
//! 2. A file is removed only when its blob is in the backend and the index knows it.
//! 3. The records of a blob alone decide what it is made of: after a restart the same blob is made.

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

use crate::error::PackError;
use crate::format::blob::{FooterHead, TRAILER_BYTES, encode_footer};
use crate::format::entry::Entry;
use crate::format::rows::BlobRow;
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, ProcessId, WorkerId};
use crate::limits::BUNDLES_MAX;

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
    /// True if these are the last of it.
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
    units: BTreeMap<UploadUnit, WaitingUnit>,
    buckets: BTreeMap<BucketId, BucketName>,
    created_ms: u64,
    /// Since when a change of a client waits.
    since: Option<Instant>,
    /// Where its first record begins, at most.
    first: Lsn,
    sealed: bool,
}

/// A unit of a blob that waits.
#[derive(Default)]
struct WaitingUnit {
    file: Option<Arc<dyn DiskFile>>,
    body_bytes: u64,
    /// Entries of its footer: in the blob itself all, in a bundle those that have bodies there.
    entries: Vec<u8>,
    count: u64,
}

/// A blob ready to go up.
pub(crate) struct Sealed {
    pub(crate) id: BlobId,
    /// The blob's row, which names no process yet.
    pub(crate) row: BlobRow,
    /// The units of which it is made, in the order in which they go up: the blob itself comes last.
    pub(crate) units: Vec<SealedUnit>,
}

/// A unit ready to go up.
pub(crate) struct SealedUnit {
    pub(crate) unit: UploadUnit,
    pub(crate) file: Option<Arc<dyn DiskFile>>,
    pub(crate) body_bytes: u64,
    /// Footer and trailer.
    pub(crate) tail: Bytes,
}

impl SealedUnit {
    /// The last bytes of it.
    pub(crate) fn trailer(&self) -> Bytes {
        self.tail.slice(self.tail.len() - TRAILER_BYTES..)
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.body_bytes + self.tail.len() as u64
    }
}

/// The blob that takes what comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) seq: u64,
    pub(crate) bodies: UnitBytes,
    pub(crate) footer_bytes: usize,
    /// The time since which a change of a client waits. A change that is only re-logged waits for
    /// company.
    pub(crate) since: Option<Instant>,
}

/// Bytes of bodies in each unit of a blob.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnitBytes([u64; 1 + BUNDLES_MAX as usize]);

impl UnitBytes {
    pub(crate) fn of(&self, unit: UploadUnit) -> u64 {
        self.0[usize::from(unit.nth())]
    }

    pub(crate) fn add(&mut self, unit: UploadUnit, bytes: u64) {
        self.0[usize::from(unit.nth())] += bytes;
    }

    /// In all units together.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Waiting {
    /// Entries of the blob itself, which tells of everything.
    fn shared_entries(&self) -> &[u8] {
        self.units.get(&UploadUnit::SHARED).map_or(&[], |unit| &unit.entries)
    }

    fn body_bytes(&self) -> u64 {
        self.units.values().map(|unit| unit.body_bytes).sum()
    }

    fn footer_bytes(&self) -> usize {
        self.units.values().map(|unit| unit.entries.len()).sum()
    }

    /// The blob as it goes up, if nothing more comes.
    fn seal(&self, id: BlobId) -> Sealed {
        let buckets: Vec<_> = self.buckets.iter().map(|(id, name)| (*id, name.clone())).collect();
        let sealed = |(unit, of): (&UploadUnit, &WaitingUnit)| {
            let (created_ms, buckets) = (self.created_ms, buckets.clone());
            let head = FooterHead { created_ms, entries: of.count, buckets };
            let tail = encode_footer(id, *unit, of.body_bytes, &head, &of.entries).into();
            SealedUnit { unit: *unit, file: of.file.clone(), body_bytes: of.body_bytes, tail }
        };
        let units: Vec<_> = self.units.iter().rev().map(sealed).collect();
        let itself = units.last().filter(|last| last.unit == UploadUnit::SHARED);
        let itself = itself.expect("every blob has a lot that is shared, which sorts first");
        let row = BlobRow {
            created_ms: self.created_ms,
            footer_offset: itself.body_bytes,
            bytes: itself.bytes(),
            process: ProcessId::UNNUMBERED,
        };
        Sealed { id, row, units }
    }
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
        let mut bodies = UnitBytes::default();
        for (unit, waiting) in &last.units {
            bodies.add(*unit, waiting.body_bytes);
        }
        let (footer_bytes, since) = (last.footer_bytes(), last.since);
        (!last.sealed).then_some(Open { seq: *seq, bodies, footer_bytes, since })
    }

    /// Writes bodies of a unit of blob `seq` from `offset` on and syncs them.
    ///
    /// # Errors
    /// [`DiskError::Full`]: nothing of it counts. Any other: it may not be used any more.
    pub(crate) fn write(
        &self,
        seq: u64,
        unit: UploadUnit,
        offset: u64,
        pieces: &[Bytes],
    ) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = match self.file(seq, unit) {
            Some(file) => file,
            None => self.create(seq, unit)?,
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

    /// The file of a unit of a blob that waits; `None` if it is uploaded, or has no bodies.
    pub(crate) fn file(&self, seq: u64, unit: UploadUnit) -> Option<Arc<dyn DiskFile>> {
        self.state.lock().blobs.get(&seq)?.units.get(&unit)?.file.clone()
    }

    fn create(&self, seq: u64, unit: UploadUnit) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = path(seq, unit);
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
        let id = self.id(seq);
        // The place of its body, if that is in this blob or one of its bundles.
        let placed = entry.change.place().and_then(|place| {
            let (blob, unit) = UploadUnit::of(place.container)?;
            (blob == id).then_some((unit, place.offset + place.len))
        });
        let mut state = self.state.lock();
        let state = &mut *state;
        let blob = state.blobs.entry(seq).or_insert_with(|| Waiting {
            units: BTreeMap::from([(UploadUnit::SHARED, WaitingUnit::default())]),
            buckets: BTreeMap::new(),
            created_ms: entry.clock.ms(),
            since: None,
            first,
            sealed: false,
        });
        assert!(!blob.sealed, "a sealed blob takes nothing more");
        let before = (blob.body_bytes(), blob.footer_bytes());
        let (unit, end) = placed.unwrap_or_default();
        let both = [UploadUnit::SHARED, unit];
        // The blob tells of everything, a bundle of what it has.
        for of_unit in if unit == UploadUnit::SHARED { &both[..1] } else { &both[..] } {
            let of = blob.units.entry(*of_unit).or_default();
            let entries = std::mem::take(&mut of.entries);
            of.entries = postcard::to_extend(entry, entries).expect("plain data always encodes");
            of.count += 1;
        }
        let of = blob.units.entry(unit).or_default();
        of.body_bytes = of.body_bytes.max(end);
        if let Some(file) = file {
            of.file = Some(file.clone());
        }
        if let (Some(id), Some(name)) = (entry.change.bucket(), bucket) {
            blob.buckets.entry(id).or_insert_with(|| name.clone());
        }
        if !entry.change.is_relogged() && blob.since.is_none() {
            blob.since = Some(Instant::now());
        }
        state.body_bytes += blob.body_bytes() - before.0;
        state.footer_bytes += blob.footer_bytes() - before.1;
        self.grown.send_replace(());
    }

    /// At most `most` bytes of the entries of a blob that waits, from a byte on; `None` if it does not wait,
    /// or has less.
    pub(crate) fn entries(&self, seq: u64, from: u64, most: usize) -> Option<Entries> {
        let state = self.state.lock();
        let blob = state.blobs.get(&seq)?;
        let rest = blob.shared_entries().get(usize::try_from(from).ok()?..)?;
        let bytes = rest[..rest.len().min(most)].to_vec();
        let later = state.blobs.range(seq + 1..).map(|(_, blob)| blob.shared_entries().len());
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
        blob.sealed.then(|| blob.seal(self.id(*seq)))
    }

    /// The row that a sealed blob that waits has once it went up, but for the process; and its
    /// trailer.
    pub(crate) fn sealed(&self, seq: u64) -> Option<(BlobRow, Bytes)> {
        let state = self.state.lock();
        let blob = state.blobs.get(&seq).filter(|blob| blob.sealed)?;
        let Sealed { row, units, .. } = blob.seal(self.id(seq));
        Some((row, units.last()?.trailer()))
    }

    /// Returns true if a blob waits.
    pub(crate) fn waits(&self, seq: u64) -> bool {
        self.state.lock().blobs.contains_key(&seq)
    }

    /// Blobs before this one that wait.
    pub(crate) fn waiting_before(&self, seq: u64) -> Vec<u64> {
        self.state.lock().blobs.range(..seq).map(|(seq, _)| *seq).collect()
    }

    /// The oldest blob is in the backend and in the index: its file is removed. Readers of the open file continue.
    pub(crate) fn remove(&self, seq: u64) -> Result<(), DiskError> {
        let gone = {
            let mut state = self.state.lock();
            let gone = state.blobs.remove(&seq);
            if let Some(blob) = &gone {
                state.body_bytes -= blob.body_bytes();
                state.footer_bytes -= blob.footer_bytes();
            }
            gone
        };
        self.uploaded.send_replace(seq);
        self.grown.send_replace(());
        let units = gone.map(|blob| blob.units).unwrap_or_default();
        for unit in units.iter().filter(|(_, of)| of.file.is_some()).map(|(unit, _)| *unit) {
            self.disk.remove(&path(seq, unit))?;
        }
        Ok(())
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

    /// At a start, before it is told what waits: the backend has this blob.
    pub(crate) fn forget(&self, seq: u64) {
        let mut state = self.state.lock();
        if let Some(blob) = state.blobs.remove(&seq) {
            state.body_bytes -= blob.body_bytes();
            state.footer_bytes -= blob.footer_bytes();
        }
    }

    /// At a start: opens the files of the blobs that wait, which must be whole, and removes all others.
    pub(crate) fn open_files(&self) -> Result<(), PackError> {
        let mut state = self.state.lock();
        for name in self.disk.list(DIR)? {
            let waits = |(seq, unit): (u64, UploadUnit)| {
                let of = state.blobs.get(&seq).and_then(|blob| blob.units.get(&unit));
                of.is_some_and(|of| of.body_bytes > 0)
            };
            if !parse_name(&name).is_some_and(waits) {
                self.disk.remove(&format!("{DIR}/{name}"))?;
            }
        }
        for (seq, blob) in &mut state.blobs {
            for (unit, of) in blob.units.iter_mut().filter(|(_, of)| of.body_bytes > 0) {
                let path = path(*seq, *unit);
                let file = self.disk.open(&path, OpenMode::ReadWrite)?;
                let (has, wanted) = (file.len()?, of.body_bytes);
                if has < wanted {
                    let reason = format!("it has {has} bytes of {wanted}");
                    return Err(PackError::damaged(path, reason));
                }
                of.file = Some(file);
            }
        }
        Ok(())
    }

    fn id(&self, seq: u64) -> BlobId {
        BlobId { worker: self.worker, seq }
    }
}

fn path(seq: u64, unit: UploadUnit) -> String {
    match unit {
        UploadUnit::SHARED => format!("{DIR}/{seq:016x}"),
        unit => format!("{DIR}/{seq:016x}.{}", unit.nth()),
    }
}

/// Reads what [`path`] wrote, without the directory; `None` for anything else.
fn parse_name(name: &str) -> Option<(u64, UploadUnit)> {
    let (seq, nth) = name.split_once('.').unwrap_or((name, "0"));
    let found = (u64::from_str_radix(seq, 16).ok()?, UploadUnit::numbered(nth.parse().ok()?)?);
    (path(found.0, found.1)[DIR.len() + 1..] == *name).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_blob_and_upload_unit() {
        for nth in 0..=BUNDLES_MAX {
            let unit = UploadUnit::numbered(nth).unwrap();
            let path = path(0xAB, unit);
            assert_eq!(parse_name(path.strip_prefix("spool/").unwrap()), Some((0xAB, unit)));
        }
        for other in ["ab", "00000000000000ab.0", "00000000000000ab.99", "00000000000000ab.1.2", ""]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
