//! Managers alone, with servers that do nothing but be there: so cheap that most of what befalls managers befalls them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_identity::Role;
use larder_net::Endpoint;
use larder_protocol::manager::state::ServerState;
use larder_types::ServerId;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::super::proxies::Findings;
use super::super::{PROXIES, QUIESCENCE_TIME, Ran, SimRng, subject};
use super::quorum::{MANAGERS, Quorum};
use super::stub_servers::StubServers;
use super::{Coverage, faults, sim_network, simulate};
use crate::planted::Bug;

/// Tokens that each asker asks for.
const TOKENS: u64 = 60;
const CLIENTS: usize = 3;
/// The longest that a question takes when nothing fails.
const QUICK: Duration = Duration::from_secs(2);

/// Runs one seed.
pub(super) fn run_alone(seed: u64, bug: Option<Bug>) -> (Ran, Coverage) {
    simulate(seed, bug, async |began| {
        let sim_rng = SimRng::new(seed);
        let (sim_network, findings) = (sim_network(&sim_rng, MANAGERS), Arc::<Findings>::default());
        let quorum = Quorum::open(&sim_rng, &sim_network, &findings);
        quorum.until_founded().await;
        let stub_servers = StubServers::default();
        for id in PROXIES.map(ServerId) {
            let endpoint =
                Endpoint::simulated(sim_network.network.host(subject(id.0, Role::Proxy)));
            let managers = quorum.client(&endpoint, None).await;
            stub_servers.settle(id, &endpoint, &sim_network.network, managers);
        }
        let calm = Arc::new(AtomicBool::new(false));
        let faults = tokio::spawn(happen(quorum.clone(), calm.clone()));
        let mut askers = JoinSet::new();
        (0..CLIENTS).for_each(|_| drop(askers.spawn(ask(quorum.clone()))));
        while let Some(ended) = askers.join_next().await {
            ended.unwrap_or_else(|panic| findings.violated(format!("an asker: {panic}")));
        }
        calm.store(true, Ordering::Relaxed);
        faults.await.unwrap_or_else(|panic| findings.violated(format!("a fault: {panic}")));
        quiesce(&quorum, &findings).await;
        for _ in 0..5 {
            match timeout(QUICK, quorum.ask()).await {
                Ok(Ok(())) => {}
                other => findings.violated(format!("no token is given at rest: {other:?}")),
            }
        }
        // Connections end in an order that a `watch` of tokio draws: it is none of the run.
        let (delivered, took) = (sim_network.network.delivered(), began.elapsed());
        quorum.end().await;
        let coverage = Coverage { managers: quorum.coverage(), ..Coverage::default() };
        drop(stub_servers);
        (Ran { violations: findings.all(), delivered, took, ..Ran::default() }, coverage)
    })
}

async fn ask(quorum: Arc<Quorum>) {
    for _ in 0..TOKENS {
        let sim_rng = &quorum.sim_rng;
        sleep(sim_rng.ms(if sim_rng.one_in(4) { 2000 } else { 100 })).await;
        // The outcome is noted.
        let _failed = quorum.ask().await;
    }
}

/// Has faults happen until all is to be calm, and waits for the end of each.
async fn happen(quorum: Arc<Quorum>, calm: Arc<AtomicBool>) {
    let sim_rng = quorum.sim_rng.clone();
    let pause = 500 + sim_rng.below(6000);
    let mut under_way = JoinSet::new();
    while !calm.load(Ordering::Relaxed) {
        sleep(sim_rng.ms(pause)).await;
        under_way.spawn(faults::trouble(quorum.clone()));
    }
    while let Some(ended) = under_way.join_next().await {
        ended.expect("a fault ends");
    }
}

/// Waits until nothing is left, and says what is left after all.
async fn quiesce(quorum: &Quorum, findings: &Findings) {
    let deadline = Instant::now() + QUIESCENCE_TIME;
    loop {
        let (mut left, map) = (quorum.left(), quorum.map());
        let is_up = |id| map.servers[&ServerId(id)].state == ServerState::Up;
        left.extend(PROXIES.filter(|id| !is_up(*id)).map(|id| format!("{id} is not up")));
        if left.is_empty() {
            return;
        }
        if Instant::now() >= deadline {
            return findings.violated(format!("left at rest: {}", left.join(", ")));
        }
        sleep(Duration::from_millis(100)).await;
    }
}
