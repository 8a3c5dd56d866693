//! Disks that are worse than they need be, to measure what the design gains over them. Only with the feature
//! `ablation`, which no release has: nothing of this is compiled into it.
//!
//! What is chosen here shapes every file that [`RealDisk`](crate::RealDisk) opens from then on in this process:
//!
//! | choice | what becomes of a file |
//! |---|---|
//! | [`DiskAblation::sync_min`] | its syncs take at least this long: a device that is slower |
//! | [`DiskAblation::reads`] | reads of one file take at least so long, so many at once, and none is answered from memory |
//! | [`DiskAblation::plain_files`] | what is written into reserved space becomes a file for each piece, each synced |
//! | [`DiskAblation::separate_metax`] | a sync of the log is three, each after a write of its own |
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
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::disk::{DiskError, DiskFile};
use plain_files::PlainFiles;
use reads::SlowReads;
use separate::Separate;
use slow::Slow;

/// The ways in which a process's disks are worse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskAblation {
    /// The least time of a sync.
    pub sync_min: Duration,
    /// Name of a file that is read as from a modelled device, and that device.
    pub reads: Option<(String, ReadAblation)>,
    /// Name of the file of which the pieces become files.
    pub plain_files: Option<String>,
    /// Directory of the log whose records are made durable in three writes.
    pub separate_metax: Option<String>,
}

/// A modelled device, as far as reads go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadAblation {
    /// The least time of a read.
    pub read_min: Duration,
    /// Reads that it serves at once; 0 counts as 1.
    pub lanes: u16,
    /// Length of the stall at the end of each period; zero for none.
    pub stall: Duration,
    /// Length of a period.
    pub stall_every: Duration,
}

static CHOSEN: OnceLock<DiskAblation> = OnceLock::new();

/// Makes the disks of this process worse. To be called from the first thread before it starts others: they inherit
/// that their timers are precise.
///
/// # Panics
/// If it is called twice.
pub fn choose(ablation: DiskAblation) {
    // A kernel that refuses leaves timers 50 us late, as they usually are.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    assert!(CHOSEN.set(ablation).is_ok(), "the disks of a process are made worse once");
}

/// The file as it is to be.
pub(crate) fn shaped(
    root: &Path,
    name: &str,
    file: Arc<dyn DiskFile>,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    match CHOSEN.get() {
        Some(chosen) => shaped_by(chosen, root, name, file),
        None => Ok(file),
    }
}

fn shaped_by(
    chosen: &DiskAblation,
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

#[cfg(test)]
mod tests;
