//! Counts of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_mount::{Request, Tree};
use larder_pack::Packer;

use super::{Metric, RoleMetrics};

/// The files of a packed bucket.
pub(crate) struct MountMetrics(Arc<Tree<Packer>>);

impl MountMetrics {
    /// Metrics of a mount.
    pub(crate) fn new(tree: Arc<Tree<Packer>>) -> Self {
        Self(tree)
    }
}

fn name_and_help(request: Request) -> (&'static str, &'static str) {
    match request {
        Request::Lookup => ("mount_lookups", "Names that were looked up"),
        Request::Attributes => ("mount_attributes", "Requests for attributes"),
        Request::Change => ("mount_changes", "Changes of mode, time or size"),
        Request::List => ("mount_lists", "Requests to open, read and close directories"),
        Request::Open => ("mount_opens", "Files opened or made"),
        Request::Read => ("mount_reads", "Reads of files and symbolic links"),
        Request::Write => ("mount_writes", "Writes"),
        Request::Save => ("mount_saves", "Closes and syncs of files, written or not"),
        Request::Make => ("mount_makes", "Directories and symbolic links made"),
        Request::Rename => ("mount_renames", "Renamings"),
        Request::Delete => ("mount_deletes", "Deletions"),
    }
}

impl RoleMetrics for MountMetrics {
    fn is_ready(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<Metric> {
        let counters = &self.0.counters;
        let of = |request| {
            let (name, help) = name_and_help(request);
            (name, help, counters.of(request) as f64)
        };
        let mut all: Vec<_> = Request::ALL.into_iter().map(of).collect();
        all.extend([
            (
                "mount_faults",
                "Requests that failed for the store, the disk or a limit",
                load(&counters.faults),
            ),
            ("mount_read_bytes", "Bytes read from files", load(&counters.read_bytes)),
            ("mount_written_bytes", "Bytes written to files", load(&counters.written_bytes)),
            ("mount_puts", "Objects put", load(&counters.saved)),
            (
                "mount_lost_files",
                "Files that were closed for good and could not be put",
                load(&counters.lost),
            ),
        ]);
        all
    }

    fn gauges(&self) -> Vec<Metric> {
        let held = self.0.held();
        vec![
            ("mount_nodes", "Files and directories that the kernel knows", held.nodes as f64),
            ("mount_open", "Open files and directories", held.open as f64),
            ("mount_draft_bytes", "Bytes of files being written", held.draft_bytes as f64),
        ]
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
