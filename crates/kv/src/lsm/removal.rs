//! The removal of an index, which a crash may cut off anywhere.
//!
//! # Invariant
//!
//! An index is whole until its `current` is renamed to `removed`, in one step. From then on it is none, whatever else
//! is left of it. The next open of the directory removes the rest ([`finish`]).

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use super::version_file::CURRENT;
use crate::KvError;

/// Name of `current` while the index is being removed. It is removed last.
const REMOVED: &str = "removed";

/// Called before each change of the directory: an error ends the removal there, as a crash would.
type Step<'a> = dyn FnMut() -> std::io::Result<()> + 'a;

/// Removes an index that nobody has open, and its directory.
pub(super) fn remove(path: &Path) -> Result<(), KvError> {
    remove_in_steps(path, &mut || Ok(())).map_err(|error| failed(&error))
}

/// Ends a removal that was cut off: what it left goes, and the directory is empty.
pub(super) fn finish(path: &Path) -> Result<(), KvError> {
    empty_if_removed(path, &mut || Ok(())).map_err(|error| failed(&error))
}

fn failed(error: &Error) -> KvError {
    KvError::from_io("is removed", error)
}

fn remove_in_steps(path: &Path, step: &mut Step<'_>) -> std::io::Result<()> {
    step()?;
    match std::fs::rename(path.join(CURRENT), path.join(REMOVED)) {
        // There never was an index, or its removal was cut off.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        renamed => {
            renamed?;
            sync(path)?;
        }
    }
    empty_if_removed(path, step)?;
    step()?;
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn empty_if_removed(path: &Path, step: &mut Step<'_>) -> std::io::Result<()> {
    let mark = path.join(REMOVED);
    if !mark.try_exists()? {
        return Ok(());
    }
    for entry in sorted(path)? {
        if entry == mark {
            continue;
        }
        if entry.is_dir() {
            for file in sorted(&entry)? {
                step()?;
                std::fs::remove_file(file)?;
            }
            step()?;
            std::fs::remove_dir(entry)?;
        } else {
            step()?;
            std::fs::remove_file(entry)?;
        }
    }
    // Without the mark what is left would be taken for an index; with it, a new index would be removed.
    sync(path)?;
    step()?;
    std::fs::remove_file(mark)?;
    sync(path)
}

/// The entries of a directory, by name: file systems list them in orders of their own.
fn sorted(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = std::fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable();
    Ok(entries)
}

fn sync(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::limits::CACHE_BYTES;
    use crate::{Batch, Kv, KvReader, LsmKv};

    fn put(kv: &LsmKv, value: &[u8]) {
        let mut batch = Batch::new();
        batch.put(b"key", value);
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
    }

    fn rows(kv: &LsmKv) -> usize {
        let mut rows = 0;
        kv.scan(&[], None, &mut |_, _| {
            rows += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        rows
    }

    /// An index with this many tables, removed with that many steps; whether these were all.
    fn cut_off(path: &Path, tables: usize, steps: usize) -> bool {
        let kv = LsmKv::open(path, CACHE_BYTES).unwrap();
        (0..tables).for_each(|table| put(&kv, &[u8::try_from(table).unwrap()]));
        drop(kv);
        let mut left = steps;
        let done = remove_in_steps(path, &mut || {
            left = left.checked_sub(1).ok_or(ErrorKind::Interrupted)?;
            Ok(())
        });
        assert!(done.is_ok() != path.exists());
        done.is_ok()
    }

    #[test]
    fn a_removal_that_was_cut_off_leaves_the_index_or_none() {
        for tables in [0, 2] {
            for steps in 0.. {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("kv");
                let is_removed = cut_off(&path, tables, steps);
                let kv = LsmKv::open(&path, CACHE_BYTES)
                    .unwrap_or_else(|error| panic!("{tables} tables, cut off at {steps}: {error}"));
                let expected = usize::from(steps == 0 && tables > 0);
                assert_eq!(rows(&kv), expected, "{tables} tables, cut off at {steps}");
                put(&kv, b"new");
                drop(kv);
                assert_eq!(rows(&LsmKv::open(&path, CACHE_BYTES).unwrap()), 1, "what is new stays");
                if is_removed {
                    assert!(steps > 4, "{steps} steps");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_removal_goes_on_where_one_was_cut_off() {
        for steps in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("kv");
            cut_off(&path, 1, steps);
            LsmKv::remove(&path).unwrap();
            assert!(!path.exists(), "cut off at {steps}");
            LsmKv::remove(&path).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_missing_from_an_index_that_nobody_removed_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        put(&LsmKv::open(dir.path(), CACHE_BYTES).unwrap(), b"row");
        std::fs::remove_file(dir.path().join("v1")).unwrap();
        let found = LsmKv::open(dir.path(), CACHE_BYTES).err();
        assert!(matches!(found, Some(KvError::Damaged { .. })), "{found:?}");
    }
}
