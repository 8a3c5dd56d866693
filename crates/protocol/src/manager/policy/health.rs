//! The leader's view of which servers are up, by their heartbeats. A server that fails repeatedly is trusted again only
//! after a probation that doubles each time, so that it causes few view changes.

use std::collections::BTreeMap;

use larder_types::{BootId, ServerId};

use crate::limits::{
    FLAP_FORGET_MS, LATE_CHECK_MS, LATE_CHECKS_MAX, LOST_MS, PRESENCE_BEAT_MS,
    PROBATION_DOUBLINGS_MAX, PROBATION_MS, SILENT_MS,
};

#[derive(Debug)]
struct Health {
    heard_ms: u64,
    /// The manager's own stalls since then, which do not count as the server's silence.
    late_checks: u32,
    boot: Option<BootId>,
    up_since_ms: u64,
    down_since_ms: Option<u64>,
    flaps: u32,
    flapped_ms: u64,
}

/// The times at which a manager that only follows heard of servers last.
pub(super) type FollowerHeartbeats = BTreeMap<ServerId, u64>;

/// Health of all servers, since this manager leads.
#[derive(Debug)]
pub(super) struct Healths {
    since_ms: u64,
    /// Late looks, for which it counts as later.
    late_checks: u32,
    looked_ms: u64,
    servers: BTreeMap<ServerId, Health>,
}

impl Healths {
    /// The health of servers as a newly elected one of `managers` knows it. A server sends heartbeats to the leader,
    /// and to the others in turn: one that died with the leader has been silent for a while already. Each gets time for
    /// a heartbeat here first. A manager without recent heartbeats was cut off itself. A server that was silent here
    /// for longer than one may be reaches only others, so its silence here proves nothing.
    pub(super) fn new(now_ms: u64, overheard: &FollowerHeartbeats, managers: usize) -> Self {
        let mut healths =
            Self { since_ms: now_ms, late_checks: 0, looked_ms: now_ms, servers: BTreeMap::new() };
        let turn_ms = managers.saturating_sub(1) as u64 * PRESENCE_BEAT_MS;
        let away_ms =
            overheard.values().max().map_or(0, |latest_ms| now_ms.saturating_sub(*latest_ms));
        let least_ms = now_ms.saturating_sub(SILENT_MS - 2 * PRESENCE_BEAT_MS);
        for (&server, &heard_ms) in overheard {
            let heard_ms = heard_ms + away_ms + turn_ms;
            if now_ms < heard_ms + SILENT_MS {
                healths.entry(server).heard_ms = heard_ms.clamp(least_ms, now_ms);
            }
        }
        healths
    }

    /// The manager looks at what is due. If it stood still before, for however long, what servers said meanwhile has yet to
    /// reach it.
    pub(super) fn look(&mut self, now_ms: u64) {
        let late_ms = now_ms.saturating_sub(std::mem::replace(&mut self.looked_ms, now_ms));
        if late_ms <= LATE_CHECK_MS {
            return;
        }
        let lend = |heard_ms: &mut u64, late_checks: &mut u32| {
            if *late_checks < LATE_CHECKS_MAX {
                *late_checks += 1;
                *heard_ms = (*heard_ms + late_ms).min(now_ms);
            }
        };
        lend(&mut self.since_ms, &mut self.late_checks);
        for health in self.servers.values_mut() {
            lend(&mut health.heard_ms, &mut health.late_checks);
        }
    }

    fn entry(&mut self, server: ServerId) -> &mut Health {
        let since_ms = self.since_ms;
        self.servers.entry(server).or_insert(Health {
            heard_ms: since_ms,
            late_checks: 0,
            boot: None,
            up_since_ms: since_ms,
            down_since_ms: None,
            flaps: 0,
            flapped_ms: since_ms,
        })
    }

    /// A server was heard of, in this run.
    pub(super) fn note_heartbeat(&mut self, server: ServerId, boot: BootId, now_ms: u64) {
        let health = self.entry(server);
        (health.heard_ms, health.late_checks) = (now_ms, 0);
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

    /// Returns true if at least one of its last two heartbeats arrived.
    pub(super) fn is_alive(&self, server: ServerId, now_ms: u64) -> bool {
        let is_recent = |health: &Health| {
            health.boot.is_some() && now_ms < health.heard_ms + 2 * PRESENCE_BEAT_MS
        };
        self.servers.get(&server).is_some_and(is_recent)
    }

    /// Returns true if nothing was heard of it for so long that it is taken for down.
    pub(super) fn is_silent(&self, server: ServerId, now_ms: u64) -> bool {
        let heard_ms = self.servers.get(&server).map_or(self.since_ms, |health| health.heard_ms);
        now_ms >= heard_ms + SILENT_MS
    }

    /// Returns true if it has been down for so long that what it has goes elsewhere.
    pub(super) fn is_lost(&self, server: ServerId, now_ms: u64) -> bool {
        self.is_down_for(server, LOST_MS, now_ms)
    }

    /// Returns true if it has been down for `down_ms` or longer.
    pub(super) fn is_down_for(&self, server: ServerId, down_ms: u64, now_ms: u64) -> bool {
        let since_ms = self.servers.get(&server).and_then(|health| health.down_since_ms);
        since_ms.is_some_and(|since_ms| now_ms >= since_ms + down_ms)
    }

    /// Returns true if it has been up for as long as its past demands.
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
    use crate::limits::{SERVER_BEAT_MS, STALL_MS};

    const SERVER: ServerId = ServerId(3);
    const BOOT: BootId = BootId(9);

    #[test]
    fn a_return_counts_once_however_long_the_map_takes_to_show_it() {
        let mut healths = Healths::new(0, &FollowerHeartbeats::new(), 3);
        healths.note_heartbeat(SERVER, BOOT, 0);
        healths.down(SERVER, SILENT_MS);
        let back_ms = 2 * SILENT_MS;
        for now_ms in back_ms..back_ms + 10 {
            healths.note_heartbeat(SERVER, BOOT, now_ms);
            // The map still has it as down.
            healths.down(SERVER, now_ms);
        }
        assert!(healths.is_settled(SERVER, back_ms + 10), "it was away once");
        assert!(!healths.is_lost(SERVER, back_ms + 2 * LOST_MS), "it is back");
    }

    #[test]
    fn one_that_was_down_before_this_manager_led_comes_back_too() {
        let mut healths = Healths::new(0, &FollowerHeartbeats::new(), 3);
        healths.down(SERVER, 0);
        assert!(healths.is_lost(SERVER, LOST_MS));
        for turn in 1..=3 {
            let now_ms = turn * 2 * SILENT_MS;
            healths.note_heartbeat(SERVER, BOOT, now_ms);
            assert_eq!(healths.is_settled(SERVER, now_ms), turn < 2, "return {turn}");
            healths.down(SERVER, now_ms + SILENT_MS);
        }
    }

    #[test]
    fn a_new_leader_counts_silence_from_before_its_term() {
        let (died, lives, unknown) = (SERVER, ServerId(4), ServerId(5));
        let (heard_ms, elected_ms) = (10_000, 11_000);
        let overheard = FollowerHeartbeats::from([(died, heard_ms), (lives, elected_ms)]);
        let healths = Healths::new(elected_ms, &overheard, 3);
        let silent_ms = |server| (0..).find(|ms| healths.is_silent(server, elected_ms + ms));
        // It hears of each server at every second beat.
        let since_ms = SILENT_MS + 2 * PRESENCE_BEAT_MS - (elected_ms - heard_ms);
        assert_eq!(silent_ms(died), Some(since_ms), "two periods of silence do not add up");
        assert_eq!(silent_ms(lives), Some(SILENT_MS));
        assert_eq!(silent_ms(unknown), Some(SILENT_MS));
    }

    #[test]
    fn whoever_it_overheard_long_ago_has_time_to_be_heard_by_a_new_leader() {
        let turn_ms = 2 * PRESENCE_BEAT_MS;
        let oldest_ms = 90_000 - turn_ms - SILENT_MS;
        let overheard = FollowerHeartbeats::from([
            (SERVER, oldest_ms),
            (ServerId(5), oldest_ms + 1),
            (ServerId(4), 90_000),
        ]);
        let healths = Healths::new(90_000, &overheard, 3);
        let silent_ms = |server| (0..).find(|ms| healths.is_silent(server, 90_000 + ms));
        assert_eq!(silent_ms(SERVER), Some(SILENT_MS), "its way here was cut");
        assert_eq!(silent_ms(ServerId(5)), Some(2 * PRESENCE_BEAT_MS));
    }

    #[test]
    fn a_new_leader_that_was_away_declares_no_server_silent() {
        let overheard = FollowerHeartbeats::from([(SERVER, 80_000), (ServerId(4), 80_200)]);
        let healths = Healths::new(90_000, &overheard, 3);
        assert!(!healths.is_silent(SERVER, 90_000 + SILENT_MS - 1));
        assert!(!healths.is_silent(ServerId(4), 90_000 + SILENT_MS - 1));
    }

    #[test]
    fn a_stalled_manager_declares_no_server_silent() {
        let mut healths = Healths::new(0, &FollowerHeartbeats::new(), 3);
        healths.note_heartbeat(SERVER, BOOT, 0);
        for now_ms in (0..=SERVER_BEAT_MS).step_by(50) {
            healths.look(now_ms);
        }
        let goes_on_ms = SERVER_BEAT_MS + 10 * SILENT_MS;
        healths.look(goes_on_ms);
        assert!(!healths.is_silent(SERVER, goes_on_ms), "its beats are on their way");
        assert!(!healths.is_silent(ServerId(4), goes_on_ms));
        for now_ms in (goes_on_ms..goes_on_ms + SILENT_MS).step_by(50) {
            healths.look(now_ms);
        }
        assert!(healths.is_silent(SERVER, goes_on_ms + SILENT_MS), "none came");
    }

    #[test]
    fn a_manager_that_is_late_all_the_time_finds_a_server_down() {
        let mut healths = Healths::new(0, &FollowerHeartbeats::new(), 3);
        healths.note_heartbeat(SERVER, BOOT, 0);
        let mut looks = (0..).step_by(LATE_CHECK_MS as usize + 1);
        let found_ms = looks.find(|now_ms| {
            healths.look(*now_ms);
            healths.is_silent(SERVER, *now_ms) && healths.is_silent(ServerId(4), *now_ms)
        });
        let latest_ms = SILENT_MS + u64::from(LATE_CHECKS_MAX + 1) * (LATE_CHECK_MS + 1);
        assert!(found_ms.is_some_and(|ms| ms > SILENT_MS && ms <= latest_ms), "{found_ms:?}");
    }

    #[test]
    fn one_that_stands_still_for_a_moment_is_not_taken_for_down() {
        let mut healths = Healths::new(0, &FollowerHeartbeats::new(), 3);
        healths.note_heartbeat(SERVER, BOOT, 0);
        assert!(!healths.is_silent(SERVER, PRESENCE_BEAT_MS + STALL_MS));
    }
}
