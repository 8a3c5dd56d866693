//! A whole cluster but for the managers' quorum: proxies, meta servers and data servers as they are, over a simulated network
//! and simulated disks. Their threads take turns with the tasks (`larder_env::simulated::threads`), and one seed decides all
//! of it. The managers are the real policy over the real map, in one place (`desk.rs`).
//!
//! # Invariants
//!
//! Those of the simulation with stand-ins (`sim/mod.rs`), and
//!
//! 1. What fails ends by itself: at rest no server is started anew, and then calls are quick.
//! 2. A server that runs does not give up: it ends where its disk lost power, and nowhere else.

mod desk;
mod disks;
mod faults;
mod servers;
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_env::simulated::threads::Threads;
use larder_net::limits::BACKOFF_MAX;
use larder_net::simulated::{Network, Weather};
use larder_protocol::limits::{PROBATION_DOUBLINGS_MAX, PROBATION_MS};
use larder_types::{PgId, ServerId};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::proxies::{Findings, Proxies};
use super::{DATA, Dice, METAS, PGS, REST, Ran, tests::has_panicked, tests::watch_panics};
use crate::managers::Managers;
use crate::meta::planted::{Bug, plant};
use desk::{AtDesk, Desk};
use servers::{Datas, Metas};

/// How long everything has to come to rest: a server that began anew often is trusted again after so long.
const MEMBERS_BACK: Duration =
    Duration::from_millis((PROBATION_MS << PROBATION_DOUBLINGS_MAX) + 60_000);

/// Everything but the proxies.
struct World {
    dice: Dice,
    network: Arc<Network>,
    findings: Arc<Findings>,
    desk: Arc<Desk>,
    metas: Metas,
    datas: Datas,
    /// Servers that do not run.
    away: Mutex<BTreeSet<ServerId>>,
    /// No more faults begin.
    is_calm: AtomicBool,
}

/// What a seed met, beside what its proxies did.
#[derive(Debug, Default)]
pub(super) struct Met {
    restarts: u64,
    views: u64,
    snapshots: u64,
    /// Views that were served before the rows were read.
    early: u64,
    rebuilt: u64,
    log_groups: u64,
    differing: u64,
}

struct Simulation {
    world: Arc<World>,
    proxies: Proxies,
    /// How long everything has to come to rest.
    rest: Duration,
}

impl Simulation {
    async fn begin(seed: u64, rest: Duration) -> Self {
        let dice = Dice::new(seed);
        let weather = Weather {
            delay_ms: dice.below(4),
            late_one_in: 20 + dice.below(200),
            late_ms: 20 + dice.below(400),
            split_one_in: dice.below(6),
        };
        let drawn = dice.clone();
        let network = Network::new(weather, move || drawn.0.lock().next_u64());
        let count = 1 + dice.below(3) as u32;
        let desk = Desk::open(dice.clone(), network.clone(), count);
        let findings: Arc<Findings> = Arc::default();
        let world = Arc::new(World {
            metas: Metas::new(&dice),
            datas: Datas::new(&dice),
            dice,
            network,
            findings,
            desk,
            away: Mutex::default(),
            is_calm: AtomicBool::new(false),
        });
        for at in 0..DATA.len() {
            world.begin_data(at);
        }
        for at in 0..METAS.len() {
            world.begin_meta(at);
        }
        let deadline = Instant::now() + REST;
        while (0..PGS).any(|pg| !world.desk.is_active(PgId(pg))) {
            assert!(Instant::now() < deadline, "some group does not come to be served");
            sleep(Duration::from_millis(50)).await;
        }
        let managers = |id| -> Arc<dyn Managers> { AtDesk::new(id, &world.desk) };
        let ground = (&world.dice, &world.findings);
        let mut proxies = Proxies::begin(ground, &world.network, count, managers).await;
        // Half of the seeds keep their bucket: elsewhere few keys are there for long.
        if world.dice.one_in(2) {
            proxies.remake_buckets();
        }
        Self { world, proxies, rest }
    }

    async fn run(self, began: Instant) -> (Ran, Met) {
        let world = &self.world;
        self.proxies.make_bucket(|command| drop(world.desk.apply(command))).await;
        let faults = tokio::spawn(faults::happen(world.clone()));
        self.proxies.serve_clients().await;
        world.is_calm.store(true, Ordering::Relaxed);
        if let Err(panic) = faults.await {
            world.findings.violated(format!("a fault: {panic}"));
        }
        self.come_to_rest().await;
        // Connections are tried again, and maps are heard.
        sleep(2 * BACKOFF_MAX).await;
        self.proxies.put_all().await;
        // Another proxy may have to hear of a new volume.
        sleep(2 * BACKOFF_MAX).await;
        self.proxies.read_all().await;
        let met = world.met();
        world.end().await;
        if met.differing > 0 {
            world.findings.violated(format!("members of a group differ: {met:?}"));
        }
        let mut ran = Ran {
            violations: world.findings.all(),
            delivered: world.network.delivered(),
            took: began.elapsed(),
            ..Ran::default()
        };
        self.proxies.tell(&mut ran);
        (ran, met)
    }

    /// Waits until nothing is left, and says what is left after all.
    async fn come_to_rest(&self) {
        let deadline = Instant::now() + self.rest;
        loop {
            let mut left = self.proxies.left();
            left.extend(self.world.metas.left(&self.world.desk));
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
    fn met(&self) -> Met {
        let views = |pg| self.desk.view(PgId(pg)).0;
        let mut met = Met {
            restarts: self.metas.restarts() + self.datas.restarts(),
            views: (0..PGS).map(views).sum(),
            ..Met::default()
        };
        self.metas.tell(&mut met);
        met
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

/// Runs one seed.
fn run(seed: u64, bug: Option<Bug>) -> (Ran, Met) {
    watch_panics();
    plant(bug);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime is made");
    let handle = runtime.handle().clone();
    let (mut ran, met, left) = runtime.block_on(async {
        let began = Instant::now();
        let simulation = larder_env::simulated::begin(seed, move || began.elapsed());
        let threads = simulation.threads(seed, move |run| {
            let _runtime = handle.enter();
            plant(bug);
            run();
        });
        let turns = tokio::spawn(run_threads(threads.clone(), began));
        // What a planted fault leaves behind is waited for in vain.
        let rest = if bug.is_some() { REST } else { MEMBERS_BACK };
        let (mut ran, met) = Simulation::begin(seed, rest).await.run(began).await;
        // Reads that nobody waits for any more.
        for _ in 0..1000 {
            if !threads.left().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        }
        turns.abort();
        ran.violations.extend(threads.panics().into_iter().map(|it| format!("{it} panicked")));
        (ran, met, threads.left())
    });
    drop(runtime);
    plant(None);
    if !left.is_empty() {
        ran.violations.push(format!("threads that have not ended: {}", left.join(", ")));
    }
    if has_panicked() {
        ran.violations.push("a task panicked".to_owned());
    }
    (ran, met)
}
