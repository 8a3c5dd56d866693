//! A device whose reads take their time, a few at once, without a page cache before it.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::ModelledReads;
use super::slow::last;
use larder_env::{DiskError, DiskFile};

/// A file whose reads are like those of a modelled disk. What was written is read by the device: nothing is cached.
pub(super) struct SlowReads {
    pub(super) file: Arc<dyn DiskFile>,
    shape: ModelledReads,
    free: Mutex<u16>,
    freed: Condvar,
    began: Instant,
}

/// A read that the device serves; another may be served when it ends, however it does.
struct Lane<'a>(&'a SlowReads);

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

impl SlowReads {
    pub(super) fn new(file: Arc<dyn DiskFile>, shape: ModelledReads) -> Self {
        let free = Mutex::new(shape.lanes.max(1));
        Self { file, shape, free, freed: Condvar::new(), began: Instant::now() }
    }

    fn lane(&self) -> Lane<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Lane(self)
    }

    /// The rest of the stall that the device is in; zero outside of stalls.
    fn stall_left(&self) -> Duration {
        let ModelledReads { stall, stall_every, .. } = self.shape;
        if stall.is_zero() {
            return Duration::ZERO;
        }
        let at = self.began.elapsed().as_nanos() % stall_every.as_nanos().max(1);
        let left = stall_every.saturating_sub(Duration::from_nanos(at as u64));
        if left <= stall { left } else { Duration::ZERO }
    }

    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let _lane = self.lane();
        last(Instant::now(), self.stall_left());
        let begun = Instant::now();
        let read = read();
        last(begun, self.shape.read_min);
        read
    }
}

impl DiskFile for SlowReads {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.read(|| self.file.read_at(offset, buf))
    }

    fn read_cached_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        Ok(None)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.read(|| self.file.read_device_at(offset, buf))
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
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
