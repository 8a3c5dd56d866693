//! The servers of the map, and the part of the simulated world that each of them is.
//!
//! Every process is a server of its own, because every process dies alone: first the meta servers, then the data
//! servers, the proxies and the managers. Those of one machine share its failure domain.

use larder_protocol::manager::state::{LvRecord, MapVersion, ReplicaRecord, ServerRole, Topology};
use larder_protocol::{LvInfo, Replica};
use larder_types::{BootId, LvId, PgId, PvId, ServerId, View};

use crate::net::MS;
use crate::setup::{Clock, Setup};

/// A part of the world that the map names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Node(usize),
    Store(usize),
    Proxy(usize),
    Manager(usize),
}

impl Server {
    pub(crate) fn role(self) -> ServerRole {
        match self {
            Server::Node(_) => ServerRole::Meta,
            Server::Store(_) => ServerRole::Data,
            Server::Proxy(_) => ServerRole::Proxy,
            Server::Manager(_) => ServerRole::Manager,
        }
    }
}

impl Setup {
    /// The number of servers of the map.
    pub(crate) fn servers(&self) -> usize {
        2 * self.machines + self.proxies + self.managers
    }

    pub(crate) fn id_of(&self, server: Server) -> ServerId {
        let id = match server {
            Server::Node(at) => at,
            Server::Store(at) => self.machines + at,
            Server::Proxy(at) => 2 * self.machines + at,
            Server::Manager(at) => 2 * self.machines + self.proxies + at,
        };
        ServerId(id as u32)
    }

    /// # Panics
    /// If there is no such server.
    pub(crate) fn server(&self, id: ServerId) -> Server {
        let at = id.0 as usize;
        let (stores, proxies) = (self.machines, 2 * self.machines);
        let managers = proxies + self.proxies;
        match at {
            _ if at < stores => Server::Node(at),
            _ if at < proxies => Server::Store(at - stores),
            _ if at < managers => Server::Proxy(at - proxies),
            _ if at < self.servers() => Server::Manager(at - managers),
            _ => panic!("there is no server {id}"),
        }
    }

    pub(crate) fn all_servers(&self) -> impl Iterator<Item = Server> {
        (0..self.servers()).map(|id| self.server(ServerId(id as u32)))
    }

    /// The machine on which a server runs; proxies are on machines of their own.
    pub(crate) fn machine_of(&self, server: Server) -> usize {
        match server {
            Server::Node(at) | Server::Store(at) | Server::Manager(at) => at,
            Server::Proxy(at) => self.machines + at,
        }
    }

    /// The time by a server's clock that never jumps, in milliseconds.
    pub(crate) fn clock_ms(&self, server: ServerId, now_us: u64) -> u64 {
        let Clock { offset_ms, per_mille } = self.clocks[server.0 as usize];
        offset_ms + now_us * per_mille / 1000 / MS
    }
}

/// The leader of a PG according to a map, and its view; any server before there is one.
pub(crate) fn primary_of(map: &Topology, pg: PgId) -> (usize, View) {
    let primary =
        map.pg(pg).and_then(|pg| pg.members.first().map(|primary| (primary.0 as usize, pg.view)));
    primary.unwrap_or((0, View(0)))
}

/// Where a replica of an LV lies: data server and PV; `None` if the map knows none of that index.
pub(crate) fn place(
    setup: &Setup,
    map: &Topology,
    lv: LvId,
    replica: usize,
) -> Option<(usize, PvId)> {
    let (_, replica) = map.lv(lv)?.present().find(|(index, _)| *index == replica)?;
    Some((store_of(setup, replica.server), replica.pv))
}

/// The data server of this id.
pub(crate) fn store_of(setup: &Setup, server: ServerId) -> usize {
    match setup.server(server) {
        Server::Store(store) => store,
        other => panic!("a replica on {other:?}"),
    }
}

/// An LV as a PG is told of it.
pub(crate) fn info_of(
    id: LvId,
    lv: &LvRecord,
    as_of: MapVersion,
    boot: impl Fn(ServerId) -> Option<BootId>,
) -> LvInfo {
    let replica = |replica: &ReplicaRecord| {
        let ReplicaRecord { server, disk, pv, state } = *replica;
        Replica { server, boot: boot(server).unwrap_or_default(), disk, pv, state }
    };
    let replicas = lv.replicas.iter().map(replica).collect();
    LvInfo { lv: id, blocks: lv.blocks, copies: lv.width, replicas, as_of }
}

/// True if the map names a server's run as the one that answers.
pub(crate) fn names(map: &Topology, server: ServerId, boot: BootId) -> bool {
    map.is_up(server) && map.servers.get(&server).is_some_and(|record| record.boot == boot)
}
