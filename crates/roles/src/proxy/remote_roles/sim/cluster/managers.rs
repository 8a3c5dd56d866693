//! The managers of a cluster: the stand-in, or managers as they are.

use std::ops::Range;
use std::sync::Arc;

use larder_env::Disk;
use larder_net::Endpoint;
use larder_protocol::manager::state::{Command, Topology};
use larder_types::{DiskId, PgId, ServerId, SessionId};

use super::super::SimRng;
use super::quorum::{MANAGERS, Quorum};
use super::stand_in::{MANAGER, StandIn, StandInClient};
use crate::managers::{Managers, MapStore};

/// See the module's head.
pub(super) enum ClusterManagers {
    StandIn(Arc<StandIn>),
    Quorum(Arc<Quorum>),
}

impl ClusterManagers {
    /// Servers that manage.
    pub(super) fn ids(&self) -> Range<u32> {
        match self {
            Self::StandIn(_) => MANAGER.0..MANAGER.0 + 1,
            Self::Quorum(_) => MANAGERS,
        }
    }

    /// The newest map that anybody knows.
    pub(super) fn map(&self) -> Arc<Topology> {
        match self {
            Self::StandIn(stand_in) => stand_in.map(),
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
            Self::StandIn(stand_in) => StandInClient::new(id, stand_in),
            Self::Quorum(quorum) => {
                let map_store = disk.map(|disk| {
                    let map_store = MapStore::on(disk, id);
                    map_store.unwrap_or_else(|error| panic!("the map of {id}: {error}"))
                });
                quorum.client(endpoint, map_store).await
            }
        }
    }

    /// Has a command take effect; everybody hears of it later.
    pub(super) fn agree(&self, command: Command) {
        match self {
            // It may be refused.
            Self::StandIn(stand_in) => drop(stand_in.apply(command)),
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

    pub(super) fn close_a_session(&self, sim_rng: &SimRng) {
        let sessions: Vec<SessionId> = self.map().sessions.keys().copied().collect();
        if !sessions.is_empty() {
            let closed = sessions[sim_rng.below(sessions.len() as u64) as usize];
            self.agree(Command::CloseSession(closed));
        }
    }

    /// The things that managers wait for, at rest.
    pub(super) fn left(&self) -> Vec<String> {
        match self {
            Self::StandIn(_) => Vec::new(),
            Self::Quorum(quorum) => quorum.left(),
        }
    }
}
