//! The talk of a meta server with the managers: its run, views, leases, LVs, sessions.
//!
//! # Invariants
//!
//! 1. Messages for another run are dropped.
//! 2. A message that may be lost is repeated at each beat until its effect is seen.
//! 3. A lease runs from the time that its grant names, by this server's clock.
//! 4. A PG serves only once all its LVs as of this view are known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_protocol::limits::LEASE_MS;
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{MapVersion, Topology};
use larder_protocol::pg::Role;
use larder_protocol::{Call, Event, LvInfo, Outbox};
use larder_types::{BootId, BucketId, LvId, PgId, ServerId, SessionId, StreamId, View};

use super::ledger::is_same;
use super::{NOBODY, Node, scan};
use crate::event::{FromManagers, NodeIn};
use crate::index::Port;
use crate::managers::BEAT_US;
use crate::net::Net;
use crate::places::{info_of, store_of};
use crate::process_end::ProcessEnd;
use crate::servers::Server;
use crate::verdict::Finding;

impl Node {
    fn server(&self) -> ServerId {
        self.setup.id_of(Server::Node(self.id))
    }

    /// Its clock that never jumps.
    pub(super) fn clock_ms(&self, net: &Net) -> u64 {
        self.setup.clock_ms(self.server(), net.now_us())
    }

    pub(super) fn hear_managers(
        &mut self,
        what: FromManagers,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        self.life().managers.received(net);
        match what {
            FromManagers::Map(map) => self.take_map(&map, net),
            FromManagers::Says(message) => self.receive_order(message, net),
        }
    }

    fn receive_order(&mut self, message: ManagerMessage, net: &mut Net) -> Result<(), ProcessEnd> {
        let run = self.run;
        match message {
            ManagerMessage::WhoAreYou => self.say_started(net),
            ManagerMessage::NewView { pg, view, members, learners, boot } if boot == run => {
                return self.new_view((pg, view), members, &learners, net);
            }
            ManagerMessage::Leases { boot, sent_ms, granted } if boot == run => {
                let late = self.setup.options.bugs.driver.counts_lease_from_arrival();
                let from_ms = if late { self.clock_ms(net) } else { sent_ms };
                for (pg, view) in granted {
                    let lease = &mut self.member(pg).lease;
                    *lease = (*lease).max((view, from_ms + LEASE_MS));
                }
            }
            ManagerMessage::Volumes { pg, view, boot, version, boots, lvs, sessions }
                if boot == run =>
            {
                let boots: BTreeMap<ServerId, BootId> = boots.iter().copied().collect();
                let boot = |server| boots.get(&server).copied();
                let infos = lvs.iter().map(|(id, lv)| info_of(*id, lv, version, boot));
                return self.volumes((pg, view), infos.collect(), &sessions, net);
            }
            ManagerMessage::Vacate(lv, replica, order) => {
                return self.vacate((lv, usize::from(replica)), order, net);
            }
            ManagerMessage::PoolEmpty(boot, pg) if boot == run => {
                self.member(pg).wants_lv = None;
                net.faults.add("pool empty", 1);
                return self.step(pg, Event::PoolEmpty, net);
            }
            ManagerMessage::TooFewServers(boot, pg) if boot == run => {
                self.member(pg).wants_lv = None;
                net.faults.add("too few servers", 1);
                return self.step(pg, Event::TooFewServers, net);
            }
            ManagerMessage::SessionClosed(session) => return self.close_session(session, net),
            // For another run, or for a data server; and nodes of the simulator make copies without turns.
            ManagerMessage::NewView { .. }
            | ManagerMessage::Leases { .. }
            | ManagerMessage::Volumes { .. }
            | ManagerMessage::PoolEmpty(..)
            | ManagerMessage::TooFewServers(..)
            | ManagerMessage::CopyTurn { .. }
            | ManagerMessage::CreatePv { .. } => {}
        }
        Ok(())
    }

    /// Tells PGs of which copies come or go whose servers are away, by the newest map.
    pub(super) fn refresh_away(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let map = self.life().managers.map.clone();
        let pgs: Vec<PgId> = self.life().members.iter().map(|it| it.pg.id()).collect();
        for pg in pgs {
            for lv in self.member(pg).pg.lvs_changing() {
                if let Some(record) = map.lv(lv) {
                    let away = map.away(record);
                    self.step(pg, Event::Away { lv, away }, net)?;
                }
            }
        }
        Ok(())
    }

    /// Repeats its messages and questions at each beat.
    pub(super) fn beat(&mut self, net: &mut Net) {
        let (id, run) = (self.id, self.run);
        net.after(BEAT_US, (id, NodeIn::Beat { run }));
        if !self.life().managers.observes_own_map() {
            self.say_started(net);
        }
        let sent_ms = self.clock_ms(net);
        let life = self.life();
        let leads = |role: Role| matches!(role, Role::Active | Role::Serving);
        let led = life.members.iter().filter(|member| leads(member.pg.role()));
        let led = led.map(|member| (member.pg.id(), member.pg.view())).collect();
        life.managers.say(ServerMessage::Renew { boot: run, sent_ms, led }, net);
        for member in &life.members {
            let (pg, view) = (member.pg.id(), member.pg.view());
            if member.pg.role() == Role::Active {
                life.managers.say(ServerMessage::Active(run, pg, view), net);
            }
            if member.wants_lv == Some(view) {
                let (has, has_most) = (member.lvs.len(), member.pg.has_most());
                let message = ServerMessage::need_lv(pg, view, has, has_most);
                life.managers.say(message, net);
            }
            if member.pg.is_odd() {
                life.managers.say(ServerMessage::Lacks(run, pg, view), net);
            }
            let unheard: Vec<ServerId> = member.pg.unheard().collect();
            if !unheard.is_empty() {
                life.managers.say(ServerMessage::Unheard(run, pg, view, unheard), net);
            }
        }
        life.managers.beat(net);
    }

    fn say_started(&mut self, net: &mut Net) {
        let run = self.run;
        let life = self.life();
        let message = ServerMessage::Started(run, Vec::new(), life.has.clone());
        life.managers.say(message, net);
    }

    pub(super) fn view_active(&mut self, pg: PgId, view: View, net: &mut Net) {
        let (boot, sent_ms) = (self.run, self.clock_ms(net));
        let managers = &self.life().managers;
        managers.say(ServerMessage::Active(boot, pg, view), net);
        managers.say(ServerMessage::Renew { boot, sent_ms, led: vec![(pg, view)] }, net);
    }

    pub(super) fn need_lv(&mut self, pg: PgId, net: &mut Net) {
        let member = self.member(pg);
        let (view, has, has_most) = (member.pg.view(), member.lvs.len(), member.pg.has_most());
        member.wants_lv = Some(view);
        self.life().managers.say(ServerMessage::need_lv(pg, view, has, has_most), net);
    }

    fn new_view(
        &mut self,
        (pg, view): (PgId, View),
        members: Vec<ServerId>,
        learners: &[ServerId],
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let (me, boot) = (self.server(), self.run);
        if members.contains(&me) {
            self.step(pg, Event::NewView { view, members, boot }, net)?;
        } else if learners.contains(&me) {
            self.step(pg, Event::Learn { view, primary: members[0] }, net)?;
        }
        self.life().managers.say(ServerMessage::Told(boot, pg, view), net);
        Ok(())
    }

    /// The PG's LVs: all that it has when its view begins, and more later.
    fn volumes(
        &mut self,
        (pg, view): (PgId, View),
        infos: Vec<LvInfo>,
        sessions: &[SessionId],
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        if self.member(pg).pg.view() != view {
            return Ok(());
        }
        match self.member(pg).pg.role() {
            Role::Active => self.adopt(pg, infos, sessions, net),
            Role::Serving => {
                for info in infos {
                    if self.learn(pg, &info) {
                        self.member(pg).wants_lv = None;
                    }
                    self.step(pg, Event::Lv(info), net)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A replica's copies are to be given up.
    fn vacate(
        &mut self,
        (lv, replica): (LvId, usize),
        order: MapVersion,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let map = self.life().managers.map.clone();
        let Some(record) = map.lv(lv) else { return Ok(()) };
        let Some(of) = record.replicas.get(replica) else { return Ok(()) };
        let is_lost = !map.exists(of);
        let away = map.away(record);
        self.step(record.pg, Event::Vacate { lv, replica, order, is_lost, away }, net)
    }

    /// Where the replicas of the LV lie; whether it is new. What an older map says is told by nobody any more.
    fn learn(&mut self, pg: PgId, info: &LvInfo) -> bool {
        let setup = self.setup.clone();
        let stores = info.replicas.iter().map(|replica| store_of(&setup, replica.server)).collect();
        let places = &mut self.life().places;
        if places.get(&info.lv).is_none_or(|(as_of, _)| *as_of <= info.as_of) {
            places.insert(info.lv, (info.as_of, stores));
        }
        self.member(pg).lvs.insert(info.lv)
    }

    /// Derives the PG's space and begins to serve.
    fn adopt(
        &mut self,
        pg: PgId,
        lvs: Vec<LvInfo>,
        sessions: &[SessionId],
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        while self.apply(pg, net)? > 0 {}
        let (kv, pg_count) = (self.kv.clone(), self.setup.pgs);
        let member = self.member(pg);
        if member.pg.role() != Role::Active {
            return Ok(());
        }
        let view = member.pg.view();
        (member.lvs, member.wants_lv) = (BTreeSet::new(), None);
        let derived = match scan(&Port(&kv), pg_count, lvs.iter().cloned(), &[&member.pg]) {
            Ok(derived) => derived,
            Err(error) => {
                net.find(Finding::Contradiction(error.0));
                return Ok(());
            }
        };
        if let Some(fault) = derived.faults.first() {
            net.find(Finding::Contradiction(format!("pg {pg} in view {view}: {fault}")));
            return Ok(());
        }
        for (info, _) in &derived.space.lvs {
            self.learn(pg, info);
        }
        if self.serves_early(pg) {
            self.adopt_early(pg, lvs, net)?;
            return self.drop_dead_streams(pg, derived.open_streams, sessions, net);
        }
        let space = match self.derive_space(pg, lvs) {
            Ok(space) if is_same(&space, &derived.space) => space,
            Ok(space) => {
                let rows = derived.space;
                let text = format!("pg {pg} in view {view}: known {space:?}, rows {rows:?}");
                net.find(Finding::Contradiction(text));
                return Ok(());
            }
            Err(error) => {
                net.find(Finding::Contradiction(format!("pg {pg} in view {view}: {error}")));
                return Ok(());
            }
        };
        let mut out = Outbox::new();
        self.member(pg).pg.adopt_space(space, &mut out);
        self.perform(pg, out, net)?;
        self.drop_dead_streams(pg, derived.open_streams, sessions, net)
    }

    /// Drops the streams of sessions that are over.
    fn drop_dead_streams(
        &mut self,
        pg: PgId,
        open: Vec<(BucketId, StreamId, PgId)>,
        sessions: &[SessionId],
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        // A session may have begun since this was said.
        let life = self.life();
        let is_open = |session| {
            sessions.contains(&session) || life.managers.map.sessions.contains_key(&session)
        };
        let is_dead = |session| !is_open(session) || life.closed.contains(&session);
        let mut dead: BTreeSet<_> =
            open.into_iter().map(|(bucket, stream, _)| (bucket, stream)).collect();
        dead.extend(life.members[pg.0 as usize].pg.pending_streams());
        dead.retain(|(_, stream)| is_dead(stream.session));
        for (bucket, stream) in dead {
            let call = Call::DropStream { bucket, stream };
            self.step(pg, Event::Call { token: NOBODY, call }, net)?;
        }
        Ok(())
    }

    fn take_map(&mut self, map: &Arc<Topology>, net: &mut Net) -> Result<(), ProcessEnd> {
        if self.life().managers.take(map, net) {
            if self.life().managers.observes_other_map() {
                return Err(ProcessEnd::superseded(net));
            }
            for (_, session) in &map.closed {
                self.close_session(*session, net)?;
            }
        }
        Ok(())
    }

    /// A session is over: its requests are not repeated, and its streams get no parent.
    fn close_session(&mut self, session: SessionId, net: &mut Net) -> Result<(), ProcessEnd> {
        let is_deaf = self.setup.options.bugs.driver.ignores_closed_sessions();
        if is_deaf || !self.life().closed.insert(session) {
            return Ok(());
        }
        for pg in (0..self.setup.pgs).map(PgId) {
            self.step(pg, Event::Floor { session, floor: u64::MAX }, net)?;
        }
        self.drop_streams_of(session, net)
    }

    /// Checks that only the primary of the latest view answers as one: whatever the managers decide, they wait
    /// out its lease first.
    pub(super) fn check_leads(&self, pg: PgId, view: View, net: &mut Net) {
        let agreed = self.agreed.borrow();
        if agreed.primary(pg) != self.id {
            let now = agreed.view(pg);
            let text =
                format!("pg {pg}: meta server {} in view {view}, though {now} has begun", self.id);
            net.find(Finding::TwoLead(text));
        }
    }

    fn drop_streams_of(&mut self, session: SessionId, net: &mut Net) -> Result<(), ProcessEnd> {
        for pg in (0..self.setup.pgs).map(PgId) {
            if self.member(pg).pg.role() != Role::Serving {
                continue;
            }
            let mut open = match Port(&self.kv).open_streams(pg) {
                Ok(open) => open,
                Err(error) => {
                    net.find(Finding::Contradiction(error.0));
                    return Ok(());
                }
            };
            open.extend(self.member(pg).pg.pending_streams());
            for (bucket, stream) in open {
                if stream.session == session {
                    let call = Call::DropStream { bucket, stream };
                    self.step(pg, Event::Call { token: NOBODY, call }, net)?;
                }
            }
        }
        Ok(())
    }
}
