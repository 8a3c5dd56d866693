//! The operating system's errors, as callers of a disk have to take them.

use std::path::Path;

use rustix::io::Errno;

use crate::disk::DiskError;

/// Of a call that failed with this number.
pub(crate) fn failure(operation: &'static str, path: &Path, errno: Errno) -> DiskError {
    let path = text(path);
    match errno {
        // A file that may not be longer is as full as its file system: what it has can be read and written on.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => DiskError::Full { path },
        Errno::NOENT => DiskError::NotFound { path },
        Errno::EXIST => DiskError::Exists { path },
        _ => DiskError::Broken { operation, path, reason: errno.to_string() },
    }
}

/// Of a call of the standard library.
pub(crate) fn from_std(operation: &'static str, path: &Path, error: &std::io::Error) -> DiskError {
    match Errno::from_io_error(error) {
        Some(errno) => failure(operation, path, errno),
        None => DiskError::Broken { operation, path: text(path), reason: error.to_string() },
    }
}

/// A path as errors name it.
pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_longer_is_full_and_not_broken() {
        let of = |errno| failure("allocate", Path::new("data0"), errno);
        for errno in [Errno::FBIG, Errno::NOSPC, Errno::DQUOT] {
            assert!(matches!(of(errno), DiskError::Full { .. }), "{errno}");
        }
        assert!(matches!(of(Errno::IO), DiskError::Broken { .. }));
    }
}
