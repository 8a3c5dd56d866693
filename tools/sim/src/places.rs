//! Leaders of PGs and places of replicas as a map has them, as parts of the simulated world.

use larder_protocol::manager::state::{LvRecord, MapVersion, ReplicaRecord, Topology};
use larder_protocol::{LvInfo, Replica};
use larder_types::{BootId, LvId, PgId, PvId, ServerId, View};

use crate::servers::Server;
use crate::setup::Setup;

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
