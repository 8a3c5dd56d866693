//! The managers: the policy of the one that leads, over the map, and servers' talk with it.
//!
//! # Invariants
//!
//! 1. The quorum agrees on each proposal after a sync and two messages, in the order of proposals.
//! 2. No manager is lost.

use std::collections::BTreeMap;

use larder_protocol::Event;
use larder_protocol::copy_pacing::CopyNeed;
use larder_protocol::limits::SERVER_BEAT_MS;
use larder_protocol::manager::policy::{ManagerMessage, PolicyEffect, PolicyEvent, ServerMessage};
use larder_protocol::manager::quorum::{LogIndex, Ticket};
use larder_protocol::manager::state::{Applied, Command};
use larder_protocol::pg::Role;
use larder_roles::limits::MANAGER_TICK_MS;
use larder_types::{BootId, PgId, ServerId};

use super::{Happening, US_PER_MS, US_PER_S, World};

/// Microseconds in which a learner takes a group's metadata: it is little, and no figure here is about it.
const LEARN_US: u64 = 5 * US_PER_S;

impl World {
    pub(super) fn managers_tick(&mut self) {
        self.after(MANAGER_TICK_MS * US_PER_MS, Happening::ManagersTick);
        self.policy(PolicyEvent::Tick);
    }

    pub(super) fn policy(&mut self, event: PolicyEvent) {
        let mut out = Vec::new();
        self.policy.step(self.now_us / US_PER_MS, event, &self.map, &mut out);
        let hardware = self.setup.hardware;
        for effect in out {
            match effect {
                PolicyEffect::Propose(ticket, command) => {
                    let takes_us = hardware.sync_us + 2 * hardware.message_us;
                    self.after(takes_us, Happening::Decided(ticket, command));
                }
                PolicyEffect::Confirm(ticket) => {
                    self.after(2 * hardware.message_us, Happening::Confirmed(ticket));
                }
                PolicyEffect::Tell(server, message) => {
                    self.after(hardware.message_us, Happening::ToServer(server, message));
                }
            }
        }
    }

    /// The managers agree on a command.
    pub(super) fn agree(&mut self, command: Command) -> Applied {
        self.commands += 1;
        self.map.apply(LogIndex(self.map.applied.0 + 1), command)
    }

    pub(super) fn decided(&mut self, ticket: Ticket, command: Command) {
        let applied = self.agree(command);
        self.policy(PolicyEvent::Decided(ticket, Some(applied)));
    }

    pub(super) fn confirmed(&mut self, ticket: Ticket) {
        self.policy(PolicyEvent::Confirmed(ticket));
    }

    pub(super) fn hear(&mut self, server: ServerId, message: ServerMessage) {
        self.policy(PolicyEvent::From(server, message));
    }

    pub(super) fn say(&mut self, server: ServerId, message: ServerMessage) {
        if !self.is_gone(server) {
            let takes_us = self.setup.hardware.message_us;
            self.after(takes_us, Happening::ToManagers(server, message));
        }
    }

    pub(super) fn boot_of(&self, server: ServerId) -> BootId {
        self.map.servers.get(&server).map(|record| record.boot).unwrap_or_default()
    }

    /// Says what a server says again and again.
    pub(super) fn beat(&mut self, server: ServerId) {
        if self.is_gone(server) {
            return;
        }
        self.after(SERVER_BEAT_MS * US_PER_MS, Happening::Beat(server));
        let (boot, sent_ms) = (self.boot_of(server), self.now_ms());
        let leads = |role: Role| matches!(role, Role::Active | Role::Serving);
        let led = |world: &Self, pg: &PgId| {
            let group = &world.groups[pg.0 as usize];
            group.leader == Some(server) && leads(group.pg.role())
        };
        let all = (0..self.groups.len() as u32).map(PgId);
        let led: Vec<PgId> = all.filter(|pg| led(self, pg)).collect();
        let views = led.iter().map(|pg| (*pg, self.groups[pg.0 as usize].pg.view())).collect();
        self.say(server, ServerMessage::Renew { boot, sent_ms, led: views });
        for pg in led {
            let group = &self.groups[pg.0 as usize];
            if group.pg.role() == Role::Active {
                let view = group.pg.view();
                self.say(server, ServerMessage::Active(boot, pg, view));
            }
        }
        let meta = &self.metas[server.0 as usize];
        if let Some((priority, waits)) = meta.turns.need() {
            let (made, bytes_per_s) = (meta.made, self.setup.background);
            let need = CopyNeed { priority, made, bytes_per_s, waits };
            self.say(server, ServerMessage::Copies { boot, sent_ms, need });
        }
        self.lend(server);
    }

    /// A server does as the managers say.
    pub(super) fn receive_order(&mut self, server: ServerId, message: ManagerMessage) {
        match message {
            ManagerMessage::NewView { pg, view, members, learners, boot } => {
                self.say(server, ServerMessage::Told(boot, pg, view));
                if members.first() != Some(&server) {
                    return;
                }
                let group = &mut self.groups[pg.0 as usize];
                if view > group.pg.view() {
                    group.leader = Some(server);
                    self.step(pg, Event::NewView { view, members: vec![ServerId(0)], boot });
                }
                for learner in learners {
                    let message = ServerMessage::CaughtUp(pg, view, learner);
                    self.after(LEARN_US, Happening::ToManagers(server, message));
                }
            }
            ManagerMessage::Volumes { pg, view, version, lvs, boots, .. } => {
                let group = &mut self.groups[pg.0 as usize];
                if group.leader == Some(server) {
                    let boots: BTreeMap<ServerId, BootId> = boots.into_iter().collect();
                    let out = group.handle_volumes(self.now_us, view, lvs, (version, &boots));
                    self.perform(pg, out);
                    self.refresh_away(pg);
                }
            }
            ManagerMessage::CreatePv { lv, replica, disk, pv, .. } => {
                let takes_us = self.setup.hardware.sync_us;
                let message = ServerMessage::Created(lv, replica, disk, pv);
                self.after(takes_us, Happening::ToManagers(server, message));
            }
            ManagerMessage::Vacate(lv, replica, order) => {
                let Some(record) = self.map.lv(lv) else { return };
                let Some(of) = record.replicas.get(usize::from(replica)) else { return };
                let (pg, is_lost, away) = (record.pg, !self.map.exists(of), self.map.away(record));
                if self.groups[pg.0 as usize].leader == Some(server) {
                    let replica = usize::from(replica);
                    self.step(pg, Event::Vacate { lv, replica, order, is_lost, away });
                }
            }
            ManagerMessage::CopyTurn { sent_ms, turn, .. } => {
                self.copy_turn_received(server, sent_ms, turn)
            }
            // Nobody needs space, has a session or reads.
            ManagerMessage::WhoAreYou
            | ManagerMessage::Leases { .. }
            | ManagerMessage::PoolEmpty(..)
            | ManagerMessage::TooFewServers(..)
            | ManagerMessage::SessionClosed(_) => {}
        }
    }
}
