//! Simulated disks that take their time: a task that waits for one lets others run.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_env::simulated::threads::sleep;
use larder_env::{Disk, DiskError, DiskFile, OpenMode, SimDisk};

use super::super::SimRng;
use crate::managers::MAP_FILE;

/// The speed of a disk.
pub(super) struct DiskSpeed {
    sim_rng: SimRng,
    /// Of a write or sync, while it stalls: the longest.
    stall_ms: AtomicU64,
    /// Of the replacement of the managers' map alone.
    map_ms: AtomicU64,
}

impl DiskSpeed {
    pub(super) fn new(sim_rng: &SimRng) -> Arc<Self> {
        Arc::new(Self {
            sim_rng: sim_rng.clone(),
            stall_ms: AtomicU64::new(0),
            map_ms: AtomicU64::new(0),
        })
    }

    pub(super) fn stall(&self, longest_ms: u64) {
        self.stall_ms.store(longest_ms, Ordering::Relaxed);
    }

    /// Has the managers' map be kept so late.
    pub(super) fn hold_map(&self, ms: u64) {
        self.map_ms.store(ms, Ordering::Relaxed);
    }

    fn take_time(&self, usually_ms: u64) {
        let stall_ms = self.stall_ms.load(Ordering::Relaxed);
        let longest_ms = match self.sim_rng.below(100) {
            0 => 100,
            _ => usually_ms,
        };
        sleep(self.sim_rng.ms(longest_ms.max(stall_ms)));
    }
}

/// One boot's view of a disk with a pace.
pub(super) struct SlowDisk {
    pub(super) disk: Arc<SimDisk>,
    pub(super) pace: Arc<DiskSpeed>,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    pace: Arc<DiskSpeed>,
}

impl Disk for SlowDisk {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.pace.take_time(1);
        let file = self.disk.open(name, mode)?;
        Ok(Arc::new(SlowFile { file, pace: self.pace.clone() }))
    }

    fn create_dir(&self, name: &str) -> Result<(), DiskError> {
        self.disk.create_dir(name)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        if to == MAP_FILE {
            sleep(Duration::from_millis(self.pace.map_ms.load(Ordering::Relaxed)));
        }
        self.disk.rename(from, to)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.pace.take_time(4);
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buf)
    }

    /// Part of what is read is not in the page cache.
    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        match self.pace.sim_rng.one_in(3) {
            true => Ok(None),
            false => self.file.read_cached_at(offset, buf),
        }
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.pace.take_time(2);
        self.file.read_device_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.pace.take_time(1);
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.pace.take_time(4);
        self.file.sync()?;
        // The answer is late, and others see what is durable by now.
        self.pace.take_time(1);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.pace.take_time(1);
        self.file.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.pace.take_time(1);
        self.file.punch(offset, len)
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
