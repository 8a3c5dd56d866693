//! What a packed store counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_pack::Packer;

use super::RoleMetrics;

/// A packed store.
pub(crate) struct PackMetrics(Arc<Packer>);

impl PackMetrics {
    /// Metrics of a packed store.
    pub(crate) fn new(packer: Arc<Packer>) -> Self {
        Self(packer)
    }
}

impl RoleMetrics for PackMetrics {
    fn is_ready(&self) -> bool {
        self.0.fatal().borrow().is_none()
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, f64)> {
        let counters = self.0.counters();
        vec![
            ("pack_changes", "Changes made durable in the directory", load(&counters.changes)),
            ("pack_groups", "Groups of changes that shared a sync", load(&counters.groups)),
            ("pack_bytes", "Bytes of objects packed", load(&counters.packed_bytes)),
            ("pack_blobs", "Blobs uploaded", load(&counters.blobs)),
            (
                "pack_failed_uploads",
                "Tries to upload a blob that failed",
                load(&counters.failed_uploads),
            ),
            ("pack_uploaded_bytes", "Bytes uploaded", load(&counters.uploaded_bytes)),
            (
                "backend_writes",
                "Requests to the backend that write",
                load(&counters.backend_writes),
            ),
            ("backend_reads", "Requests to the backend that read", load(&counters.backend_reads)),
            ("backend_lists", "Requests to the backend that list", load(&counters.backend_lists)),
            (
                "backend_deletes",
                "Requests to the backend that remove",
                load(&counters.backend_deletes),
            ),
            ("pack_repacked_blobs", "Blobs repacked", load(&counters.repacked_blobs)),
            (
                "pack_repacked_bytes",
                "Bytes of objects moved by repacking",
                load(&counters.repacked_bytes),
            ),
            (
                "pack_removed_blobs",
                "Repacked blobs removed from the backend",
                load(&counters.removed_blobs),
            ),
            (
                "pack_removed_objects",
                "Objects of their own, and blobs that no index has, removed from the backend",
                load(&counters.removed_objects),
            ),
            ("pack_freed_bytes", "Bytes removed from the backend", load(&counters.freed_bytes)),
            ("pack_backups", "Backups of the index made", load(&counters.backups)),
            (
                "bad_copies",
                "Pieces that came from the backend or the spool with wrong checksums",
                load(&counters.bad_pieces),
            ),
            ("lost_reads", "Reads that found no good bytes", load(&counters.lost_reads)),
        ]
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, f64)> {
        let waiting = self.0.waiting();
        // Whoever cannot read the index learns that elsewhere.
        let (blob_bytes, live_bytes) = self.0.blob_use().unwrap_or((0, 0));
        vec![
            (
                "pack_blob_bytes",
                "Bytes of objects in blobs of the backend, without retired blobs",
                blob_bytes as f64,
            ),
            ("pack_live_bytes", "Bytes of them that are live", live_bytes as f64),
            ("pack_waiting_blobs", "Blobs that are not uploaded", waiting.blobs as f64),
            ("pack_waiting_bytes", "Bytes of objects not uploaded", waiting.body_bytes as f64),
            (
                "pack_waiting_footer_bytes",
                "Bytes of memory that footers of blobs not uploaded take",
                waiting.footer_bytes as f64,
            ),
            ("index_disk_bytes", "Bytes that the index takes on disk", self.0.index_bytes() as f64),
        ]
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
