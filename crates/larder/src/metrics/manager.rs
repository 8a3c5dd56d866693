//! Metrics of a cluster's manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_env::clock::uptime_ms;
use larder_roles::observed::Observed;
use larder_roles::quorum::ManagerCounts;

use super::{Metric, RoleMetrics, operations};

/// A manager among the managers.
pub(crate) struct ManagerMetrics {
    pub(crate) counts: Arc<ManagerCounts>,
    pub(crate) observed: Arc<Observed>,
}

fn of(count: &AtomicU64) -> f64 {
    count.load(Ordering::Relaxed) as f64
}

impl RoleMetrics for ManagerMetrics {
    /// Proxies and meta servers go on while the managers elect.
    fn is_ready(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<Metric> {
        let counts = &self.counts;
        vec![
            (
                "manager_taken",
                "Messages and proposals that the manager has taken",
                of(&counts.taken),
            ),
            ("manager_log_writes", "Writes of the managers' log, each synced", of(&counts.writes)),
        ]
    }

    fn gauges(&self) -> Vec<Metric> {
        let counts = &self.counts;
        let (issues, oldest_ms) = self.observed.issues(uptime_ms());
        vec![
            ("manager_leads", "1 if this manager leads", of(&counts.leads)),
            (
                "manager_has_leader",
                "1 if it has heard of a manager that leads within some seconds",
                of(&counts.has_leader),
            ),
            ("manager_voters", "Managers that vote", of(&counts.voters)),
            (
                "manager_term",
                "Term of the managers, which grows with each election",
                of(&counts.term),
            ),
            ("manager_log_last", "Last entry of the managers' log here", of(&counts.log_last)),
            ("manager_log_applied", "Last applied entry of the log", of(&counts.log_applied)),
            ("manager_map_version", "Version of the map that this made", of(&counts.map_version)),
            (
                "cluster_version",
                "Version of the protocol that every server of the cluster speaks for good; 0 before the first was agreed on",
                of(&counts.cluster_version),
            ),
            (
                "rebalance_volumes_moving",
                "Volumes that have a copy more than wanted, and leave no disk that drains or is gone",
                of(&counts.moving),
            ),
            (
                "rebalance_paused",
                "1 while no further volume begins to move for balance, as an operator wants it",
                of(&counts.balance_paused),
            ),
            (
                "cluster_troubles",
                "Troubles of the cluster that this manager observes now",
                issues as f64,
            ),
            (
                "cluster_trouble_oldest_seconds",
                "Seconds for which the oldest of them lasts, at least; 0 if there is none",
                oldest_ms as f64 / 1000.0,
            ),
        ]
    }

    fn write_labelled(&self, out: &mut String) -> std::fmt::Result {
        operations::of_manager(&self.counts.requests, out)
    }
}
