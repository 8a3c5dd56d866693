//! The machine that a comparison ran on, as far as the system tells, and the folder on it that is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::CompareError;
use crate::results::Machine;
use larder_bench::sign::amz_date;

/// The folder in which each server gets a folder of its own: it is made if it is not there.
///
/// # Errors
/// [`CompareError::File`] if the system does not let it be made.
pub(crate) fn scratch(asked: Option<&Path>) -> Result<PathBuf, CompareError> {
    let path = asked.map_or_else(std::env::temp_dir, Path::to_path_buf);
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(CompareError::File { path, source }),
    }
}

/// The machine, and the file system of `scratch`.
pub(crate) fn machine(scratch: &Path) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let memory_kib: Option<u64> = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
    let kernel = rustix::system::uname();
    Machine {
        processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_mib: memory_kib.unwrap_or(0) / 1024,
        kernel: kernel.release().to_string_lossy().into_owned(),
        file_system: file_system(&read("/proc/self/mounts"), scratch).unwrap_or_default(),
        load_average: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
    }
}

/// The value after the first line's colon that begins with `name`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The type of the file system that `path` is on: that of the longest mount point above it.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let above = mounted.filter(|(point, _)| path.starts_with(point));
    // Of two mounts on one point the later one hides the earlier.
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind.to_owned())
}

/// Today, as in 2026-11-21.
pub(crate) fn date() -> String {
    let compact = amz_date(SystemTime::now());
    format!("{}-{}-{}", &compact[..4], &compact[4..6], &compact[6..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_the_systems_tables() {
        let text = "processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: B\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU: fast"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn a_folder_that_is_not_there_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let (asked, file) = (dir.path().join("a/b"), dir.path().join("file"));
        assert_eq!(scratch(Some(&asked)).unwrap(), asked);
        assert!(asked.is_dir());
        fs::write(&file, "").unwrap();
        assert!(scratch(Some(&file)).is_err(), "a file is no folder");
    }

    #[test]
    fn the_nearest_mount_above_a_folder_is_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let mounts = format!("d / ext4 rw\nd {} tmpfs rw\nd /other xfs rw\n", path.display());
        assert_eq!(file_system(&mounts, &path).as_deref(), Some("tmpfs"));
        assert_eq!(file_system("d / ext4 rw\nd /other xfs rw\n", &path).as_deref(), Some("ext4"));
    }

    #[test]
    fn a_date_is_written_with_dashes() {
        let date = date();
        assert_eq!((date.len(), &date[4..5], &date[7..8]), (10, "-", "-"));
    }
}
