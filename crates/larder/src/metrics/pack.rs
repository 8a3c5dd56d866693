//! Counts of a packed store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_objects::Objects;
use larder_pack::{OtherStatus, Packer, WorkersStatus};
use larder_types::BucketName;

use super::{Metric, RoleMetrics};

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

    fn has_clients(&self) -> bool {
        true
    }

    fn buckets(&self) -> Option<BTreeSet<BucketName>> {
        let buckets = Objects::buckets(&*self.0).ok()?;
        Some(buckets.into_iter().map(|bucket| bucket.name).collect())
    }

    fn counters(&self) -> Vec<Metric> {
        let (counters, status) = (self.0.counters(), self.0.status());
        let handed_on = self.0.workers().map_or(0, |workers| workers.handed_on);
        vec![
            (
                "pack_handed_on_requests",
                "Requests of uploads that were handed on to the workers that began them",
                handed_on as f64,
            ),
            ("pack_changes", "Changes made durable in the directory", load(&counters.changes)),
            ("pack_groups", "Groups of changes that shared a sync", load(&counters.groups)),
            ("pack_bytes", "Bytes of objects packed", load(&counters.packed_bytes)),
            ("pack_blobs", "Blobs uploaded", load(&counters.blobs)),
            ("pack_bundles", "Bundles of blobs uploaded", load(&counters.bundles)),
            ("pack_sealed_full", "Blobs closed as they were full", load(&counters.sealed_full)),
            (
                "pack_sealed_due",
                "Blobs closed as their oldest change had waited for the flush timeout",
                load(&counters.sealed_due),
            ),
            (
                "pack_sealed_asked",
                "Blobs closed for a flush, a backup, or repacking",
                load(&counters.sealed_on_request),
            ),
            (
                "pack_failed_uploads",
                "Tries to upload a blob that failed",
                load(&counters.failed_uploads),
            ),
            ("pack_uploaded_bytes", "Bytes uploaded", load(&counters.uploaded_bytes)),
            (
                "backend_put_requests",
                "Requests to the backend that write an object, or begin or end one in parts",
                load(&counters.requests.put),
            ),
            (
                "backend_part_requests",
                "Requests to the backend that write a part",
                load(&counters.requests.part),
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
                "pack_owner_questions",
                "Times the backend was asked whether this worker still owns it",
                load(&counters.owner_questions),
            ),
            (
                "backend_get_requests",
                "Requests to the backend that read",
                load(&counters.requests.get),
            ),
            (
                "backend_head_requests",
                "Requests to the backend that ask for a size",
                load(&counters.requests.head),
            ),
            (
                "backend_list_requests",
                "Requests to the backend that list",
                load(&counters.requests.list),
            ),
            (
                "backend_delete_requests",
                "Requests to the backend that remove",
                load(&counters.requests.delete),
            ),
            (
                "backend_throttled",
                "Requests that the backend refused for now",
                load(&counters.throttled),
            ),
            (
                "backend_budget_waits",
                "Times that a request waited for the budget of money",
                load(&counters.budget_waits),
            ),
            ("backend_cost", "What the requests cost, at the prices configured", status.cost()),
            (
                "backend_cost_direct",
                "What they would have cost had clients made them themselves",
                status.direct_cost(),
            ),
            ("pack_cache_hits", "Reads that the cache answered", load(&counters.cache_hits)),
            (
                "pack_cache_hit_bytes",
                "Bytes that the cache answered with",
                load(&counters.cache_hit_bytes),
            ),
            (
                "pack_cache_misses",
                "Reads for which the backend was asked",
                load(&counters.cache_misses),
            ),
            (
                "pack_cache_joined",
                "Reads that waited for what another had asked for",
                load(&counters.cache_joined),
            ),
            (
                "pack_cache_bad",
                "Pieces in the cache that did not verify",
                load(&counters.cache_bad),
            ),
            ("pack_ahead_bytes", "Bytes read ahead", load(&counters.ahead_bytes)),
            (
                "bad_copies",
                "Pieces that came from the backend or the spool with wrong checksums",
                load(&counters.bad_pieces),
            ),
            ("lost_reads", "Reads that found no good bytes", load(&counters.lost_reads)),
        ]
    }

    fn gauges(&self) -> Vec<Metric> {
        let (waiting, now) = (self.0.waiting(), self.0.status().now);
        let owner = self.0.owner();
        // A failure to read the index shows elsewhere.
        let (blob_bytes, live_bytes) = self.0.blob_use().unwrap_or((0, 0));
        let mut gauges = vec![
            (
                "pack_blob_bytes",
                "Bytes of objects in blobs of the backend, without retired blobs",
                blob_bytes as f64,
            ),
            ("pack_live_bytes", "Bytes of them that are live", live_bytes as f64),
            (
                "pack_open_groups",
                "Groups that objects of the open blob are of, as far as they are counted",
                waiting.groups as f64,
            ),
            (
                "pack_process",
                "Number of this process in the backend; 0 while it has none",
                owner.process.number() as f64,
            ),
            (
                "pack_owner_unseen_seconds",
                "Time since the backend last said that this worker owns it",
                owner.unseen.as_secs_f64(),
            ),
            (
                "pack_superseded",
                "1 once another worker has taken the backend over: this one answers nothing more",
                f64::from(u8::from(owner.superseded)),
            ),
            ("pack_waiting_blobs", "Blobs that are not uploaded", waiting.blobs as f64),
            ("pack_waiting_bytes", "Bytes of objects not uploaded", waiting.body_bytes as f64),
            (
                "pack_waiting_footer_bytes",
                "Bytes of memory that footers of blobs not uploaded take",
                waiting.footer_bytes as f64,
            ),
            (
                "backend_requests_max",
                "Requests that may be under way to the backend at once",
                f64::from(now.requests_max),
            ),
            (
                "backend_budget_spent",
                "1 while uploads wait for the budget of money",
                f64::from(u8::from(now.budget_spent)),
            ),
            ("pack_cache_bytes", "Bytes that the cache has", now.cache_bytes as f64),
            ("index_disk_bytes", "Bytes that the index takes on disk", self.0.index_bytes() as f64),
        ];
        if let Some(workers) = self.0.workers() {
            gauges.extend(shared(&workers));
        }
        gauges
    }
}

/// The state of a worker towards those that share its bucket; of each kind the worst.
fn shared(workers: &WorkersStatus) -> [Metric; 5] {
    let most = |of: fn(&OtherStatus) -> u64| workers.others.iter().map(of).max().unwrap_or(0);
    let answering = workers.others.iter().filter(|other| other.address.is_some());
    let unheard = answering.map(|other| other.unheard_ms.unwrap_or(other.unseen_ms));
    [
        ("pack_workers", "Other workers of the bucket", workers.others.len() as f64),
        (
            "pack_workers_unseen_seconds",
            "Time since the last look in the bucket that found all that other workers had there",
            workers.unseen_ms as f64 / 1000.0,
        ),
        (
            "pack_workers_unheard_seconds",
            "Time since the worker that was silent for longest answered, of those that have an address",
            unheard.max().unwrap_or(0) as f64 / 1000.0,
        ),
        (
            "pack_workers_behind_bytes",
            "Bytes of changes that another worker had and this one did not, when it answered last",
            most(|other| other.behind_bytes) as f64,
        ),
        (
            "pack_workers_not_uploaded",
            "Changes that are known of another worker and are not in the bucket, about",
            most(|other| other.not_uploaded) as f64,
        ),
    ]
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
