//! The counters of a packed store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::class::PerClass;

/// Counters of one process; they only grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Changes made durable.
    pub changes: AtomicU64,
    /// Groups of changes that shared a sync.
    pub groups: AtomicU64,
    /// Bytes of bodies packed.
    pub packed_bytes: AtomicU64,
    /// Blobs uploaded.
    pub blobs: AtomicU64,
    /// Bundles uploaded.
    pub bundles: AtomicU64,
    /// Blobs closed as they were full.
    pub sealed_full: AtomicU64,
    /// Blobs closed as their oldest change had waited long enough.
    pub sealed_due: AtomicU64,
    /// Blobs closed as somebody asked for it: a flush, a backup, repacking.
    pub sealed_on_request: AtomicU64,
    /// Tries to upload a blob that failed.
    pub failed_uploads: AtomicU64,
    /// Bytes of blobs and objects of their own uploaded.
    pub uploaded_bytes: AtomicU64,
    /// Blobs repacked: everything live in them was moved.
    pub repacked_blobs: AtomicU64,
    /// Bytes of bodies moved by repacking.
    pub repacked_bytes: AtomicU64,
    /// Retired blobs removed from the backend.
    pub removed_blobs: AtomicU64,
    /// Objects of their own, and blobs that no index has, removed from the backend.
    pub removed_objects: AtomicU64,
    /// Bytes removed from the backend.
    pub freed_bytes: AtomicU64,
    /// Times the backend was asked whether this worker still owns it.
    pub owner_questions: AtomicU64,
    /// Backups of the index made.
    pub backups: AtomicU64,
    /// Requests to the backend, as often as they were made.
    pub requests: PerClass<AtomicU64>,
    /// Requests that the backend refused for now: they are among the others.
    pub throttled: AtomicU64,
    /// Times that a request waited for the budget of money.
    pub budget_waits: AtomicU64,
    /// Reads that the cache answered.
    pub cache_hits: AtomicU64,
    /// Bytes of them.
    pub cache_hit_bytes: AtomicU64,
    /// Reads for which the backend was asked.
    pub cache_misses: AtomicU64,
    /// Reads that waited for what another had asked the backend for.
    pub cache_joined: AtomicU64,
    /// Pieces in the cache that did not verify.
    pub cache_bad: AtomicU64,
    /// Bytes that were read ahead.
    pub ahead_bytes: AtomicU64,
    /// Requests that clients would have made to the backend themselves, about.
    pub direct: PerClass<AtomicU64>,
    /// Pieces that came with wrong sums.
    pub bad_pieces: AtomicU64,
    /// Reads that found no good bytes: an alarm.
    pub lost_reads: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, much: u64) {
    counter.fetch_add(much, Ordering::Relaxed);
}
