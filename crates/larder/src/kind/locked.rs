//! A directory that this process binds and holds.
//!
//! # Invariants
//!
//! 1. A kind is written under the directory's lock, and never over another.
//! 2. A start that wrote nothing but the kind takes it back: the directory is then as it was.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::{HEAD, Kind, KindError, MARKER, Marker, VERSION, check, read, recognised};
use crate::private_file;

/// Files that a failed start may have left beside the marker.
const LOCK: &str = "lock";

/// A directory that no other command takes while this is there.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    dir: PathBuf,
    /// Directories made for it, innermost first.
    made: Vec<PathBuf>,
    is_new: bool,
    has_marked: bool,
    _lock: File,
}

/// Makes the directory if it is missing, holds it, and binds it to its kind.
pub(crate) fn bind(dir: &Path, kind: Kind) -> Result<LockedDirectory, KindError> {
    check(dir, kind)?;
    let made = make(dir)?;
    let lock = match hold(dir) {
        Ok(lock) => lock,
        // The process that has the lock may have written nothing yet.
        Err(error @ KindError::InUse { .. }) => return Err(error),
        Err(error) => {
            remove(&made);
            return Err(error);
        }
    };
    let dir = dir.to_owned();
    let mut held = LockedDirectory { dir, made, is_new: false, has_marked: false, _lock: lock };
    // Another command may have come before the lock.
    check(&held.dir, kind)?;
    if read(&held.dir)?.is_some() {
        return Ok(held);
    }
    held.is_new = recognised(&held.dir).is_none();
    let id = format!("{:016x}", larder_env::rng::unique_u64());
    let marker = toml::to_string(&Marker { version: VERSION, kind, id });
    let marker = marker.expect("numbers and words are TOML");
    let path = held.dir.join(MARKER);
    let written = private_file::write_new(&path, format!("{HEAD}{marker}"));
    held.has_marked = written.map_err(|source| failed(&path, source))?;
    if !held.has_marked {
        check(&held.dir, kind)?;
    }
    Ok(held)
}

impl LockedDirectory {
    /// Tells if nothing of this kind was there before.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// True if there is nothing in the directory but what [`bind`] and a lock leave.
    fn is_unused(&self) -> bool {
        let Ok(mut entries) = fs::read_dir(&self.dir) else { return false };
        entries.all(|entry| {
            let Ok(entry) = entry else { return false };
            let is_lock = entry.file_name() == LOCK;
            entry.file_name() == MARKER
                || (is_lock && entry.metadata().is_ok_and(|lock| lock.is_file() && lock.len() == 0))
        })
    }
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        if self.has_marked && self.is_unused() {
            for name in [LOCK, MARKER] {
                drop(fs::remove_file(self.dir.join(name)));
            }
        }
        remove(&self.made);
    }
}

/// Makes a directory with those above it, durably; gives away what it made.
fn make(dir: &Path) -> Result<Vec<PathBuf>, KindError> {
    let named = |path: &&Path| !path.as_os_str().is_empty();
    let missing = dir.ancestors().take_while(|path| named(path) && !path.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    let mut builder = fs::DirBuilder::new();
    let done = builder
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .and_then(|()| missing.iter().try_for_each(|made| private_file::sync_above(made)));
    if let Err(source) = done {
        remove(&missing);
        return Err(failed(dir, source));
    }
    Ok(missing)
}

/// True if another process holds the directory now.
pub(crate) fn is_held(dir: &Path) -> Result<bool, KindError> {
    let fail = |source| failed(dir, source);
    // Shared: another that looks is not disturbed.
    match File::open(dir).map_err(fail)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(fail(source)),
    }
}

/// Locks the directory itself, until the process ends at the latest.
fn hold(dir: &Path) -> Result<File, KindError> {
    let fail = |source| failed(dir, source);
    let in_use = || KindError::InUse { dir: dir.display().to_string() };
    let lock = File::open(dir).map_err(fail)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use()),
        Err(TryLockError::Error(source)) => return Err(fail(source)),
    }
    // One that was removed and made again meanwhile has another lock.
    let (locked, there) = (lock.metadata().map_err(fail)?, fs::metadata(dir).map_err(fail)?);
    if (locked.dev(), locked.ino()) != (there.dev(), there.ino()) {
        return Err(in_use());
    }
    Ok(lock)
}

/// Removes directories that are empty, innermost first.
fn remove(made: &[PathBuf]) {
    for dir in made {
        if fs::remove_dir(dir).is_err() {
            return;
        }
    }
}

fn failed(path: &Path, source: io::Error) -> KindError {
    KindError::Bind { path: path.display().to_string(), source }
}
