//! The leading manager over a cluster of simple servers. Messages are late, doubled and lost, servers stop and start,
//! and some leaders do not know that they are none any more.

mod away;
mod balance;
mod bounds;
mod failover;
mod losses;
mod quiescence;
mod scale;
mod unmade;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BootId, DiskId, LvId, RegionId, SessionId};

use super::*;
use crate::limits::{
    LEASE_DRIFT_MS, LEASE_GRANTED_MS, LEASE_MS, LOST_MS, PROBATION_MS, SERVER_BEAT_MS, SILENT_MS,
};
use crate::manager::chance::CounterRng;
use crate::manager::quorum::LogIndex;
use crate::manager::state::{ClusterId, NewServer, PgRecord, ReplicaState, Settings};
use crate::placement::{FailureDomains, MachineId, RackId, Weight};

enum Happening {
    Beat(u32),
    Tick(usize),
    ToServer(u32, ManagerMessage),
    ToManager(u32, ServerMessage),
    Decide(usize, u64, Ticket, Command),
    Confirm(usize, u64, Ticket),
    Deposed(usize, u64),
}

/// A PG as one of its servers knows it.
#[derive(Clone)]
struct Known {
    view: View,
    members: Vec<ServerId>,
    learners: Vec<ServerId>,
    active: bool,
    lease_until_ms: u64,
    lvs: u32,
}

struct Server {
    boot: BootId,
    runs: bool,
    cut: bool,
    pgs: BTreeMap<PgId, Known>,
    pvs: BTreeSet<(LvId, u8)>,
    /// Views known before a stop: the log has them.
    logs: BTreeMap<PgId, View>,
}

struct World {
    rng: CounterRng,
    now_ms: u64,
    steps: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    map: Topology,
    /// The map as one who does not lead any more last saw it.
    stale: Topology,
    policies: Vec<Policy>,
    /// The true leader and its term.
    leader: (usize, u64),
    terms: Vec<u64>,
    /// Since when the leader leads.
    led_since_ms: Option<u64>,
    /// True if the leader is of a release that grants leases of `LEASE_MS`.
    grants_long: bool,
    servers: BTreeMap<u32, Server>,
    lost: u64,
    very_late: u64,
    /// Milliseconds that the quorum takes to answer, at least.
    confirm_ms: u64,
    /// One in so many messages goes to the manager that does not lead.
    astray: u64,
    /// True if nothing reaches the leader, though what it sends arrives.
    deaf: bool,
    /// No question whether the manager leads is answered meanwhile.
    unconfirmed: bool,
    views: u64,
    pool_empty: u64,
    too_few: u64,
    vacated: BTreeSet<(LvId, u8)>,
    /// The replica that a primary has emptied in a view: it empties no other one of that volume before it is gone.
    leaving: BTreeMap<LvId, (u8, DiskId, View)>,
    /// Servers that do not hear each other, though the managers hear both.
    partition_reports: BTreeSet<(u32, u32)>,
    /// Milliseconds that a group takes to empty a replica: as long as a walk over all that it has.
    walk_ms: u64,
    /// True if primaries fill what is to be filled.
    fills: bool,
    /// True if data servers make PVs.
    makes: bool,
    /// Volumes that lie where no PV can be made.
    bad: BTreeSet<LvId>,
    /// Replicas to be filled of which primaries were told that they are there, and then that they are not.
    reported: BTreeSet<(LvId, u8)>,
    reported_gone: BTreeSet<(LvId, u8)>,
}

const SETTINGS: Settings =
    Settings { pg_count: 8, members: 3, min_members: 2, copies: 3, min_copies: 2, lv_blocks: 64 };

impl World {
    fn new(seed: u64, servers: u32) -> Self {
        Self::founded(seed, servers, SETTINGS)
    }

    fn founded(seed: u64, servers: u32, settings: Settings) -> Self {
        let mut world = Self {
            rng: CounterRng(seed, 0),
            now_ms: 1_000_000,
            steps: 0,
            queue: BTreeMap::new(),
            map: Topology::default(),
            stale: Topology::default(),
            policies: vec![Policy::default(), Policy::default()],
            leader: (0, 0),
            terms: vec![0, 0],
            led_since_ms: None,
            grants_long: false,
            servers: BTreeMap::new(),
            lost: 0,
            very_late: 0,
            confirm_ms: 1,
            astray: 6,
            deaf: false,
            unconfirmed: false,
            views: 0,
            pool_empty: 0,
            too_few: 0,
            vacated: BTreeSet::new(),
            leaving: BTreeMap::new(),
            partition_reports: BTreeSet::new(),
            walk_ms: 0,
            fills: true,
            makes: true,
            bad: BTreeSet::new(),
            reported: BTreeSet::new(),
            reported_gone: BTreeSet::new(),
        };
        world.apply(Command::Found(ClusterId(1), settings)).unwrap();
        world.apply(Command::AddToken([1; 32], u64::MAX)).unwrap();
        for _ in 0..servers {
            world.add_server();
        }
        world.elect(0);
        for manager in 0..2 {
            world.after(1, Happening::Tick(manager));
        }
        world
    }

    fn add_server(&mut self) -> u32 {
        let id = self.map.next.server.0;
        let new = NewServer {
            name: format!("s{id}"),
            roles: BTreeSet::from([ServerRole::Meta, ServerRole::Data, ServerRole::Proxy]),
            addresses: Vec::new(),
            domains: FailureDomains {
                region: RegionId(0),
                rack: RackId(0),
                machine: MachineId(id),
            },
            weight: Weight(100),
        };
        let token = (id > 0).then_some(([1; 32], 0));
        self.apply(Command::AddServer(new, token)).unwrap();
        self.apply(Command::AddDisk(ServerId(id), Weight(100), 16)).unwrap();
        let server = Server {
            boot: BootId(u64::from(id) << 32 | 1),
            runs: true,
            cut: false,
            pgs: BTreeMap::new(),
            pvs: BTreeSet::new(),
            logs: BTreeMap::new(),
        };
        self.servers.insert(id, server);
        self.after(1, Happening::Beat(id));
        id
    }

    fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.steps += 1;
        self.queue.insert((self.now_ms + delay_ms, self.steps), happening);
    }

    fn apply(&mut self, command: Command) -> Applied {
        let before = self.map.clone();
        let is_view = matches!(command, Command::BeginView(..));
        let index = LogIndex(self.map.applied.0 + 1);
        let applied = self.map.apply(index, command);
        if is_view && let Ok(Outcome::View(pg, _)) = applied {
            self.views += 1;
            self.check_leases(pg, &before);
        }
        applied
    }

    /// A view has begun: nobody but its primary may answer reads alone.
    fn check_leases(&self, pg: PgId, before: &Topology) {
        let primary = self.map.pg(pg).unwrap().members[0];
        if before.pg(pg).unwrap().members.first() == Some(&primary) {
            return;
        }
        for (id, server) in &self.servers {
            let known = server.pgs.get(&pg).filter(|_| server.runs && ServerId(*id) != primary);
            let until_ms = known.map_or(0, |known| known.lease_until_ms);
            assert!(until_ms <= self.now_ms, "{pg} has two that answer: {id} until {until_ms}");
        }
    }

    fn elect(&mut self, manager: usize) {
        self.leader = (manager, self.leader.1 + 1);
        self.terms[manager] = self.leader.1;
        let before_ms = self.led_since_ms.replace(self.now_ms);
        let shortened_since_ms = before_ms.filter(|_| !std::mem::take(&mut self.grants_long));
        self.policy(manager, PolicyEvent::Elected { shortened_since_ms });
    }

    /// Another leads; the old one is told some time.
    fn change_leader(&mut self) {
        let (old, term) = self.leader;
        self.stale = self.map.clone();
        let late = 1 + self.rng.below(12_000);
        self.after(late, Happening::Deposed(old, term));
        self.elect(1 - old);
    }

    fn policy(&mut self, manager: usize, event: PolicyEvent) {
        let mut out = Vec::new();
        let map = if manager == self.leader.0 { &self.map } else { &self.stale };
        self.policies[manager].step(self.now_ms, event, map, &mut out);
        if let Some(leading) = self.policies[manager].leading.as_ref().filter(|_| out.is_empty()) {
            for pg in (0..map.pgs.len() as u32).map(PgId) {
                let known = leading.of_groups.of(pg);
                assert!(known.is_empty() || known == lvs_of(map, pg), "{pg}: {known:?}");
            }
        }
        let term = self.terms[manager];
        for effect in out {
            match effect {
                PolicyEffect::Propose(ticket, command) => {
                    let delay = 1 + self.rng.below(20);
                    self.after(delay, Happening::Decide(manager, term, ticket, command));
                }
                // A majority answers for one who led when it asked, however late that arrives.
                PolicyEffect::Confirm(ticket) if self.leader == (manager, term) => {
                    let late = if self.rng.one_in(self.very_late) { 4000 } else { 10 };
                    let delay = self.confirm_ms + self.rng.below(late);
                    self.after(delay, Happening::Confirm(manager, term, ticket));
                }
                PolicyEffect::Confirm(_) => {}
                PolicyEffect::Tell(server, message) => {
                    if !self.rng.one_in(self.lost) {
                        let late = if self.rng.one_in(self.very_late) { 4000 } else { 10 };
                        let delay = 1 + self.rng.below(late);
                        let message = if self.grants_long { longer(message) } else { message };
                        self.after(delay, Happening::ToServer(server.0, message));
                    }
                }
            }
        }
    }

    fn say(&mut self, server: u32, message: ServerMessage) {
        if self.servers[&server].cut || self.rng.one_in(self.lost) {
            return;
        }
        let late = if self.rng.one_in(self.very_late) { 4000 } else { 10 };
        let delay = 1 + self.rng.below(late);
        self.after(delay, Happening::ToManager(server, message));
    }

    fn stop(&mut self, id: u32) {
        let server = self.servers.get_mut(&id).unwrap();
        server.runs = false;
        for (pg, known) in &server.pgs {
            let last = server.logs.entry(*pg).or_default();
            *last = known.view.max(*last);
        }
        server.pgs.clear();
    }

    fn start(&mut self, id: u32) {
        let server = self.servers.get_mut(&id).unwrap();
        server.runs = true;
        server.boot = BootId(server.boot.0 + 1);
    }

    fn restart(&mut self, id: u32) {
        self.stop(id);
        self.start(id);
    }

    fn beat(&mut self, id: u32) {
        self.after(SERVER_BEAT_MS, Happening::Beat(id));
        self.speak(id);
    }

    /// Says all that a server says again and again.
    fn speak(&mut self, id: u32) {
        let server = &self.servers[&id];
        if !server.runs {
            return;
        }
        let (boot, me) = (server.boot, ServerId(id));
        let record = &self.map.servers[&me];
        if record.boot != boot || record.state != ServerState::Up {
            let has = server.logs.iter().map(|(pg, view)| (*pg, Some(*view))).collect();
            self.say(id, ServerMessage::started(&self.map, me, (boot, Vec::new(), has)));
        }
        let server = &self.servers[&id];
        let leads = |known: &Known| known.members[0] == me;
        let led: Vec<(PgId, Known)> = server
            .pgs
            .iter()
            .filter(|(_, known)| leads(known))
            .map(|(pg, known)| (*pg, known.clone()))
            .collect();
        let renewed = led.iter().filter(|(_, known)| known.active);
        let renewed = renewed.map(|(pg, known)| (*pg, known.view)).collect();
        self.say(id, ServerMessage::Renew { boot, sent_ms: self.now_ms, led: renewed });
        for (pg, known) in led {
            let has_view = |other: &ServerId| {
                let other = &self.servers[&other.0];
                other.runs && other.pgs.get(&pg).is_some_and(|k| k.view == known.view)
            };
            let unheard = known.members.iter().copied().filter(|other| self.is_parted(me, *other));
            let unheard: Vec<ServerId> = unheard.collect();
            if !unheard.is_empty() {
                self.say(id, ServerMessage::Unheard(boot, pg, known.view, unheard));
                continue;
            }
            if known.members.iter().all(has_view) {
                self.servers.get_mut(&id).unwrap().pgs.get_mut(&pg).unwrap().active = true;
                self.say(id, ServerMessage::Active(boot, pg, known.view));
                let derived: Vec<ServerId> =
                    self.map.pg(pg).unwrap().learners.iter().copied().collect();
                for learner in derived {
                    let follows = self.servers[&learner.0].pgs.contains_key(&pg);
                    if follows && !self.is_parted(me, learner) {
                        self.say(id, ServerMessage::CaughtUp(pg, known.view, learner));
                    }
                }
            }
        }
    }

    fn is_parted(&self, one: ServerId, other: ServerId) -> bool {
        self.partition_reports.contains(&(one.0.min(other.0), one.0.max(other.0)))
    }

    fn arrive(&mut self, id: u32, message: ManagerMessage) {
        let now_ms = self.now_ms;
        let server = self.servers.get_mut(&id).unwrap();
        if !server.runs || server.cut {
            return;
        }
        match message {
            ManagerMessage::NewView { pg, view, members, learners, boot }
                if boot == server.boot =>
            {
                let me = ServerId(id);
                let known = server.pgs.get(&pg).map(|known| known.view);
                if known.is_none_or(|known| known < view) {
                    let known =
                        Known { view, members, learners, active: false, lease_until_ms: 0, lvs: 0 };
                    let past = server.logs.get(&pg).copied().unwrap_or_default();
                    assert!(
                        known.members[0] != me || past < view,
                        "a primary comes back in its view"
                    );
                    server.pgs.insert(pg, known);
                } else if known == Some(view) {
                    server.pgs.get_mut(&pg).unwrap().learners = learners;
                }
                self.say(id, ServerMessage::Told(boot, pg, view));
            }
            ManagerMessage::Leases { boot, sent_ms, granted } if boot == server.boot => {
                for (pg, view) in granted {
                    let known = server.pgs.get_mut(&pg).filter(|known| known.view == view);
                    if let Some(known) = known {
                        known.lease_until_ms = known.lease_until_ms.max(sent_ms + LEASE_MS);
                        let primary = self.map.pg(pg).unwrap().members[0];
                        assert!(
                            primary == ServerId(id) || known.lease_until_ms <= now_ms,
                            "{pg}: a lease for one who does not lead any more"
                        );
                    }
                }
            }
            ManagerMessage::CreatePv { lv, replica, disk, pv, .. }
                if self.makes && !self.bad.contains(&lv) =>
            {
                server.pvs.insert((lv, replica));
                self.say(id, ServerMessage::Created(lv, replica, disk, pv));
            }
            ManagerMessage::Volumes { pg, view, boot, lvs, .. } if boot == server.boot => {
                let known = server.pgs.get_mut(&pg).filter(|known| known.view == view);
                if let Some(known) = known {
                    known.lvs = lvs.len() as u32;
                }
                for (lv, record) in lvs {
                    for index in 0..record.replicas.len() as u8 {
                        let state = record.replicas[usize::from(index)].state;
                        match state {
                            ReplicaState::Rebuilding => drop(self.reported.insert((lv, index))),
                            ReplicaState::Gone if self.reported.contains(&(lv, index)) => {
                                self.reported_gone.insert((lv, index));
                            }
                            _ => {}
                        }
                    }
                    for (index, replica) in record.present() {
                        let there =
                            self.servers[&replica.server.0].pvs.contains(&(lv, index as u8));
                        let rebuilding = replica.state == ReplicaState::Rebuilding;
                        if there && rebuilding && self.fills {
                            self.say(id, ServerMessage::Rebuilt(lv, index as u8, replica.disk));
                        }
                    }
                }
            }
            ManagerMessage::Vacate(lv, replica, order) => {
                self.vacated.insert((lv, replica));
                let Some(record) = self.map.lv(lv) else { return };
                let view = self.map.pg(record.pg).map_or(View(0), |pg| pg.view);
                let disk = |at: u8| {
                    let mut there = record.present();
                    there.find(|(index, _)| *index == usize::from(at)).map(|(_, it)| it.disk)
                };
                let is_kept = |(of, on, since): &&(u8, DiskId, View)| {
                    *since == view && *of != replica && disk(*of) == Some(*on)
                };
                if self.leaving.get(&lv).filter(is_kept).is_some() {
                    return;
                }
                let Some(on) = disk(replica) else { return };
                self.leaving.insert(lv, (replica, on, view));
                let vacated = ServerMessage::Vacated(lv, replica, view, order);
                match self.walk_ms {
                    0 => self.say(id, vacated),
                    walk_ms => self.after(walk_ms, Happening::ToManager(id, vacated)),
                }
            }
            ManagerMessage::PoolEmpty(..) => self.pool_empty += 1,
            ManagerMessage::TooFewServers(..) => self.too_few += 1,
            _ => {}
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Beat(id) => self.beat(id),
            Happening::Tick(manager) => {
                self.after(200, Happening::Tick(manager));
                self.policy(manager, PolicyEvent::Tick);
            }
            Happening::ToServer(id, message) => self.arrive(id, message),
            Happening::ToManager(..) | Happening::Confirm(..) if self.deaf => {}
            Happening::Confirm(..) if self.unconfirmed => self.after(100, happening),
            Happening::ToManager(id, message) => {
                // Some still talk to a leader that is none any more.
                let to =
                    if self.rng.one_in(self.astray) { 1 - self.leader.0 } else { self.leader.0 };
                self.policy(to, PolicyEvent::From(ServerId(id), message));
            }
            Happening::Decide(manager, term, ticket, command) => {
                if self.leader == (manager, term) {
                    let applied = self.apply(command);
                    self.policy(manager, PolicyEvent::Decided(ticket, Some(applied)));
                }
            }
            Happening::Confirm(manager, term, ticket) => {
                if self.terms[manager] == term {
                    self.policy(manager, PolicyEvent::Confirmed(ticket));
                }
            }
            Happening::Deposed(manager, term) => {
                if self.terms[manager] == term && self.leader != (manager, term) {
                    self.policy(manager, PolicyEvent::Deposed);
                }
            }
        }
    }

    fn run_for(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(entry) = self.queue.first_entry() {
            let at_ms = entry.key().0;
            if at_ms > end {
                break;
            }
            let happening = entry.remove();
            self.now_ms = self.now_ms.max(at_ms);
            self.happen(happening);
        }
        self.now_ms = end;
    }

    fn pg(&self, pg: u32) -> &crate::manager::state::PgRecord {
        self.map.pg(PgId(pg)).unwrap()
    }

    fn is_calm(&self) -> bool {
        self.map.pgs.iter().all(|pg| {
            let mut members = pg.members.clone();
            let mut target = pg.target.clone();
            members.sort_unstable();
            target.sort_unstable();
            pg.is_active() && pg.learners.is_empty() && members == target
        })
    }

    /// Returns true if all but one lead about as many PGs, and it none.
    fn leads_evenly(&self, but: ServerId) -> bool {
        let led = |id: u32| self.map.pgs.iter().filter(|pg| pg.members[0].0 == id).count();
        let others = self.servers.keys().filter(|id| **id != but.0).map(|id| led(*id));
        let (least, most) = others.fold((usize::MAX, 0), |(l, m), n| (l.min(n), m.max(n)));
        led(but.0) == 0 && most - least <= 1
    }

    fn calm_down(&mut self) {
        (self.lost, self.very_late) = (0, 0);
        self.partition_reports.clear();
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.servers.get_mut(&id).unwrap().cut = false;
            if !self.servers[&id].runs {
                self.start(id);
            }
        }
        for _ in 0..100 {
            self.run_for(20_000);
            if self.is_calm() {
                return;
            }
        }
        panic!("seed {}: the cluster does not come to rest: {:?}", self.rng.0, self.map.pgs);
    }
}

/// The volumes of a group, counted anew.
fn lvs_of(map: &Topology, pg: PgId) -> Vec<LvId> {
    let of = (0..).map(LvId).zip(&map.lvs).filter(|(_, lv)| lv.pg == pg);
    of.map(|(id, _)| id).collect()
}

/// A grant as leaders of earlier releases name it: from when the renewal was sent.
fn longer(message: ManagerMessage) -> ManagerMessage {
    match message {
        ManagerMessage::Leases { boot, sent_ms, granted } => {
            let sent_ms = sent_ms + LEASE_MS - LEASE_GRANTED_MS;
            ManagerMessage::Leases { boot, sent_ms, granted }
        }
        other => other,
    }
}

#[test]
fn a_new_cluster_begins_its_views_and_spreads_its_primaries() {
    let mut world = World::new(1, 3);
    world.run_for(30_000);
    assert!(world.is_calm(), "{:?}", world.map.pgs);
    let led = |id| world.map.pgs.iter().filter(|pg| pg.members[0] == ServerId(id)).count();
    assert!((0..3).all(|id| (2..=3).contains(&led(id))), "{:?}", world.map.pgs);
}

#[test]
fn a_dead_primary_is_followed_by_a_qualified_member_and_replaced_when_it_is_lost() {
    let mut world = World::new(2, 4);
    world.calm_down();
    let primary = world.pg(0).members[0];
    world.stop(primary.0);
    world.run_for(SILENT_MS + LEASE_MS + 3000);
    let pg = world.pg(0);
    assert!(pg.is_active() && pg.members.len() == 2 && !pg.members.contains(&primary), "{pg:?}");
    world.run_for(LOST_MS + 60_000);
    for pg in &world.map.pgs {
        assert!(
            pg.is_active() && pg.members.len() == 3 && !pg.members.contains(&primary),
            "{pg:?}"
        );
    }
    world.start(primary.0);
    world.calm_down();
}

#[test]
fn a_change_of_primary_for_balance_is_one_view_and_costs_little_of_a_lease() {
    let mut world = World::new(11, 3);
    world.calm_down();
    let (died, views) = (world.pg(0).members[0], world.views);
    world.stop(died.0);
    let mut without_ms = [0; SETTINGS.pg_count as usize];
    let end_ms = world.now_ms + SILENT_MS + 3 * LEASE_MS;
    while world.now_ms < end_ms {
        // Views are active, and renewed, as soon as they can be.
        world.run_for(10);
        (0..3).for_each(|id| world.speak(id));
        for (pg, record) in (0..).map(PgId).zip(&world.map.pgs) {
            let primary = record.members[0];
            let known = world.servers[&primary.0].pgs.get(&pg);
            let answers = known.is_some_and(|known| known.lease_until_ms > world.now_ms);
            without_ms[pg.0 as usize] += if primary == died || answers { 0 } else { 10 };
        }
    }
    assert!(world.leads_evenly(died), "{:?}", world.map.pgs);
    assert!(without_ms.iter().all(|ms| *ms < LEASE_MS / 2), "{without_ms:?}");
    let pgs = u64::from(SETTINGS.pg_count);
    assert!(world.views - views < 2 * pgs, "{} views of {pgs} PGs", world.views - views);
}

#[test]
fn members_that_cannot_reach_each_other_are_separated() {
    let mut world = World::new(9, 3);
    world.calm_down();
    world.partition_reports.insert((0, 1));
    world.run_for(2 * SERVER_BEAT_MS + LEASE_MS + 1000);
    for turn in 0..2 {
        let has = |pg: &PgRecord, id| pg.members.contains(&ServerId(id));
        for pg in &world.map.pgs {
            let waits_for_other =
                !has(pg, 2) || pg.members[0] != ServerId(2) && has(pg, 0) && has(pg, 1);
            assert!(pg.is_active() && !waits_for_other, "{turn}: {pg:?}");
        }
        // One that is away from some comes back only if they hear it.
        world.run_for(3 * PROBATION_MS);
    }
    world.calm_down();
}

#[test]
fn an_isolated_primary_stops_leading() {
    let mut world = World::new(10, 3);
    world.calm_down();
    world.partition_reports.extend([(0, 1), (1, 2)]);
    world.run_for(2 * SERVER_BEAT_MS + 2 * (LEASE_MS + LEASE_DRIFT_MS) + 1000);
    for pg in &world.map.pgs {
        let apart = pg.members.contains(&ServerId(1));
        assert!(pg.is_active() && !apart && pg.members.len() == 2, "{pg:?}");
    }
    world.calm_down();
}

#[test]
fn without_a_qualified_member_there_is_no_view() {
    let mut world = World::new(4, 4);
    world.calm_down();
    let members = world.pg(0).members.clone();
    let view = world.pg(0).view;
    for member in &members {
        world.stop(member.0);
    }
    world.run_for(LOST_MS * 2);
    let pg = world.pg(0);
    assert!(pg.view.0 - view.0 <= 2, "{pg:?}");
    assert!(members.contains(&pg.members[0]) && pg.members.len() >= 2);
    for member in members {
        world.start(member.0);
    }
    world.calm_down();
}

#[test]
fn a_flapping_server_causes_few_views() {
    let mut world = World::new(5, 3);
    world.calm_down();
    let before = world.views;
    // Up for ten seconds, silent for five, for two hours.
    for _ in 0..480 {
        world.servers.get_mut(&0).unwrap().cut = true;
        world.run_for(5000);
        world.servers.get_mut(&0).unwrap().cut = false;
        world.run_for(10_000);
    }
    let per_pg = (world.views - before) / u64::from(SETTINGS.pg_count);
    assert!(per_pg < 20, "{per_pg} views for each pg in 480 flaps");
    world.calm_down();
    let before = world.views;
    // It crashes and is back at once, every twelve seconds.
    for _ in 0..300 {
        world.restart(0);
        world.run_for(12_000);
    }
    let per_pg = (world.views - before) / u64::from(SETTINGS.pg_count);
    assert!(per_pg < 20, "{per_pg} views for each pg in 300 restarts");
    world.calm_down();
}

#[test]
fn a_server_that_drains_is_left_and_a_new_one_takes_its_share() {
    let mut world = World::new(6, 4);
    world.calm_down();
    world.apply(Command::SetDraining(ServerId(1), true)).unwrap();
    world.calm_down();
    let has = |world: &World, id| {
        world.map.pgs.iter().filter(|pg| pg.members.contains(&ServerId(id))).count()
    };
    assert_eq!(has(&world, 1), 0);
    world.apply(Command::RemoveServer(ServerId(1))).unwrap();
    let new = world.add_server();
    world.calm_down();
    assert!(has(&world, new) > 2, "{:?}", world.map.pgs);
}

#[test]
fn lvs_are_drawn_on_demand_and_a_restart_of_their_data_server_begins_a_view() {
    let mut world = World::new(7, 4);
    world.astray = 0;
    world.calm_down();
    let need = |world: &mut World, has| {
        let pg = world.pg(0).clone();
        world.say(pg.members[0].0, ServerMessage::NeedLv(PgId(0), pg.view, has));
        world.run_for(1000);
    };
    need(&mut world, 0);
    let known = |world: &World| world.servers[&world.pg(0).members[0].0].pgs[&PgId(0)].lvs;
    assert_eq!(known(&world), 1);
    // Asked again because the answer was lost: no other one is drawn.
    need(&mut world, 0);
    assert_eq!((world.map.lvs.len(), known(&world)), (1, 1));
    need(&mut world, 1);
    assert_eq!((world.map.lvs.len(), known(&world)), (2, 2));
    let view = world.pg(0).view;
    let lv = world.map.lv(LvId(0)).unwrap();
    let outside = lv.present().map(|(_, r)| r.server).find(|s| world.pg(0).members[0] != *s);
    world.restart(outside.unwrap().0);
    world.run_for(5000);
    assert!(world.pg(0).view > view);
    assert_eq!(known(&world), 2, "the new view is told of its volumes");
    for has in 2..30 {
        need(&mut world, has);
    }
    assert!(world.pool_empty > 0, "{} LVs of 4 x 16 PVs", world.map.lvs.len());
    assert!(world.map.lvs.len() > 20);
}

#[test]
fn narrow_lvs_are_made_while_a_host_is_away_and_widened_when_it_is_back() {
    let mut world = World::new(8, 3);
    world.astray = 0;
    world.calm_down();
    world.stop(2);
    world.run_for(20_000);
    let pg = world.pg(0).clone();
    let empty = world.pool_empty;
    world.say(pg.members[0].0, ServerMessage::need_lv(PgId(0), pg.view, 0, true));
    world.run_for(2000);
    assert_eq!((world.map.lvs.len(), world.pool_empty), (0, empty + 1), "it has as wide a one");
    world.say(pg.members[0].0, ServerMessage::need_lv(PgId(0), pg.view, 0, false));
    world.run_for(2000);
    assert_eq!(world.map.lv(LvId(0)).unwrap().replicas.len(), 2);
    world.calm_down();
    world.run_for(60_000);
    let lv = world.map.lv(LvId(0)).unwrap();
    assert_eq!((lv.replicas.len(), lv.width), (3, 3), "{lv:?}");
    world.apply(Command::SetDiskDraining(ServerId(0), DiskId(0), true)).unwrap();
    let new = world.add_server();
    world.run_for(120_000);
    let lv = world.map.lv(LvId(0)).unwrap();
    assert!(lv.present().all(|(_, r)| r.server != ServerId(0)), "{lv:?}");
    assert!(lv.present().any(|(_, r)| r.server == ServerId(new)));
    assert_eq!(world.vacated.len(), 1);
}

#[test]
fn a_replica_that_was_emptied_goes_though_its_drain_was_undone() {
    let mut world = World::new(12, 3);
    world.calm_down();
    let pg = world.pg(0).clone();
    let (primary, view) = (pg.members[0].0, pg.view);
    for _ in 0..5 {
        world.say(primary, ServerMessage::NeedLv(PgId(0), view, 0));
        world.run_for(1000);
    }
    let current = |world: &World| {
        let lv = world.map.lv(LvId(0)).unwrap();
        lv.present().filter(|(_, replica)| replica.state == ReplicaState::Current).count()
    };
    assert_eq!(current(&world), 3);
    // Of the order for it nobody knows any more.
    let mut fewest = 3;
    for said in 0..600 {
        if said < 50 {
            world.say(primary, ServerMessage::Vacated(LvId(0), 1, view, MapVersion(1)));
        }
        world.run_for(100);
        fewest = fewest.min(current(&world));
    }
    assert!(world.vacated.contains(&(LvId(0), 1)), "it is ordered anew");
    assert_eq!(fewest, 2, "the emptied one is dropped");
    assert_eq!(current(&world), 3, "another is filled in its place");
}

#[test]
fn a_replica_that_was_emptied_and_is_needed_is_replaced_before_it_goes() {
    let mut world = World::new(12, 4);
    world.calm_down();
    let pg = world.pg(0).clone();
    let (primary, view) = (pg.members[0].0, pg.view);
    world.say(primary, ServerMessage::NeedLv(PgId(0), view, 0));
    world.run_for(5000);
    let count = |world: &World| {
        let lv = world.map.lv(LvId(0)).unwrap();
        lv.present().filter(|(_, replica)| replica.state == ReplicaState::Current).count()
    };
    assert_eq!(count(&world), 3);
    world.apply(Command::DropReplica(LvId(0), 0)).unwrap();
    assert_eq!(count(&world), 2, "as few as may be");
    let mut fewest = 3;
    for said in 0..600 {
        if said < 20 {
            world.say(primary, ServerMessage::Vacated(LvId(0), 1, view, MapVersion(1)));
        }
        world.run_for(100);
        fewest = fewest.min(count(&world));
    }
    let lv = world.map.lv(LvId(0)).unwrap();
    assert!(world.vacated.contains(&(LvId(0), 1)), "it is ordered to go: {lv:?}");
    assert_eq!((fewest, count(&world)), (2, 3), "never fewer than may be: {lv:?}");
}

#[test]
fn a_new_leader_removes_no_replica_that_a_primary_counts_on() {
    let mut world = World::new(12, 5);
    world.astray = 0;
    world.calm_down();
    let pg = world.pg(0).clone();
    let (primary, view) = (pg.members[0].0, pg.view);
    world.say(primary, ServerMessage::NeedLv(PgId(0), view, 0));
    world.run_for(5000);
    world.fills = false;
    world.apply(Command::DropReplica(LvId(0), 0)).unwrap();
    world.run_for(10_000);
    let filling = |world: &World| {
        let lv = world.map.lv(LvId(0)).unwrap();
        let it = lv.present().find(|(_, it)| it.state == ReplicaState::Rebuilding);
        it.map(|(index, it)| ((LvId(0), index as u8), it.server.0))
    };
    let (replica, server) = filling(&world).expect("another is to be filled");
    assert!(world.reported.contains(&replica), "the primary may put data there");
    world.reported_gone.clear();
    // Nobody can ask it whether it was made.
    world.servers.get_mut(&server).unwrap().cut = true;
    world.change_leader();
    world.run_for(20_000);
    assert_eq!(filling(&world).map(|(at, _)| at), Some(replica));
    assert!(!world.reported_gone.contains(&replica), "its data count");
}

#[test]
fn lvs_are_narrow_while_a_disk_has_no_room_and_no_longer() {
    let mut world = World::new(9, 3);
    world.calm_down();
    let boot = world.map.servers[&ServerId(2)].boot;
    let full = |world: &mut World, disks: &[u32], ms| {
        for _ in 0..ms / SERVER_BEAT_MS {
            disks.iter().for_each(|disk| world.say(2, ServerMessage::NoRoom(boot, DiskId(*disk))));
            world.run_for(SERVER_BEAT_MS);
        }
    };
    full(&mut world, &[0, 2], 2000);
    let pg = world.pg(0).clone();
    world.say(pg.members[0].0, ServerMessage::NeedLv(PgId(0), pg.view, 0));
    full(&mut world, &[0, 2], 2000);
    let on = |world: &World| {
        let lv = world.map.lv(LvId(0)).unwrap();
        lv.present().map(|(_, replica)| replica.disk).collect::<Vec<_>>()
    };
    assert_eq!(on(&world).len(), 2, "{:?}", on(&world));
    assert!(on(&world).contains(&DiskId(0)), "a server speaks for its own disks");
    full(&mut world, &[2], 20_000);
    assert_eq!(on(&world).len(), 2, "nothing is copied to a disk without room");
    world.run_for(60_000);
    assert_eq!(on(&world).len(), 3, "what is narrow is widened when there is room again");
}

#[test]
fn a_member_that_lost_its_disk_leads_nothing_and_returns_as_a_learner() {
    let mut world = World::new(10, 3);
    world.calm_down();
    world.stop(0);
    world.servers.get_mut(&0).unwrap().logs.clear();
    world.start(0);
    while world.map.servers[&ServerId(0)].boot != world.servers[&0].boot {
        world.run_for(1);
    }
    for pg in &world.map.pgs {
        assert!(
            !pg.qualified.contains(&ServerId(0)) && pg.lacking.contains(&ServerId(0)),
            "{pg:?}"
        );
    }
    world.calm_down();
    assert!(world.map.pgs.iter().all(|pg| pg.qualified.len() == 3), "{:?}", world.map.pgs);
}

#[test]
fn a_member_that_lost_its_disk_is_levelled_in_the_next_view_when_it_cannot_be_spared() {
    let mut world = World::new(11, 3);
    world.calm_down();
    world.stop(2);
    world.run_for(20_000);
    world.stop(0);
    world.servers.get_mut(&0).unwrap().logs.clear();
    world.start(0);
    world.run_for(20_000);
    for pg in &world.map.pgs {
        let both = BTreeSet::from([ServerId(0), ServerId(1)]);
        assert!(pg.is_active() && pg.qualified == both, "{pg:?}");
    }
}

#[test]
fn a_member_with_other_rows_is_let_go_and_returns_as_a_learner_a_primary_after_its_lease() {
    let mut world = World::new(12, 3);
    world.calm_down();
    for odd_leads in [false, true] {
        let record = world.pg(0).clone();
        let odd = record.members[usize::from(!odd_leads)];
        let boot = world.servers[&odd.0].boot;
        let views = world.views;
        while world.pg(0).view == record.view {
            world.say(odd.0, ServerMessage::Lacks(boot, PgId(0), record.view));
            world.run_for(100);
            assert!(world.pg(0).view == record.view || !world.pg(0).members.contains(&odd));
        }
        assert_eq!(world.pg(0).members.len(), 2, "the others go on: {:?}", world.pg(0));
        assert!(!odd_leads || world.pg(0).members[0] != odd);
        world.say(odd.0, ServerMessage::Lacks(boot, PgId(0), record.view));
        world.calm_down();
        assert_eq!(world.pg(0).qualified.len(), 3, "{:?}", world.pg(0));
        let more = world.views - views;
        assert!(more <= 4, "without it, with it, and the lead back to where it was: {more}");
    }
}

#[test]
fn what_a_run_said_that_has_ended_is_not_heard() {
    let mut world = World::new(12, 3);
    world.calm_down();
    let old = world.servers[&0].boot;
    world.restart(0);
    world.calm_down();
    let (views, boot) = (world.views, world.servers[&0].boot);
    let late = [
        ServerMessage::Started(old, Vec::new(), Vec::new()),
        ServerMessage::Heartbeat(old),
        ServerMessage::Renew { boot: old, sent_ms: 0, led: Vec::new() },
    ];
    for message in late {
        world.policy(world.leader.0, PolicyEvent::From(ServerId(0), message));
        world.run_for(1000);
    }
    assert_eq!((world.views, world.map.servers[&ServerId(0)].boot), (views, boot));
    // None of this was a restart: it takes one more to be put on probation.
    world.restart(1);
    world.run_for(2000);
    assert!(world.map.pgs.iter().all(PgRecord::is_active), "{:?}", world.map.pgs);
}

#[test]
fn a_late_word_of_a_run_that_the_map_does_not_know_ends_no_run_that_followed() {
    let mut world = World::new(14, 12);
    world.apply(Command::RaiseClusterVersion(START_AFTER_VERSION)).unwrap();
    world.calm_down();
    let (me, run) = (ServerId(0), |world: &World| world.map.servers[&ServerId(0)].boot);
    // As one that ended before it was named, or that managers which were made anew have forgotten.
    let forgotten = BootId(run(&world).0 + 100);
    let late = ServerMessage::started(&world.map, me, (forgotten, Vec::new(), Vec::new()));
    world.restart(0);
    world.calm_down();
    let (views, next) = (world.views, world.servers[&0].boot);
    assert_eq!(run(&world), next);
    let plain = ServerMessage::Started(forgotten, Vec::new(), Vec::new());
    for message in [late.clone(), late, plain] {
        world.policy(world.leader.0, PolicyEvent::From(me, message));
        world.run_for(1000);
        assert_eq!((world.views, run(&world)), (views, next), "it was called late");
    }
    // In time it is named, and followed by the next.
    let forgotten = BootId(next.0 + 200);
    world.stop(0);
    let in_time = ServerMessage::started(&world.map, me, (forgotten, Vec::new(), Vec::new()));
    world.policy(world.leader.0, PolicyEvent::From(me, in_time));
    world.run_for(100);
    assert_eq!(run(&world), forgotten);
    world.start(0);
    world.calm_down();
    assert_eq!(run(&world), world.servers[&0].boot);
    // None of what was late was a restart: it takes one more to be put on probation.
    world.restart(1);
    world.run_for(2000);
    assert!(world.map.pgs.iter().all(PgRecord::is_active), "{:?}", world.map.pgs);
}

#[test]
fn nobody_is_on_probation_where_nothing_takes_its_place() {
    let alone = Settings { members: 1, min_members: 1, copies: 1, min_copies: 1, ..SETTINGS };
    let mut world = World::founded(13, 2, alone);
    world.astray = 0;
    world.calm_down();
    let pg = world.pg(0).clone();
    let primary = pg.members[0].0;
    world.say(primary, ServerMessage::NeedLv(PgId(0), pg.view, 0));
    world.run_for(1000);
    let lv = world.map.lv(LvId(0)).unwrap();
    let data = lv.replicas[0].server.0;
    for restarted in [primary, data].repeat(6) {
        let view = world.pg(0).view;
        world.restart(restarted);
        world.run_for(SILENT_MS);
        let pg = world.pg(0);
        assert!(pg.view > view && pg.is_active(), "server {restarted}: {pg:?}");
        assert_eq!(world.servers[&primary].pgs[&PgId(0)].lvs, 1);
    }
}

#[test]
fn sessions_end_with_their_proxy() {
    let mut world = World::new(9, 3);
    world.astray = 0;
    world.calm_down();
    let boot = world.servers[&1].boot;
    world.say(1, ServerMessage::SessionBegun(boot, SessionId(77)));
    world.run_for(1000);
    assert!(world.map.sessions.contains_key(&SessionId(77)));
    world.stop(1);
    world.run_for(SILENT_MS + 2000);
    assert!(world.map.sessions.is_empty());
}

fn storm(seed: u64) -> u64 {
    let count = 3 + (seed % 3) as u32;
    let mut world = World::new(seed, count);
    if seed.is_multiple_of(4) {
        world.calm_down();
    }
    (world.lost, world.very_late) = (5 + world.rng.below(40), 3 + world.rng.below(30));
    for _ in 0..80 {
        let pause = world.rng.below(3000);
        world.run_for(pause);
        let id = world.rng.below(u64::from(count)) as u32;
        match world.rng.below(9) {
            0 => world.restart(id),
            1 => world.stop(id),
            2 if !world.servers[&id].runs => world.start(id),
            3 => world.servers.get_mut(&id).unwrap().cut = true,
            4 | 5 => world.servers.get_mut(&id).unwrap().cut = false,
            6 => world.change_leader(),
            7 => {
                let on = world.rng.one_in(2) && count > 3;
                let _ = world.apply(Command::SetDraining(ServerId(id), on));
            }
            _ => {
                let pg = world.rng.below(8) as u32;
                if let Some(primary) = world.pg(pg).members.first().copied() {
                    let need = ServerMessage::NeedLv(PgId(pg), world.pg(pg).view, 0);
                    world.say(primary.0, need);
                }
            }
        }
    }
    for id in 0..count {
        let _ = world.apply(Command::SetDraining(ServerId(id), false));
    }
    world.calm_down();
    crate::placement::hash(world.steps, &[world.views, world.map.version.0])
}

#[test]
fn leases_never_overlap_whatever_happens_and_all_comes_to_rest() {
    let count = std::env::var("POLICY_SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 0..count.unwrap_or(30) {
        storm(seed);
    }
    assert_eq!(storm(3), storm(3));
}
