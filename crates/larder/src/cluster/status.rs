//! `larder status`: the cluster as the managers' map shows it, and what its meta servers do in the background.

pub(crate) mod background;
mod bar;
mod counts;
mod doubts;
pub(crate) mod growth;
mod issues;
pub(crate) mod observer;
pub(crate) mod query;
pub(crate) mod space;
mod text;
pub(crate) mod usage;
mod verdict;

use std::collections::BTreeMap;
use std::io::{IsTerminal, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::join3;
use larder_protocol::manager::balance::outlook;
use larder_protocol::manager::state::{
    DiskRecord, DiskState, PgRecord, ServerRole, ServerState, Settings, Topology,
};
use larder_roles::managers::Managers;
use larder_roles::observed::{Growth, MergedObservations, Observations, Place};
use larder_roles::peers::Peers;
use larder_types::{DiskId, ServerId};
use serde::Serialize;
use tokio::time::sleep;

use super::disk_free_space::DiskFreeSpace;
use super::{RoleError, admin_client, rebalance};
use crate::args::StatusArgs;
use crate::health::volumes::Volumes;
use crate::{breakdown, exit};
use background::Background;
use issues::HealthIssues;
use space::{Space, Spaces};

/// Has a terminal begin at its top.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[2J";
/// Pause between two states of a command that watches.
pub(crate) const WATCH_PAUSE: Duration = Duration::from_secs(2);

/// The document that is printed.
#[derive(Debug, Serialize)]
struct Status {
    /// The worst that is wrong, with the remedy, in a line.
    verdict: String,
    /// The issues that there are, with the time since when managers have observed each.
    #[serde(rename = "troubles", serialize_with = "issues::shown")]
    issues: HealthIssues,
    cluster: String,
    /// The protocol's version that all its servers speak.
    cluster_version: u8,
    map_version: u64,
    /// True if a manager confirmed that this map is the latest; else it is the last one known.
    is_latest: bool,
    servers: Vec<Server>,
    pgs: Pgs,
    volumes: Volumes,
    rebalancing: Rebalancing,
    buckets: usize,
    space: Spaces,
    /// Growth of what is taken of all space.
    growth: Option<Growth>,
    /// Its number among regions, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<u16>,
    /// The background work of meta servers.
    background: Vec<Background>,
}

#[derive(Debug, Serialize)]
struct Server {
    id: u32,
    name: String,
    roles: Vec<&'static str>,
    state: &'static str,
    draining: bool,
    address: Option<String>,
    /// PGs of a meta server.
    member_of: usize,
    leads: usize,
    /// Physical volumes of a data server.
    volumes: u32,
    volumes_free: u32,
    /// Copies of volumes that it has.
    copies: usize,
    space: Space,
    growth: Option<Growth>,
    disks: Vec<Disk>,
}

#[derive(Debug, Serialize)]
struct Disk {
    id: u32,
    draining: bool,
    /// Physical volumes of it, those that volumes have, and those that they had.
    volumes: u32,
    volumes_used: u32,
    volumes_freed: u32,
    space: Space,
    growth: Option<Growth>,
}

#[derive(Debug, Default, Serialize)]
struct Pgs {
    total: usize,
    clean: usize,
    degraded: usize,
    recovering: usize,
    inactive: usize,
    /// Groups that are not clean.
    unclean: Vec<Pg>,
}

#[derive(Debug, Serialize)]
struct Pg {
    id: u32,
    state: &'static str,
    view: u64,
    /// Primary first.
    members: Vec<u32>,
    learners: Vec<u32>,
    target: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
struct Rebalancing {
    /// Volumes with a copy more than wanted.
    moving: usize,
    /// Moves that are to follow.
    left: usize,
    /// Milliseconds since 1970 from when on none begins, as an operator wants it.
    paused_ms: Option<u64>,
    #[serde(skip)]
    reported: Vec<String>,
}

/// Prints the state of the cluster of a configuration; the exit code says whether all of it is well.
pub(crate) fn run(path: &Path, args: &StatusArgs) -> ExitCode {
    match watch(path, args) {
        Ok(true) => exit::code(exit::OK),
        Ok(false) => exit::code(exit::FAULTS),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(error.code())
        }
    }
}

/// Prints it once, or again and again until it is stopped.
fn watch(path: &Path, args: &StatusArgs) -> Result<bool, RoleError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(RoleError::System)?;
    loop {
        if args.breakdown {
            let all = runtime.block_on(counts::ask(path))?;
            let is_read = print(args, &all, breakdown::write_text)?;
            if !args.watch || !is_read {
                return Ok(all.is_whole());
            }
            runtime.block_on(async { sleep(WATCH_PAUSE).await });
            continue;
        }
        let status = runtime.block_on(ask(path))?;
        let is_read = print(args, &status, text::write_text)?;
        if !args.watch || !is_read {
            return Ok(is_well(&status));
        }
        runtime.block_on(async { sleep(WATCH_PAUSE).await });
    }
}

async fn ask(path: &Path) -> Result<Status, RoleError> {
    let config = admin_client::config(path)?;
    let (endpoint, managers) = admin_client::connect(&config).await?;
    // A map that nobody calls the latest says how it was.
    let is_latest = admin_client::is_confirmed(&*managers).await;
    let map = Topology::clone(&managers.map());
    let (metas, others, datas) =
        (Peers::new(&endpoint), Peers::new(&endpoint), Peers::new(&endpoint));
    let (background, observed, disk_free_space) = join3(
        background::ask(&metas, &map),
        issues::ask(&others, &map, None),
        DiskFreeSpace::ask(&datas, &map),
    )
    .await;
    Ok(status(&map, is_latest, background, &disk_free_space, Observations::together(observed)))
}

/// False if nobody reads on, such as `head`.
fn print<T: Serialize>(
    args: &StatusArgs,
    shown: &T,
    write_text: fn(&mut StdoutLock<'static>, &T) -> std::io::Result<()>,
) -> Result<bool, RoleError> {
    let mut out = std::io::stdout().lock();
    let clear = if args.watch && out.is_terminal() { CLEAR } else { "" };
    let written = if args.json {
        serde_json::to_writer(&mut out, shown)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        out.write_all(clear.as_bytes()).and_then(|()| write_text(&mut out, shown))
    };
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(RoleError::System),
    }
}

fn is_well(status: &Status) -> bool {
    let down = status.servers.iter().any(|server| server.state == "down");
    let differ = background::has_differing(&status.background);
    let doubts = background::has_doubts(&status.background);
    status.is_latest
        && !down
        && !differ
        && !doubts
        && status.pgs.clean == status.pgs.total
        && status.volumes.degraded == 0
        && status.space.full.is_empty()
}

fn status(
    map: &Topology,
    is_latest: bool,
    background: Vec<Background>,
    disk_free_space: &DiskFreeSpace,
    observed: MergedObservations,
) -> Status {
    let mut leads: BTreeMap<_, usize> = BTreeMap::new();
    let mut member_of: BTreeMap<_, usize> = BTreeMap::new();
    let mut copies: BTreeMap<_, usize> = BTreeMap::new();
    let present = map.lvs.iter().flat_map(|lv| lv.present());
    for (_, replica) in present.filter(|(_, it)| map.exists(it)) {
        *copies.entry(replica.server).or_default() += 1;
    }
    for pg in &map.pgs {
        pg.members.first().into_iter().for_each(|primary| *leads.entry(*primary).or_default() += 1);
        pg.members.iter().for_each(|member| *member_of.entry(*member).or_default() += 1);
    }
    let reported =
        background.iter().filter_map(|it| Some((ServerId(it.server), it.space.as_ref()?)));
    let space = Spaces::of(map, reported, disk_free_space);
    let issues = HealthIssues::of(map, is_latest, &space, observed);
    let servers = map.servers.iter().map(|(id, record)| {
        let disks = record.disks.iter().filter_map(|(id, it)| disk(*id, it, (&space, &issues)));
        let disks: Vec<Disk> = disks.collect();
        let own = space.by_server.get(id).copied().unwrap_or_default();
        Server {
            id: id.0,
            name: record.name.clone(),
            roles: record.roles.iter().map(role_name).collect(),
            state: state_name(record.state),
            draining: record.draining,
            address: record.addresses.first().cloned(),
            member_of: member_of.get(id).copied().unwrap_or(0),
            leads: leads.get(id).copied().unwrap_or(0),
            volumes: disks.iter().map(|disk| disk.volumes_used).sum(),
            volumes_free: disks.iter().map(|disk| disk.volumes - disk.volumes_used).sum(),
            copies: copies.get(id).copied().unwrap_or(0),
            space: own,
            growth: issues.growth(Place::Server(id.0), &own, &space),
            disks,
        }
    });
    let cluster = map.founded.map_or_else(String::new, |(id, _)| format!("{:016x}", id.0));
    let servers = servers.collect();
    let mut status = Status {
        verdict: String::new(),
        growth: issues.growth(Place::Cluster, &space.all, &space),
        issues,
        cluster,
        cluster_version: map.cluster_version,
        map_version: map.version.0,
        is_latest,
        servers,
        pgs: pgs(map),
        volumes: Volumes::of(map),
        rebalancing: rebalancing(map, disk_free_space),
        buckets: map.buckets.len(),
        space,
        region: map.region.map(|region| region.number.0),
        background,
    };
    status.verdict = verdict::of(&status);
    status
}

/// A disk, unless it was removed.
fn disk(
    id: DiskId,
    record: &DiskRecord,
    (spaces, issues): (&Spaces, &HealthIssues),
) -> Option<Disk> {
    let space = spaces.by_disk.get(&id).copied().unwrap_or_default();
    (record.state != DiskState::Removed).then(|| Disk {
        id: id.0,
        draining: record.state == DiskState::Draining,
        volumes: record.pv_count,
        volumes_used: record.pv_count - record.pv_free(),
        volumes_freed: record.freed.len() as u32,
        space,
        growth: issues.growth(Place::Disk(id.0), &space, spaces),
    })
}

fn pgs(map: &Topology) -> Pgs {
    let Some((_, settings)) = map.founded else { return Pgs::default() };
    let mut pgs = Pgs { total: map.pgs.len(), ..Pgs::default() };
    for (id, pg) in map.pgs.iter().enumerate() {
        let state = pg_state(pg, &settings);
        match state {
            "clean" => {
                pgs.clean += 1;
                continue;
            }
            "recovering" => pgs.recovering += 1,
            "degraded" => pgs.degraded += 1,
            _ => pgs.inactive += 1,
        }
        let ids = |servers: &mut dyn Iterator<Item = &larder_types::ServerId>| {
            servers.map(|server| server.0).collect()
        };
        pgs.unclean.push(Pg {
            id: id as u32,
            state,
            view: pg.view.0,
            members: ids(&mut pg.members.iter()),
            learners: ids(&mut pg.learners.iter()),
            target: ids(&mut pg.target.iter()),
        });
    }
    pgs
}

fn pg_state(pg: &PgRecord, settings: &Settings) -> &'static str {
    let is_whole = pg.members.len() >= usize::from(settings.members);
    match (pg.is_active(), pg.learners.is_empty(), is_whole) {
        (false, ..) => "inactive",
        (true, false, _) => "recovering",
        (true, true, false) => "degraded",
        (true, true, true) => "clean",
    }
}

/// Moves for balance, and their figures if there are any.
fn rebalancing(map: &Topology, disk_free_space: &DiskFreeSpace) -> Rebalancing {
    let seen = outlook(map, &disk_free_space.lacking(), rebalance::MOVES_MAX);
    let (moving, left) = (seen.moving, seen.next.len());
    let moves = (moving + left > 0).then(|| rebalance::summary(&seen));
    let paused_ms = seen.paused_ms;
    let reported = moves.into_iter().chain(rebalance::is_paused(&seen)).collect();
    Rebalancing { moving, left, paused_ms, reported }
}

fn role_name(role: &ServerRole) -> &'static str {
    match role {
        ServerRole::Manager => "manager",
        ServerRole::Meta => "meta",
        ServerRole::Data => "data",
        ServerRole::Proxy => "proxy",
    }
}

fn state_name(state: ServerState) -> &'static str {
    match state {
        ServerState::Joining => "joining",
        ServerState::Up => "up",
        ServerState::Down => "down",
        ServerState::Removed => "removed",
    }
}

#[cfg(test)]
mod tests;
