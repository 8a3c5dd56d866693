//! The orders of the leading manager to a meta server.
//!
//! # Invariants
//!
//! 1. An order for another run of the server, or another view of a PG, changes nothing.
//! 2. Views and volumes that no manager would decide on are refused before they are stepped.
//! 3. A lease runs from the time that its grant names, which is no later than that at which this server sent its renewal.
//! 4. A view, volumes, and the order to vacate a replica are obeyed only once the map of the order is kept.
//! 5. A primary serves a view by no older map than that of the PG's volumes in the managers' order.
//!    So a bucket that the former primary found empty, marked for deletion, takes no puts from the next.

use std::collections::BTreeSet;

use larder_protocol::Event;
use larder_protocol::limits::{LEASE_MS, PG_MEMBERS_MAX};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{LvRecord, MapVersion};
use larder_protocol::pg::Role;
use larder_types::{LvId, PgId, ServerId, View};
use parking_lot::MutexGuard;

use super::cluster::{AboutOrder, Cluster};
use super::pg_view::Volumes;
use super::{Member, Meta};
use crate::planted::{Bug, has};

impl Meta {
    /// Takes an order of the leading manager.
    pub(super) fn handle_manager_message(&self, cluster: &Cluster, message: ManagerMessage) {
        if let Some(about) = Self::early_order(cluster, &message) {
            return cluster.hold(about, message);
        }
        match message {
            ManagerMessage::WhoAreYou => cluster.say_started(),
            ManagerMessage::NewView { pg, view, members, learners, boot }
                if boot == cluster.boot =>
            {
                self.handle_view(cluster, pg, view, members, &learners);
            }
            ManagerMessage::Leases { boot, sent_ms, granted } if boot == cluster.boot => {
                for (pg, view) in granted {
                    if let Some(mut member) = self.member(pg) {
                        let lease = &mut member.view_state.lease;
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
                if let Some((lv, _)) = lvs.iter().find(|reported| is_anothers(reported)) {
                    return tracing::error!(%pg, %lv, "refused a volume of another group: the manager is of an older copy or of another cluster");
                }
                if let Some(mut member) = self.member(pg) {
                    let mut volumes = Volumes::new(view, lvs, &boots, version, sessions);
                    // Managers of an earlier release count copies that were being made.
                    if let Some((_, settings)) = cluster.managers.map().founded {
                        let wanted = settings.copies;
                        volumes.lvs.iter_mut().for_each(|lv| lv.copies = lv.copies.min(wanted));
                    }
                    self.handle_volumes(cluster, &mut member, volumes);
                }
            }
            ManagerMessage::PoolEmpty(boot, pg) if boot == cluster.boot => {
                if let Some(mut member) = self.member(pg) {
                    member.view_state.needs_lv = false;
                    self.step(&mut member, Event::PoolEmpty);
                }
            }
            ManagerMessage::TooFewServers(boot, pg) if boot == cluster.boot => {
                if let Some(mut member) = self.member(pg) {
                    member.view_state.needs_lv = false;
                    self.step(&mut member, Event::TooFewServers);
                }
            }
            ManagerMessage::CopyTurn { boot, sent_ms, turn } if boot == cluster.boot => {
                self.rebuild.order.receive_turn(sent_ms, turn);
            }
            ManagerMessage::SessionClosed(session) => {
                cluster.adoption.end_sessions(BTreeSet::from([session]));
            }
            ManagerMessage::Vacate(lv, replica, order) => {
                self.handle_vacate(cluster, lv, usize::from(replica), order);
            }
            other => tracing::debug!(?other, "ignored a manager's order for another run"),
        }
    }

    /// For an order whose map is not kept yet: the version of the kept map, the version of the order's, and the order's subject.
    fn early_order(cluster: &Cluster, message: &ManagerMessage) -> Option<AboutOrder> {
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

    /// The member of a PG; `None` if there is no such PG.
    pub(super) fn member(&self, pg: PgId) -> Option<MutexGuard<'_, Member>> {
        Some(self.pgs.get(pg.0 as usize)?.lock())
    }

    fn handle_view(
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
            return tracing::error!(%pg, %view, "refused a view with duplicate or too many members");
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
        let now = self.clock.now();
        // The times of answers that this step gives count until now.
        member.stepped_ms = now.steady_ms;
        let Member { pg: machine, out, .. } = &mut *member;
        machine.step(now, event, &self.index, out);
        if member.pg.view() != before {
            member.end_view();
        }
        self.perform(&mut member);
        if member.pg.view() == view {
            cluster.managers.send_message(ServerMessage::Told(cluster.boot, pg, view));
        }
    }

    /// Takes the LVs of a PG in its view: all of them if it does not serve yet, else the new or changed ones.
    pub(super) fn handle_volumes(&self, cluster: &Cluster, member: &mut Member, volumes: Volumes) {
        if member.pg.view() != volumes.view {
            return;
        }
        let distinct: BTreeSet<LvId> = volumes.lvs.iter().map(|info| info.lv).collect();
        if distinct.len() != volumes.lvs.len() {
            let pg = member.pg.id();
            return tracing::error!(%pg, "refused a manager's order that describes a volume twice");
        }
        for info in &volumes.lvs {
            if let Err(why) = member.pg.admits_lv(info) {
                let (pg, lv) = (member.pg.id(), info.lv);
                return tracing::error!(%pg, %lv, %why, "refused a manager's order about volumes");
            }
        }
        match member.pg.role() {
            Role::Active if !member.view_state.contradicts => {
                let (pg, view, as_of) = (member.pg.id(), volumes.view, volumes.as_of);
                let known = member.view_state.volumes.as_ref().filter(|known| known.view == view);
                if known.is_some_and(|known| known.as_of > as_of) {
                    return tracing::debug!(%pg, ?as_of, "ignored an order about volumes from an older map");
                }
                member.view_state.volumes = Some(volumes);
                cluster.adopt_under(as_of, pg);
            }
            Role::Serving => {
                for info in volumes.lvs {
                    if member.view_state.has_newer(&info) {
                        let (pg, lv) = (member.pg.id(), info.lv);
                        tracing::debug!(%pg, %lv, "ignored an order about a volume from an older map");
                        continue;
                    }
                    if member.view_state.note_lv(&info) {
                        member.view_state.needs_lv = false;
                    }
                    self.step(member, Event::Lv(info));
                }
                // Before the first walk: what has a single copy within reach comes first.
                self.refresh_away(cluster, member);
            }
            _ => {}
        }
    }

    /// Takes the order to vacate a replica. The map says if its disk was removed for good.
    fn handle_vacate(&self, cluster: &Cluster, lv: LvId, replica: usize, order: MapVersion) {
        let map = cluster.managers.map();
        if cluster.managers.kept() < order {
            // In an older map the replica's number may be another server's. The manager repeats its order.
            return;
        }
        let Some(record) = map.lv(lv) else { return };
        let Some(of) = record.replicas.get(replica) else { return };
        let is_lost = !map.exists(of);
        if let Some(mut member) = self.member(record.pg) {
            tracing::debug!(%lv, replica, is_lost, "vacating a replica");
            let away = map.away(record);
            self.step(&mut member, Event::Vacate { lv, replica, order, is_lost, away });
        }
    }
}
