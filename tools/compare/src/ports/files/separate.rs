//! METAX as three writes. The log keeps one record. Without METAX that is an entry of who is putting, an entry of the
//! group's order, and the object's own metadata. Each is made durable before the next is begun. The first two are
//! written to a file beside the log; nobody reads them.

use std::io::{IoSlice, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::failed;
use super::slow::last;
use larder_env::{DiskError, DiskFile};

/// The two entries are as long as this part of the log's group, each.
const ENTRY_PART: u64 = 4;

/// A segment of the log.
pub(super) struct Separate {
    file: Arc<dyn DiskFile>,
    entries: std::fs::File,
    path: std::path::PathBuf,
    sync_min: Duration,
    /// Bytes written since the last sync.
    unsynced: AtomicU64,
}

impl Separate {
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        path: &Path,
        sync_min: Duration,
    ) -> Result<Self, DiskError> {
        let mut options = std::fs::OpenOptions::new();
        let entries = options.create(true).append(true).open(path);
        let entries = entries.map_err(|error| failed("open", path, &error))?;
        let path = path.to_owned();
        Ok(Self { file, entries, path, sync_min, unsynced: AtomicU64::new(0) })
    }

    fn write_entry(&self, bytes: u64) -> std::io::Result<()> {
        let begun = Instant::now();
        (&self.entries).write_all(&vec![0; bytes as usize])?;
        self.entries.sync_data()?;
        last(begun, self.sync_min);
        Ok(())
    }
}

impl DiskFile for Separate {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        self.file.read_cached_at(offset, buf)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_device_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.unsynced.fetch_add(bytes as u64, Ordering::Relaxed);
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let bytes = self.unsynced.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            for _entry in ["who is putting", "the group's order"] {
                let written = self.write_entry(bytes.div_ceil(ENTRY_PART));
                written.map_err(|error| failed("write", &self.path, &error))?;
            }
        }
        self.file.sync()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
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
