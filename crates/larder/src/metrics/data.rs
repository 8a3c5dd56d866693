//! Metrics of a cluster's data server.

use std::sync::Arc;

use larder_roles::data_node::DataNode;

use super::{RoleMetrics, disk};

/// A data server whose disk other servers read.
pub(crate) struct DataMetrics(pub(crate) Arc<DataNode>);

impl RoleMetrics for DataMetrics {
    /// When its disk fails, proxies read and write elsewhere, also the one of its machine.
    fn is_ready(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (reads, _) = self.0.reads();
        let mut counters = disk::counters(self.0.server());
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
        ]);
        counters
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, f64)> {
        let mut gauges = disk::gauges(self.0.server());
        let waiting = self.0.reads().1 as f64;
        gauges.push(("data_reads_waiting", "Reads that wait for the disk", waiting));
        gauges
    }
}
