//! A disk in memory that loses, tears and corrupts what a real one may, decided by one seed.
//!
//! # Invariants
//!
//! 1. It keeps the contract of [`crate::disk`] and no more. Bytes that were not synced are kept or
//!    lost sector by sector, length by length and name by name, each on its own.
//! 2. Everything random comes from the one seed, in the order of the calls. It has no clock, no
//!    threads and no hash order, so equal calls have equal results.
//! 3. A handle belongs to one boot of the machine. After a crash or a kill it answers
//!    [`DiskError::PoweredOff`] for ever; [`SimDisk::reopen`] gives the next boot's disk.
//! 4. Injected faults end with the boot they were armed in.
//!
//! A bit that rots is gone from the page cache too: the next read meets it. So does one of a sector that the medium
//! cannot read any more, until a write covers it.

mod content;
mod machine;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use self::machine::{Gate, InodeId, Machine};
use crate::disk::{Disk, DiskError, DiskFile, OpenMode, split_name};

/// Counts of events so far, for a simulator to show which faults its runs covered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Mutating operations, failed ones too.
    pub operations: u64,
    /// Syncs of files that succeeded.
    pub syncs: u64,
    /// Losses of power.
    pub power_losses: u64,
    /// Processes killed.
    pub kills: u64,
    /// Unsynced sector writes that outlived a loss of power or a failed sync.
    pub sectors_kept: u64,
    /// Unsynced sector writes that did not.
    pub sectors_lost: u64,
    /// Unsynced lengths and allocations lost.
    pub lengths_lost: u64,
    /// Unsynced creations, renames and removals lost.
    pub names_lost: u64,
    /// Syncs made to fail.
    pub syncs_failed: u64,
    /// Other operations made to fail.
    pub operations_failed: u64,
    /// Operations refused for want of space.
    pub full_refusals: u64,
    /// Bits flipped on the medium.
    pub bits_flipped: u64,
    /// Writes that went to a wrong place.
    pub writes_misdirected: u64,
    /// Ranges whose space was given back.
    pub holes_punched: u64,
    /// Reads that met a sector that cannot be read.
    pub reads_failed: u64,
}

/// Faults armed and not yet gone off.
#[derive(Debug, Default)]
struct Faults {
    power_off_after: Option<u64>,
    fail_after: Option<u64>,
    fail_next_sync: bool,
    misdirect: Option<String>,
}

/// One boot's view of a simulated disk. Faults may be injected through any boot's.
#[derive(Debug)]
pub struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    boot: u64,
}

impl SimDisk {
    /// An empty disk whose every chance is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64, capacity_bytes: u64) -> Arc<Self> {
        let machine = Arc::new(Mutex::new(Machine::new(seed, capacity_bytes)));
        Arc::new(Self { machine, boot: 0 })
    }

    /// The disk as the machine's present boot sees it.
    #[must_use]
    pub fn reopen(&self) -> Arc<Self> {
        let boot = self.machine.lock().boot;
        Arc::new(Self { machine: Arc::clone(&self.machine), boot })
    }

    /// True if this boot is still running.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.machine.lock().boot == self.boot
    }

    /// Loses power now: any subset of what was not synced is gone, and so is this boot.
    pub fn crash(&self) {
        self.machine.lock().lose_power();
    }

    /// Kills the process: the page cache stays, this boot ends.
    pub fn kill(&self) {
        self.machine.lock().kill();
    }

    /// Loses power during the `n`-th next mutating operation, of which any part may have been done.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn power_off_after(&self, n: u64) {
        assert!(n > 0, "operations are counted from 1");
        self.machine.lock().faults.power_off_after = Some(n);
    }

    /// Fails the `n`-th next mutating operation with [`DiskError::Broken`], nothing of it done.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn fail_after(&self, n: u64) {
        assert!(n > 0, "operations are counted from 1");
        self.machine.lock().faults.fail_after = Some(n);
    }

    /// Fails the next sync of a file: its unsynced changes are kept or lost one by one, and later
    /// syncs know nothing of them.
    pub fn fail_next_sync(&self) {
        self.machine.lock().faults.fail_next_sync = true;
    }

    /// Sends the next write of a file whose name begins with `prefix` to a wrong sector of that
    /// file. A file too small to have one is passed over.
    pub fn misdirect_next_write(&self, prefix: &str) {
        self.machine.lock().faults.misdirect = Some(prefix.to_owned());
    }

    /// Disarms all faults that have not gone off.
    pub fn disarm(&self) {
        self.machine.lock().faults = Faults::default();
    }

    /// Changes the capacity, also to less than is in use.
    pub fn set_capacity(&self, bytes: u64) {
        self.machine.lock().capacity = bytes;
    }

    /// Has its file system give the space of ranges back, as it does at first, or not.
    pub fn set_punches(&self, punches: bool) {
        self.machine.lock().punches = punches;
    }

    /// Flips one bit in a random written sector of the files whose names begin with `prefix`.
    /// Returns file and byte offset, or `None` if there is no such sector.
    #[must_use]
    pub fn rot(&self, prefix: &str) -> Option<(String, u64)> {
        self.machine.lock().rot(prefix)
    }

    /// Flips the lowest bit of one byte on the medium.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn flip_bit(&self, name: &str, offset: u64) -> Result<(), DiskError> {
        self.machine.lock().flip(name, offset, 0)
    }

    /// Has the medium lose the sectors of a range: reads that meet one fail with [`DiskError::Broken`], in all boots, until a
    /// write covers that sector whole.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn fail_reads(&self, name: &str, range: Range<u64>) -> Result<(), DiskError> {
        self.machine.lock().lose_sectors(name, range)
    }

    /// Counts of events so far, over all boots.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.machine.lock().counts
    }

    fn machine(&self) -> Result<MutexGuard<'_, Machine>, DiskError> {
        running(&self.machine, self.boot)
    }

    fn mutate<T>(
        &self,
        (operation, path): (&'static str, &str),
        change: impl FnOnce(&mut Machine) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        gated(self.machine()?, (operation, path), change)
    }

    fn file(&self, inode: InodeId, name: &str, writable: bool) -> Arc<dyn DiskFile> {
        Arc::new(SimFile {
            machine: Arc::clone(&self.machine),
            boot: self.boot,
            inode,
            name: name.to_owned(),
            writable,
        })
    }
}

fn running(machine: &Mutex<Machine>, boot: u64) -> Result<MutexGuard<'_, Machine>, DiskError> {
    let machine = machine.lock();
    if machine.boot == boot { Ok(machine) } else { Err(DiskError::PoweredOff) }
}

/// Makes a change unless a fault is due. Changes are unsynced when made, so a loss of power right
/// after one leaves any part of it.
fn gated<T>(
    mut machine: MutexGuard<'_, Machine>,
    (operation, path): (&'static str, &str),
    change: impl FnOnce(&mut Machine) -> Result<T, DiskError>,
) -> Result<T, DiskError> {
    match machine.admit() {
        Gate::Go => change(&mut machine),
        Gate::Fail => Err(broken(operation, path)),
        Gate::PowerGoes => {
            if operation != "sync" {
                // Its own failure does not matter: no caller is left to get it.
                let _ = change(&mut machine);
            }
            machine.lose_power();
            Err(DiskError::PoweredOff)
        }
    }
}

fn broken(operation: &'static str, path: &str) -> DiskError {
    DiskError::Broken { operation, path: path.to_owned(), reason: "injected fault".to_owned() }
}

impl Disk for SimDisk {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let inode = match mode {
            OpenMode::CreateNew => self.mutate(("create", name), |machine| machine.create(name))?,
            OpenMode::Read | OpenMode::ReadWrite => self.machine()?.open(name)?,
        };
        Ok(self.file(inode, name, mode != OpenMode::Read))
    }

    fn create_dir(&self, name: &str) -> Result<(), DiskError> {
        if !name.is_empty() {
            split_name(name)?;
        }
        self.mutate(("create", name), |machine| {
            machine.create_dir(name);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.mutate(("remove", name), |machine| machine.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.mutate(("rename", from), |machine| machine.rename(from, to))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.machine()?.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.mutate(("sync", dir), |machine| machine.sync_dir(dir))
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let machine = self.machine()?;
        Ok(machine.capacity.saturating_sub(machine.used()))
    }
}

#[derive(Debug)]
struct SimFile {
    machine: Arc<Mutex<Machine>>,
    boot: u64,
    inode: InodeId,
    name: String,
    writable: bool,
}

impl SimFile {
    fn machine(&self) -> Result<MutexGuard<'_, Machine>, DiskError> {
        running(&self.machine, self.boot)
    }

    fn mutate(
        &self,
        operation: &'static str,
        change: impl FnOnce(&mut Machine) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        if !self.writable && operation != "sync" {
            return Err(DiskError::Broken {
                operation,
                path: self.name.clone(),
                reason: "it is open for reading only".to_owned(),
            });
        }
        gated(self.machine()?, (operation, &self.name), change)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if let Ok(mut machine) = running(&self.machine, self.boot) {
            machine.close(self.inode);
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        let mut machine = self.machine()?;
        machine.check_readable((self.inode, &self.name), offset, buf.len())?;
        Ok(machine.inode(self.inode).cached.read(offset, buf))
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        self.read_at(offset, buf).map(Some)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        let mut machine = self.machine()?;
        machine.check_readable((self.inode, &self.name), offset, buf.len())?;
        Ok(machine.inode(self.inode).read_device(offset, buf))
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let file = (self.inode, self.name.as_str());
        self.mutate("write", |machine| machine.write(file, offset, parts))
    }

    fn sync(&self) -> Result<(), DiskError> {
        let file = (self.inode, self.name.as_str());
        self.mutate("sync", |machine| machine.sync(file))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let file = (self.inode, self.name.as_str());
        self.mutate("allocate", |machine| machine.allocate(file, offset, len))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        if !self.machine()?.punches {
            return Ok(false);
        }
        self.mutate("punch a hole", |machine| {
            machine.punch(self.inode, offset, len);
            Ok(())
        })?;
        Ok(true)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.mutate("truncate", |machine| {
            machine.set_len(self.inode, len);
            Ok(())
        })
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.machine()?.inode(self.inode).cached.len())
    }
}

#[cfg(test)]
mod tests;
