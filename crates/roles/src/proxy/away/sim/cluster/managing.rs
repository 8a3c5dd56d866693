//! The managers of a cluster: the stand-in at its desk, or managers as they are.

use std::ops::Range;
use std::sync::Arc;

use larder_env::Disk;
use larder_net::Endpoint;
use larder_protocol::manager::state::{Command, Topology};
use larder_types::{DiskId, PgId, ServerId, SessionId};

use super::super::Dice;
use super::desk::{AtDesk, Desk, MANAGER};
use super::quorum::{MANAGERS, Quorum};
use crate::managers::{Managers, MapKeeper};

/// See the module's head.
pub(super) enum Managing {
    Desk(Arc<Desk>),
    Quorum(Arc<Quorum>),
}

impl Managing {
    /// Servers that manage.
    pub(super) fn ids(&self) -> Range<u32> {
        match self {
            Self::Desk(_) => MANAGER.0..MANAGER.0 + 1,
            Self::Quorum(_) => MANAGERS,
        }
    }

    /// The newest map that anybody knows.
    pub(super) fn map(&self) -> Arc<Topology> {
        match self {
            Self::Desk(desk) => desk.map(),
            Self::Quorum(quorum) => quorum.map(),
        }
    }

    /// The managers, as a server sees them that begins a run: it waits until it knows a map.
    /// With a disk it keeps the map there.
    pub(super) async fn of(
        &self,
        id: ServerId,
        endpoint: &Arc<Endpoint>,
        disk: Option<Arc<dyn Disk>>,
    ) -> Arc<dyn Managers> {
        match self {
            Self::Desk(desk) => AtDesk::new(id, desk),
            Self::Quorum(quorum) => {
                let keeper = disk.map(|disk| {
                    let keeper = MapKeeper::on(disk, id);
                    keeper.unwrap_or_else(|error| panic!("the map of {id}: {error}"))
                });
                quorum.client(endpoint, keeper).await
            }
        }
    }

    /// Has a command take effect; everybody hears of it later.
    pub(super) fn agree(&self, command: Command) {
        match self {
            // It may be refused.
            Self::Desk(desk) => drop(desk.apply(command)),
            Self::Quorum(quorum) => quorum.clone().agree(command),
        }
    }

    pub(super) fn disk_of(&self, server: ServerId) -> DiskId {
        *self.map().servers[&server].disks.keys().next().expect("it has one")
    }

    /// A group's view, and its members.
    pub(super) fn view(&self, pg: PgId) -> (u64, Vec<ServerId>) {
        let map = self.map();
        let record = map.pg(pg).expect("it is there");
        (record.view.0, record.members.clone())
    }

    pub(super) fn is_active(&self, pg: PgId) -> bool {
        self.map().pg(pg).is_some_and(|record| record.is_active() && record.view.0 > 0)
    }

    pub(super) fn close_a_session(&self, dice: &Dice) {
        let sessions: Vec<SessionId> = self.map().sessions.keys().copied().collect();
        if !sessions.is_empty() {
            let closed = sessions[dice.below(sessions.len() as u64) as usize];
            self.agree(Command::CloseSession(closed));
        }
    }

    /// The things that managers wait for, at rest.
    pub(super) fn left(&self) -> Vec<String> {
        match self {
            Self::Desk(_) => Vec::new(),
            Self::Quorum(quorum) => quorum.left(),
        }
    }
}
