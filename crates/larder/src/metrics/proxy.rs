//! Counts of a cluster's proxy.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_protocol::manager::state::{GatewayRecord, Topology};
use larder_protocol::scheduler::RANKS;
use larder_roles::limits::MANAGERS_SILENT_MS;
use larder_roles::managers::Managers;
use larder_roles::proxy::ClusterProxy;
use larder_roles::regions::Regions;
use larder_s3::ClusterHealth;
use larder_types::{BucketName, MapVersion, ServerId};
use parking_lot::Mutex;

use super::{EXPIRED, Metric, PIECES_AHEAD, RoleMetrics, WAITS_MET, WAITS_UNMET, appends};
use crate::health::quorum::{can_spare_machine_of, takes_writes, write_quorum};
use crate::health::volumes::replicas_missing;
use crate::root_keys::proxy::ProxyKeys;

/// A proxy whose other roles run in other processes.
pub(crate) struct ProxyMetrics {
    proxy: Arc<ClusterProxy>,
    managers: Arc<dyn Managers>,
    me: ServerId,
    /// The state of the cluster by a map. Anybody can ask for it, and a map may have many volumes.
    judged: Mutex<Option<(MapVersion, ClusterHealth)>>,
    /// Once it is the gateway of a region.
    regions: Arc<OnceLock<Arc<Regions>>>,
    keys: Option<Arc<ProxyKeys>>,
}

impl ProxyMetrics {
    /// Metrics of a proxy.
    pub(crate) fn new(
        proxy: Arc<ClusterProxy>,
        managers: Arc<dyn Managers>,
        me: ServerId,
        regions: Arc<OnceLock<Arc<Regions>>>,
    ) -> Self {
        Self { proxy, managers, me, judged: Mutex::default(), regions, keys: None }
    }

    /// The same with what root's keys it takes.
    pub(crate) fn with_keys(self, keys: Arc<ProxyKeys>) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// The state of the cluster by the map alone.
    fn judged(&self, map: &Topology) -> ClusterHealth {
        let mut judged = self.judged.lock();
        if let Some((version, health)) = *judged
            && version == map.version
        {
            return health;
        }
        let health = ClusterHealth {
            takes_writes: takes_writes(map),
            can_spare_this: can_spare_machine_of(map, self.me),
            write_quorum: write_quorum(map),
        };
        *judged = Some((map.version, health));
        health
    }

    /// True if it speaks with the other regions: it began to, and the managers have no other for the gateway.
    fn is_gateway(&self, map: &Topology) -> bool {
        let is_other = |it: GatewayRecord| it != self.proxy.as_gateway();
        self.regions.get().is_some() && !map.gateway.is_some_and(is_other)
    }
}

impl RoleMetrics for ProxyMetrics {
    /// The managers are led, every placement group has a primary with an active view, and the region was not removed.
    fn is_ready(&self) -> bool {
        let map = self.managers.map();
        let are_served = map.founded.is_some() && map.pgs.iter().all(|pg| pg.is_active());
        let silent_max = Duration::from_millis(MANAGERS_SILENT_MS);
        are_served && self.managers.silent() < silent_max && !self.proxy.is_removed()
    }

    fn has_clients(&self) -> bool {
        true
    }

    fn cluster(&self) -> Option<ClusterHealth> {
        let health = self.judged(&self.managers.map());
        Some(ClusterHealth { takes_writes: health.takes_writes && self.is_ready(), ..health })
    }

    fn buckets(&self) -> Option<BTreeSet<BucketName>> {
        Some(self.managers.map().buckets.keys().cloned().collect())
    }

    fn counters(&self) -> Vec<Metric> {
        let (alarms, counters) = (self.proxy.alarms(), self.proxy.counters());
        let (reads, _) = self.proxy.reads();
        let waits = self.proxy.region_waits();
        let rank = |rank| reads.asked.iter().map(|by_policy| by_policy[rank]).sum::<u64>();
        let asked: [u64; RANKS] = std::array::from_fn(rank);
        let mut all = vec![
            ("bad_copies", "Copies found with wrong checksums", load(&alarms.bad_copies)),
            ("lost_reads", "Reads that found no good copy", load(&alarms.lost_reads)),
            ("region_waits_met", WAITS_MET, load(&waits.met)),
            ("region_waits_unmet", WAITS_UNMET, load(&waits.unmet)),
            ("uploads_expired", EXPIRED, self.proxy.expired_uploads() as f64),
            ("proxy_retries", "Requests that were repeated", load(&counters.retries)),
            (
                "proxy_bucket_waits",
                "Keys and lists that waited for news of their bucket",
                load(&counters.bucket_waits),
            ),
            (
                "proxy_bucket_questions",
                "Questions to the managers for buckets that were not known here",
                load(&counters.bucket_questions),
            ),
            (
                "proxy_bucket_questions_failed",
                "Requests refused as the managers could not be asked for their bucket",
                load(&counters.bucket_questions_failed),
            ),
            (
                "proxy_failed_writes",
                "Replicas that did not take a put's data",
                load(&counters.failed_writes),
            ),
            (
                "proxy_failed_reads",
                "Replicas that did not give the bytes asked for",
                load(&counters.failed_reads),
            ),
            (
                "proxy_joined_reads",
                "Reads that got what one of the same bytes got, which was under way",
                load(&counters.reads_joined),
            ),
            (
                "proxy_located_reads",
                "Reads of objects where they were remembered to lie, while METAX was asked",
                load(&counters.located_reads),
            ),
            (
                "proxy_located_reads_used",
                "Those whose bytes were the version's",
                load(&counters.located_reads_used),
            ),
            (
                "proxy_hedged_reads",
                "Reads for which another replica was asked too",
                load(&counters.reads_hedged),
            ),
            (
                "proxy_hedges_won",
                "Hedged reads that the other replica answered",
                load(&counters.hedges_won),
            ),
            (
                "proxy_hedges_spared",
                "Reads that were not hedged because the share of hedges was spent",
                reads.hedges_spared as f64,
            ),
            ("proxy_replica_reads", "Reads sent to replicas", asked.iter().sum::<u64>() as f64),
            (
                "proxy_replica_reads_first",
                "Of those, asked as the first of the holders",
                asked[0] as f64,
            ),
            (
                "proxy_replica_reads_informed",
                "Reads sent to replicas while a report of the queue was known",
                reads.reports as f64,
            ),
            (
                "proxy_report_age_seconds",
                "Age of those reports when they were used, summed",
                reads.report_age_us as f64 / 1e6,
            ),
            (
                "proxy_puts_answered_early",
                "Puts answered before every replica had the data",
                load(&counters.answered_early),
            ),
            (
                "proxy_puts_late",
                "Of those, with copies left to be made",
                load(&counters.late_writes),
            ),
            ("proxy_puts_begun_anew", "Puts begun anew", load(&counters.begun_anew)),
            (
                "proxy_probes",
                "Requests to see whether a data server is back",
                load(&counters.probes),
            ),
            (
                "proxy_lost_sessions",
                "Sessions closed by the managers",
                load(&counters.lost_sessions),
            ),
        ];
        all.extend(appends::counters(&self.proxy));
        all
    }

    fn gauges(&self) -> Vec<Metric> {
        let map = self.managers.map();
        let inactive = map.pgs.iter().filter(|pg| !pg.is_active()).count();
        let members = map.founded.map_or(0, |(_, settings)| settings.members);
        let degraded = map.pgs.iter().filter(|pg| pg.members.len() < usize::from(members)).count();
        let of_keys = |reported: fn(&ProxyKeys) -> f64| self.keys.as_deref().map_or(0.0, reported);
        vec![
            ("map_version", "Version of the map that this process has", map.version.0 as f64),
            (
                "map_kept_version",
                "Version of the map in the proxy's directory",
                self.managers.kept().0 as f64,
            ),
            ("pgs_inactive", "Placement groups without an active view", inactive as f64),
            (
                "proxy_replica_reads_owed",
                "Replicas that were asked for bytes and have not answered",
                self.proxy.reads().1 as f64,
            ),
            ("pieces_ahead", PIECES_AHEAD, self.proxy.pieces_ahead() as f64),
            ("pgs_degraded", "Placement groups with fewer members than wanted", degraded as f64),
            (
                "volume_replicas_missing",
                "Replicas of volumes that are wanted and on no server, up or down",
                replicas_missing(&map) as f64,
            ),
            (
                "region_number",
                "Number of the cluster among regions; 0 if it is alone",
                f64::from(map.number().0),
            ),
            (
                "region_gateway",
                "1 if this process speaks with the other regions for the cluster",
                f64::from(u8::from(self.is_gateway(&map))),
            ),
            (
                "root_keys_generation",
                "Changes of root's keys by the managers that are in force here; 0 for keys of a file",
                of_keys(|keys| f64::from(keys.generation())),
            ),
            (
                "root_keys_previous_requests",
                "Requests signed with root's keys before the current ones, since both are taken",
                of_keys(|keys| keys.previous_requests() as f64),
            ),
        ]
    }

    fn write_labelled(&self, out: &mut String) -> std::fmt::Result {
        self.regions.get().map_or(Ok(()), |regions| super::regions::write(regions, out))
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
