//! The driver as it is, simulated: proxies of production over a simulated network, on a runtime of one thread whose clock
//! stands still while anything can be done. One seed decides all that is drawn, so that a failure repeats exactly (ADR 36).
//!
//! What proxies ask is answered by stand-ins: meta servers and managers that share one state (`meta.rs`, `store.rs`,
//! `managers.rs`), and data servers that keep bytes (`data.rs`). Calls of clients and what they were answered are judged by the
//! history checker of the simulator of the protocol.
//!
//! # Invariants
//!
//! 1. What was answered is explained by some order of the calls, each of which takes effect at most once; a list too.
//! 2. Each call ends within a bound, whatever fails.
//! 3. When nothing fails any more, nothing is left: no open put, request, permit, or read that is waited for.
//! 4. The same seed makes the same run, to each byte that arrives and when.

mod buckets;
mod clients;
mod cluster;
mod data;
mod faults;
mod managers;
mod meta;
mod proxies;
mod regions;
mod shapes;
mod store;
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use larder_env::SeededRng;
use larder_identity::{Role, Roles, Subject};
use larder_net::limits::BACKOFF_MAX;
use larder_net::simulated::{Delivered, Network, NetworkConditions};
use larder_net::{Endpoint, Listener, Services};
use larder_types::{ClusterId, Holders, ServerId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::super::ClusterProxy;
use super::ClusterConfig;
use super::planted::{Bug, plant};
use crate::managers::Managers;
use crate::wire::{DataService, MetaService};
use data::{DataHandler, Disk, FaultMode};
use managers::{Agreed, RecordingManagers};
use meta::SimMetaHandler;
use proxies::{Findings, Proxies};
use store::Store;

const METAS: Range<u32> = 0..3;
const DATA: Range<u32> = 3..6;
const PROXIES: Range<u32> = 6..9;
const PGS: u32 = 4;
/// The time that everything has to come to rest when nothing fails any more.
const QUIESCENCE_TIME: Duration = Duration::from_secs(90);

fn address(id: u32) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 1, id as u8), 7000).into()
}

/// The source of randomness that all parts draw from.
#[derive(Clone)]
struct SimRng(Arc<Mutex<SeededRng>>);

impl SimRng {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SeededRng::new(seed))))
    }

    fn below(&self, bound: u64) -> u64 {
        self.0.lock().below(bound)
    }

    fn one_in(&self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A time up to so many milliseconds.
    fn ms(&self, longest: u64) -> Duration {
        Duration::from_millis(self.below(longest + 1))
    }
}

/// Everything but the proxies.
struct World {
    sim_rng: SimRng,
    network: Arc<Network>,
    agreed: Arc<Agreed>,
    store: Mutex<Store>,
    /// By replica.
    disks: Vec<Arc<Disk>>,
    /// Tasks that wait for a put or a view look again.
    changed: Notify,
    findings: Arc<Findings>,
}

impl World {
    fn violated(&self, what: String) {
        self.findings.violated(what);
    }

    /// The replicas whose servers are up, as far as the managers know.
    fn replicas_up(&self) -> Holders {
        let up = DATA.enumerate().filter(|(_, id)| self.agreed.is_up(ServerId(*id)));
        up.fold(Holders::default(), |all, (replica, _)| all.with(replica))
    }
}

/// The outcome of a run.
#[derive(Debug, Default)]
struct Ran {
    /// The events that must never be.
    violations: Vec<String>,
    delivered: Vec<Delivered>,
    /// Simulated time.
    took: Duration,
    calls: u64,
    /// Of those, answered with what was asked for.
    done: u64,
    longest: Duration,
    buckets_deleted: u64,
    /// Buckets that a proxy knew only once it had caught up with the managers.
    buckets_caught_up: u64,
    /// Counters of all proxies: what the seed met.
    retries: u64,
    begun_anew: u64,
    hedged: u64,
    joined: u64,
    located: u64,
    located_used: u64,
    mismatches: u64,
    lost_sessions: u64,
}

impl Ran {
    /// Counts another run in.
    fn add(&mut self, other: &Self) {
        self.took += other.took;
        self.calls += other.calls;
        self.done += other.done;
        self.longest = self.longest.max(other.longest);
        self.buckets_deleted += other.buckets_deleted;
        self.buckets_caught_up += other.buckets_caught_up;
        self.retries += other.retries;
        self.begun_anew += other.begun_anew;
        self.hedged += other.hedged;
        self.joined += other.joined;
        self.located += other.located;
        self.located_used += other.located_used;
        self.mismatches += other.mismatches;
        self.lost_sessions += other.lost_sessions;
    }
}

/// A simulated cluster.
struct Simulation {
    world: Arc<World>,
    proxies: Proxies,
    _listeners: Vec<Listener>,
}

fn subject(id: u32, role: Role) -> Subject {
    Subject { cluster: ClusterId(9), server: ServerId(id), roles: Roles::of(&[role]) }
}

impl Simulation {
    async fn begin(seed: u64) -> Self {
        let sim_rng = SimRng::new(seed);
        let conditions = NetworkConditions {
            delay_ms: sim_rng.below(4),
            late_one_in: 20 + sim_rng.below(200),
            late_ms: 20 + sim_rng.below(400),
            split_one_in: sim_rng.below(6),
        };
        let drawn = sim_rng.clone();
        let network = Network::new(conditions, move || drawn.0.lock().next_u64());
        let proxies = 1 + sim_rng.below(3) as u32;
        let agreed = Agreed::new(sim_rng.clone(), proxies);
        let world = Arc::new(World {
            network,
            store: Mutex::default(),
            disks: DATA.map(|_| Disk::new(sim_rng.clone())).collect(),
            changed: Notify::new(),
            findings: Arc::default(),
            agreed,
            sim_rng,
        });
        let listeners = METAS.chain(DATA).map(|id| serve(&world, id)).collect();
        let managers = async |id, _: &Arc<Endpoint>| {
            let received: Arc<dyn Managers> = RecordingManagers::new(id, &world.agreed);
            received
        };
        let ground = (&world.sim_rng, &world.findings);
        let proxies = Proxies::begin(ground, &world.network, proxies, managers).await;
        tokio::spawn(world.clone().resolve());
        Self { world, proxies, _listeners: listeners }
    }

    async fn run(self) -> Ran {
        let began = Instant::now();
        self.proxies.make_bucket(|command| self.world.agreed.agree(command)).await;
        let faults = tokio::spawn(faults::happen(self.world.clone()));
        self.proxies.serve_clients().await;
        faults.abort();
        // The state that the task holds is gone when it is over.
        drop(faults.await);
        faults::end(&self.world);
        self.quiesce().await;
        // Connections are tried again, and maps are heard.
        sleep(2 * BACKOFF_MAX).await;
        self.proxies.read_all().await;
        self.reported(began)
    }

    /// Waits until nothing is left, and says what is left after all.
    async fn quiesce(&self) {
        let deadline = Instant::now() + QUIESCENCE_TIME;
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                return self.world.violated(format!("left at rest: {}", left.join(", ")));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn left(&self) -> Vec<String> {
        let store = self.world.store.lock();
        let open = store.open().map(|open| format!("{open:?}"));
        open.chain(self.proxies.left()).collect()
    }

    fn reported(&self, began: Instant) -> Ran {
        let mut ran = Ran {
            violations: self.world.findings.all(),
            delivered: self.world.network.delivered(),
            took: began.elapsed(),
            ..Ran::default()
        };
        self.proxies.tally(&mut ran);
        let store = self.world.store.lock();
        let twice = store.twice().into_iter().map(|etag| format!("{etag} took effect twice"));
        ran.violations.extend(twice);
        ran
    }
}

fn serve(world: &Arc<World>, id: u32) -> Listener {
    let callers = Roles::of(&[Role::Proxy]);
    let (role, services) = if METAS.contains(&id) {
        let face = SimMetaHandler { me: ServerId(id), world: world.clone() };
        (Role::Meta, Services::new().with::<MetaService>(callers, face))
    } else {
        let disk = world.disks[(id - DATA.start) as usize].clone();
        (Role::Data, Services::new().with::<DataService>(callers, DataHandler(disk)))
    };
    let host = world.network.host(subject(id, role));
    let arrivals = host.listen(address(id));
    Listener::start(&Endpoint::simulated(host), arrivals, services).expect("it has an address")
}

/// Has something done in a cluster on a runtime of its own.
fn simulate<T>(seed: u64, what: impl AsyncFnOnce(Simulation) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime is made");
    runtime.block_on(async {
        let began = Instant::now();
        let _world = larder_env::simulated::begin(seed, move || began.elapsed());
        what(Simulation::begin(seed).await).await
    })
}

/// Runs one seed.
fn run(seed: u64, bug: Option<Bug>) -> Ran {
    tests::watch_panics();
    plant(bug);
    let mut ran = simulate(seed, Simulation::run);
    plant(None);
    if tests::has_panicked() {
        ran.violations.push("a task panicked".to_owned());
    }
    ran
}
