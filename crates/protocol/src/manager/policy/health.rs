//! What the leader knows about servers from hearing of them. A server that comes and goes is trusted again only
//! after a while that doubles each time, so that it causes few views.

use std::collections::BTreeMap;

use larder_types::{BootId, ServerId};

use crate::limits::{FLAP_FORGET_MS, LOST_MS, PROBATION_DOUBLINGS_MAX, PROBATION_MS, SILENT_MS};

#[derive(Debug)]
struct Health {
    heard_ms: u64,
    boot: Option<BootId>,
    up_since_ms: u64,
    down_since_ms: Option<u64>,
    flaps: u32,
    flapped_ms: u64,
}

/// Health of all servers, since this manager leads.
#[derive(Debug)]
pub(super) struct Healths {
    since_ms: u64,
    servers: BTreeMap<ServerId, Health>,
}

impl Healths {
    pub(super) fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, servers: BTreeMap::new() }
    }

    fn entry(&mut self, server: ServerId) -> &mut Health {
        let since_ms = self.since_ms;
        self.servers.entry(server).or_insert(Health {
            heard_ms: since_ms,
            boot: None,
            up_since_ms: since_ms,
            down_since_ms: None,
            flaps: 0,
            flapped_ms: since_ms,
        })
    }

    /// A server was heard of, in this run.
    pub(super) fn heard(&mut self, server: ServerId, boot: BootId, now_ms: u64) {
        let health = self.entry(server);
        health.heard_ms = now_ms;
        let comes_back = health.down_since_ms.take().is_some();
        let restarted = health.boot.is_some_and(|known| known != boot);
        health.boot = Some(boot);
        if comes_back || restarted {
            if now_ms > health.flapped_ms + FLAP_FORGET_MS {
                health.flaps = 0;
            }
            health.flaps += 1;
            health.flapped_ms = now_ms;
            health.up_since_ms = now_ms;
        }
    }

    /// A server that is down according to the map, or is found to be. One that was just heard is on its way back into
    /// the map: that it comes is counted once.
    pub(super) fn down(&mut self, server: ServerId, now_ms: u64) {
        let is_silent = self.is_silent(server, now_ms);
        let health = self.entry(server);
        if is_silent || health.boot.is_none() {
            health.down_since_ms.get_or_insert(now_ms);
        }
    }

    /// Whether nothing was heard of it for so long that it is taken for down.
    pub(super) fn is_silent(&self, server: ServerId, now_ms: u64) -> bool {
        let heard_ms = self.servers.get(&server).map_or(self.since_ms, |health| health.heard_ms);
        now_ms >= heard_ms + SILENT_MS
    }

    /// Whether it has been down for so long that what it has goes elsewhere.
    pub(super) fn is_lost(&self, server: ServerId, now_ms: u64) -> bool {
        let down_ms = self.servers.get(&server).and_then(|health| health.down_since_ms);
        down_ms.is_some_and(|since_ms| now_ms >= since_ms + LOST_MS)
    }

    /// Whether it has been up for as long as its past demands.
    pub(super) fn is_settled(&self, server: ServerId, now_ms: u64) -> bool {
        self.servers.get(&server).is_none_or(|health| {
            let doublings = health.flaps.saturating_sub(2).min(PROBATION_DOUBLINGS_MAX);
            let probation_ms = if health.flaps < 2 { 0 } else { PROBATION_MS << doublings };
            now_ms >= health.up_since_ms + probation_ms
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(3);
    const BOOT: BootId = BootId(9);

    #[test]
    fn a_return_counts_once_however_long_the_map_takes_to_show_it() {
        let mut healths = Healths::new(0);
        healths.heard(SERVER, BOOT, 0);
        healths.down(SERVER, SILENT_MS);
        let back_ms = 2 * SILENT_MS;
        for now_ms in back_ms..back_ms + 10 {
            healths.heard(SERVER, BOOT, now_ms);
            // The map still has it as down.
            healths.down(SERVER, now_ms);
        }
        assert!(healths.is_settled(SERVER, back_ms + 10), "it was away once");
        assert!(!healths.is_lost(SERVER, back_ms + 2 * LOST_MS), "it is back");
    }

    #[test]
    fn one_that_was_down_before_this_manager_led_comes_back_too() {
        let mut healths = Healths::new(0);
        healths.down(SERVER, 0);
        assert!(healths.is_lost(SERVER, LOST_MS));
        for turn in 1..=3 {
            let now_ms = turn * 2 * SILENT_MS;
            healths.heard(SERVER, BOOT, now_ms);
            assert_eq!(healths.is_settled(SERVER, now_ms), turn < 2, "return {turn}");
            healths.down(SERVER, now_ms + SILENT_MS);
        }
    }
}
