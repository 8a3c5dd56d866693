//! Measures what the processes of a server use beside CPU time: memory, writes, space on disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use larder_bench::Pid;

/// Bytes of a block as `stat` counts them, whatever the file system's own are.
const STAT_BLOCK_BYTES: u64 = 512;
/// Unit of memory in `/proc/PID/status`, whose fields are in "kB".
const KIB: u64 = 1024;
/// Written to `clear_refs`, this makes the memory that a process has now its largest so far.
const RESET_PEAK: &str = "5";

/// Measures from its beginning on.
#[derive(Debug)]
pub(crate) struct Meter {
    pids: Vec<Pid>,
    directory: PathBuf,
    written: u64,
    occupied: u64,
}

/// The use since the meter began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Largest resident memory, in bytes, of all processes together.
    pub(crate) memory_peak_bytes: u64,
    /// Resident memory at the end, without files that the processes map.
    pub(crate) memory_end_bytes: u64,
    /// Bytes that the processes caused to be written to disk.
    pub(crate) written_bytes: u64,
    /// Bytes by which the directory's files grew on disk; below 0 if they shrank.
    pub(crate) occupied_bytes: i64,
}

impl Meter {
    pub(crate) fn begin(pids: &[Pid], directory: &Path) -> io::Result<Self> {
        for pid in pids {
            fs::write(format!("/proc/{pid}/clear_refs"), RESET_PEAK)?;
        }
        Ok(Self {
            pids: pids.to_vec(),
            directory: directory.to_owned(),
            written: written(pids)?,
            occupied: occupied(directory)?,
        })
    }

    pub(crate) fn end(self) -> io::Result<Usage> {
        let occupied = occupied(&self.directory)?;
        Ok(Usage {
            memory_peak_bytes: of_all(&self.pids, "status", "VmHWM:")? * KIB,
            memory_end_bytes: of_all(&self.pids, "status", "RssAnon:")? * KIB,
            written_bytes: written(&self.pids)?.saturating_sub(self.written),
            occupied_bytes: occupied.cast_signed() - self.occupied.cast_signed(),
        })
    }
}

fn written(pids: &[Pid]) -> io::Result<u64> {
    of_all(pids, "io", "write_bytes:")
}

/// The sum of a field in a file that each process has in `/proc`.
fn of_all(pids: &[Pid], file: &str, field: &str) -> io::Result<u64> {
    let of_one = |pid: &Pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        number(&text, field)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/{file} has no {field}")))
    };
    pids.iter().map(of_one).sum()
}

/// The number after a field's name at the beginning of a line.
fn number(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Bytes on disk of all files below `directory`. A file that goes away meanwhile has none.
fn occupied(directory: &Path) -> io::Result<u64> {
    let mut sum = 0;
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        let Some(entries) = present(fs::read_dir(folder))? else { continue };
        for entry in entries {
            let Some(entry) = present(entry)? else { continue };
            let Some(metadata) = present(entry.metadata())? else { continue };
            sum += metadata.blocks() * STAT_BLOCK_BYTES;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(sum)
}

fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let io = "wchar: 5\nread_bytes: 1\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(number(io, "write_bytes:"), Some(4096));
        assert_eq!(number("VmPeak:\t 9 kB\nVmHWM:\t  120 kB\n", "VmHWM:"), Some(120));
        assert_eq!(number(io, "VmHWM:"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_new_file_takes_space() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        let meter = Meter::begin(&[std::process::id()], directory.path()).unwrap();
        fs::write(directory.path().join("below/file"), vec![7; 100_000]).unwrap();
        let usage = meter.end().unwrap();
        assert!(usage.memory_end_bytes > 100_000, "{usage:?}");
        assert!(usage.memory_peak_bytes > usage.memory_end_bytes, "{usage:?}");
        assert!(usage.occupied_bytes >= 100_000, "{usage:?}");
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(Meter::begin(&[Pid::MAX], Path::new("/")).is_err());
    }
}
