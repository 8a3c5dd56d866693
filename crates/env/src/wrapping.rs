//! A seam for measurements: a program may put something around each file that a [`RealDisk`](crate::RealDisk) opens,
//! such as a slower device.
//!
//! No configuration reaches it. The shipped program puts nothing there: files are then what the operating system opened.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::disk::{DiskError, DiskFile};

/// Makes the file that is used of a disk's root, a name below it, and the file that was opened.
type Wrap =
    dyn Fn(&Path, &str, Arc<dyn DiskFile>) -> Result<Arc<dyn DiskFile>, DiskError> + Send + Sync;

static WRAP: OnceLock<Box<Wrap>> = OnceLock::new();

/// From now on has `wrap` replace every file of this process's real disks, of which it gets root, name and the file itself.
/// It has to keep the promises of [`DiskFile`].
///
/// # Panics
/// If it is called twice.
pub fn wrap_files(
    wrap: impl Fn(&Path, &str, Arc<dyn DiskFile>) -> Result<Arc<dyn DiskFile>, DiskError>
    + Send
    + Sync
    + 'static,
) {
    assert!(WRAP.set(Box::new(wrap)).is_ok(), "the files of a process are wrapped once");
}

/// The file that is used.
pub(crate) fn wrapped(
    root: &Path,
    name: &str,
    file: Arc<dyn DiskFile>,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    match WRAP.get() {
        Some(wrap) => wrap(root, name, file),
        None => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, OpenMode, RealDisk};

    /// The hook is there for all tests of this program: it changes none but this name.
    const NAME: &str = "wrapped-file";

    #[test]
    fn a_disk_uses_what_the_hook_makes_of_a_file() {
        wrap_files(|root, name, file| match name {
            NAME => RealDisk::open(root)?.open("other", OpenMode::CreateNew),
            _ => Ok(file),
        });
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        let file = disk.open(NAME, OpenMode::CreateNew).unwrap();
        file.write_at(0, &[std::io::IoSlice::new(b"bytes")]).unwrap();
        assert_eq!(std::fs::read(dir.path().join(NAME)).unwrap(), b"");
        assert_eq!(std::fs::read(dir.path().join("other")).unwrap(), b"bytes");
    }
}
