//! A directory of the operating system as a [`Disk`], and block devices beside it.
//!
//! # Invariants
//!
//! 1. Names never lead out of the root. The one exception is the absolute path of a block device,
//!    which is opened as it is and never created, renamed or removed.
//! 2. A call that returned `Ok` has done all of its work: short reads and writes go on, interrupted
//!    calls are repeated. No other error is repeated here, least of all that of a sync.
//! 3. The kernel orders what overlaps.
//! 4. A sync is believed only if the file can be written to after it.
//!
//! # Why a sync alone is not believed
//!
//! Where bytes were reserved and never written, ext4 notes in its journal that they are written now, once
//! they are on the device. When the journal has ended by then, because the device failed, the note fails
//! unseen. The sync finds no page left to write and nothing in the journal to wait for, and says `Ok`. It
//! happens to one sync of each file, the one under way then; what it covered reads as zeros later. In 150
//! shutdowns of a file system under three writers, 26 such syncs said `Ok` (Linux 6.18). The journal had
//! ended before, so a write that is tried after the sync is refused.

mod direct;

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::disk::{Disk, DiskError, DiskFile, OpenMode, split_name};
use crate::failure::{failure, from_std, text};
use crate::wrapping::wrapped;
use direct::{DIRECT_BYTES_MIN, Direct};

/// Granule in which the page cache is dropped before a device read: a multiple of every page size.
const CACHE_GRANULE_BYTES: u64 = 64 * 1024;
/// Magic numbers of ext4, XFS, btrfs and tmpfs. What these call a hole reads as zeros, also when they have not written yet
/// what they were given. Of others that is not known: ZFS called blocks holes that a process had written and synced.
const HOLES_ARE_ZEROS: [u32; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];
/// Bytes written at a time where zeros stand in for a reservation.
const ZERO_BYTES: usize = 1024 * 1024;

/// A directory and everything below it.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

/// An exclusive lock on a file; it ends with this value or with the process, however that ends.
#[derive(Debug)]
pub struct FileLock {
    _file: OwnedFd,
}

impl RealDisk {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is no such directory.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let root = root.into();
        open_dir(&root)?;
        Ok(Self { root })
    }

    /// Opens a directory, making it and its parents, durably, if it is missing.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let root = root.into();
        create_dir_durably(&root)?;
        Self::open(root)
    }

    /// Locks a file below the root, made if it is missing, against every other process.
    ///
    /// # Errors
    /// [`DiskError::Held`] if another process, or another lock of this one, has it.
    pub fn lock(&self, name: &str) -> Result<FileLock, DiskError> {
        let path = self.path(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open_path(&path, flags)?;
        match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(FileLock { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(DiskError::Held { path: text(&path) }),
            Err(errno) => Err(failure("lock", &path, errno)),
        }
    }

    /// Bytes of the file system below the root, used and free.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn capacity_bytes(&self) -> Result<u64, DiskError> {
        let found = rustix::fs::statvfs(&self.root);
        let found = found.map_err(|errno| failure("statvfs", &self.root, errno))?;
        Ok(found.f_blocks * found.f_frsize)
    }

    fn path(&self, name: &str) -> Result<PathBuf, DiskError> {
        split_name(name)?;
        Ok(self.root.join(name))
    }

    fn dir_path(&self, dir: &str) -> Result<PathBuf, DiskError> {
        if dir.is_empty() { Ok(self.root.clone()) } else { self.path(dir) }
    }

    fn open_file(&self, name: &str, mode: OpenMode) -> Result<RealFile, DiskError> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY | OFlags::CLOEXEC,
            OpenMode::ReadWrite => OFlags::RDWR | OFlags::CLOEXEC,
            OpenMode::CreateNew if name.starts_with('/') => {
                return Err(DiskError::Exists { path: name.to_owned() });
            }
            OpenMode::CreateNew => return self.create_file(name),
        };
        if name.starts_with('/') {
            return open_device(name, flags);
        }
        let path = self.path(name)?;
        let file = open_path(&path, flags)?;
        Ok(RealFile { file, path, device_len: None, direct: OnceLock::new() })
    }

    fn create_file(&self, name: &str) -> Result<RealFile, DiskError> {
        let path = self.path(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match open_path(&path, flags) {
            Err(DiskError::NotFound { .. }) => {
                self.create_dir(split_name(name)?.0)?;
                open_path(&path, flags)?
            }
            other => other?,
        };
        Ok(RealFile { file, path, device_len: None, direct: OnceLock::new() })
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file: Arc<dyn DiskFile> = Arc::new(self.open_file(name, mode)?);
        wrapped(&self.root, name, file)
    }

    fn create_dir(&self, name: &str) -> Result<(), DiskError> {
        let mut path = self.dir_path("")?;
        if !name.is_empty() {
            split_name(name)?;
        }
        for part in name.split('/').filter(|part| !part.is_empty()) {
            let parent = path.clone();
            path.push(part);
            make_dir(&path)?;
            sync_dir_path(&parent)?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path(name)?;
        rustix::fs::unlink(&path).map_err(|errno| failure("remove", &path, errno))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from_path, to_path) = (self.path(from)?, self.path(to)?);
        if split_name(from)?.0 != split_name(to)?.0 {
            return Err(DiskError::BadName {
                name: to.to_owned(),
                rule: "a file is renamed within its directory",
            });
        }
        rustix::fs::rename(&from_path, &to_path)
            .map_err(|errno| failure("rename", &from_path, errno))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        let path = self.dir_path(dir)?;
        let fail = |error: std::io::Error| from_std("list", &path, &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.file_type().map_err(fail)?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        sync_dir_path(&self.dir_path(dir)?)
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let found = retry_on_intr(|| rustix::fs::statvfs(&self.root))
            .map_err(|errno| failure("stat", &self.root, errno))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

struct RealFile {
    file: OwnedFd,
    path: PathBuf,
    /// Capacity, if this is a block device.
    device_len: Option<u64>,
    /// The way past the page cache, once it was looked for.
    direct: OnceLock<Option<Direct>>,
}

impl RealFile {
    fn fail(&self, operation: &'static str) -> impl Fn(Errno) -> DiskError + '_ {
        move |errno| failure(operation, &self.path, errno)
    }

    /// Looks whether a device reaches to `end`; `None` for a plain file.
    fn within_device(&self, end: u64) -> Option<Result<(), DiskError>> {
        let capacity = self.device_len?;
        let full = || DiskError::Full { path: text(&self.path) };
        Some(if end <= capacity { Ok(()) } else { Err(full()) })
    }

    /// Makes a reservation by writing zeros after the end, where the file system knows no better.
    fn fill_with_zeros(&self, end: u64) -> Result<(), DiskError> {
        let zeros = vec![0; ZERO_BYTES];
        let mut at = self.len()?;
        while at < end {
            let take = (end - at).min(ZERO_BYTES as u64) as usize;
            self.write_at(at, &[IoSlice::new(&zeros[..take])])?;
            at += take as u64;
        }
        Ok(())
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let read = retry_on_intr(|| rustix::io::pread(&self.file, &mut buf[filled..], at))
                .map_err(self.fail("read"))?;
            if read == 0 {
                break;
            }
            filled += read;
        }
        Ok(filled)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let mut part = [IoSliceMut::new(&mut buf[filled..])];
            match retry_on_intr(|| {
                rustix::io::preadv2(&self.file, &mut part, at, ReadWriteFlags::NOWAIT)
            }) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::AGAIN | Errno::NOTSUP) => return Ok(None),
                Err(errno) => return Err(self.fail("read")(errno)),
            }
        }
        Ok(Some(filled))
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        let direct = self.direct.get_or_init(|| Direct::of(&self.file));
        if let Some(read) = direct.as_ref().and_then(|direct| direct.read(offset, buf)) {
            return Ok(read);
        }
        let start = offset - offset % CACHE_GRANULE_BYTES;
        let end = (offset + buf.len() as u64).next_multiple_of(CACHE_GRANULE_BYTES);
        rustix::fs::fadvise(&self.file, start, NonZeroU64::new(end - start), Advice::DontNeed)
            .map_err(self.fail("drop the cache"))?;
        self.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut written = 0;
        if total >= DIRECT_BYTES_MIN
            && let Some(direct) = self.direct.get_or_init(|| Direct::of(&self.file))
        {
            written = direct.write(offset, parts);
        }
        while written < total {
            let at = offset + written as u64;
            let wrote = if written == 0 {
                retry_on_intr(|| rustix::io::pwritev(&self.file, parts, at))
            } else {
                let rest = remaining_of(parts, written);
                retry_on_intr(|| rustix::io::pwritev(&self.file, &rest, at))
            }
            .map_err(self.fail("write"))?;
            if wrote == 0 {
                return Err(self.fail("write")(Errno::IO));
            }
            written += wrote;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(self.fail("sync"))?;
        if self.device_len.is_some() {
            return Ok(());
        }
        // A write of nothing changes nothing: it only asks whether the file system takes any.
        retry_on_intr(|| rustix::io::pwrite(&self.file, &[], 0))
            .map(|_| ())
            .map_err(self.fail("write after the sync"))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        if let Some(answer) = self.within_device(offset + len) {
            return answer;
        }
        match retry_on_intr(|| {
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len)
        }) {
            Err(Errno::NOTSUP) => self.fill_with_zeros(offset + len),
            other => other.map_err(self.fail("allocate")),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        if self.device_len.is_some() {
            return Ok(false);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len)) {
            Ok(()) => Ok(true),
            Err(errno @ (Errno::IO | Errno::ROFS | Errno::NOSPC | Errno::DQUOT)) => {
                Err(self.fail("punch a hole")(errno))
            }
            // The bytes stay, which harms nobody. File systems and sandboxes that cannot do it say so in many ways.
            Err(_cannot) => Ok(false),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        if let Some(answer) = self.within_device(len) {
            return answer;
        }
        retry_on_intr(|| rustix::fs::ftruncate(&self.file, len)).map_err(self.fail("truncate"))
    }

    fn zeros_from(&self) -> Result<u64, DiskError> {
        let end = self.len()?;
        if self.device_len.is_some() {
            return Ok(end);
        }
        let found = rustix::fs::fstatfs(&self.file).map_err(self.fail("stat"))?;
        if !are_holes_zeros(found.f_type as u32) {
            return Ok(end);
        }
        let mut at = 0;
        while at < end {
            match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => {
                    at = rustix::fs::seek(&self.file, SeekFrom::Hole(data))
                        .map_err(self.fail("look for holes"))?;
                }
                Err(Errno::NXIO) => return Ok(at),
                Err(_) => return Ok(end),
            }
        }
        Ok(end)
    }

    fn len(&self) -> Result<u64, DiskError> {
        if let Some(capacity) = self.device_len {
            return Ok(capacity);
        }
        let found = rustix::fs::fstat(&self.file).map_err(self.fail("stat"))?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }
}

/// The rest of `parts` after their first `written` bytes.
fn remaining_of<'a>(parts: &'a [IoSlice<'_>], mut written: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let skip = written.min(part.len());
        written -= skip;
        if skip < part.len() {
            rest.push(IoSlice::new(&part[skip..]));
        }
    }
    rest
}

/// Returns true if holes of a file system with this magic number are believed.
fn are_holes_zeros(magic: u32) -> bool {
    HOLES_ARE_ZEROS.contains(&magic)
}

fn open_path(path: &Path, flags: OFlags) -> Result<OwnedFd, DiskError> {
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR))
        .map_err(|errno| failure("open", path, errno))
}

/// Opens a device; to write, exclusively. The lock of a directory is a file of it, so a server on a copy would take the device
/// that another server has, and write over its store.
fn open_device(name: &str, flags: OFlags) -> Result<RealFile, DiskError> {
    let path = PathBuf::from(name);
    let writes = flags.contains(OFlags::RDWR);
    let flags = if writes { flags | OFlags::EXCL } else { flags };
    let file = match retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty())) {
        Err(Errno::BUSY) if writes => return Err(DiskError::Held { path: text(&path) }),
        file => file.map_err(|errno| failure("open", &path, errno))?,
    };
    let fail = |errno| failure("stat", &path, errno);
    let found = rustix::fs::fstat(&file).map_err(fail)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(DiskError::BadName {
            name: name.to_owned(),
            rule: "an absolute path must be that of a block device",
        });
    }
    let len = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(fail)?;
    Ok(RealFile { file, path, device_len: Some(len), direct: OnceLock::new() })
}

fn open_dir(path: &Path) -> Result<OwnedFd, DiskError> {
    open_path(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

fn sync_dir_path(path: &Path) -> Result<(), DiskError> {
    let dir = open_dir(path)?;
    retry_on_intr(|| rustix::fs::fsync(&dir)).map_err(|errno| failure("sync", path, errno))
}

fn make_dir(path: &Path) -> Result<(), DiskError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failure("create", path, errno)),
    }
}

/// Makes a directory and the missing ones above it, each synced into its parent.
fn create_dir_durably(path: &Path) -> Result<(), DiskError> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    create_dir_durably(parent)?;
    make_dir(path)?;
    sync_dir_path(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

#[cfg(test)]
mod tests;
