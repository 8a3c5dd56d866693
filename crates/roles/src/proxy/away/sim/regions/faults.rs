//! Faults between regions, and of their proxies. Each fault ends by itself, and none begins once all is to
//! be calm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_net::simulated::Network;
use larder_types::ServerId;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::Dice;
use super::region::{PROXIES_OF_EACH, Region};
use super::wan::place;

/// Where faults happen.
pub(super) struct Ground {
    pub(super) dice: Dice,
    pub(super) network: Arc<Network>,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) is_calm: AtomicBool,
}

impl Ground {
    /// Has faults happen until all is to be calm, and waits for the end of each.
    pub(super) async fn happen(self: Arc<Self>) {
        let dice = &self.dice;
        let pause = 1000 + dice.below(8000);
        let mut under_way = JoinSet::new();
        while !self.is_calm.load(Ordering::Relaxed) {
            sleep(dice.ms(pause)).await;
            let ground = self.clone();
            match dice.below(14) {
                0..4 => drop(under_way.spawn(ground.cut())),
                4..6 => drop(under_way.spawn(ground.cut_off())),
                6..8 => self.reset(),
                8..10 => drop(under_way.spawn(ground.slow())),
                _ => drop(under_way.spawn(ground.restart())),
            }
        }
        while let Some(ended) = under_way.join_next().await {
            if let Err(panic) = ended {
                self.regions[0].world.violated(format!("a fault: {panic}"));
            }
        }
    }

    fn any(&self) -> &Arc<Region> {
        &self.regions[self.dice.below(self.regions.len() as u64) as usize]
    }

    fn pair(&self) -> (ServerId, ServerId) {
        let count = self.regions.len() as u64;
        let one = self.dice.below(count);
        let other = (one + 1 + self.dice.below(count - 1)) % count;
        let place = |at: u64| place(self.regions[at as usize].number);
        (place(one), place(other))
    }

    fn lasts(&self) -> Duration {
        self.dice.ms(match self.dice.below(6) {
            0 => 40_000,
            1..3 => 12_000,
            _ => 2_000,
        })
    }

    /// Nothing goes through between two regions, in one direction or both.
    async fn cut(self: Arc<Self>) {
        let ((one, other), which) = (self.pair(), self.dice.below(3));
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
        let (alone, which) = (place(self.any().number), self.dice.below(4));
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
        let longest = if self.dice.one_in(3) { 4000 } else { 300 };
        self.network.slow(one, other, self.dice.ms(longest));
        sleep(self.lasts()).await;
        self.network.slow(one, other, Duration::ZERO);
    }

    /// A proxy ends, most often a gateway, and begins anew.
    async fn restart(self: Arc<Self>) {
        let (region, dice) = (self.any().clone(), &self.dice);
        let at = dice.below(2 * PROXIES_OF_EACH as u64).saturating_sub(PROXIES_OF_EACH as u64);
        let (is_killed, away) = (dice.one_in(2), self.lasts());
        region.restart_proxy(at as usize, is_killed, away).await;
    }
}
