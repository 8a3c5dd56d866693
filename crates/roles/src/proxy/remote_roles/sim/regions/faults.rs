//! Faults between regions, and of their proxies. Each fault ends by itself, and none begins once all is to
//! be calm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_net::simulated::Network;
use larder_types::ServerId;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::SimRng;
use super::region::{PROXIES_OF_EACH, Region};
use super::wan::place;

/// Where faults happen.
pub(super) struct FaultTargets {
    pub(super) sim_rng: SimRng,
    pub(super) network: Arc<Network>,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) is_calm: AtomicBool,
}

impl FaultTargets {
    /// Has faults happen until all is to be calm, and waits for the end of each.
    pub(super) async fn happen(self: Arc<Self>) {
        let sim_rng = &self.sim_rng;
        let pause = 1000 + sim_rng.below(8000);
        let mut under_way = JoinSet::new();
        while !self.is_calm.load(Ordering::Relaxed) {
            sleep(sim_rng.ms(pause)).await;
            let targets = self.clone();
            match sim_rng.below(14) {
                0..4 => drop(under_way.spawn(targets.cut())),
                4..6 => drop(under_way.spawn(targets.cut_off())),
                6..8 => self.reset(),
                8..10 => drop(under_way.spawn(targets.slow())),
                _ => drop(under_way.spawn(targets.restart())),
            }
        }
        while let Some(ended) = under_way.join_next().await {
            if let Err(panic) = ended {
                self.regions[0].world.violated(format!("a fault: {panic}"));
            }
        }
    }

    fn any(&self) -> &Arc<Region> {
        &self.regions[self.sim_rng.below(self.regions.len() as u64) as usize]
    }

    fn pair(&self) -> (ServerId, ServerId) {
        let count = self.regions.len() as u64;
        let one = self.sim_rng.below(count);
        let other = (one + 1 + self.sim_rng.below(count - 1)) % count;
        let place = |at: u64| place(self.regions[at as usize].number);
        (place(one), place(other))
    }

    fn lasts(&self) -> Duration {
        self.sim_rng.ms(match self.sim_rng.below(6) {
            0 => 40_000,
            1..3 => 12_000,
            _ => 2_000,
        })
    }

    /// Nothing goes through between two regions, in one direction or both.
    async fn cut(self: Arc<Self>) {
        let ((one, other), which) = (self.pair(), self.sim_rng.below(3));
        if which != 0 {
            self.network.cut(one, other);
        }
        if which != 1 {
            self.network.cut(other, one);
        }
        sleep(self.lasts()).await;
        self.network.heal(one, other);
        self.network.heal(other, one);
    }

    /// A region neither hears the others nor is heard by them, or only one of the two.
    async fn cut_off(self: Arc<Self>) {
        let (alone, which) = (place(self.any().number), self.sim_rng.below(4));
        let others = || self.regions.iter().map(|it| place(it.number)).filter(|it| *it != alone);
        for other in others() {
            if which != 0 {
                self.network.cut(alone, other);
            }
            if which != 1 {
                self.network.cut(other, alone);
            }
        }
        sleep(self.lasts()).await;
        for other in others() {
            self.network.heal(alone, other);
            self.network.heal(other, alone);
        }
    }

    fn reset(&self) {
        let (one, other) = self.pair();
        self.network.reset(one, other);
    }

    /// Everything takes longer from one region to another.
    async fn slow(self: Arc<Self>) {
        let (one, other) = self.pair();
        let longest = if self.sim_rng.one_in(3) { 4000 } else { 300 };
        self.network.slow(one, other, self.sim_rng.ms(longest));
        sleep(self.lasts()).await;
        self.network.slow(one, other, Duration::ZERO);
    }

    /// A proxy ends, most often a gateway, and begins anew.
    async fn restart(self: Arc<Self>) {
        let (region, sim_rng) = (self.any().clone(), &self.sim_rng);
        let at = sim_rng.below(2 * PROXIES_OF_EACH as u64).saturating_sub(PROXIES_OF_EACH as u64);
        let (is_killed, away) = (sim_rng.one_in(2), self.lasts());
        region.restart_proxy(at as usize, is_killed, away).await;
    }
}
