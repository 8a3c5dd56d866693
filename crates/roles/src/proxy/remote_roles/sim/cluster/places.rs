//! Where runs of servers are: what a run leaves behind, and the next finds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_env::SimDisk;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::super::SimRng;
use super::disks::{DiskSpeed, SlowDisk};

pub(super) const DISK_BYTES: u64 = 64 << 30;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The machine loses power.
    Power,
    /// The process is killed.
    Killed,
    /// It is stopped, as for another release.
    Stopped,
    /// Its disks are gone too.
    Wiped,
}

/// The state that a server's runs share.
pub(super) struct Place {
    pub(super) disk: Mutex<Arc<SimDisk>>,
    pub(super) pace: Arc<DiskSpeed>,
    /// Of the index, which lies in the file system: what was flushed stays.
    pub(super) dir: Mutex<TempDir>,
    /// Something of the disk is to fail: the server may give up.
    is_faulty: AtomicBool,
}

impl Place {
    pub(super) fn new(sim_rng: &SimRng) -> Self {
        let (disk, pace) =
            (SimDisk::new(sim_rng.below(u64::MAX), DISK_BYTES), DiskSpeed::new(sim_rng));
        let is_faulty = AtomicBool::new(false);
        Self { disk: Mutex::new(disk), pace, dir: Mutex::new(temp_dir()), is_faulty }
    }

    /// The disk for the next run.
    pub(super) fn slow(&self) -> Arc<SlowDisk> {
        self.is_faulty.store(false, Ordering::Relaxed);
        let mut disk = self.disk.lock();
        *disk = disk.reopen();
        Arc::new(SlowDisk { disk: disk.clone(), pace: self.pace.clone() })
    }

    /// Has the disk fail at one of its next operations, or lose its power there.
    pub(super) fn ail(&self, sim_rng: &SimRng) {
        self.is_faulty.store(true, Ordering::Relaxed);
        let (disk, at) = (self.disk.lock(), 1 + sim_rng.below(30));
        match sim_rng.below(4) {
            0 => disk.fail_next_sync(),
            1 => disk.fail_after(at),
            _ => disk.power_off_after(at),
        }
    }

    /// Has the next sync fail.
    pub(super) fn fail_sync(&self) {
        self.is_faulty.store(true, Ordering::Relaxed);
        self.disk.lock().fail_next_sync();
    }

    /// Returns true if something of the disk is to fail in this run.
    pub(super) fn is_faulty(&self) -> bool {
        self.is_faulty.load(Ordering::Relaxed)
    }

    /// Does to the disk what the end of a run does.
    pub(super) fn strike(&self, ends: Ends) {
        let disk = self.disk.lock();
        match ends {
            Ends::Power | Ends::Wiped => disk.crash(),
            Ends::Killed => disk.kill(),
            Ends::Stopped => {}
        }
    }
}

/// In memory, where the system has such a place.
pub(super) fn temp_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.expect("a directory is made")
}
