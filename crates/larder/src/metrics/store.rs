//! Counts of the roles of a store: log and disk, queues, space.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use larder_roles::meta::Meta;
use larder_roles::regions::Regions;
use larder_roles::{Proxy, Store, data::DataServer};
use larder_types::BucketName;
use larder_types::limits::BLOCK_BYTES;

use super::{
    EXPIRED, PIECES_AHEAD, RoleMetrics, WAITS_MET, WAITS_UNMET, appends, background, buckets, disk,
    operations, reads,
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

    fn has_clients(&self) -> bool {
        true
    }

    fn buckets(&self) -> Option<BTreeSet<BucketName>> {
        Some(self.meta.bucket_names().into_values().collect())
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, f64)> {
        let log = self.meta.log_counters();
        let alarms = self.proxy.alarms();
        let waits = self.proxy.region_waits();
        let mut counters = background::counters(&self.meta);
        counters.extend(reads::counters(&self.meta));
        counters.extend(disk::counters(&self.data));
        counters.extend([
            ("log_groups", "Groups of ops written to the log and synced", log.groups as f64),
            ("log_ops", "Ops written to the log", log.ops as f64),
            ("log_bytes", "Bytes of log that are synced", log.synced as f64),
            (
                "log_sync_seconds",
                "Seconds spent writing and syncing the log",
                log.sync_ns as f64 / 1e9,
            ),
            ("bad_copies", "Copies found with wrong checksums", load(&alarms.bad_copies)),
            ("lost_reads", "Reads that found no good copy", load(&alarms.lost_reads)),
            ("region_waits_met", WAITS_MET, load(&waits.met)),
            ("region_waits_unmet", WAITS_UNMET, load(&waits.unmet)),
            ("uploads_expired", EXPIRED, self.proxy.expired_uploads() as f64),
        ]);
        counters.extend(appends::counters(&self.proxy));
        counters
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, f64)> {
        let log = self.meta.log_counters();
        let (mut tail, mut remembered) = (0, 0);
        let (mut open, mut doubt, mut doubt_ms, mut waiting) = (0, 0, 0, 0);
        let mut space = larder_roles::SpaceUse::default();
        for pg in self.meta.pg_ids() {
            let gauges = self.meta.gauges(pg);
            tail += gauges.tail_ops;
            remembered += gauges.remembered;
            open += gauges.open_puts;
            doubt += gauges.in_doubt;
            doubt_ms = doubt_ms.max(gauges.in_doubt_ms);
            waiting += gauges.waiting_calls;
            space.total += gauges.space.total;
            space.free += gauges.space.free;
            space.waiting += gauges.space.waiting;
            space.withheld += gauges.space.withheld;
            space.unread += gauges.space.unread;
        }
        let block = f64::from(BLOCK_BYTES);
        let used = space.total - space.free - space.withheld - space.waiting;
        let mut gauges = background::gauges(&self.meta);
        gauges.push(reads::gauge(&self.meta));
        gauges.extend(disk::gauges(&self.data));
        gauges.extend([
            (
                "log_buffered_bytes",
                "Bytes that wait to be written to the log",
                log.buffered_bytes as f64,
            ),
            ("log_disk_bytes", "Bytes that the log takes on disk", log.disk_bytes as f64),
            (
                "index_disk_bytes",
                "Bytes that the index takes on disk",
                self.meta.index_bytes() as f64,
            ),
            ("unapplied_ops", "Ops that the index does not show yet", tail as f64),
            ("open_puts", "Puts without an outcome", open as f64),
            (
                "requests_remembered",
                "Requests that became ops and may be repeated",
                remembered as f64,
            ),
            ("puts_in_doubt", "Puts being resolved", doubt as f64),
            (
                "put_in_doubt_oldest_seconds",
                "Seconds for which the oldest put being resolved has had no outcome",
                doubt_ms as f64 / 1000.0,
            ),
            ("waiting_calls", "Calls that wait in placement groups", waiting as f64),
            ("pieces_ahead", PIECES_AHEAD, self.proxy.pieces_ahead() as f64),
            (
                "groups_halted",
                "Placement groups that are not served, as their metadata contradicts itself",
                self.meta.contradictions() as f64,
            ),
            ("space_used_bytes", "Bytes of blocks that hold data", used as f64 * block),
            (
                "space_waiting_bytes",
                "Bytes freed that wait for the floors",
                space.waiting as f64 * block,
            ),
            ("space_free_bytes", "Bytes free in volumes", space.free as f64 * block),
            (
                "space_withheld_bytes",
                "Bytes free in volumes for which the disk had no room",
                space.withheld as f64 * block,
            ),
            (
                "space_unread_bytes",
                "Bytes of volumes of which is not known yet what is free, after a start",
                space.unread as f64 * block,
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
