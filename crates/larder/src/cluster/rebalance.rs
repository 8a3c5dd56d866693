//! `larder rebalance`: what moves so that disks are evenly used, as the managers' map shows it.

use std::process::ExitCode;

use larder_protocol::manager::balance::{Outlook, outlook};
use larder_protocol::manager::state::{ServerState, Topology};
use larder_roles::managers::Managers;
use larder_types::DiskId;

use super::RoleError;
use super::config::RoleConfig;
use super::operate::{finish, managers, runtime};
use crate::args::RebalanceCommand;

/// Moves that are looked for at most; with more it is said that there are.
pub(super) const MOVES_MAX: usize = 1000;
/// Moves that are told one by one.
const MOVES_TOLD_MAX: usize = 20;

/// Tells what moves, and what is to.
pub(crate) fn run(command: &RebalanceCommand) -> ExitCode {
    let (RebalanceCommand::Plan { config } | RebalanceCommand::Status { config }) = command;
    let tells_moves = matches!(command, RebalanceCommand::Plan { .. });
    finish(told(config, tells_moves))
}

fn told(config: &std::path::Path, tells_moves: bool) -> Result<Vec<String>, RoleError> {
    let config = RoleConfig::load(config)?;
    runtime()?.block_on(async {
        let map = managers(&config).await?.map();
        let seen = outlook(&map, MOVES_MAX);
        let mut lines = disks(&map);
        lines.push(summary(&seen));
        lines.extend(waits(&map, &seen));
        if tells_moves {
            lines.extend(moves(&map, &seen));
        }
        Ok(lines)
    })
}

/// One line of what moves and what is to follow.
pub(super) fn summary(seen: &Outlook) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let (moving, next) = (seen.moving, seen.next.len());
    if moving + next == 0 {
        return "rebalancing: disks are evenly used, nothing is to move".to_owned();
    }
    let more = if next >= MOVES_MAX { " or more" } else { "" };
    format!(
        "rebalancing: {moving} volume{} moving, {next}{more} move{} to follow",
        plural(moving),
        plural(next)
    )
}

/// Why nothing begins, though something is to move.
fn waits(map: &Topology, seen: &Outlook) -> Option<String> {
    let down = map.servers.values().filter(|server| server.state == ServerState::Down);
    let down: Vec<&str> = down.map(|server| &*server.name).collect();
    let waits = !seen.next.is_empty() && !down.is_empty();
    waits
        .then(|| format!("no further move begins while a data server is down: {}", down.join(", ")))
}

fn disks(map: &Topology) -> Vec<String> {
    let disks = map.servers.values().flat_map(|server| {
        let there = server.disks.iter().filter(|(_, disk)| disk.pv_count > 0);
        there.map(move |(id, disk)| {
            let used = disk.pv_count - disk.pv_free();
            let percent = u64::from(used) * 100 / u64::from(disk.pv_count);
            let (name, size) = (&server.name, disk.pv_count);
            format!("disk {id} of {name}: {used} of {size} physical volumes used, {percent} %")
        })
    });
    disks.collect()
}

fn moves(map: &Topology, seen: &Outlook) -> Vec<String> {
    let place = |disk: DiskId| {
        let of = map.servers.values().find(|server| server.disks.contains_key(&disk));
        of.map_or_else(|| format!("disk {disk}"), |of| format!("disk {disk} of {}", of.name))
    };
    let told = seen.next.iter().take(MOVES_TOLD_MAX);
    let mut lines: Vec<String> = told
        .map(|it| format!("  volume {}: from {} to {}", it.lv, place(it.from), place(it.to)))
        .collect();
    if let more @ 1.. = seen.next.len().saturating_sub(MOVES_TOLD_MAX) {
        lines.push(format!("  and {more} more"));
    }
    lines
}
