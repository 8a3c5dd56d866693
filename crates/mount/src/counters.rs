//! Counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of requests of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A name is looked up.
    Lookup,
    /// Attributes are asked for.
    Attributes,
    /// Attributes are changed: mode, time, size.
    Change,
    /// A directory is read, or opened.
    List,
    /// A file is opened or made.
    Open,
    /// Bytes are read; also what a symbolic link says.
    Read,
    /// Bytes are written.
    Write,
    /// A file is closed or synced.
    Save,
    /// A directory or a symbolic link is made.
    Make,
    /// A file or directory is renamed.
    Rename,
    /// A file or directory is deleted.
    Delete,
}

impl Request {
    /// All kinds of requests.
    pub const ALL: [Self; 11] = [
        Self::Lookup,
        Self::Attributes,
        Self::Change,
        Self::List,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Save,
        Self::Make,
        Self::Rename,
        Self::Delete,
    ];
}

/// Counters, all since the mount was made.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; Request::ALL.len()],
    /// Requests that failed for the store, the disk or a limit.
    pub faults: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written into drafts.
    pub written_bytes: AtomicU64,
    /// Files put into the store.
    pub saved: AtomicU64,
    /// Files that were closed for good and could not be put.
    pub lost: AtomicU64,
}

impl Counters {
    /// A request of this kind came.
    pub fn count(&self, request: Request) {
        self.requests[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests that came.
    #[must_use]
    pub fn of(&self, request: Request) -> u64 {
        self.requests[request as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// The number of things that a mount holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountGauges {
    /// Files and directories that the kernel knows.
    pub nodes: usize,
    /// Open files and directories.
    pub open: usize,
    /// Bytes of files that are being written.
    pub draft_bytes: u64,
}
