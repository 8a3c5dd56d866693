//! A whole cluster: proxies, meta servers, data servers and managers as they are, over a simulated network and simulated disks.
//! Their threads take turns with the tasks (`larder_env::simulated::threads`), and one seed decides all of it. Managers are
//! those of production (`quorum.rs`), which also run alone (`alone.rs`), or the real policy over the real map in one place
//! (`stand_in.rs`), which is faster.
//!
//! # Invariants
//!
//! Those of the simulation with stand-ins (`sim/mod.rs`), and
//!
//! 1. What fails ends by itself: at rest no server is started anew, and then calls are quick.
//! 2. A server that runs does not give up: it ends where its disk lost power, and nowhere else.
//! 3. At most one server at a time answers reads of a group alone, by its lease.

mod agreed;
mod alone;
mod cluster_network;
mod disks;
mod faults;
mod harness;
mod managers;
mod places;
mod quorum;
mod recovery;
mod servers;
mod single;
mod stand_in;
mod stub_servers;
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_env::simulated::threads::Threads;
use larder_net::Endpoint;
use larder_net::limits::BACKOFF_MAX;
use larder_net::simulated::{Network, NetworkConditions};
use larder_protocol::limits::{PROBATION_DOUBLINGS_MAX, PROBATION_MS};
use larder_types::{PgId, ServerId};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::proxies::{Findings, Proxies};
use super::{
    DATA, METAS, PGS, PROXIES, QUIESCENCE_TIME, Ran, SimRng, tests::has_panicked,
    tests::watch_panics,
};
use crate::managers::Managers;
use crate::planted::{Bug, plant};
use cluster_network::ClusterNetwork;
use managers::ClusterManagers;
use quorum::{MANAGERS, MetManagers, Quorum};
use servers::{Datas, Metas};
use stand_in::{MANAGER, StandIn};
use stub_servers::StubServers;
pub(super) use tests::print_log;

/// The time that everything has to come to rest: a server that began anew often is trusted again after so
/// long.
pub(super) const MEMBERS_BACK: Duration =
    Duration::from_millis((PROBATION_MS << PROBATION_DOUBLINGS_MAX) + 60_000);

/// Time between two looks at leases.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Everything but the proxies.
pub(super) struct World {
    sim_rng: SimRng,
    sim_network: Arc<ClusterNetwork>,
    findings: Arc<Findings>,
    managing: ClusterManagers,
    metas: Metas,
    datas: Datas,
    /// No more faults begin.
    is_calm: AtomicBool,
    /// Managers may be lost with their disks.
    recovers: bool,
    /// They are, and no other server's disk is to be lost meanwhile.
    is_recovering: AtomicBool,
}

/// The events that a seed met, beside what its proxies did.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    restarts: u64,
    views: u64,
    snapshots: u64,
    /// Views that were served before the rows were read.
    early: u64,
    rebuilt: u64,
    log_groups: u64,
    differing: u64,
    managers: MetManagers,
}

impl Coverage {
    /// Counts another run in.
    fn add(&mut self, other: &Self) {
        self.restarts += other.restarts;
        self.views += other.views;
        self.snapshots += other.snapshots;
        self.early += other.early;
        self.rebuilt += other.rebuilt;
        self.log_groups += other.log_groups;
        self.differing += other.differing;
        self.managers.restarts += other.managers.restarts;
        self.managers.terms += other.managers.terms;
        self.managers.tokens += other.managers.tokens;
        self.managers.snapshots += other.managers.snapshots;
        self.managers.recoveries += other.managers.recoveries;
    }
}

struct Simulation {
    world: Arc<World>,
    proxies: Proxies,
    _residents: StubServers,
}

/// The managers of the clusters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ManagerKind {
    /// The stand-in.
    StandIn,
    /// Managers as they are.
    Quorum,
    /// The same, and all may be lost with their disks: they are made anew.
    Recovered,
}

/// The network of a cluster with these servers that manage.
fn sim_network(sim_rng: &SimRng, managers: Range<u32>) -> Arc<ClusterNetwork> {
    let conditions = NetworkConditions {
        delay_ms: sim_rng.below(4),
        late_one_in: 20 + sim_rng.below(200),
        late_ms: 20 + sim_rng.below(400),
        split_one_in: sim_rng.below(6),
    };
    let drawn = sim_rng.clone();
    let network = Network::new(conditions, move || drawn.0.lock().next_u64());
    ClusterNetwork::new(network, (METAS.start..PROXIES.end).chain(managers).map(ServerId).collect())
}

impl World {
    /// Has a cluster for these proxies begin, and waits until all of its groups are served. Without proxies it draws how many
    /// there are, and speaks for them to the managers.
    async fn begin(
        sim_rng: SimRng,
        by: ManagerKind,
        proxies: Option<Range<u32>>,
    ) -> (Arc<Self>, Range<u32>) {
        let managers = match by {
            ManagerKind::StandIn => MANAGER.0..MANAGER.0 + 1,
            ManagerKind::Quorum | ManagerKind::Recovered => MANAGERS,
        };
        let sim_network = sim_network(&sim_rng, managers);
        let speaks = proxies.is_none();
        let drawn = || PROXIES.start..PROXIES.start + 1 + sim_rng.below(3) as u32;
        let proxies = proxies.unwrap_or_else(drawn);
        let findings: Arc<Findings> = Arc::default();
        let managing = match by {
            ManagerKind::StandIn => {
                let network = sim_network.network.clone();
                ClusterManagers::StandIn(StandIn::open(
                    sim_rng.clone(),
                    network,
                    proxies.clone(),
                    speaks,
                ))
            }
            ManagerKind::Quorum | ManagerKind::Recovered => {
                ClusterManagers::Quorum(Quorum::open(&sim_rng, &sim_network, &findings))
            }
        };
        let world = Arc::new(Self {
            metas: Metas::new(&sim_rng),
            datas: Datas::new(&sim_rng),
            sim_rng,
            sim_network,
            findings,
            managing,
            is_calm: AtomicBool::new(false),
            recovers: by == ManagerKind::Recovered,
            is_recovering: AtomicBool::new(false),
        });
        if let ClusterManagers::Quorum(quorum) = &world.managing {
            quorum.until_founded().await;
        }
        for at in 0..DATA.len() {
            world.begin_data(at).await;
        }
        for at in 0..METAS.len() {
            world.begin_meta(at).await;
        }
        let deadline = Instant::now() + QUIESCENCE_TIME;
        while (0..PGS).any(|pg| !world.managing.is_active(PgId(pg))) {
            assert!(Instant::now() < deadline, "some group does not come to be served");
            sleep(Duration::from_millis(50)).await;
        }
        (world, proxies)
    }
}

impl Simulation {
    async fn begin(seed: u64, by: ManagerKind) -> Self {
        let (world, proxies) = World::begin(SimRng::new(seed), by, None).await;
        let count = proxies.len() as u32;
        let stub_servers = StubServers::default();
        let managers = async |id, endpoint: &Arc<Endpoint>| -> Arc<dyn Managers> {
            let managers = world.managing.of(id, endpoint, None).await;
            if by != ManagerKind::StandIn {
                stub_servers.settle(id, endpoint, &world.sim_network.network, managers.clone());
            }
            managers
        };
        let ground = (&world.sim_rng, &world.findings);
        let mut proxies = Proxies::begin(ground, &world.sim_network.network, count, managers).await;
        if by != ManagerKind::StandIn {
            proxies.request_maps();
        }
        // Half of the seeds keep their bucket: elsewhere few keys are there for long. Of one that is made while managers are lost
        // proxies' maps tell, which are not kept here.
        if world.sim_rng.one_in(2) && by != ManagerKind::Recovered {
            proxies.remake_buckets();
        }
        // A map that is lost with the managers may be one that was answered.
        if by != ManagerKind::Recovered {
            proxies.make_buckets();
        }
        Self { world, proxies, _residents: stub_servers }
    }

    async fn run(self, began: Instant) -> (Ran, Coverage) {
        let world = &self.world;
        self.proxies.make_bucket(|command| world.managing.agree(command)).await;
        let faults = tokio::spawn(faults::happen(world.clone()));
        let leases = tokio::spawn(world.clone().watch_leases());
        self.proxies.serve_clients().await;
        world.is_calm.store(true, Ordering::Relaxed);
        if let Err(panic) = faults.await {
            world.findings.violated(format!("a fault: {panic}"));
        }
        self.quiesce().await;
        // Connections are tried again, and maps are heard.
        sleep(2 * BACKOFF_MAX).await;
        self.proxies.put_all().await;
        // Another proxy may have to hear of a new volume.
        sleep(2 * BACKOFF_MAX).await;
        self.proxies.read_all().await;
        leases.abort();
        let mut coverage = world.coverage();
        // The end of all connections is none of the run.
        let (delivered, took) = (world.sim_network.network.delivered(), began.elapsed());
        world.end().await;
        if let ClusterManagers::Quorum(quorum) = &world.managing {
            quorum.end().await;
            coverage.managers = quorum.coverage();
        }
        if coverage.differing > 0 {
            world.findings.violated(format!("members of a group differ: {coverage:?}"));
        }
        let mut ran = Ran { violations: world.findings.all(), delivered, took, ..Ran::default() };
        self.proxies.tally(&mut ran);
        (ran, coverage)
    }

    /// Waits until nothing is left, and says what is left after all.
    async fn quiesce(&self) {
        let deadline = Instant::now() + MEMBERS_BACK;
        loop {
            let mut left = self.proxies.left();
            left.extend(self.world.managing.left());
            left.extend(self.world.metas.left(&self.world.managing));
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                return self.world.findings.violated(format!("left at rest: {}", left.join(", ")));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl World {
    /// Finds two servers that answer reads of a group alone at the same time.
    async fn watch_leases(self: Arc<Self>) {
        let mut found = BTreeSet::new();
        loop {
            sleep(POLL_INTERVAL).await;
            for pg in (0..PGS).map(PgId) {
                let alone = self.metas.answer_alone(pg);
                if alone.len() > 1 && found.insert(pg) {
                    self.findings.violated(format!("{alone:?} answer alone in {pg}"));
                }
            }
        }
    }

    fn coverage(&self) -> Coverage {
        let views = |pg| self.managing.view(PgId(pg)).0;
        let mut coverage = Coverage {
            restarts: self.metas.restarts() + self.datas.restarts(),
            views: (0..PGS).map(views).sum(),
            ..Coverage::default()
        };
        self.metas.tally(&mut coverage);
        coverage
    }
}

/// Lets threads take turns with the tasks of the runtime, as long as it is polled.
async fn run_threads(threads: Arc<Threads>, began: Instant) {
    loop {
        while threads.run_one() {
            yield_now().await;
        }
        let ready = std::future::poll_fn(|cx| threads.poll_ready(cx));
        match threads.next_due() {
            Some(due) => tokio::select! {
                biased;
                () = ready => {}
                () = sleep_until(began + due) => {}
            },
            None => ready.await,
        }
    }
}

/// Runs one seed of a whole cluster.
fn run(seed: u64, by: ManagerKind, bug: Option<Bug>) -> (Ran, Coverage) {
    simulate(seed, bug, async |began| Simulation::begin(seed, by).await.run(began).await)
}

/// The same, with a function of its own.
fn simulate(
    seed: u64,
    bug: Option<Bug>,
    what: impl AsyncFnOnce(Instant) -> (Ran, Coverage),
) -> (Ran, Coverage) {
    let ((mut ran, coverage), violations) = with_threads(seed, bug, what);
    ran.violations.extend(violations);
    (ran, coverage)
}

/// Has something run on a runtime of its own, with threads that take turns; also returns what must never be.
pub(super) fn with_threads<T>(
    seed: u64,
    bug: Option<Bug>,
    what: impl AsyncFnOnce(Instant) -> T,
) -> (T, Vec<String>) {
    watch_panics();
    plant(bug);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime is made");
    let handle = runtime.handle().clone();
    let (ran, mut violations, left) = runtime.block_on(async {
        let began = Instant::now();
        let simulation = larder_env::simulated::begin(seed, move || began.elapsed());
        let threads = simulation.threads(seed, move |run| {
            let _runtime = handle.enter();
            plant(bug);
            run();
        });
        let turns = tokio::spawn(run_threads(threads.clone(), began));
        let ran = what(began).await;
        // Reads that nobody waits for any more.
        for _ in 0..1000 {
            if !threads.left().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        }
        turns.abort();
        let panicked = threads.panics().into_iter().map(|it| format!("{it} panicked"));
        (ran, panicked.collect::<Vec<_>>(), threads.left())
    });
    drop(runtime);
    plant(None);
    if !left.is_empty() {
        violations.push(format!("threads that have not ended: {}", left.join(", ")));
    }
    if has_panicked() {
        violations.push("a task panicked".to_owned());
    }
    (ran, violations)
}
