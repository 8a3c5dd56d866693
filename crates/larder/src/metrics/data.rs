//! Metrics of a cluster's data server.

use std::sync::Arc;

use larder_roles::data::node::DataNode;
use larder_roles::managers::Managers;

use super::{Metric, RoleMetrics, disk, operations};

/// A data server whose disk other servers read.
pub(crate) struct DataMetrics {
    pub(crate) node: Arc<DataNode>,
    pub(crate) managers: Arc<dyn Managers>,
}

impl RoleMetrics for DataMetrics {
    /// Always true: when its disk fails, proxies read and write elsewhere, also the one of its
    /// machine.
    fn is_ready(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<Metric> {
        let (reads, _) = self.node.reads();
        let copies = self.node.copies();
        let mut counters = disk::counters(self.node.server());
        counters.extend([
            ("data_reads_served", "Reads that the disk served", reads.served as f64),
            (
                "data_reads_cancelled",
                "Reads that were cancelled before they touched the disk",
                reads.cancelled as f64,
            ),
            ("data_reads_late", "Reads that waited too long for the disk", reads.late as f64),
            (
                "data_reads_turned_away",
                "Reads for which there was no room in the queue",
                reads.turned_away as f64,
            ),
            (
                "data_copies_made",
                "Copies made here of chunks that other data servers hold",
                copies.made.get() as f64,
            ),
            (
                "data_copies_made_bytes",
                "Bytes of copies made here of chunks that other data servers hold",
                copies.bytes.get() as f64,
            ),
            (
                "data_copies_failed",
                "Copies that could not be made here, and that their primaries try again",
                copies.failed.get() as f64,
            ),
            (
                "data_copies_given_bytes",
                "Bytes that other data servers asked for, to make copies of them",
                copies.given.get() as f64,
            ),
            (
                "data_freed_bytes",
                "Bytes that went back to the file system from physical volumes that nobody has any more",
                self.node.bytes_freed() as f64,
            ),
        ]);
        counters
    }

    fn gauges(&self) -> Vec<Metric> {
        let mut gauges = disk::gauges(self.node.server());
        let waiting = self.node.reads().1 as f64;
        let kept = self.managers.kept().0 as f64;
        gauges.push((
            "data_map_kept_version",
            "Version of the map in the data server's directory",
            kept,
        ));
        gauges.push(("data_reads_waiting", "Reads that wait for the disk", waiting));
        let copies = self.node.copies().under_way() as f64;
        let help = "Copies that are being made here, or wait for their turn";
        gauges.push(("data_copies_under_way", help, copies));
        gauges
    }

    fn write_labelled(&self, out: &mut String) -> std::fmt::Result {
        let ops = self.node.server().ops();
        operations::of_disk(ops, out)?;
        operations::of_queue(ops, out)
    }
}
