//! Founds a cluster. The first leader has the quorum agree on the settings, the servers and their disks, one command
//! after the other, each from what the map says by then.

use std::collections::BTreeSet;

use larder_protocol::manager::state::{ClusterId, Command, NewServer, Settings, Topology};
use larder_protocol::placement::{FailureDomains, MachineId, RackId, Weight};
use larder_types::{RegionId, ServerId};

use crate::servers::Server;
use crate::setup::Setup;
use crate::store::LV_BLOCKS;

/// Members without which a PG takes nothing, if it is to have as many.
pub(crate) const MEMBERS_MIN: usize = 2;
/// Replicas of a narrow LV, which is made where there are not enough data servers for a wide one.
const COPIES_MIN: usize = 2;
/// The join token's hash.
const TOKEN: [u8; 32] = [7; 32];
/// Share of every server and disk.
const WEIGHT: Weight = Weight(100);

/// The next command; `None` if the cluster is there.
pub(super) fn next(setup: &Setup, map: &Topology) -> Option<Command> {
    if map.founded.is_none() {
        return Some(Command::Found(ClusterId(1), settings(setup)));
    }
    if map.servers.len() < setup.servers() {
        if map.servers.len() == 1 && map.tokens.is_empty() {
            return Some(Command::AddToken(TOKEN, u64::MAX));
        }
        let server = setup.server(ServerId(map.servers.len() as u32));
        let token = (!map.servers.is_empty()).then_some((TOKEN, 0));
        return Some(Command::AddServer(new_server(setup, server), token));
    }
    let mut stores = (0..setup.machines).map(|store| setup.id_of(Server::Store(store)));
    let bare = stores.find(|store| map.servers[store].disks.is_empty())?;
    Some(Command::AddDisk(bare, WEIGHT, setup.pvs_per_disk))
}

fn settings(setup: &Setup) -> Settings {
    let (members, copies) = (setup.options.members, setup.replicas);
    Settings {
        pg_count: setup.pgs,
        members: members as u8,
        min_members: members.min(MEMBERS_MIN) as u8,
        copies: copies as u8,
        min_copies: copies.min(COPIES_MIN) as u8,
        lv_blocks: LV_BLOCKS,
    }
}

fn new_server(setup: &Setup, server: Server) -> NewServer {
    let machine = setup.machine_of(server) as u32;
    NewServer {
        name: format!("{server:?}"),
        roles: BTreeSet::from([server.role()]),
        addresses: Vec::new(),
        domains: FailureDomains {
            region: RegionId(0),
            rack: RackId(machine),
            machine: MachineId(machine),
        },
        weight: WEIGHT,
    }
}
