//! The counts of what a cluster's proxy did, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start.
#[derive(Debug, Default)]
pub struct ProxyCounters {
    /// Questions to primaries that were asked again.
    pub retries: AtomicU64,
    /// Keys and lists of a bucket that a primary knew to be gone, or being deleted, before this proxy did.
    pub bucket_waits: AtomicU64,
    /// Questions to the managers before a client was told that there is no such bucket.
    pub bucket_questions: AtomicU64,
    /// Requests that were refused as such a question could not be answered.
    pub bucket_questions_failed: AtomicU64,
    /// Replicas that did not take a put's data.
    pub failed_writes: AtomicU64,
    /// Replicas that did not give the bytes asked for, or gave wrong ones.
    pub failed_reads: AtomicU64,
    /// Reads of replicas whose bytes did not verify: the object was replaced, or the copy is damaged.
    pub mismatches: AtomicU64,
    /// Reads that got what one of the same bytes got, which was under way.
    pub reads_joined: AtomicU64,
    /// Reads of objects where they were remembered to lie, while METAX was asked.
    pub located_reads: AtomicU64,
    /// Of those, the ones whose bytes were the version's.
    pub located_reads_used: AtomicU64,
    /// Reads for which another replica was asked before the first had answered.
    pub reads_hedged: AtomicU64,
    /// Of those, answered by the other replica.
    pub hedges_won: AtomicU64,
    /// Puts answered before every replica had the data, as their bucket's write policy has it.
    pub answered_early: AtomicU64,
    /// Of those, the ones whose last copies were left to the rebuild.
    pub late_writes: AtomicU64,
    /// Puts begun anew because a replica had not taken the data.
    pub begun_anew: AtomicU64,
    /// Requests sent to a data server that was down, to see whether it still is.
    pub probes: AtomicU64,
    /// Sessions that the managers closed while the proxy ran.
    pub lost_sessions: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
