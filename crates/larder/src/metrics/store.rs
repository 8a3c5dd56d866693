//! Counts of the roles of a store: log and disk, queues, space.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use larder_roles::meta::Meta;
use larder_roles::regions::Regions;
use larder_roles::{Proxy, Store, data::DataServer};
use larder_types::BucketName;

use super::{
    EXPIRED, Metric, PIECES_AHEAD, RoleMetrics, WAITS_MET, WAITS_UNMET, appends, background,
    buckets, disk, groups, operations, reads, space,
};

/// All roles in one process.
pub(crate) struct StoreMetrics {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    proxy: Arc<Proxy>,
    regions: OnceLock<Arc<Regions>>,
}

impl StoreMetrics {
    /// Metrics of an open store.
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            meta: store.meta().clone(),
            data: store.data().clone(),
            proxy: store.proxy().clone(),
            regions: OnceLock::new(),
        }
    }

    /// From now on with what it does as a region.
    pub(crate) fn show(&self, regions: Arc<Regions>) {
        let shown = self.regions.set(regions);
        assert!(shown.is_ok(), "a store is one region");
    }
}

impl RoleMetrics for StoreMetrics {
    fn is_ready(&self) -> bool {
        let may_serve = self.meta.fatal().borrow().is_none() && !self.data.is_broken();
        may_serve && !self.proxy.is_removed()
    }

    fn caveat(&self) -> Option<&'static str> {
        let is_read_only = self.meta.is_read_only();
        is_read_only.then_some("read-only: the index is damaged, see larder status")
    }

    fn has_clients(&self) -> bool {
        true
    }

    fn buckets(&self) -> Option<BTreeSet<BucketName>> {
        Some(self.meta.bucket_names().into_values().collect())
    }

    fn counters(&self) -> Vec<Metric> {
        let alarms = self.proxy.alarms();
        let waits = self.proxy.region_waits();
        let mut counters = background::counters(&self.meta);
        counters.extend(reads::counters(&self.meta));
        counters.extend(disk::counters(&self.data));
        counters.extend(groups::counters(&self.meta));
        counters.extend([
            ("bad_copies", "Copies found with wrong checksums", load(&alarms.bad_copies)),
            ("lost_reads", "Reads that found no good copy", load(&alarms.lost_reads)),
            ("region_waits_met", WAITS_MET, load(&waits.met)),
            ("region_waits_unmet", WAITS_UNMET, load(&waits.unmet)),
            ("uploads_expired", EXPIRED, self.proxy.expired_uploads() as f64),
        ]);
        counters.extend(appends::counters(&self.proxy));
        counters
    }

    fn gauges(&self) -> Vec<Metric> {
        let mut gauges = background::gauges(&self.meta);
        gauges.push(reads::gauge(&self.meta));
        gauges.extend(disk::gauges(&self.data));
        gauges.extend(groups::gauges(&self.meta));
        gauges.extend(space::gauges(&self.meta));
        gauges.extend([
            ("pieces_ahead", PIECES_AHEAD, self.proxy.pieces_ahead() as f64),
            (
                "groups_halted",
                "Placement groups that are halted, as their metadata contradicts itself or cannot be read",
                self.meta.groups_halted() as f64,
            ),
            (
                "index_damaged",
                "1 if the index cannot be read in part",
                f64::from(u8::from(self.meta.is_read_only())),
            ),
        ]);
        gauges
    }

    fn write_labelled(&self, out: &mut String) -> std::fmt::Result {
        buckets::write(&self.meta, out)?;
        operations::of_disk(self.data.ops(), out)?;
        operations::of_meta(self.meta.requests_by_kind(), out)?;
        self.regions.get().map_or(Ok(()), |regions| super::regions::write(regions, out))
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
