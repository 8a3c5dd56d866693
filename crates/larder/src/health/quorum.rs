//! The state of a whole cluster by the managers' map, for probes: if it takes writes, and if it can spare a machine that is
//! about to be stopped.
//!
//! # Not here
//!
//! Room. The map has the volumes that take writes, and not how full they are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use larder_protocol::manager::state::{
    DiskState, LvRecord, PgRecord, ReplicaState, ServerRecord, ServerRole, ServerState, Settings,
    Topology,
};
use larder_types::ServerId;

/// Members and copies that a put needs at least.
pub(crate) fn write_quorum(map: &Topology) -> u8 {
    map.founded.map_or(0, |(_, settings)| settings.min_members.max(settings.min_copies))
}

/// True if placement groups have primaries and the members that a write needs, and data has somewhere to go. A group that
/// lost more members stays active in the map, as no view can begin without them. One that catches up counts as a member:
/// the others write on with it.
pub(crate) fn takes_writes(map: &Topology) -> bool {
    let Some((_, settings)) = map.founded else { return false };
    let is_up = |server: ServerId| map.is_up(server);
    map.pgs.iter().all(|pg| pg.is_active() && keeps_members(pg, &settings, is_up))
        && has_disks(map, &settings, |_| true)
}

/// True if writes and reads go on when the machine of a server is taken away. Then managers keep a majority, placement
/// groups members that have all, volumes a copy, and new volumes their disks.
pub(crate) fn can_spare_machine_of(map: &Topology, server: ServerId) -> bool {
    let (Some((_, settings)), Some(own)) = (map.founded, map.servers.get(&server)) else {
        return false;
    };
    let own = at_machine_of(map, own);
    let stays = |server: ServerId| map.is_up(server) && !own.contains(&server);
    keeps_majority(map, stays)
        && map
            .pgs
            .iter()
            .all(|pg| keeps_members(pg, &settings, |it| stays(it) && !pg.lacking.contains(&it)))
        && map.lvs.iter().all(|lv| keeps_a_copy(map, lv, stays))
        && has_disks(map, &settings, stays)
}

/// Servers that go with the machine of one: those of its failure domains, and those at the hosts of these. A host's servers
/// may have been given different numbers, and the founding manager cannot be given one.
fn at_machine_of(map: &Topology, own: &ServerRecord) -> BTreeSet<ServerId> {
    let is_there = |it: &ServerRecord| it.state != ServerState::Removed;
    let alike = map.servers.values().filter(|it| is_there(it) && it.domains == own.domains);
    let hosts: BTreeSet<&str> = alike.flat_map(hosts_of).collect();
    let goes = |it: &ServerRecord| {
        it.domains == own.domains || hosts_of(it).any(|host| hosts.contains(host))
    };
    map.servers.iter().filter(|(_, it)| goes(it)).map(|(id, _)| *id).collect()
}

/// The hosts of a server's addresses that tell its machine from others.
fn hosts_of(record: &ServerRecord) -> impl Iterator<Item = &str> {
    let hosts = record.addresses.iter().filter_map(|it| Some(it.rsplit_once(':')?.0));
    hosts.filter(|host| {
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        *host != "localhost" && !ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
    })
}

fn keeps_majority(map: &Topology, stays: impl Fn(ServerId) -> bool) -> bool {
    // One that is still to start for the first time has no vote.
    let votes = |record: &ServerRecord| {
        matches!(record.state, ServerState::Up | ServerState::Down)
            && record.roles.contains(&ServerRole::Manager)
    };
    let voters = map.servers.iter().filter(|(_, record)| votes(record)).map(|(id, _)| *id);
    let (all, stay) = voters.fold((0, 0), |(all, stay), id| (all + 1, stay + u32::from(stays(id))));
    2 * stay > all
}

/// True if a view can go on, or begin, with the members that count.
fn keeps_members(pg: &PgRecord, settings: &Settings, counts: impl Fn(ServerId) -> bool) -> bool {
    let those = || pg.members.iter().filter(|it| counts(**it));
    those().count() >= usize::from(settings.min_members)
        && those().any(|it| pg.qualified.contains(it))
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
