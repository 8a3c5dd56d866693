//! Starts a server's background work, and reports its progress.

use std::sync::Arc;
use std::time::Duration;

use larder_env::Disk;
use larder_types::limits::BLOCK_BYTES;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::background::{self, BackgroundConfig};
use super::cluster::Cluster;
use super::scrub::Scrubber;
use super::{Meta, compact, digest, rebuild};
use crate::limits::{DOUBT_REPORT_MS, DOUBTS_REPORTED_MAX, FLOORS_REPORTED_MAX};
use crate::progress::{
    AwayReplica, BackgroundStatus, CompactionStatus, DoubtsStatus, FloorStatus, FloorsStatus,
    LogStatus, Progress, PutInDoubt,
};

impl Meta {
    /// Starts background work on the runtime of the caller; it ends with the server.
    pub(crate) fn start_background(
        self: &Arc<Self>,
        disk: Arc<dyn Disk>,
        config: &BackgroundConfig,
    ) {
        let (runtime, background) = (Handle::current(), self.background.clone());
        background.set_budget(config.bytes_per_s);
        let meta = || Arc::downgrade(self);
        runtime.spawn(background::watch(meta(), background.clone()));
        if self.cluster().is_some() {
            runtime.spawn(rebuild::run(meta()));
        }
        runtime.spawn(compact::run(meta()));
        if let Some(period) = config.scrub_period.filter(|period| *period > Duration::ZERO) {
            if self.cluster().is_some() {
                runtime.spawn(digest::run(meta(), period));
            }
            let now = Instant::now();
            let scrubber =
                Scrubber { meta: meta(), background, disk, period, next: now, saved: now };
            runtime.spawn(scrubber.run());
        }
    }

    /// The state of the budget of background work.
    #[must_use]
    pub fn background_now(&self) -> BackgroundStatus {
        self.background.now()
    }

    /// The progress of all background work.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            background: self.background_now(),
            rebuild: self.rebuild.now(),
            scrub: self.scrub_now(),
            floors: self.floors_now(),
            digests: self.digests_now(),
            compaction: self.compaction_now(),
            log: self.log_now(),
        }
    }

    /// Puts in doubt in groups that this server serves, with the replicas that they wait for.
    pub(super) fn doubts_now(&self, cluster: &Cluster) -> DoubtsStatus {
        let map = cluster.managers.map();
        let mut all: Vec<PutInDoubt> = Vec::new();
        for pg in self.pg_ids() {
            let member = self.lock(pg);
            let old = member.pg.doubts().filter(|doubt| doubt.open_ms >= DOUBT_REPORT_MS);
            all.extend(old.map(|doubt| {
                let replicas = map.lv(doubt.lv).map_or(&[][..], |record| &record.replicas);
                let away = doubt.away.iter().filter_map(|replica| replicas.get(replica));
                PutInDoubt {
                    pg: pg.0,
                    op: doubt.op.seq.0,
                    bucket: doubt.bucket.0,
                    key: doubt.key.as_str().to_owned(),
                    volume: doubt.lv.0,
                    open_ms: doubt.open_ms,
                    away: away
                        .map(|it| AwayReplica { server: it.server.0, disk: it.disk.0 })
                        .collect(),
                }
            }));
        }
        all.sort_by_key(|doubt| std::cmp::Reverse(doubt.open_ms));
        let puts = all.len() as u64;
        all.truncate(DOUBTS_REPORTED_MAX);
        DoubtsStatus { puts, oldest: all }
    }

    /// The progress of the log's trimming.
    #[must_use]
    pub fn log_now(&self) -> LogStatus {
        let retained: Vec<_> = self.pg_ids().map(|pg| self.lock(pg).pg.retained()).collect();
        self.log.now(&retained)
    }

    /// The progress of the compaction of volumes.
    #[must_use]
    pub fn compaction_now(&self) -> CompactionStatus {
        self.compaction.now()
    }

    /// Floors of the volumes of groups that this server serves.
    #[must_use]
    pub fn floors_now(&self) -> FloorsStatus {
        let mut all = Vec::new();
        for pg in self.pg_ids() {
            let member = self.lock(pg);
            all.extend(member.pg.floors().map(|floor| FloorStatus {
                volume: floor.lv.0,
                pg: pg.0,
                floor: floor.lowest.map(|lowest| lowest.0),
                lag_ops: floor.lag_ops,
                waiting_bytes: u64::from(floor.waiting_blocks) * u64::from(BLOCK_BYTES),
            }));
        }
        all.sort_by_key(|floor| std::cmp::Reverse((floor.floor.is_none(), floor.lag_ops)));
        FloorsStatus {
            volumes: all.len() as u64,
            closed: all.iter().filter(|floor| floor.floor.is_none()).count() as u64,
            lag_ops_max: all.iter().map(|floor| floor.lag_ops).max().unwrap_or(0),
            waiting_bytes: all.iter().map(|floor| floor.waiting_bytes).sum(),
            furthest: all.into_iter().take(FLOORS_REPORTED_MAX).collect(),
        }
    }
}
