//! The orders of the leading manager to a meta server, and what the server repeats to it at ticks.
//!
//! # Invariants
//!
//! 1. What is meant for another run of the server, or another view of a PG, changes nothing.
//! 2. Views and volumes that no manager would decide on are refused before they are stepped.
//! 3. A lease runs from the time that its grant names, which is before its renewal was sent.
//! 4. A view, volumes, and the order to vacate a replica are taken up only when the map is kept by which they were told.
//! 5. A primary serves a view by no older map than that by which the managers told it of the PG's volumes.
//!    So a bucket that the primary before found empty, marked for deletion, takes no puts from the next.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_env::clock::uptime_ms;
use larder_protocol::Event;
use larder_protocol::limits::{LEASE_MS, PG_MEMBERS_MAX, SERVER_BEAT_MS};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{LvRecord, MapVersion};
use larder_protocol::pg::Role;
use larder_types::{LvId, PgId, ServerId, SessionId, View};
use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::cluster::{AboutOrder, Cluster};
use super::duties::Volumes;
use super::maintain::Reaps;
use super::{Member, Meta};
use crate::clock::now;
use crate::limits::{SESSION_LOOKS, TICK_MS};
use crate::planted::{Bug, has};

/// Time between two beats, but for half a tick: they are looked for at ticks, which are never quite in time.
const BEAT: Duration = Duration::from_millis(SERVER_BEAT_MS - TICK_MS / 2);

/// The time of the last beat. Beats go by the clock and fall between the ticks of two PGs: a server with so
/// much to do that its ticks come late is not taken for down.
#[derive(Default)]
pub(super) struct Beat {
    last: Option<Instant>,
}

impl Beat {
    /// Returns true if it is time for one: it is then taken to be made.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= BEAT);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

impl Meta {
    /// Takes what the manager says.
    pub(super) fn heed_manager(&self, cluster: &Cluster, message: ManagerMessage) {
        if let Some(about) = Self::comes_early(cluster, &message) {
            return cluster.hold(about, message);
        }
        match message {
            ManagerMessage::WhoAreYou => cluster.say_started(),
            ManagerMessage::NewView { pg, view, members, learners, boot }
                if boot == cluster.boot =>
            {
                self.heed_view(cluster, pg, view, members, &learners);
            }
            ManagerMessage::Leases { boot, sent_ms, granted } if boot == cluster.boot => {
                for (pg, view) in granted {
                    if let Some(mut member) = self.member(pg) {
                        let lease = &mut member.duties.lease;
                        *lease = (*lease).max((view, sent_ms.saturating_add(LEASE_MS)));
                    }
                }
            }
            ManagerMessage::Volumes { pg, view, boot, version, lvs, boots, sessions }
                if boot == cluster.boot =>
            {
                let map = cluster.managers.map();
                let is_anothers =
                    |(lv, _): &(LvId, LvRecord)| map.lv(*lv).is_some_and(|known| known.pg != pg);
                if let Some((lv, _)) = lvs.iter().find(|told| is_anothers(told)) {
                    return tracing::error!(%pg, %lv, "a manager gives a volume of another group: it is of an older copy, or of another cluster");
                }
                if let Some(mut member) = self.member(pg) {
                    let mut volumes = Volumes::new(view, lvs, &boots, version, sessions);
                    // Managers of an earlier release count copies that were on their way.
                    if let Some((_, settings)) = cluster.managers.map().founded {
                        let wanted = settings.copies;
                        volumes.lvs.iter_mut().for_each(|lv| lv.copies = lv.copies.min(wanted));
                    }
                    self.heed_volumes(cluster, &mut member, volumes);
                }
            }
            ManagerMessage::PoolEmpty(boot, pg) if boot == cluster.boot => {
                if let Some(mut member) = self.member(pg) {
                    member.duties.needs_lv = false;
                    self.step(&mut member, Event::PoolEmpty);
                }
            }
            ManagerMessage::TooFewServers(boot, pg) if boot == cluster.boot => {
                if let Some(mut member) = self.member(pg) {
                    member.duties.needs_lv = false;
                    self.step(&mut member, Event::TooFewServers);
                }
            }
            ManagerMessage::CopyTurn { boot, sent_ms, turn } if boot == cluster.boot => {
                self.rebuild.order.heard(sent_ms, turn);
            }
            ManagerMessage::SessionClosed(session) => {
                cluster.adoption.end_sessions(BTreeSet::from([session]));
            }
            ManagerMessage::Vacate(lv, replica, order) => {
                self.heed_vacate(cluster, lv, usize::from(replica), order);
            }
            other => tracing::debug!(?other, "what the manager says is not for this run"),
        }
    }

    /// For an order whose map is not kept yet: the version of the one that is, that of the one wanted, and what the order is about.
    fn comes_early(cluster: &Cluster, message: &ManagerMessage) -> Option<AboutOrder> {
        let (map, kept) = (cluster.managers.map(), cluster.managers.kept());
        let (pg, wants, view) = match message {
            ManagerMessage::NewView { pg, view, boot, .. } if *boot == cluster.boot => {
                let known = map.pg(*pg)?;
                let later = MapVersion(map.version.0 + 1);
                (*pg, if known.view < *view { later } else { known.begun }, Some(*view))
            }
            ManagerMessage::Volumes { pg, boot, version, .. } if *boot == cluster.boot => {
                (*pg, *version, None)
            }
            _ => return None,
        };
        (kept < wants).then_some((kept, wants, (pg, view)))
    }

    /// A PG, if there is one of this number.
    pub(super) fn member(&self, pg: PgId) -> Option<MutexGuard<'_, Member>> {
        Some(self.pgs.get(pg.0 as usize)?.lock())
    }

    fn heed_view(
        &self,
        cluster: &Cluster,
        pg: PgId,
        view: View,
        members: Vec<ServerId>,
        learners: &[ServerId],
    ) {
        let Some(mut member) = self.member(pg) else { return };
        let distinct: BTreeSet<&ServerId> = members.iter().collect();
        if members.len() > PG_MEMBERS_MAX || distinct.len() != members.len() {
            return tracing::error!(%pg, %view, "a view has members twice, or too many: it is refused");
        }
        let event = match members.first() {
            Some(_) if members.contains(&cluster.me) => {
                Event::NewView { view, members, boot: cluster.boot }
            }
            Some(&primary) if learners.contains(&cluster.me) => Event::Learn { view, primary },
            _ => return,
        };
        let before = member.pg.view();
        if has(Bug::IgnoresViews) && member.pg.role() == Role::Serving {
            return;
        }
        let Member { pg: machine, out, .. } = &mut *member;
        machine.step(now(), event, &self.index, out);
        if member.pg.view() != before {
            member.end_view();
        }
        self.carry_out(&mut member);
        if member.pg.view() == view {
            cluster.managers.say(ServerMessage::Told(cluster.boot, pg, view));
        }
    }

    /// The PG's LVs in its view: all of them for one that does not serve yet, the new ones for one that does.
    pub(super) fn heed_volumes(&self, cluster: &Cluster, member: &mut Member, volumes: Volumes) {
        if member.pg.view() != volumes.view {
            return;
        }
        let distinct: BTreeSet<LvId> = volumes.lvs.iter().map(|info| info.lv).collect();
        if distinct.len() != volumes.lvs.len() {
            let pg = member.pg.id();
            return tracing::error!(%pg, "a manager describes a volume twice: its word is refused");
        }
        for info in &volumes.lvs {
            if let Err(why) = member.pg.admits_lv(info) {
                let (pg, lv) = (member.pg.id(), info.lv);
                return tracing::error!(%pg, %lv, %why, "a manager's word on volumes is refused");
            }
        }
        match member.pg.role() {
            Role::Active if !member.duties.contradicts => {
                let (pg, view, as_of) = (member.pg.id(), volumes.view, volumes.as_of);
                let known = member.duties.volumes.as_ref().filter(|known| known.view == view);
                if known.is_some_and(|known| known.as_of > as_of) {
                    return tracing::debug!(%pg, ?as_of, "an older map's word on volumes came late");
                }
                member.duties.volumes = Some(volumes);
                cluster.adopt_under(as_of, pg);
            }
            Role::Serving => {
                for info in volumes.lvs {
                    if member.duties.knows_newer(&info) {
                        let (pg, lv) = (member.pg.id(), info.lv);
                        tracing::debug!(%pg, %lv, "an older map's word on a volume came late");
                        continue;
                    }
                    if member.duties.note_lv(&info) {
                        member.duties.needs_lv = false;
                    }
                    self.step(member, Event::Lv(info));
                }
            }
            _ => {}
        }
    }

    /// A replica's copies are to be given up. That its disk is gone for good says the map.
    fn heed_vacate(&self, cluster: &Cluster, lv: LvId, replica: usize, order: MapVersion) {
        let map = cluster.managers.map();
        if cluster.managers.kept() < order {
            // By an older map the number may be another's. The manager repeats its order.
            return;
        }
        let Some(record) = map.lv(lv) else { return };
        let Some(of) = record.replicas.get(replica) else { return };
        let is_lost = !map.exists(of);
        if let Some(mut member) = self.member(record.pg) {
            tracing::debug!(%lv, replica, is_lost, "a replica is to be vacated");
            let away = map.away(record);
            self.step(&mut member, Event::Vacate { lv, replica, order, is_lost, away });
        }
    }

    /// Tells a PG whose copies are to go on which servers others are out of reach, by the newest map.
    fn look_who_is_away(&self, cluster: &Cluster, member: &mut Member) {
        let lvs = member.pg.lvs_to_vacate();
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

    /// A tick of every PG, and what the manager is to hear at beats until it shows effect.
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

    /// Says what is due at each beat.
    fn beat(&self, cluster: &Cluster) {
        let now = Instant::now();
        self.renew(cluster);
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            member.drop_overdue(now);
            self.say_again(cluster, &member);
            self.look_who_is_away(cluster, &mut member);
        }
        let made = self.rebuild.bytes();
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

    /// The manager's word on a session's end may be lost; the map says it for a long time. At a start, and
    /// now and then, sessions count that ended before and that some group remembers: their ops may come
    /// late, from other members.
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
