//! Files of DIR/region: readable by their owner alone, replaced as a whole, changed under one lock.
//!
//! They are written as servers' keys are. They are read by another rule: a group may read them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use larder_identity::key_file;

use crate::error::LinkError;
use crate::limits::FILE_BYTES_MAX;

const FOLDER: &str = "region";
const OWNER_ONLY: u32 = 0o600;
const OF_OTHERS: u32 = 0o007;
const FOLDER_OWNER_ONLY: u32 = 0o700;

/// The path of a file of the folder.
pub(crate) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(FOLDER).join(name)
}

/// Makes the folder in a store's directory if it is missing.
pub(crate) fn make_folder(dir: &Path) -> Result<(), LinkError> {
    let folder = dir.join(FOLDER);
    match DirBuilder::new().mode(FOLDER_OWNER_ONLY).create(&folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| File::open(dir)?.sync_all()).map_err(LinkError::file(folder)),
    }
}

/// Takes the folder's lock, which each change of its files needs. It is held until this is dropped.
pub(crate) fn lock(dir: &Path) -> Result<File, LinkError> {
    let path = path(dir, "lock");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(OWNER_ONLY).open(&path);
    let held = file.and_then(|file| file.lock().map(|()| file));
    held.map_err(LinkError::file(path))
}

/// Replaces the file, durably: after a crash it is the old one or the new one. The caller has the lock, or is the only
/// writer of this file.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LinkError> {
    key_file::replace(path, bytes).map_err(LinkError::file(path))
}

/// Replaces a file that a crash may lose.
pub(crate) fn replace_unsynced(path: &Path, bytes: &[u8]) -> Result<(), LinkError> {
    let draft = path.with_extension("draft");
    let replace = || fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    replace().map_err(LinkError::file(path))
}

/// Reads a file of the folder.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(LinkError::file(path))?;
    Ok(bytes)
}

/// Reads a file of the folder, unless everybody on the machine may. A group's rights are left alone, as those of root's
/// keys are: orchestrators give volumes to a group, and its rights to all files in them.
pub(crate) fn read_private(path: &Path) -> Result<Vec<u8>, LinkError> {
    let mode = fs::metadata(path).map_err(LinkError::file(path))?.mode() & 0o7777;
    if mode & OF_OTHERS != 0 {
        let why = format!(
            "everybody can read or write it (mode {mode:04o}): run `chmod 600 {}`",
            path.display()
        );
        return Err(LinkError::Damaged { path: path.to_owned(), why });
    }
    read(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_its_owners_alone_and_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        make_folder(dir.path()).unwrap();
        make_folder(dir.path()).unwrap();
        let path = path(dir.path(), "identity");
        fs::write(path.with_extension("draft"), "a leftover that everybody may read").unwrap();
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(read_private(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER_ONLY);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert!(read_private(&path).is_ok(), "a group's rights are left alone");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        let refused = read_private(&path).unwrap_err().to_string();
        assert!(refused.contains("(mode 0604): run `chmod 600 "), "{refused}");
    }
}
