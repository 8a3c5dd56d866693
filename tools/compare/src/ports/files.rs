//! Disks that are worse than they need be, to measure what the design gains over them.
//!
//! | choice | what becomes of a file |
//! |---|---|
//! | [`Files::sync_min`] | its syncs take at least this long: a device that is slower |
//! | [`Files::reads`] | reads of one file take at least so long, so many at once, and none is answered from memory |
//! | [`Files::plain_files`] | what is written into reserved space becomes a file for each piece, each synced |
//! | [`Files::separate_metax`] | a sync of the log is three, each after a write of its own |
//!
//! # Invariants
//!
//! 1. A sync that returned has synced: worse disks lose nothing as long as the process runs. Pieces in files are not
//!    found again by another run, so that a server with them must never be started again.

mod plain_files;
mod reads;
mod separate;
mod slow;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_env::{DiskError, DiskFile};
use plain_files::PlainFiles;
use reads::SlowReads;
use separate::Separate;
use slow::Slow;

/// The ways in which a process's disks are worse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// The least time of a sync.
    pub(super) sync_min: Duration,
    /// Name of a file that is read as from a modelled device, and that device.
    pub(super) reads: Option<(String, ModelledReads)>,
    /// Name of the file of which the pieces become files.
    pub(super) plain_files: Option<String>,
    /// Directory of the log whose records are made durable in three writes.
    pub(super) separate_metax: Option<String>,
}

/// A modelled device, as far as reads go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ModelledReads {
    /// The least time of a read.
    pub(super) read_min: Duration,
    /// Reads that it serves at once; 0 counts as 1.
    pub(super) lanes: u16,
    /// Length of the stall at the end of each period; zero for none.
    pub(super) stall: Duration,
    /// Length of a period.
    pub(super) stall_every: Duration,
}

/// The file as it is to be, of this name below a disk's root.
pub(super) fn shaped(
    chosen: &Files,
    root: &Path,
    name: &str,
    file: Arc<dyn DiskFile>,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    let slow = |file| Arc::new(Slow { file, sync_min: chosen.sync_min }) as Arc<dyn DiskFile>;
    let file = match &chosen.reads {
        Some((of, shape)) if of == name => Arc::new(SlowReads::new(file, *shape)),
        _ => file,
    };
    if chosen.plain_files.as_deref() == Some(name) {
        let pieces = root.join(format!("{name}.pieces"));
        return Ok(Arc::new(PlainFiles::new(slow(file), &pieces, chosen.sync_min)?));
    }
    let dir = name.rsplit_once('/').map(|(dir, _)| dir);
    if dir.is_some() && chosen.separate_metax.as_deref() == dir {
        let beside = root.join(format!("{}.apart", name.replace('/', ".")));
        return Ok(Arc::new(Separate::new(slow(file), &beside, chosen.sync_min)?));
    }
    Ok(slow(file))
}

/// The error of a call of the standard library.
fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> DiskError {
    let (path, reason) = (path.display().to_string(), error.to_string());
    match error.kind() {
        std::io::ErrorKind::StorageFull => DiskError::Full { path },
        _ => DiskError::Broken { operation, path, reason },
    }
}

#[cfg(test)]
mod tests;
