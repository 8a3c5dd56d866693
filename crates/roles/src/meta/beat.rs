//! The beats of a meta server in a cluster: at each it repeats to the leading manager reports that have shown no effect yet.
//! Ticks check if one is due.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use larder_env::clock::uptime_ms;
use larder_protocol::Event;
use larder_protocol::limits::SERVER_BEAT_MS;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::Role;
use larder_types::{ServerId, SessionId};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::tick::Reaps;
use super::{Member, Meta};
use crate::limits::{SESSION_CHECKS, TICK_MS, TICKS_PER_CHECK};
use crate::wire::Beat as BeatMessage;

/// Milliseconds between two beats, less half a tick: beats happen at ticks, which are never quite on time.
const BEAT_MS: u64 = SERVER_BEAT_MS - TICK_MS / 2;

/// The time of the last beat. A beat may happen between the ticks of two PGs, so that a server whose ticks are slow does not
/// count as down.
#[derive(Default)]
pub(super) struct Beat {
    last_ms: Option<u64>,
}

impl Beat {
    /// Returns true if a beat is due, and counts it as done.
    fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.last_ms.is_none_or(|last_ms| now_ms.saturating_sub(last_ms) >= BEAT_MS);
        if is_due {
            self.last_ms = Some(now_ms);
        }
        is_due
    }
}

impl Meta {
    /// Tells a PG of which copies come or go whose servers are away, by the newest map.
    pub(super) fn refresh_away(&self, cluster: &Cluster, member: &mut Member) {
        let lvs = member.pg.lvs_changing();
        if lvs.is_empty() {
            return;
        }
        let map = cluster.managers.map();
        for lv in lvs {
            if let Some(record) = map.lv(lv) {
                let away = map.away(record);
                self.step(member, Event::Away { lv, away });
            }
        }
    }

    /// Ticks every PG, and makes the beats that are due.
    pub(super) fn tick_apart(&self, cluster: &Cluster, beat: &mut Beat, reaps: &mut Reaps) {
        let mut together = self.together();
        let mut time = self.clock.now();
        for pg in self.pg_ids() {
            if pg.0.is_multiple_of(TICKS_PER_CHECK) {
                time = self.clock.now();
                if beat.is_due(time.steady_ms) {
                    together.leave();
                    self.beat(cluster);
                }
            }
            together.with(&mut self.lock(pg), |member| self.tick(time, member, reaps));
        }
        drop(together);
        if cluster.renew_soon.swap(false, Ordering::Relaxed) {
            self.renew(cluster, true);
        }
    }

    /// Makes a beat: renews leases and repeats reports.
    fn beat(&self, cluster: &Cluster) {
        let now = Instant::now();
        self.renew(cluster, false);
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            member.drop_overdue(now);
            self.resend_state(cluster, &member);
            self.refresh_away(cluster, &mut member);
        }
        let made = self.rebuild.bytes.get();
        self.rebuild.order.send_message(cluster, made, self.background.bytes_per_s());
        cluster.say_started();
        self.find_ended_sessions(cluster);
    }

    /// Asks for leases of the views that this server leads. Managers take one at once that is asked for soon.
    fn renew(&self, cluster: &Cluster, is_soon: bool) {
        let sent_ms = uptime_ms();
        let granted_by = cluster.renewed(sent_ms);
        let heard_by = granted_by.filter(|_| !is_soon);
        let led = self.pg_ids().filter_map(|pg| {
            let member = self.lock(pg);
            let leads = matches!(member.pg.role(), Role::Active | Role::Serving);
            leads.then(|| (pg, member.pg.view()))
        });
        let led = led.collect();
        let (boot, beside) = (cluster.boot, Vec::new());
        cluster.managers.beat(BeatMessage { boot, sent_ms, led, heard_by, beside });
    }

    fn resend_state(&self, cluster: &Cluster, member: &Member) {
        if member.pg.role() == Role::Active && !member.view_state.contradicts {
            cluster.report_active(member.pg.id(), member.pg.view());
        }
        if member.view_state.needs_lv {
            cluster.request_lv(member);
        }
        if member.pg.is_odd() {
            cluster.report_lacking(member.pg.id(), member.pg.view());
        }
        let unheard: Vec<ServerId> = member.pg.unheard().collect();
        if !unheard.is_empty() {
            cluster.report_unresponsive(member.pg.id(), member.pg.view(), unheard);
        }
    }

    /// Ends sessions that the map has as closed: the manager's message about it may be lost, and the map keeps it for a long
    /// time. At a start, and every [`SESSION_CHECKS`] beats, it also ends sessions that were closed before and that some group
    /// remembers, since their ops may come late from other members.
    fn find_ended_sessions(&self, cluster: &Cluster) {
        let map = cluster.managers.map();
        let mut seen = cluster.sessions_seen.lock();
        let (through, looks) = *seen;
        *seen = (through.max(map.version), looks.wrapping_add(1));
        drop(seen);
        let from = (MapVersion(through.0 + 1), SessionId(0));
        let mut ended: BTreeSet<SessionId> = map.closed.range(from..).map(|(_, it)| *it).collect();
        if looks.is_multiple_of(SESSION_CHECKS) {
            let closed: BTreeSet<SessionId> = map.closed.iter().map(|(_, it)| *it).collect();
            for pg in self.pg_ids() {
                let member = self.lock(pg);
                ended.extend(member.pg.sessions().filter(|session| closed.contains(session)));
            }
        }
        if !ended.is_empty() {
            cluster.adoption.end_sessions(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_go_by_the_clock_however_late_ticks_are() {
        let mut beat = Beat::default();
        assert!(beat.is_due(0), "the first is due");
        // Ticks of 256 groups that take 400 ms in place of 100: a look before every so many.
        let looks = (0..40 * 256).step_by(TICKS_PER_CHECK as usize).map(|look| look * 400 / 256);
        let beats: Vec<u64> = looks.filter(|ms| beat.is_due(*ms)).collect();
        let (first, last) = (beats[0], beats[beats.len() - 1]);
        assert!(first <= SERVER_BEAT_MS && last > 15_000, "{beats:?}");
        assert!(beats.windows(2).all(|pair| pair[1] - pair[0] <= SERVER_BEAT_MS), "{beats:?}");
        // Every third of ticks that are in time.
        let looks = (1..100).map(|tick| 20_000 + tick * TICK_MS);
        let beats = looks.filter(|ms| beat.is_due(*ms)).count();
        assert!((32..=33).contains(&beats), "{beats}");
    }
}
