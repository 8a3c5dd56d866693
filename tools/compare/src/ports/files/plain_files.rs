//! Data through plain files: a file for each object's bytes, made durable by a sync of its own and one of its folder.
//!
//! Data is told from all else by where it goes: a volume reserves space for data alone, beyond its beginning. A piece
//! of a vectored write is one object's, unless it begins inside a block: then it is the padding of the piece before.
//!
//! # Invariants
//!
//! 1. A write returns when its files are durable, so that a sync has nothing left to do for them.
//! 2. Files overlap nowhere: a write takes away those whose place it takes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::failed;
use super::slow::last;
use larder_env::{DiskError, DiskFile};

/// Objects begin on these.
const BLOCK_BYTES: u64 = 4096;

/// A volume whose data lies in files.
pub(super) struct PlainFiles {
    file: Arc<dyn DiskFile>,
    folder: PathBuf,
    sync_min: Duration,
    /// From here on there is data; the end of numbers until space is reserved for some.
    data_from: AtomicU64,
    /// Beginning and length of each file.
    pieces: RwLock<BTreeMap<u64, u64>>,
}

impl PlainFiles {
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        folder: &Path,
        sync_min: Duration,
    ) -> Result<Self, DiskError> {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|error| failed("create", folder, &error))?;
        let folder = folder.to_owned();
        let (data_from, pieces) = (AtomicU64::new(u64::MAX), RwLock::default());
        Ok(Self { file, folder, sync_min, data_from, pieces })
    }

    fn path(&self, at: u64) -> PathBuf {
        self.folder.join(format!("{at:016x}"))
    }

    fn is_data(&self, offset: u64) -> bool {
        offset >= self.data_from.load(Ordering::Relaxed)
    }

    fn write_piece(&self, at: u64, parts: &[IoSlice<'_>]) -> std::io::Result<()> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.take_place(at, len)?;
        let begun = Instant::now();
        let mut file = File::create(self.path(at))?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_all()?;
        last(begun, self.sync_min);
        let begun = Instant::now();
        File::open(&self.folder)?.sync_all()?;
        last(begun, self.sync_min);
        self.pieces.write().insert(at, len);
        Ok(())
    }

    /// Removes the files that lie where another is to.
    fn take_place(&self, at: u64, len: u64) -> std::io::Result<()> {
        let mut pieces = self.pieces.write();
        let below = pieces.range(..at + len).rev().take_while(|(from, len)| *from + *len > at);
        let taken: Vec<u64> = below.map(|(from, _)| *from).collect();
        for from in taken {
            pieces.remove(&from);
            std::fs::remove_file(self.path(from))?;
        }
        Ok(())
    }

    fn read_pieces(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let piece =
                self.pieces.read().range(..=at).next_back().map(|(from, len)| (*from, *len));
            let Some((from, len)) = piece.filter(|(from, len)| from + len > at) else { break };
            let part = (from + len - at).min((buf.len() - filled) as u64) as usize;
            let file = File::open(self.path(from))?;
            file.read_exact_at(&mut buf[filled..filled + part], at - from)?;
            filled += part;
        }
        Ok(filled)
    }
}

impl DiskFile for PlainFiles {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        if self.is_data(offset) {
            let read = self.read_pieces(offset, buf);
            return read.map_err(|error| failed("read", &self.folder, &error));
        }
        self.file.read_at(offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        if self.is_data(offset) {
            return self.read_at(offset, buf).map(Some);
        }
        self.file.read_cached_at(offset, buf)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        if self.is_data(offset) {
            return self.read_at(offset, buf);
        }
        self.file.read_device_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        if !self.is_data(offset) {
            return self.file.write_at(offset, parts);
        }
        let (mut at, mut from) = (offset, 0);
        while from < parts.len() {
            let mut end = at + parts[from].len() as u64;
            let mut until = from + 1;
            while until < parts.len() && !end.is_multiple_of(BLOCK_BYTES) {
                end += parts[until].len() as u64;
                until += 1;
            }
            let written = self.write_piece(at, &parts[from..until]);
            written.map_err(|error| failed("write", &self.path(at), &error))?;
            (at, from) = (end, until);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        if offset > 0 {
            self.data_from.fetch_min(offset, Ordering::Relaxed);
        }
        self.file.allocate(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn zeros_from(&self) -> Result<u64, DiskError> {
        self.file.zeros_from()
    }
}
