//! `larder rebalance`: shows the moves of volumes that keep disks evenly used, from the managers' map, and pauses or resumes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_protocol::limits::BALANCE_MOVES_MAX;
use larder_protocol::manager::balance::{BalanceOutlook, outlook};
use larder_protocol::manager::state::{
    Command, DiskState, LvRecord, LvState, Outcome, ReplicaState, ServerRecord, ServerRole,
    ServerState, Topology,
};
use larder_roles::managers::Managers;
use larder_roles::peers::Peers;
use larder_types::DiskId;

use super::RoleError;
use super::admin_client::{
    self, agreed, connect_as_manager, finish, is_confirmed, managers, runtime,
};
use super::disk_free_space::DiskFreeSpace;
use crate::args::RebalanceCommand;
use crate::wall_clock::utc;

/// Most moves that are listed; the output says if there are more.
pub(super) const MOVES_MAX: usize = 1000;
/// Moves that are told one by one.
const MOVES_REPORTED_MAX: usize = 20;

/// Tells what moves and what is to, or pauses it, or lets it go on.
pub(crate) fn run(command: &RebalanceCommand) -> ExitCode {
    finish(match command {
        RebalanceCommand::Plan { config } => report(config, true),
        RebalanceCommand::Status { config } => report(config, false),
        RebalanceCommand::Pause { config } => paused(config, true),
        RebalanceCommand::Start { config } => paused(config, false),
    })
}

fn paused(config: &Path, pause: bool) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(config)?;
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let now_ms = || UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        let agreed = agreed(&managers, Command::PauseBalance(pause.then(now_ms))).await?;
        let line = match (agreed, pause) {
            (Err(refusal), _) => return Err(RoleError::NotDone(refusal.to_string())),
            (Ok(Outcome::Already), true) => "nothing to do: rebalancing was paused already",
            (Ok(Outcome::Already), false) => "nothing to do: rebalancing was not paused",
            (Ok(_), true) => {
                "rebalancing is paused: volumes that move go on, and no more begin before `larder rebalance start`"
            }
            (Ok(_), false) => "rebalancing goes on",
        };
        Ok(vec![line.to_owned()])
    })
}

fn report(config: &Path, tells_moves: bool) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(config)?;
    runtime()?.block_on(async {
        let (endpoint, managers) = connect_as_manager(&config).await?;
        // Moves in an old map may have been done, or undone.
        if !is_confirmed(&*managers).await {
            return Err(RoleError::NotDone(
                "no manager leads, or no leader is reachable: `larder status` shows the last state known"
                    .to_owned(),
            ));
        }
        let map = managers.map();
        let disk_free_space = DiskFreeSpace::ask(&Peers::new(&endpoint), &map).await;
        let lacking = disk_free_space.lacking();
        let seen = outlook(&map, &lacking, MOVES_MAX);
        let mut lines = disks(&map, &lacking);
        lines.push(summary(&seen));
        lines.extend(is_paused(&seen).or_else(|| waits(&map, &seen)));
        lines.extend(near(&seen));
        if tells_moves {
            lines.extend(moves(&map, &seen));
        }
        Ok(lines)
    })
}

/// One line of what moves and what is to follow.
pub(super) fn summary(seen: &BalanceOutlook) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let (moving, next) = (seen.moving, seen.next.len());
    if moving + next == 0 {
        return match seen.is_whole {
            true => "rebalancing: nothing moves, and nothing is to".to_owned(),
            false => "rebalancing: nothing moves, but not all volumes were looked at".to_owned(),
        };
    }
    let more = if next >= MOVES_MAX || !seen.is_whole { " or more" } else { "" };
    format!(
        "rebalancing: {moving} volume{} moving, {next}{more} move{} to follow",
        plural(moving),
        plural(next)
    )
}

/// That operators want nothing to begin, and since when.
pub(super) fn is_paused(seen: &BalanceOutlook) -> Option<String> {
    let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(seen.paused_ms?));
    let since = since.map_or_else(|| "long ago".to_owned(), utc);
    Some(format!(
        "rebalancing is paused since {since}: no volume begins to move before `larder rebalance start`"
    ))
}

/// The reason that no move begins, though something is to move.
fn waits(map: &Topology, seen: &BalanceOutlook) -> Option<String> {
    if seen.next.is_empty() {
        return None;
    }
    let is_down = |server: &&ServerRecord| {
        server.state == ServerState::Down && server.roles.contains(&ServerRole::Data)
    };
    let down: Vec<&str> =
        map.servers.values().filter(is_down).map(|server| &*server.name).collect();
    if !down.is_empty() {
        let down = down.join(", ");
        return Some(format!(
            "no further move begins while a data server is down and not given up yet: {down}"
        ));
    }
    let copies = usize::from(map.settings().copies);
    let made = || map.lvs.iter().filter(|lv| lv.state != LvState::Creating);
    let lacks = |lv: &&LvRecord| {
        let current = lv.present().filter(|(_, it)| it.state == ReplicaState::Current).count();
        current < copies && current < lv.present().count()
    };
    if let lacking @ 1.. = made().filter(lacks).count() {
        return Some(format!(
            "no further move begins while copies are missing of {lacking} volumes"
        ));
    }
    let wider = seen.wider;
    (wider >= BALANCE_MOVES_MAX).then(|| {
        format!("no further move begins while {wider} volumes have a copy more than wanted")
    })
}

/// Volumes that lie nearer together than they could, and do not move for it.
fn near(seen: &BalanceOutlook) -> Option<String> {
    let (count, plural) = (seen.near, if seen.near == 1 { "" } else { "s" });
    (count > 0).then(|| {
        format!(
            "{count} volume{plural} could lie on more machines, and will not move: such take writes, or those machines have had their share"
        )
    })
}

fn disks(map: &Topology, lacking: &BTreeSet<DiskId>) -> Vec<String> {
    let disks = map.servers.values().flat_map(|server| {
        let is_there = server.state != ServerState::Removed;
        let there = server.disks.iter().filter(move |(_, disk)| {
            is_there && disk.state != DiskState::Removed && disk.pv_count > 0
        });
        there.map(move |(id, disk)| {
            let used = disk.pv_count - disk.pv_free();
            let percent = u64::from(used) * 100 / u64::from(disk.pv_count);
            let (name, size) = (&server.name, disk.pv_count);
            let full = if lacking.contains(id) { "; its file system is full" } else { "" };
            format!(
                "disk {id} of {name}: {used} of {size} physical volumes used, {percent} %{full}"
            )
        })
    });
    disks.collect()
}

fn moves(map: &Topology, seen: &BalanceOutlook) -> Vec<String> {
    let place = |disk: DiskId| {
        let of = map.servers.values().find(|server| server.disks.contains_key(&disk));
        of.map_or_else(|| format!("disk {disk}"), |of| format!("disk {disk} of {}", of.name))
    };
    let report = seen.next.iter().take(MOVES_REPORTED_MAX);
    let mut lines: Vec<String> = report
        .map(|it| format!("  volume {}: from {} to {}", it.lv, place(it.from), place(it.to)))
        .collect();
    if let more @ 1.. = seen.next.len().saturating_sub(MOVES_REPORTED_MAX) {
        lines.push(format!("  and {more} more"));
    }
    lines
}
