//! Counts of a cluster's meta server.

use std::sync::Arc;

use larder_roles::managers::Managers;
use larder_roles::meta::Meta;

use super::{Metric, RoleMetrics, background, buckets, groups, operations, reads, space};

/// A meta server whose other roles run in other processes.
pub(crate) struct MetaMetrics {
    meta: Arc<Meta>,
    managers: Arc<dyn Managers>,
}

impl MetaMetrics {
    /// Metrics of a meta server.
    pub(crate) fn new(meta: Arc<Meta>, managers: Arc<dyn Managers>) -> Self {
        Self { meta, managers }
    }
}

impl RoleMetrics for MetaMetrics {
    fn is_ready(&self) -> bool {
        self.meta.fatal().borrow().is_none()
    }

    fn counters(&self) -> Vec<Metric> {
        let narrow = |pg| self.meta.gauges(pg).grants_on_most;
        let narrow: u64 = self.meta.pg_ids().map(narrow).sum();
        let rebuild = self.meta.rebuild();
        let (batches, batched) = self.meta.batches();
        let (adoptions, snapshots) = (self.meta.adoptions(), self.meta.snapshots());
        let of = |had: &dyn Fn(usize) -> bool| -> f64 {
            rebuild.made().filter(|(good, _)| had(*good)).map(|(_, made)| made as f64).sum()
        };
        let mut counters = background::counters(&self.meta);
        counters.extend(reads::counters(&self.meta));
        counters.extend(groups::counters(&self.meta));
        counters.extend([
            (
                "member_batches",
                "Messages to other members in which several placement groups spoke",
                batches as f64,
            ),
            ("member_batched_messages", "Messages of placement groups in them", batched as f64),
            (
                "views_served",
                "Views of placement groups in which the server began to serve",
                adoptions.views_served as f64,
            ),
            (
                "views_served_early",
                "Views that were served before all rows of the index were read",
                adoptions.views_early as f64,
            ),
            (
                "ledger_reads",
                "Walks over the index for the blocks that it names",
                adoptions.ledger_reads as f64,
            ),
            (
                "snapshots_begun",
                "Snapshots of placement groups that others began to take",
                snapshots.begun as f64,
            ),
            (
                "snapshot_walks",
                "Walks over the index that such snapshots shared",
                snapshots.walks as f64,
            ),
            (
                "snapshot_pieces_alone",
                "Pieces of such snapshots read for one alone",
                snapshots.read_alone as f64,
            ),
            ("rebuild_walks", "Walks for copies that are missing", rebuild.walks.get() as f64),
            (
                "rebuild_copies_of_single",
                "Copies made of chunks of which one could be read",
                of(&|good| good == 1),
            ),
            (
                "rebuild_copies_of_several",
                "Copies made of chunks of which two or more could be read",
                of(&|good| good > 1),
            ),
            (
                "rebuild_mended_copies",
                "Copies found damaged, and made anew",
                rebuild.mended.get() as f64,
            ),
            ("rebuild_bytes", "Bytes of copies made", rebuild.bytes.get() as f64),
            (
                "narrow_grants",
                "Puts granted on most replicas of a volume while others were away or had no room",
                narrow as f64,
            ),
            (
                "rebuild_failed_copies",
                "Copies that could not be made, and are tried again",
                rebuild.failed.get() as f64,
            ),
            (
                "rebuild_put_off_copies",
                "Copies that were not tried yet, as the data servers that were to make them had too much to do",
                rebuild.put_off.get() as f64,
            ),
            (
                "rebuild_waited_seconds",
                "Seconds for which copies waited for more urgent ones of other meta servers",
                rebuild.waited_ms() as f64 / 1000.0,
            ),
        ]);
        counters
    }

    fn gauges(&self) -> Vec<Metric> {
        let kept = self.managers.kept().0;
        let lacking = self.meta.rebuild().lacking();
        let single = lacking.get(&1).copied().unwrap_or_default();
        let lost = lacking.get(&0).copied().unwrap_or_default();
        let short: u64 = lacking.range(2..).map(|(_, chunks)| chunks).sum();
        let mut gauges = background::gauges(&self.meta);
        gauges.push(reads::gauge(&self.meta));
        gauges.extend(groups::gauges(&self.meta));
        gauges.extend(space::gauges(&self.meta));
        gauges.extend([
            (
                "index_damaged",
                "1 if the index cannot be read in part",
                f64::from(u8::from(self.meta.has_met_damage())),
            ),
            (
                "index_set_aside",
                "1 while an index that was damaged is kept aside",
                f64::from(u8::from(self.meta.keeps_index_aside())),
            ),
            (
                "meta_map_kept_version",
                "Version of the map in the meta server's directory",
                kept as f64,
            ),
            (
                "rebuild_chunks_lost",
                "Chunks of which no copy could be read at the last walk",
                lost as f64,
            ),
            (
                "rebuild_chunks_single",
                "Chunks of which one copy could be read at the last walk",
                single as f64,
            ),
            (
                "rebuild_chunks_short",
                "Chunks with several copies, but fewer than wanted, or one elsewhere, at the last walk",
                short as f64,
            ),
        ]);
        gauges
    }

    fn write_labelled(&self, out: &mut String) -> std::fmt::Result {
        buckets::write(&self.meta, out)?;
        operations::of_meta(self.meta.requests_by_kind(), out)
    }
}
