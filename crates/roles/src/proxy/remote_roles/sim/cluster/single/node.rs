//! The store: it begins, meets trouble, ends, and is looked at while it stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_env::Disk;
use larder_metalog::limits::SEGMENT_BYTES_MIN;
use larder_types::RegionId;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::super::super::SimRng;
use super::super::super::proxies::Findings;
use super::super::places::{DISK_BYTES, Ends, Place};
use super::super::servers::END_MAX;
use crate::directory::DATA_FILE;
use crate::inspect::{self, Report};
use crate::manager::{self, Genesis};
use crate::store::genesis;
use crate::{BackgroundConfig, Meta, Proxy, Store, StoreConfig, blocking};

/// PGs of the store.
const PGS: u32 = 4;
/// Blocks of a small volume: one MiB.
const SMALL_LV_BLOCKS: u32 = 256;
/// Bytes that are left where a disk is nearly full.
const LEFT_BYTES_MAX: u64 = 600 << 20;

/// A store that runs.
pub(super) struct Running {
    store: Store,
    /// Freed blocks rest.
    rests: bool,
    watch: AbortHandle,
}

impl Running {
    pub(super) fn proxy(&self) -> &Arc<Proxy> {
        self.store.proxy()
    }

    pub(super) fn meta(&self) -> &Arc<Meta> {
        self.store.meta()
    }

    /// Returns true if the process is to end.
    pub(super) fn has_given_up(&self) -> bool {
        self.meta().fatal().borrow().is_some()
    }

    /// The things that groups wait for.
    pub(super) fn left(&self) -> Vec<String> {
        let meta = self.meta();
        let of = |pg| {
            let waits = meta.waits(pg).or_else(|| meta.miscounted(pg));
            waits.map(|what| format!("pg {pg}: {what}"))
        };
        meta.pg_ids().filter_map(of).collect()
    }

    /// Blocks that are neither free nor wait to be.
    pub(super) fn used_blocks(&self) -> u64 {
        let space = |pg| self.meta().gauges(pg).space;
        self.meta()
            .pg_ids()
            .map(space)
            .map(|space| space.total - space.free - space.waiting - space.resting)
            .sum()
    }

    /// Returns true if freed blocks rested, and space was never so short that some were given before.
    pub(super) fn has_paused_all(&self) -> bool {
        self.rests && self.meta().pg_ids().all(|pg| self.meta().gauges(pg).unrested == 0)
    }

    /// Looks at what it tells operators, at rest; says what is not so.
    pub(super) fn misreported(&self) -> Vec<String> {
        let (meta, data, proxy) = (self.meta(), self.store.data(), self.proxy());
        let (progress, space) = (meta.progress(), meta.space_now());
        let mut wrong = Vec::new();
        if progress.scrub.is_some_and(|scrub| scrub.bad_since_start > 0) {
            wrong.push(format!("copies are bad: {progress:?}"));
        }
        let volumes = self.store.manager().map().map.lvs.len();
        if space.volumes.len() != volumes || space.uncounted > 0 {
            wrong.push(format!("{volumes} volumes are told as {space:?}"));
        }
        let alarms = proxy.alarms();
        let alarmed = [&alarms.bad_copies, &alarms.lost_reads].map(|it| it.load(Ordering::Relaxed));
        if alarmed != [0; 2] {
            wrong.push(format!("bad copies and lost reads: {alarmed:?}"));
        }
        let (disk, counted) = (data.counters(), data.counts_now());
        if disk.groups == 0 || !counted.is_sound() || !meta.requests_by_kind().now().is_sound() {
            wrong.push(format!("a disk that has worked counts {disk:?}, {counted:?}"));
        }
        wrong
    }
}

/// See the module's head.
pub(super) struct Node {
    sim_rng: SimRng,
    findings: Arc<Findings>,
    place: Place,
    config: StoreConfig,
    /// The settings of a new store, if they are not those that go with the disk.
    genesis: Option<Genesis>,
    scrub_period: Option<Duration>,
    cut_short: AtomicU64,
    /// Bits have rotted: it may refuse to begin, and give up.
    is_rotten: AtomicBool,
}

impl Node {
    pub(super) fn new(sim_rng: &SimRng, findings: &Arc<Findings>, is_large: bool) -> Arc<Self> {
        let place = Place::new(sim_rng);
        let small = Genesis {
            pg_count: PGS,
            lv_blocks: SMALL_LV_BLOCKS,
            pv_count_max: PGS * (6 + sim_rng.below(8) as u32),
        };
        let config = StoreConfig {
            root: place.dir.lock().path().to_owned(),
            data: DATA_FILE.to_owned(),
            pg_count: Some(PGS),
            lv_bytes: None,
            log_segment_bytes: SEGMENT_BYTES_MIN,
            region: RegionId::OWN,
        };
        let scrubs = sim_rng.one_in(2);
        Arc::new(Self {
            place,
            config,
            genesis: (!is_large).then_some(small),
            scrub_period: scrubs.then(|| Duration::from_secs(5 + sim_rng.below(20))),
            cut_short: AtomicU64::new(0),
            is_rotten: AtomicBool::new(false),
            sim_rng: sim_rng.clone(),
            findings: findings.clone(),
        })
    }

    /// From now on it may refuse to begin, and give up.
    pub(super) fn may_fail(&self) {
        self.is_rotten.store(true, Ordering::Relaxed);
    }

    fn is_faulty(&self) -> bool {
        self.place.is_faulty() || self.is_rotten.load(Ordering::Relaxed)
    }

    /// Starts that failed.
    pub(super) fn cut_short(&self) -> u64 {
        self.cut_short.load(Ordering::Relaxed)
    }

    /// Has the store begin a run, with its background work; `None` if its disk fails before it is open.
    pub(super) async fn begin(self: &Arc<Self>, is_faulty: bool) -> Option<Running> {
        let disk = self.place.slow();
        if is_faulty {
            self.place.ail(&self.sim_rng);
        }
        let (config, small) = (self.config.clone(), self.genesis);
        let opened = blocking::run(move || {
            let made = |disk: &dyn Disk, config: &StoreConfig| match small {
                Some(small) => Ok(small),
                None => genesis(disk, config),
            };
            Store::open_on(disk, None, DISK_BYTES, &config, made)
        });
        let store = match opened.await.expect("it does not panic") {
            Ok(store) => store,
            Err(error) => {
                self.cut_short.fetch_add(1, Ordering::Relaxed);
                if !self.is_faulty() {
                    self.findings.violated(format!("the store does not open: {error}"));
                }
                self.place.strike(Ends::Killed);
                return None;
            }
        };
        store.start_background(&BackgroundConfig {
            bytes_per_s: 1 << 30,
            scrub_period: self.scrub_period,
        });
        let mut fatal = store.meta().fatal();
        let node = self.clone();
        let watch = tokio::spawn(async move {
            if let Ok(reason) = fatal.wait_for(Option::is_some).await
                && !node.is_faulty()
            {
                node.findings.violated(format!("the store gives up: {:?}", *reason));
            }
        });
        // Where they do not, volumes are soon in pieces, and compacted.
        let rests = self.sim_rng.one_in(2);
        if !rests {
            store.meta().rest_for(0);
        }
        Some(Running { store, rests, watch: watch.abort_handle() })
    }

    /// Something befalls a store that runs, and ends by itself.
    pub(super) async fn inject_faults(&self, running: &Running) {
        let sim_rng = &self.sim_rng;
        match sim_rng.below(8) {
            0..2 => running.meta().flush_soon(),
            2 => {
                self.place.pace.stall(50 + sim_rng.below(800));
                sleep(sim_rng.ms(4000)).await;
                self.place.pace.stall(0);
            }
            3 => {
                let disk = self.place.disk.lock().reopen();
                let Ok(free) = disk.free_bytes() else { return };
                disk.set_capacity(DISK_BYTES - free + sim_rng.below(LEFT_BYTES_MAX));
                sleep(sim_rng.ms(5000)).await;
                disk.set_capacity(DISK_BYTES);
            }
            _ => {}
        }
    }

    /// Has the disk fail at one of its next operations, and waits a while for that.
    pub(super) async fn break_disk(&self, running: &Running) {
        self.place.ail(&self.sim_rng);
        let late = Instant::now() + self.sim_rng.ms(3000);
        while Instant::now() < late && !running.has_given_up() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends a run, of which nobody has a part any more.
    pub(super) async fn end(&self, running: Running, ends: Ends) {
        self.place.strike(ends);
        let Running { store, watch, .. } = running;
        watch.abort();
        let meta = Arc::downgrade(store.meta());
        if timeout(END_MAX, blocking::run(move || store.close())).await.is_err() {
            self.findings.violated("the store does not end".to_owned());
        }
        let deadline = Instant::now() + END_MAX;
        while meta.strong_count() > 0 {
            if Instant::now() > deadline {
                return self.findings.violated("it does not let go of everything".to_owned());
            }
            sleep(Duration::from_millis(1)).await;
        }
        // A fault that was to come in this run ends with it.
        self.place.disk.lock().kill();
    }

    /// Flips bits of the files whose names begin so.
    pub(super) fn rot(&self, prefix: &str, count: u64) -> bool {
        let disk = self.place.disk.lock();
        (0..count).all(|_| disk.rot(prefix).is_some())
    }

    /// Looks at the store, which stands still; `None` if it was not made yet.
    pub(super) fn inspect(&self) -> Option<Report> {
        let disk: Arc<dyn Disk> = self.place.disk.lock().reopen();
        let map = match manager::load(&*disk) {
            Ok(map) => map?,
            Err(error) => {
                let mut report = Report::default();
                report.fault(error.to_string());
                return Some(report);
            }
        };
        // Of a start that was cut short: no view has begun, and there is nothing yet.
        let has_begun = map.pgs.iter().any(|pg| pg.view.0 > 0);
        has_begun.then(|| inspect::examine(&disk, &self.config, &map, true))
    }
}
