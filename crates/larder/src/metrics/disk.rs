//! Metrics of a data server's disk, in a process of its own or beside other roles.

use larder_roles::data::DataServer;

use super::Metric;

/// Name, help and value of what only grows.
pub(super) fn counters(data: &DataServer) -> Vec<Metric> {
    let disk = data.counters();
    vec![
        ("disk_groups", "Groups of commands written to the disk and synced", disk.groups as f64),
        ("disk_commands", "Commands carried out by the disk", disk.commands as f64),
        ("disk_bytes", "Bytes of data written to the disk", disk.bytes as f64),
        ("disk_sync_seconds", "Seconds spent writing and syncing data", disk.group_ns as f64 / 1e9),
    ]
}

/// Name, help and value of what rises and falls.
pub(super) fn gauges(data: &DataServer) -> Vec<Metric> {
    let disk = data.counters();
    vec![
        (
            "disk_broken",
            "1 when the data disk failed and takes nothing any more",
            f64::from(u8::from(data.is_broken())),
        ),
        ("disk_queued_commands", "Commands that wait for the disk", disk.queued_commands as f64),
        ("disk_queued_bytes", "Bytes of data that wait for the disk", disk.queued_bytes as f64),
        ("disk_free_bytes", "Bytes free in the file system", disk.free_bytes as f64),
    ]
}
