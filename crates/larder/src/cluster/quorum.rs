//! What a cluster can do without, by the managers' map: for probes of whoever is about to stop a machine.

use std::collections::BTreeSet;

use larder_protocol::manager::state::{
    DiskState, LvRecord, PgRecord, ReplicaState, ServerRecord, ServerRole, ServerState, Settings,
    Topology,
};
use larder_types::ServerId;

/// Members and copies that a put needs at least.
pub(crate) fn write_quorum(map: &Topology) -> u8 {
    map.founded.map_or(0, |(_, settings)| settings.min_members.max(settings.min_copies))
}

/// True if placement groups have primaries, and data has somewhere to go.
pub(crate) fn takes_writes(map: &Topology) -> bool {
    let Some((_, settings)) = map.founded else { return false };
    map.pgs.iter().all(PgRecord::is_active) && has_disks(map, &settings, |_| true)
}

/// True if writes and reads go on when the machine of a server is taken away: managers keep a majority, placement groups
/// members that have all, volumes a copy, and new ones their disks.
pub(crate) fn can_spare_machine_of(map: &Topology, server: ServerId) -> bool {
    let (Some((_, settings)), Some(own)) = (map.founded, map.servers.get(&server)) else {
        return false;
    };
    let own: BTreeSet<ServerId> =
        map.servers.iter().filter(|(_, it)| it.domains == own.domains).map(|(id, _)| *id).collect();
    let stays = |server: ServerId| map.is_up(server) && !own.contains(&server);
    keeps_majority(map, stays)
        && map.pgs.iter().all(|pg| keeps_members(pg, &settings, stays))
        && map.lvs.iter().all(|lv| keeps_a_copy(map, lv, stays))
        && has_disks(map, &settings, stays)
}

fn keeps_majority(map: &Topology, stays: impl Fn(ServerId) -> bool) -> bool {
    let votes = |record: &ServerRecord| {
        record.state != ServerState::Removed && record.roles.contains(&ServerRole::Manager)
    };
    let voters = map.servers.iter().filter(|(_, record)| votes(record)).map(|(id, _)| *id);
    let (all, stay) = voters.fold((0, 0), |(all, stay), id| (all + 1, stay + u32::from(stays(id))));
    2 * stay > all
}

/// True if a view can begin without those that go.
fn keeps_members(pg: &PgRecord, settings: &Settings, stays: impl Fn(ServerId) -> bool) -> bool {
    let is_whole = |it: &&ServerId| stays(**it) && !pg.lacking.contains(it);
    let whole = || pg.members.iter().filter(is_whole);
    whole().count() >= usize::from(settings.min_members)
        && whole().any(|it| pg.qualified.contains(it))
}

/// True if what a volume holds can still be read.
fn keeps_a_copy(map: &Topology, lv: &LvRecord, stays: impl Fn(ServerId) -> bool) -> bool {
    let mut present = lv.present().map(|(_, replica)| replica).peekable();
    present.peek().is_none()
        || present.any(|it| it.state == ReplicaState::Current && map.exists(it) && stays(it.server))
}

/// True if enough disks take data for a volume that is new.
fn has_disks(map: &Topology, settings: &Settings, stays: impl Fn(ServerId) -> bool) -> bool {
    let servers = map.servers.iter().filter(|(id, _)| map.is_up(**id) && stays(**id));
    let takers = servers.filter(|(_, record)| !record.draining);
    let disks = takers.flat_map(|(_, record)| record.disks.values());
    let count = disks.filter(|disk| disk.state == DiskState::In).count();
    count >= usize::from(settings.min_copies)
}

#[cfg(test)]
mod tests;
