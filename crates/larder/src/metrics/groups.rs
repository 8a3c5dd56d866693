//! Counts of placement groups, and of the log and index that they share, in a store and in a cluster's meta server.

use larder_roles::meta::Meta;
use larder_types::limits::BLOCK_BYTES;

use super::Metric;

pub(super) fn counters(meta: &Meta) -> [Metric; 5] {
    let log = meta.log_counters();
    let unrested: u64 = meta.pg_ids().map(|pg| meta.gauges(pg).unrested).sum();
    [
        ("log_groups", "Groups of ops written to the log and synced", log.groups as f64),
        ("log_ops", "Ops written to the log", log.ops as f64),
        ("log_bytes", "Bytes of log that are synced", log.synced as f64),
        ("log_sync_seconds", "Seconds spent writing and syncing the log", log.sync_ns as f64 / 1e9),
        (
            "space_unrested_bytes",
            "Freed bytes that were reused before the usual minute, as space was short",
            unrested as f64 * f64::from(BLOCK_BYTES),
        ),
    ]
}

pub(super) fn gauges(meta: &Meta) -> [Metric; 9] {
    let (mut tail, mut open, mut doubt, mut doubt_ms) = (0, 0, 0, 0);
    let (mut remembered, mut waiting) = (0, 0);
    for pg in meta.pg_ids() {
        let gauges = meta.gauges(pg);
        tail += gauges.tail_ops;
        remembered += gauges.remembered;
        open += gauges.open_puts;
        doubt += gauges.in_doubt;
        doubt_ms = doubt_ms.max(gauges.in_doubt_ms);
        waiting += gauges.waiting_calls;
    }
    let log = meta.log_counters();
    [
        (
            "log_buffered_bytes",
            "Bytes that wait to be written to the log",
            log.buffered_bytes as f64,
        ),
        ("log_disk_bytes", "Bytes that the log takes on disk", log.disk_bytes as f64),
        ("index_disk_bytes", "Bytes that the index takes on disk", meta.index_bytes() as f64),
        ("unapplied_ops", "Ops that the index does not show yet", tail as f64),
        ("open_puts", "Puts without an outcome", open as f64),
        ("requests_remembered", "Requests that became ops and may be repeated", remembered as f64),
        ("puts_in_doubt", "Puts being resolved", doubt as f64),
        (
            "put_in_doubt_oldest_seconds",
            "Seconds for which the oldest put being resolved has had no outcome",
            doubt_ms as f64 / 1000.0,
        ),
        ("waiting_calls", "Calls that wait in placement groups", waiting as f64),
    ]
}
