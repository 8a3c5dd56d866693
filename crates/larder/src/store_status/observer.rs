//! Makes the document of a running store. It looks at the store every ten seconds, so that it can say since when the
//! state lasts and how fast the store fills.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use larder_roles::breakdown::CountsStatus;
use larder_roles::data::DataServer;
use larder_roles::manager::LocalManager;
use larder_roles::meta::Meta;
use larder_roles::observed::Growth;
use larder_roles::progress::{BucketUsage, SpaceStatus};
use larder_roles::{Proxy, SpaceUse, Store};
use larder_s3::ServerHooks;
use larder_types::RegionId;
use larder_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::document::{Document, Load};
use super::growth::History;
use super::verdict::{self, StatusFacts, Verdict};
use crate::cluster::status::space::{Bucket, Space};
use crate::metrics::{Metrics, State};
use crate::release;
use crate::wall_clock::now_ms;

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// With fewer bytes a put of a large chunk may find none.
const FREE_BYTES_MIN: u64 = 2 * CHUNK_BYTES_MAX as u64;
/// Bytes of the unit in which a file system counts what a file takes.
const SECTOR_BYTES: u64 = 512;

/// Looks at a store.
pub(crate) struct Observer {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    proxy: Arc<Proxy>,
    manager: Arc<LocalManager>,
    metrics: Arc<Metrics>,
    /// Of the data; `None` if it is a block device.
    file: Option<PathBuf>,
    began: Instant,
    began_ms: u64,
    seen: Mutex<Before>,
}

/// Results of earlier looks.
struct Before {
    is_well: bool,
    since_ms: u64,
    /// Requests that had ended by then, and those of them that had failed.
    ended: (u64, u64),
    at: Instant,
    load: Load,
    history: History,
}

/// Sums over the groups of a store.
#[derive(Default)]
struct Sums {
    in_doubt: u64,
    in_doubt_ms: u64,
    space: SpaceUse,
}

impl Observer {
    /// Looks at an open store, whose data is in `data` below `dir` or on a device.
    pub(crate) fn new(store: &Store, metrics: Arc<Metrics>, dir: &Path, data: &str) -> Self {
        let (now, began_ms) = (Instant::now(), now_ms());
        let before = Before {
            is_well: true,
            since_ms: began_ms,
            ended: metrics.ended(),
            at: now,
            load: Load::default(),
            history: History::default(),
        };
        Self {
            meta: store.meta().clone(),
            data: store.data().clone(),
            proxy: store.proxy().clone(),
            manager: store.manager().clone(),
            metrics,
            file: Path::new(data).is_relative().then(|| dir.join(data)),
            began: now,
            began_ms,
            seen: Mutex::new(before),
        }
    }

    /// Looks again and again, as long as the process lives.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let observer = self.clone();
            // It takes the locks of all groups, and asks the file system.
            if spawn_blocking(move || observer.look()).await.is_err() {
                return;
            }
        }
    }

    fn look(&self) {
        let sums = self.sums();
        let space = self.space(&sums);
        let Verdict { is_well, .. } = self.verdict(&sums, space);
        let mut before = self.seen.lock();
        before.heed(is_well);
        let ended = self.metrics.ended();
        before.load = load(before.ended, ended, before.at.elapsed());
        (before.ended, before.at) = (ended, Instant::now());
        // After a start it is not known at once how much is taken.
        if space.unknown == 0 {
            let now_s = self.began.elapsed().as_secs();
            before.history.note(now_s, space.free);
        }
    }

    /// The document, as of now.
    pub(super) fn document(&self) -> Document {
        let sums = self.sums();
        let space = self.space(&sums);
        let Verdict { line, is_well } = self.verdict(&sums, space);
        let now = self.meta.space_now();
        let buckets = self.buckets(&now);
        let of_all = |count: fn(&BucketUsage) -> u64| {
            now.buckets.iter().map(count).sum::<u64>() + count(&now.other_buckets)
        };
        let region = self.manager.region();
        let (pgs_halted, index_bytes) = (self.meta.groups_halted(), self.meta.index_bytes());
        let (log_bytes, progress) = (self.meta.log_counters().disk_bytes, self.meta.progress());
        let (since_ms, load, growth) = {
            let mut before = self.seen.lock();
            before.heed(is_well);
            (before.since_ms, before.load, self.growth(&before.history, space))
        };
        Document {
            verdict: line,
            is_well,
            since_ms,
            release: release::SHOWN.to_owned(),
            began_ms: self.began_ms,
            is_ready: self.metrics.ready(),
            space,
            growth,
            load,
            pgs: self.meta.pg_ids().count(),
            pgs_halted,
            index_damaged_since_ms: self.meta.index_damage().map(|damage| damage.since_ms),
            objects: of_all(|it| it.objects),
            object_bytes: of_all(|it| it.bytes),
            buckets,
            buckets_not_named: now.other_buckets.bucket,
            pgs_uncounted: u64::from(now.uncounted),
            puts_in_doubt: sums.in_doubt,
            put_in_doubt_oldest_ms: sums.in_doubt_ms,
            index_bytes,
            log_bytes,
            region: (region != RegionId::OWN).then_some(region.0),
            progress,
        }
    }

    /// Operations and requests since the start, of all roles.
    pub(super) fn counts(&self) -> CountsStatus {
        let mut counts = self.metrics.operations().now();
        for of in [self.meta.requests_by_kind().now(), self.data.counts_now()] {
            counts.age_s = counts.age_s.min(of.age_s);
            counts.counts.extend(of.counts);
        }
        counts
    }

    /// All buckets; those with the most bytes come first.
    fn buckets(&self, now: &SpaceStatus) -> Vec<Bucket> {
        let counted: BTreeMap<u64, &BucketUsage> =
            now.buckets.iter().map(|it| (it.bucket, it)).collect();
        let named = self.meta.bucket_names().into_iter().map(|(id, name)| {
            let (objects, bytes) = counted.get(&id.0).map_or((0, 0), |it| (it.objects, it.bytes));
            Bucket { name: name.to_string(), objects, bytes }
        });
        let mut buckets: Vec<Bucket> = named.collect();
        buckets.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
        buckets
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for pg in self.meta.pg_ids() {
            let gauges = self.meta.gauges(pg);
            sums.in_doubt += gauges.in_doubt as u64;
            sums.in_doubt_ms = sums.in_doubt_ms.max(gauges.in_doubt_ms);
            sums.space.total += gauges.space.total;
            sums.space.free += gauges.space.free;
            sums.space.waiting += gauges.space.waiting;
            sums.space.resting += gauges.space.resting;
            sums.space.withheld += gauges.space.withheld;
            sums.space.unread += gauges.space.unread;
        }
        sums
    }

    fn space(&self, sums: &Sums) -> Space {
        let bytes = |blocks: u64| blocks * u64::from(BLOCK_BYTES);
        let SpaceUse { total, free, waiting, resting, withheld, unread } = sums.space;
        // Blocks that rest are given where none else are left.
        let used = bytes(total.saturating_sub(free + resting + withheld + waiting + unread));
        let (waiting, unknown) = (bytes(waiting), bytes(unread));
        let taken = used + waiting + unknown;
        let free = match &self.file {
            // Space that the file takes of the file system and does not use is available again.
            Some(file) => {
                let of_file = file.metadata().map_or(0, |about| about.blocks() * SECTOR_BYTES);
                self.data.spare_bytes() + of_file.saturating_sub(taken)
            }
            None => {
                let map = self.manager.map();
                let volume = bytes(u64::from(map.map.lv_blocks));
                (volume * u64::from(map.map.pv_count_max)).saturating_sub(taken)
            }
        };
        Space { bytes: taken + free, used, waiting, free, unknown }
    }

    fn verdict(&self, sums: &Sums, space: Space) -> Verdict {
        verdict::of(&StatusFacts {
            is_broken: self.data.is_broken(),
            index_damage: self.meta.index_damage().map(|damage| damage.reason),
            pgs_halted: self.meta.groups_halted(),
            damaged: self.meta.progress().scrub.map_or(0, |scrub| scrub.bad),
            is_removed: self.proxy.is_removed(),
            put_in_doubt_oldest_ms: sums.in_doubt_ms,
            is_full: self.data.is_full() || self.meta.log_is_full() || space.free < FREE_BYTES_MIN,
            space,
            growth: self.growth(&self.seen.lock().history, space),
        })
    }

    fn growth(&self, history: &History, space: Space) -> Option<Growth> {
        let now_s = self.began.elapsed().as_secs();
        history.growth(now_s, space.free)
    }
}

impl State for Arc<Observer> {
    fn state_json(&self) -> BoxFuture<'_, Option<Bytes>> {
        let observer = self.clone();
        async move {
            // It takes the locks of all groups, and asks the file system.
            let made = spawn_blocking(move || serde_json::to_vec(&observer.document())).await;
            let made = made.map_err(std::io::Error::other).and_then(|it| it.map_err(Into::into));
            made.map(Bytes::from)
                .inspect_err(|error| tracing::warn!(%error, "the store's state cannot be reported"))
                .ok()
        }
        .boxed()
    }
}

impl Before {
    fn heed(&mut self, is_well: bool) {
        if is_well != self.is_well {
            (self.is_well, self.since_ms) = (is_well, now_ms());
        }
    }
}

/// Requests in a second between two counts of those that ended and those that failed.
fn load(from: (u64, u64), to: (u64, u64), within: Duration) -> Load {
    let seconds = within.as_secs_f64();
    if seconds <= 0.0 {
        return Load::default();
    }
    let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
    Load { requests_per_s: rate(from.0, to.0), failed_per_s: rate(from.1, to.1) }
}
