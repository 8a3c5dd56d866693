//! The beats of a meta server in a cluster: at each it repeats to the leading manager reports that have shown no effect yet.
//! Ticks check if one is due.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_env::clock::uptime_ms;
use larder_protocol::Event;
use larder_protocol::limits::SERVER_BEAT_MS;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::Role;
use larder_types::{ServerId, SessionId};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::tick::Reaps;
use super::{Member, Meta};
use crate::limits::{SESSION_LOOKS, TICK_MS};

/// Time between two beats, less half a tick: beats happen at ticks, which are never quite on time.
const BEAT: Duration = Duration::from_millis(SERVER_BEAT_MS - TICK_MS / 2);

/// The time of the last beat. A beat may happen between the ticks of two PGs, so that a server whose ticks are slow does not
/// count as down.
#[derive(Default)]
pub(super) struct Beat {
    last: Option<Instant>,
}

impl Beat {
    /// Returns true if a beat is due, and counts it as done.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= BEAT);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

impl Meta {
    /// Tells a PG of which copies come or go whose servers are away, by the newest map.
    pub(super) fn look_who_is_away(&self, cluster: &Cluster, member: &mut Member) {
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
        for pg in self.pg_ids() {
            together.with(&mut self.lock(pg), |member| self.tick(member, reaps));
            if beat.is_due(Instant::now()) {
                together.leave();
                self.beat(cluster);
            }
        }
        drop(together);
        if cluster.renew_soon.swap(false, Ordering::Relaxed) {
            self.renew(cluster);
        }
    }

    /// Makes a beat: renews leases and repeats reports.
    fn beat(&self, cluster: &Cluster) {
        let now = Instant::now();
        self.renew(cluster);
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            member.drop_overdue(now);
            self.say_again(cluster, &member);
            self.look_who_is_away(cluster, &mut member);
        }
        let made = self.rebuild.bytes.get();
        self.rebuild.order.say(cluster, made, self.background.bytes_per_s());
        cluster.say_started();
        self.look_for_ended_sessions(cluster);
    }

    /// Asks for leases of the views that this server leads.
    fn renew(&self, cluster: &Cluster) {
        let sent_ms = uptime_ms();
        let led = self.pg_ids().filter_map(|pg| {
            let member = self.lock(pg);
            let leads = matches!(member.pg.role(), Role::Active | Role::Serving);
            leads.then(|| (pg, member.pg.view()))
        });
        let led = led.collect();
        cluster.managers.say(ServerMessage::Renew { boot: cluster.boot, sent_ms, led });
    }

    fn say_again(&self, cluster: &Cluster, member: &Member) {
        if member.pg.role() == Role::Active && !member.duties.contradicts {
            cluster.say_active(member.pg.id(), member.pg.view());
        }
        if member.duties.needs_lv {
            cluster.say_needs_lv(member);
        }
        if member.pg.is_odd() {
            cluster.say_lacks(member.pg.id(), member.pg.view());
        }
        let unheard: Vec<ServerId> = member.pg.unheard().collect();
        if !unheard.is_empty() {
            cluster.say_unheard(member.pg.id(), member.pg.view(), unheard);
        }
    }

    /// Ends sessions that the map has as closed: the manager's message about it may be lost, and the map keeps it for a long
    /// time. At a start, and every [`SESSION_LOOKS`] beats, it also ends sessions that were closed before and that some group
    /// remembers, since their ops may come late from other members.
    fn look_for_ended_sessions(&self, cluster: &Cluster) {
        let map = cluster.managers.map();
        let mut seen = cluster.sessions_seen.lock();
        let (through, looks) = *seen;
        *seen = (through.max(map.version), looks.wrapping_add(1));
        drop(seen);
        let from = (MapVersion(through.0 + 1), SessionId(0));
        let mut ended: BTreeSet<SessionId> = map.closed.range(from..).map(|(_, it)| *it).collect();
        if looks.is_multiple_of(SESSION_LOOKS) {
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
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut beat = Beat::default();
        assert!(beat.is_due(at(0)), "the first is due");
        // Ticks of 256 groups that take 400 ms in place of 100: a look after each group.
        let looks = (0..40 * 256).map(|look| look * 400 / 256);
        let beats: Vec<u64> = looks.filter(|ms| beat.is_due(at(*ms))).collect();
        let (first, last) = (beats[0], beats[beats.len() - 1]);
        assert!(first <= SERVER_BEAT_MS && last > 15_000, "{beats:?}");
        assert!(beats.windows(2).all(|pair| pair[1] - pair[0] <= SERVER_BEAT_MS), "{beats:?}");
        // Every third of ticks that are in time.
        let looks = (1..100).map(|tick| 20_000 + tick * TICK_MS);
        let beats = looks.filter(|ms| beat.is_due(at(*ms))).count();
        assert!((32..=33).contains(&beats), "{beats}");
    }
}
