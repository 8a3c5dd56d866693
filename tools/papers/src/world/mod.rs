//! A cluster in simulated time: the protocol's own machines over models of disks, links and messages.
//!
//! ```text
//!  servers' beats ─▶ managers: Policy + map ─▶ groups: Pg ─▶ walks: Walk, Turns, Budget ─▶ copies: disks, links ─▶ truth
//! ```
//!
//! The machines are those that ship: the managers' policy and map, the groups, the order of copies, the budget of
//! background work. Three things are models. The quorum agrees on everything after a sync. A group has no members but
//! its primary. A meta server walks over its index in a loop of its own (`meta/rebuild.rs` of the roles is the real one).
//!
//! # Invariants
//!
//! 1. One set-up makes one run: what happens at the same time happens in the order in which it was planned.
//! 2. A server that is gone says nothing, and nothing reaches it.
//!
//! | module | what it has |
//! |---|---|
//! | [`setup`] | the cluster as it begins: servers, volumes, groups |
//! | [`managers`] | the policy over the map, and what it has servers do |
//! | [`group`] | a placement group |
//! | [`meta`] | a meta server that looks for copies to be made |
//! | [`copying`] | copies on their way through disks and links |
//! | [`hardware`] | how long these take |
//! | [`truth`] | the copies that there really are |

mod copying;
mod group;
pub(crate) mod hardware;
mod managers;
mod meta;
pub(crate) mod setup;
pub(crate) mod truth;

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::manager::policy::{ManagerMessage, Policy, ServerMessage};
use larder_protocol::manager::quorum::Ticket;
use larder_protocol::manager::state::{Command, Topology};
use larder_protocol::{DataAnswer, Effect, Event, Outbox};
use larder_types::{LvId, PgId, ServerId, View};

use copying::Copying;
use group::Group;
use hardware::Machine;
use meta::Meta;
use setup::Setup;
use truth::Truth;

pub(crate) const US_PER_MS: u64 = 1000;
pub(crate) const US_PER_S: u64 = 1_000_000;
/// Microseconds between two ticks of a placement group.
const GROUP_TICK_US: u64 = 100 * US_PER_MS;
/// Microseconds between two looks at the whole.
const SAMPLE_US: u64 = US_PER_S;
/// Seconds for which an operator tries to remove a server.
const TRIES_MAX: u32 = 60;
/// Seconds after which a run that has not restored everything is broken off.
const RUN_S_MAX: u64 = 24 * 3600;

/// Something that happens.
#[derive(Debug)]
enum Happening {
    ManagersTick,
    GroupsTick,
    Sample,
    Beat(ServerId),
    ToManagers(ServerId, ServerMessage),
    ToServer(ServerId, ManagerMessage),
    Decided(Ticket, Command),
    Confirmed(Ticket),
    Synced(PgId),
    Data {
        pg: PgId,
        view: View,
        lv: LvId,
        replica: usize,
        answer: DataAnswer,
    },
    /// A meta server goes on, unless it did since this was planned.
    GoOn(ServerId, u64),
    Read(usize, u64),
    Sent(usize, u64),
    Received(usize, u64),
    Written(usize),
}

/// See the module's head.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) now_us: u64,
    steps: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    pub(crate) map: Topology,
    policy: Policy,
    groups: Vec<Group>,
    metas: Vec<Meta>,
    machines: Vec<Machine>,
    copying: Copying,
    gone: BTreeSet<ServerId>,
    pub(crate) truth: Truth,
    /// Commands that the managers agreed on.
    pub(crate) commands: u64,
}

impl World {
    fn after(&mut self, delay_us: u64, happening: Happening) {
        self.at(self.now_us + delay_us, happening);
    }

    fn at(&mut self, at_us: u64, happening: Happening) {
        self.steps += 1;
        self.queue.insert((at_us.max(self.now_us), self.steps), happening);
    }

    fn now_ms(&self) -> u64 {
        self.now_us / US_PER_MS
    }

    /// Goes on for so long, or until something is so.
    fn run(&mut self, for_us: u64, is_over: impl Fn(&Self) -> bool) -> bool {
        let end_us = self.now_us + for_us;
        while let Some(((at_us, _), happening)) = self.queue.pop_first() {
            if at_us > end_us {
                self.queue.insert((at_us, 0), happening);
                break;
            }
            self.now_us = at_us;
            self.happen(happening);
            if is_over(self) {
                return true;
            }
        }
        self.now_us = end_us;
        false
    }

    /// The cluster runs until every group serves and has the primary that it ought to have.
    pub(crate) fn settle(&mut self) {
        const QUIET_US: u64 = 5 * US_PER_S;
        let mut commands = u64::MAX;
        while commands != self.commands {
            commands = self.commands;
            self.run(QUIET_US, |_| false);
        }
        let serves = |group: &Group| group.pg.role() == larder_protocol::pg::Role::Serving;
        assert!(self.groups.iter().all(serves), "a cluster at rest serves");
    }

    /// These servers are gone from now on, with their disks. `removed`: an operator says at once that it is for good.
    pub(crate) fn lose(&mut self, servers: &BTreeSet<ServerId>, removed: bool) {
        self.gone.extend(servers);
        self.truth.begin(self.now_us);
        if removed {
            // The managers let nobody remove a server that they hear.
            let down = |world: &Self| servers.iter().all(|server| !world.map.is_up(*server));
            assert!(self.run(60 * US_PER_S, down), "silence is noticed");
            for server in servers {
                // While a group would have too few members without it the managers refuse.
                let tries = (0..TRIES_MAX).find(|_| {
                    let is_removed = self.agree(Command::RemoveServer(*server)).is_ok();
                    is_removed || self.run(US_PER_S, |_| false)
                });
                assert!(tries.is_some(), "server {server} may be removed");
            }
        }
        self.after(SAMPLE_US, Happening::Sample);
    }

    /// Runs until nothing lacks a copy; `false` if that was not reached.
    pub(crate) fn restore(&mut self) -> bool {
        self.run(RUN_S_MAX * US_PER_S, |world| world.truth.is_restored())
    }

    fn is_gone(&self, server: ServerId) -> bool {
        self.gone.contains(&server)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ManagersTick => self.managers_tick(),
            Happening::GroupsTick => self.groups_tick(),
            Happening::Sample => {
                self.truth.sample(self.now_us);
                self.after(SAMPLE_US, Happening::Sample);
            }
            Happening::Beat(server) => self.beat(server),
            Happening::ToManagers(server, message) => self.hear(server, message),
            Happening::ToServer(server, message) if !self.is_gone(server) => {
                self.receive_order(server, message);
            }
            Happening::ToServer(..) => {}
            Happening::Decided(ticket, command) => self.decided(ticket, command),
            Happening::Confirmed(ticket) => self.confirmed(ticket),
            Happening::Synced(pg) => {
                let out = self.groups[pg.0 as usize].synced(self.now_us);
                self.perform(pg, out);
            }
            Happening::Data { pg, view, lv, replica, answer } => {
                if self.groups[pg.0 as usize].pg.view() == view {
                    self.step(pg, Event::Data { lv, replica, answer });
                }
            }
            Happening::GoOn(server, turn) => self.resume_at(server, turn),
            Happening::Read(copy, bytes) => self.read(copy, bytes),
            Happening::Sent(copy, bytes) => self.sent(copy, bytes),
            Happening::Received(copy, bytes) => self.received(copy, bytes),
            Happening::Written(copy) => self.written(copy),
        }
    }

    fn groups_tick(&mut self) {
        self.after(GROUP_TICK_US, Happening::GroupsTick);
        for pg in (0..self.groups.len() as u32).map(PgId) {
            let group = &self.groups[pg.0 as usize];
            if group.leader.is_none_or(|leader| self.is_gone(leader)) || !group.pg.wants_tick() {
                continue;
            }
            self.refresh_away(pg);
            self.step(pg, Event::Tick);
        }
    }

    /// Tells a group which servers are down of the volumes whose copies come or go.
    fn refresh_away(&mut self, pg: PgId) {
        for lv in self.groups[pg.0 as usize].pg.lvs_changing() {
            let Some(record) = self.map.lv(lv) else { continue };
            let away = self.map.away(record);
            self.step(pg, Event::Away { lv, away });
        }
    }

    /// Steps a group and carries out what it asks for.
    fn step(&mut self, pg: PgId, event: Event) {
        let out = self.groups[pg.0 as usize].step(self.now_us, event);
        self.perform(pg, out);
    }

    fn perform(&mut self, pg: PgId, out: Outbox) {
        let hardware = self.setup.hardware;
        let group = &mut self.groups[pg.0 as usize];
        let (view, leader) = (group.pg.view(), group.leader);
        if group.wants_sync() {
            group.syncs = true;
            self.after(hardware.sync_us, Happening::Synced(pg));
        }
        let Some(leader) = leader else { return };
        for effect in out {
            match effect {
                Effect::Data { lv, replica, request } => {
                    let server = self.groups[pg.0 as usize].server_of(lv, replica);
                    let runs = server.is_some_and(|server| !self.is_gone(server));
                    let answer = answer(request).filter(|_| runs).unwrap_or(DataAnswer::Failed);
                    let takes_us = 2 * hardware.message_us + hardware.sync_us;
                    self.after(takes_us, Happening::Data { pg, view, lv, replica, answer });
                }
                Effect::Rebuilt { lv, replica, disk } => {
                    self.say(leader, ServerMessage::Rebuilt(lv, replica as u8, disk));
                }
                Effect::Vacated { lv, replica, order } => {
                    self.say(leader, ServerMessage::Vacated(lv, replica as u8, view, order));
                }
                Effect::ViewActive(view) => {
                    let boot = self.boot_of(leader);
                    self.say(leader, ServerMessage::Active(boot, pg, view));
                }
                // Nobody puts or reads, the group has no other members, and its log is synced soon anyway.
                _ => {}
            }
        }
    }
}

/// A data server's answer, if it runs.
fn answer(request: larder_protocol::DataRequest) -> Option<DataAnswer> {
    use larder_protocol::DataRequest;
    match request {
        DataRequest::Open { floor, .. } | DataRequest::RaiseFloor { floor } => {
            Some(DataAnswer::Floor(floor))
        }
        DataRequest::Void { .. } | DataRequest::Verify { .. } => None,
    }
}
