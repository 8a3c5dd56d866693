//! Meta servers and data servers: they run, lose their power, and begin anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_identity::{Role, Roles};
use larder_metalog::LogConfig;
use larder_metalog::limits::SEGMENT_BYTES_MIN;
use larder_net::{Endpoint, Handler, Listener, PeerIdentity, Responder, Services};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{BootId, ClusterId, PgId, ServerId, View};
use larder_volume::{Volume, VolumeConfig};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::super::{DATA, METAS, PGS, SimRng, address, subject};
use super::disks::{DiskSpeed, SlowDisk};
use super::managers::ClusterManagers;
use super::places::{DISK_BYTES, Ends, Place, temp_dir};
use super::stand_in::{Boots, CLUSTER, LV_BLOCKS, PV_COUNT};
use super::{Coverage, World};
use crate::blocking;
use crate::data::node::{DataHandler, DataNode, OpenedDisk};
use crate::inspect::{Report, check_disk, look_at_member};
use crate::managers::Managers;
use crate::meta::{BackgroundConfig, MetaConfig, MetaServer, ServerConfig};
use crate::wire::{DataCall, DataMessage, DataReply, DataService, MetaService};

/// The time that a run may take to let go of everything.
pub(super) const END_MAX: Duration = Duration::from_secs(60);
const DATA_NAME: &str = "data";

/// A meta server that runs.
struct RunningMeta {
    server: MetaServer,
    listener: Listener,
    watch: AbortHandle,
}

/// A data server that runs.
struct RunningData {
    node: Arc<DataNode>,
    listener: Listener,
    watch: AbortHandle,
}

/// The meta servers.
pub(super) struct Metas {
    places: Vec<Place>,
    running: Vec<Mutex<Option<RunningMeta>>>,
    boots: Boots,
    restarts: AtomicU64,
    scrub_period: Option<Duration>,
    snapshots: AtomicU64,
    early: AtomicU64,
    rebuilt: AtomicU64,
    log_groups: AtomicU64,
    /// Comparisons of members' indexes that found them to differ.
    differing: AtomicU64,
}

impl Metas {
    pub(super) fn new(sim_rng: &SimRng) -> Self {
        let count = METAS.len();
        let scrubs = sim_rng.one_in(2);
        Self {
            places: (0..count).map(|_| Place::new(sim_rng)).collect(),
            running: (0..count).map(|_| Mutex::default()).collect(),
            boots: Boots::default(),
            restarts: AtomicU64::new(0),
            scrub_period: scrubs.then(|| Duration::from_secs(5 + sim_rng.below(30))),
            snapshots: AtomicU64::new(0),
            early: AtomicU64::new(0),
            rebuilt: AtomicU64::new(0),
            log_groups: AtomicU64::new(0),
            differing: AtomicU64::new(0),
        }
    }

    pub(super) fn pace(&self, at: usize) -> &DiskSpeed {
        &self.places[at].pace
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns true if all run.
    pub(super) fn all_run(&self) -> bool {
        self.running.iter().all(|running| running.lock().is_some())
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Has a server's index flushed, and its log freed behind it.
    pub(super) fn flush(&self, at: usize) {
        if let Some(running) = &*self.running[at].lock() {
            running.server.meta().flush_soon();
        }
    }

    /// The things that the members of groups wait for, and members that are missing.
    pub(super) fn left(&self, managing: &ClusterManagers) -> Vec<String> {
        let mut left = Vec::new();
        for (at, running) in self.running.iter().enumerate() {
            let me = ServerId(METAS.start + at as u32);
            let running = running.lock();
            let Some(running) = &*running else {
                left.push(format!("meta {at} does not run"));
                continue;
            };
            for pg in (0..PGS).map(PgId) {
                match managing.view(pg).1.contains(&me) {
                    true => {
                        let meta = running.server.meta();
                        let waits = meta.waits(pg).or_else(|| meta.miscounted(pg));
                        left.extend(waits.map(|what| format!("meta {at}, pg {pg}: {what}")));
                    }
                    false => left.push(format!("meta {at} is not a member of pg {pg}")),
                }
            }
        }
        left
    }

    /// Servers that answer reads of a group alone, each in its view.
    pub(super) fn answer_alone(&self, pg: PgId) -> Vec<(usize, View)> {
        let running = self.running.iter().enumerate();
        let answers = |(at, running): (usize, &Mutex<Option<RunningMeta>>)| {
            Some((at, running.lock().as_ref()?.server.meta().answers_alone(pg)?))
        };
        running.filter_map(answers).collect()
    }

    pub(super) fn tally(&self, coverage: &mut Coverage) {
        self.running.iter().for_each(|running| self.note(running.lock().as_ref()));
        coverage.snapshots = self.snapshots.load(Ordering::Relaxed);
        coverage.early = self.early.load(Ordering::Relaxed);
        coverage.rebuilt = self.rebuilt.load(Ordering::Relaxed);
        coverage.log_groups = self.log_groups.load(Ordering::Relaxed);
        coverage.differing = self.differing.load(Ordering::Relaxed);
    }

    /// Counts what a run did.
    fn note(&self, running: Option<&RunningMeta>) {
        let Some(running) = running else { return };
        let meta = running.server.meta();
        self.snapshots.fetch_add(meta.snapshots().begun, Ordering::Relaxed);
        self.early.fetch_add(meta.adoptions().views_early, Ordering::Relaxed);
        self.log_groups.fetch_add(meta.log_counters().groups, Ordering::Relaxed);
        let progress = meta.progress();
        self.rebuilt.fetch_add(progress.rebuild.made, Ordering::Relaxed);
        let digests = progress.digests;
        self.differing.fetch_add(
            digests.map_or(0, |found| found.found_odd + found.found_unclear),
            Ordering::Relaxed,
        );
    }
}

/// The way in which a data server treats what others ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultMode {
    Fine,
    /// It takes no writes.
    Refuses,
    /// It has no room, as it says.
    Full,
    /// It has too much to do, mostly.
    Busy,
    /// It hears late.
    Slow,
    /// It hears nothing.
    Unreachable,
}

impl FaultMode {
    pub(super) const BAD: [Self; 5] =
        [Self::Refuses, Self::Full, Self::Busy, Self::Slow, Self::Unreachable];
}

/// The data servers.
pub(super) struct Datas {
    places: Vec<Place>,
    running: Vec<Mutex<Option<RunningData>>>,
    moods: Vec<Arc<Mutex<FaultMode>>>,
    boots: Boots,
    restarts: AtomicU64,
}

impl Datas {
    pub(super) fn new(sim_rng: &SimRng) -> Self {
        let count = DATA.len();
        Self {
            places: (0..count).map(|_| Place::new(sim_rng)).collect(),
            running: (0..count).map(|_| Mutex::default()).collect(),
            moods: (0..count).map(|_| Arc::new(Mutex::new(FaultMode::Fine))).collect(),
            boots: Boots::default(),
            restarts: AtomicU64::new(0),
        }
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns true if all run.
    pub(super) fn all_run(&self) -> bool {
        self.running.iter().all(|running| running.lock().is_some())
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(super) fn become_(&self, at: usize, fault_mode: FaultMode) {
        *self.moods[at].lock() = fault_mode;
    }
}

/// The handler that the connections of a data server call: its face, in a fault mode.
struct FaultyDataHandler {
    face: Arc<DataHandler>,
    fault_mode: Arc<Mutex<FaultMode>>,
    sim_rng: SimRng,
}

impl Handler<DataService> for FaultyDataHandler {
    fn request(
        &self,
        from: &PeerIdentity,
        request: DataCall,
        payload: Bytes,
        responder: Responder<DataService>,
    ) {
        let is_write = matches!(request, DataCall::Write { .. } | DataCall::Copy(_));
        let fault_mode = *self.fault_mode.lock();
        match fault_mode {
            FaultMode::Refuses if is_write => {
                responder.answer(&DataReply::NotWritten, Bytes::new())
            }
            FaultMode::Full if is_write => responder.answer(&DataReply::Full, Bytes::new()),
            FaultMode::Busy if !self.sim_rng.one_in(3) => responder.busy(),
            FaultMode::Unreachable => {}
            FaultMode::Slow => {
                let (face, from, late) = (self.face.clone(), *from, self.sim_rng.ms(1500));
                tokio::spawn(async move {
                    sleep(late).await;
                    face.request(&from, request, payload, responder);
                });
            }
            _ => self.face.request(from, request, payload, responder),
        }
    }

    fn message(&self, from: &PeerIdentity, message: DataMessage, payload: Bytes) {
        self.face.message(from, message, payload);
    }
}

impl World {
    /// Has all data servers hear late, or as they should.
    pub(in super::super) fn slow_down(&self, is_slow: bool) {
        let fault_mode = if is_slow { FaultMode::Slow } else { FaultMode::Fine };
        (0..DATA.len()).for_each(|at| self.datas.become_(at, fault_mode));
    }

    /// Has a meta server begin a run.
    pub(super) async fn begin_meta(self: &Arc<Self>, at: usize) {
        let id = ServerId(METAS.start + at as u32);
        let host = self.sim_network.network.host(subject(id.0, Role::Meta));
        let (arrivals, endpoint) = (host.listen(address(id.0)), Endpoint::simulated(host));
        let boot = self.metas.boots.next(id);
        let place = &self.metas.places[at];
        let disk = place.slow();
        let log = LogConfig { segment_bytes: SEGMENT_BYTES_MIN, ..LogConfig::new(boot.0) };
        let scrub_period = self.metas.scrub_period;
        let config = ServerConfig {
            meta: MetaConfig { me: id, log },
            boot,
            addresses: vec![address(id.0).to_string()],
            background: BackgroundConfig { bytes_per_s: 1 << 30, scrub_period },
        };
        let root = place.dir.lock().path().to_owned();
        let managers = self.managing.of(id, &endpoint, Some(disk.clone())).await;
        let server = MetaServer::open(disk, &root, &endpoint, managers, &config);
        let server = server.unwrap_or_else(|error| panic!("meta {at} does not open: {error}"));
        let callers = Roles::of(&[Role::Proxy, Role::Meta, Role::Manager]);
        let services = Services::new().with::<MetaService>(callers, server.handler());
        let listener = Listener::start(&endpoint, arrivals, services).expect("it listens");
        let watch = tokio::spawn(self.clone().watch_meta(at, &server)).abort_handle();
        let running = RunningMeta { server, listener, watch };
        let before = self.metas.running[at].lock().replace(running);
        assert!(before.is_none(), "meta {at} runs once");
    }

    /// Finds a server that gives up.
    fn watch_meta(
        self: Arc<Self>,
        at: usize,
        server: &MetaServer,
    ) -> impl Future<Output = ()> + Send + use<> {
        let mut fatal = server.meta().fatal();
        async move {
            if let Ok(reason) = fatal.wait_for(Option::is_some).await
                && !self.metas.places[at].is_faulty()
            {
                self.findings.violated(format!("meta {at} gives up: {:?}", *reason));
            }
        }
    }

    /// Ends a meta server's run, if it runs; it begins another after a while.
    pub(super) async fn restart_meta(self: Arc<Self>, at: usize, ends: Ends, away: Duration) {
        if self.stop_meta(at, ends).await {
            sleep(away).await;
            self.return_meta(at).await;
        }
    }

    /// Has a meta server that was stopped begin another run.
    pub(super) async fn return_meta(self: &Arc<Self>, at: usize) {
        self.sim_network.isolate(ServerId(METAS.start + at as u32), false);
        self.begin_meta(at).await;
    }

    /// Ends a meta server's run; `false` if it does not run.
    pub(super) async fn stop_meta(&self, at: usize, ends: Ends) -> bool {
        let Some(running) = self.metas.running[at].lock().take() else { return false };
        self.metas.restarts.fetch_add(1, Ordering::Relaxed);
        self.metas.note(Some(&running));
        let id = ServerId(METAS.start + at as u32);
        self.sim_network.isolate(id, true);
        self.metas.places[at].strike(ends);
        let RunningMeta { server, listener, watch } = running;
        watch.abort();
        drop(listener);
        let meta = Arc::downgrade(server.meta());
        self.close(&format!("meta {at}"), move || server.close()).await;
        self.until_ended(&format!("meta {at}"), || meta.strong_count() == 0).await;
        let place = &self.metas.places[at];
        // A fault that was to come in this run ends with it.
        place.disk.lock().kill();
        match ends {
            Ends::Wiped => {
                *place.disk.lock() = SimDisk::new(self.sim_rng.below(u64::MAX), DISK_BYTES);
                *place.dir.lock() = temp_dir();
            }
            _ => self.inspect_meta(at),
        }
        true
    }

    /// Looks at what a run of a meta server left behind: whatever ended it, the next finds no fault in it.
    fn inspect_meta(&self, at: usize) {
        let place = &self.metas.places[at];
        let (disk, root) = (place.disk.lock().reopen(), place.dir.lock().path().to_owned());
        let (mut report, me) = (Report::default(), subject(METAS.start + at as u32, Role::Meta));
        look_at_member(&*disk, &root, &me, &mut report);
        self.judge_inspection(&format!("meta {at}"), &report);
    }

    /// The same of a data server.
    fn inspect_data(&self, at: usize) {
        let (mut report, disk) = (Report::default(), self.datas.places[at].disk.lock().reopen());
        check_disk(&*disk, DATA_NAME, ClusterId(CLUSTER), &mut report);
        self.judge_inspection(&format!("data {at}"), &report);
    }

    fn judge_inspection(&self, whose: &str, report: &Report) {
        if !report.is_sound() {
            self.findings.violated(format!("an inspection of {whose} finds {report}"));
        }
    }

    /// Has the disk of a meta server fail; its process ends a moment later.
    pub(super) async fn break_meta(self: Arc<Self>, at: usize, after: Duration, away: Duration) {
        if self.metas.running[at].lock().is_none() {
            return;
        }
        self.metas.places[at].ail(&self.sim_rng);
        sleep(after).await;
        // The page cache is lost with the power alone.
        self.restart_meta(at, Ends::Killed, away).await;
    }

    /// Has the disk of a data server fail; its process ends a moment later.
    pub(super) async fn break_data(self: Arc<Self>, at: usize, after: Duration, away: Duration) {
        if self.datas.running[at].lock().is_none() {
            return;
        }
        self.datas.places[at].ail(&self.sim_rng);
        sleep(after).await;
        self.restart_data(at, Ends::Killed, away).await;
    }

    /// Has a data server begin a run.
    pub(super) async fn begin_data(self: &Arc<Self>, at: usize) {
        let id = ServerId(DATA.start + at as u32);
        let host = self.sim_network.network.host(subject(id.0, Role::Data));
        let (arrivals, endpoint) = (host.listen(address(id.0)), Endpoint::simulated(host));
        let boot = self.datas.boots.next(id);
        let disk = self.datas.places[at].slow();
        let managers = self.managing.of(id, &endpoint, Some(disk.clone())).await;
        let node = self.open_data(at, (id, boot), (disk, managers));
        node.introduce(id, vec![address(id.0).to_string()]);
        let face = FaultyDataHandler {
            face: Arc::new(DataHandler::new(node.clone(), &endpoint)),
            fault_mode: self.datas.moods[at].clone(),
            sim_rng: self.sim_rng.clone(),
        };
        let callers = Roles::of(&[Role::Proxy, Role::Meta, Role::Manager, Role::Data]);
        let services = Services::new().with::<DataService>(callers, face);
        let listener = Listener::start(&endpoint, arrivals, services).expect("it listens");
        let watched = node.clone();
        let watch = tokio::spawn(async move { watched.watch_disk().await }).abort_handle();
        let running = RunningData { node, listener, watch };
        let before = self.datas.running[at].lock().replace(running);
        assert!(before.is_none(), "data {at} runs once");
    }

    fn open_data(
        &self,
        at: usize,
        (me, boot): (ServerId, BootId),
        (disk, managers): (Arc<SlowDisk>, Arc<dyn Managers>),
    ) -> Arc<DataNode> {
        let disk_id = self.managing.disk_of(me);
        let pv_bytes = u64::from(LV_BLOCKS) * u64::from(BLOCK_BYTES);
        let config = VolumeConfig { cluster: CLUSTER, disk_id, pv_bytes, pv_count_max: PV_COUNT };
        let volume = match boot.0 & u64::from(u32::MAX) {
            1 => Volume::create(&*disk, DATA_NAME, config, boot),
            _ => Volume::open(&*disk, DATA_NAME, boot),
        };
        let volume = volume.unwrap_or_else(|error| panic!("data {at} does not open: {error}"));
        let taken =
            OpenedDisk { disk, capacity_bytes: DISK_BYTES, volume, id: disk_id, lock: None };
        let node = DataNode::run(taken, (me, boot), DATA_NAME, managers);
        node.unwrap_or_else(|error| panic!("data {at} does not open: {error}"))
    }

    /// Ends a data server's run, if it runs; it begins another after a while.
    pub(super) async fn restart_data(self: Arc<Self>, at: usize, ends: Ends, away: Duration) {
        if self.stop_data(at, ends).await {
            sleep(away).await;
            self.return_data(at).await;
        }
    }

    /// Has a data server that was stopped begin another run.
    pub(super) async fn return_data(self: &Arc<Self>, at: usize) {
        self.sim_network.isolate(ServerId(DATA.start + at as u32), false);
        self.begin_data(at).await;
    }

    /// Ends a data server's run; `false` if it does not run.
    pub(super) async fn stop_data(&self, at: usize, ends: Ends) -> bool {
        let Some(running) = self.datas.running[at].lock().take() else { return false };
        self.datas.restarts.fetch_add(1, Ordering::Relaxed);
        let id = ServerId(DATA.start + at as u32);
        self.sim_network.isolate(id, true);
        self.datas.places[at].strike(ends);
        self.end_data(at, running).await;
        self.datas.places[at].disk.lock().kill();
        self.inspect_data(at);
        true
    }

    async fn end_data(&self, at: usize, running: RunningData) {
        let RunningData { node, listener, watch } = running;
        watch.abort();
        drop(listener);
        let left = Arc::downgrade(&node);
        self.close(&format!("data {at}"), move || node.close()).await;
        self.until_ended(&format!("data {at}"), || left.strong_count() == 0).await;
    }

    async fn close(&self, what: &str, close: impl FnOnce() + Send + 'static) {
        if timeout(END_MAX, blocking::run(close)).await.is_err() {
            self.findings.violated(format!("{what} does not end"));
        }
    }

    async fn until_ended(&self, what: &str, is_gone: impl Fn() -> bool) {
        let deadline = Instant::now() + END_MAX;
        while !is_gone() {
            if Instant::now() > deadline {
                return self.findings.violated(format!("{what} does not let go of everything"));
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends all runs.
    pub(super) async fn end(self: &Arc<Self>) {
        for at in 0..METAS.len() {
            let running = self.metas.running[at].lock().take();
            if let Some(RunningMeta { server, listener, watch }) = running {
                watch.abort();
                drop(listener);
                let meta = Arc::downgrade(server.meta());
                self.close(&format!("meta {at}"), move || server.close()).await;
                self.until_ended(&format!("meta {at}"), || meta.strong_count() == 0).await;
                self.inspect_meta(at);
            }
        }
        for at in 0..DATA.len() {
            let running = self.datas.running[at].lock().take();
            if let Some(running) = running {
                self.end_data(at, running).await;
                self.inspect_data(at);
            }
        }
    }
}
