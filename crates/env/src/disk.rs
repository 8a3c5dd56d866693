//! The disk port: named files on one unit of failure.
//!
//! # Contract
//!
//! 1. A write, allocation, hole or change of length is durable only after a later [`DiskFile::sync`] of
//!    that file returned `Ok`. Until then any subset of its 512-byte sectors may survive a crash.
//! 2. The existence of a file, a rename and a removal are durable only after [`Disk::sync_dir`].
//! 3. After a failed sync nothing written before it may ever be called durable on the strength of a
//!    later sync: the caller must stop using the file ("fsyncgate").
//! 4. All calls block. They are made from threads that may block, or inline where the caller knows
//!    that the page cache answers ([`DiskFile::read_cached_at`]).

use std::io::IoSlice;
use std::sync::Arc;

/// The reason that a disk did not do as it was told, by what the caller should do.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum DiskError {
    /// No space: refuse new data, keep serving, retry after space was freed.
    #[error("no space left on the disk under {path}")]
    Full {
        /// File or directory of the failed call.
        path: String,
    },
    /// The named file does not exist.
    #[error("{path} does not exist")]
    NotFound {
        /// The missing file.
        path: String,
    },
    /// The file exists and was to be created.
    #[error("{path} exists already")]
    Exists {
        /// The file in the way.
        path: String,
    },
    /// The device failed: nothing it says about this file can be trusted any more.
    #[error("{operation} of {path} failed: {reason}")]
    Broken {
        /// The operation that failed.
        operation: &'static str,
        /// File or directory of the failed call.
        path: String,
        /// The operating system's words.
        reason: String,
    },
    /// Another process has locked the file, or has the device: it must end first. A device that is mounted is in use, too.
    #[error("{path} is in use by another process: stop that one first")]
    Held {
        /// The locked file.
        path: String,
    },
    /// A name that no file here can have: fix the caller or its configuration.
    #[error("{name:?} is no name of a file: {rule}")]
    BadName {
        /// The name.
        name: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The simulated machine has lost its power; only the simulator makes this.
    #[error("the simulated machine is down")]
    PoweredOff,
}

/// The ways to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Fails with [`DiskError::NotFound`] if it is missing; reads only.
    Read,
    /// Fails with [`DiskError::NotFound`] if it is missing. Of a device with [`DiskError::Held`] while another has it open so,
    /// or it is mounted.
    ReadWrite,
    /// Fails with [`DiskError::Exists`] if it is there.
    CreateNew,
}

/// A tree of files on one unit of failure. Names are relative, with `/` between directories;
/// directories come into being with their first file or by [`Disk::create_dir`].
pub trait Disk: Send + Sync + 'static {
    /// Opens or creates a file.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;
    /// Makes a directory and its parents, durably; no error if it is there.
    fn create_dir(&self, name: &str) -> Result<(), DiskError>;
    /// Removes a file. Durable after [`Disk::sync_dir`].
    fn remove(&self, name: &str) -> Result<(), DiskError>;
    /// Renames a file within its directory, over whatever has the new name, atomically. Durable
    /// after [`Disk::sync_dir`].
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// The names of the files directly in a directory, sorted; `""` is the root.
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError>;
    /// Bytes that can still be allocated here.
    fn free_bytes(&self) -> Result<u64, DiskError>;
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError>;
    /// As [`DiskFile::read_at`], but only if that needs no device access; `None` means that it would.
    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError>;
    /// As [`DiskFile::read_at`], but what the device has, not what the page cache remembers.
    /// Call it after a sync; used where a copy is to be *verified*.
    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError>;
    /// Writes all of `parts`, one after the other, from `offset`. May extend the file.
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError>;
    /// Makes every earlier write, allocation and length of this file durable (`fdatasync`).
    fn sync(&self) -> Result<(), DiskError>;
    /// Reserves space for a range and extends the file over it; reads of it give zeros until it is
    /// written. A later write inside a reserved and synced range does not fail for want of space.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError>;
    /// Gives the space of a range back, which reads as zeros from then on; the file stays as long as it is. `false` if this file or
    /// its file system cannot, as a block device: nothing has changed then. It is no use to try again.
    fn punch(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        let _ = (offset, len);
        Ok(false)
    }
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> Result<(), DiskError>;
    /// The file's length in bytes; of a block device its capacity.
    fn len(&self) -> Result<u64, DiskError>;
    /// A position from which on the file gives zeros up to its end, because it was reserved there and
    /// never written; its end, where that is not known. Call it after a sync.
    fn zeros_from(&self) -> Result<u64, DiskError> {
        self.len()
    }
    /// True if the file has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }
}

/// Splits a relative name into its directory (`""` for the root) and the last part.
///
/// # Errors
/// [`DiskError::BadName`] if it is absolute, has an empty part, or a part `.` or `..`.
pub fn split_name(name: &str) -> Result<(&str, &str), DiskError> {
    let refuse = |rule| Err(DiskError::BadName { name: name.to_owned(), rule });
    if name.split('/').any(str::is_empty) {
        return refuse("it is absolute or has an empty part");
    }
    if name.split('/').any(|part| matches!(part, "." | "..")) || name.contains('\0') {
        return refuse("it has a part that names no file");
    }
    Ok(name.rsplit_once('/').unwrap_or(("", name)))
}

/// Reads a small file whole.
///
/// # Errors
/// As [`Disk::open`] and [`DiskFile::read_at`].
pub fn read_file(disk: &dyn Disk, name: &str) -> Result<Vec<u8>, DiskError> {
    let file = disk.open(name, OpenMode::Read)?;
    let mut bytes = vec![0; file.len()? as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Replaces a small file as a whole, durably: after a crash it has its old or its new content.
///
/// # Errors
/// As the calls it makes; the old content stands unless it returned `Ok`, or the rename had been done
/// and only the last sync failed.
pub fn replace_file(disk: &dyn Disk, dir: &str, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
    let draft = format!("{path}.draft");
    match disk.remove(&draft) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.open(&draft, OpenMode::CreateNew)?;
    file.write_at(0, &[IoSlice::new(bytes)])?;
    file.sync()?;
    disk.rename(&draft, &path)?;
    disk.sync_dir(dir)
}
