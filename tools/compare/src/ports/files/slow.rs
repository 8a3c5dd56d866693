//! A device whose syncs take their time.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_env::{DiskError, DiskFile};

/// A file whose syncs take at least `sync_min`.
pub(super) struct Slow {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) sync_min: Duration,
}

/// Waits until `least` has gone by since `since`: the time that a slower device would take.
pub(super) fn last(since: Instant, least: Duration) {
    let left = least.saturating_sub(since.elapsed());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

impl DiskFile for Slow {
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
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let begun = Instant::now();
        let synced = self.file.sync();
        last(begun, self.sync_min);
        synced
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
