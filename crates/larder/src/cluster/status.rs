//! `larder status`: the cluster as the managers' map shows it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use larder_protocol::manager::state::{
    LvState, PgRecord, ReplicaState, ServerRole, ServerState, Settings, Topology,
};
use larder_roles::managers::Managers;
use serde::Serialize;

use super::config::RoleConfig;
use super::{RoleError, follow_as};
use crate::args::StatusArgs;
use crate::exit;

/// PGs that are shown one by one, at most; the others are counted.
const PGS_SHOWN_MAX: usize = 20;

/// What is printed.
#[derive(Debug, Serialize)]
struct Status {
    cluster: String,
    map_version: u64,
    servers: Vec<Server>,
    pgs: Pgs,
    volumes: Volumes,
    buckets: usize,
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
}

#[derive(Debug, Default, Serialize)]
struct Pgs {
    total: usize,
    clean: usize,
    degraded: usize,
    recovering: usize,
    inactive: usize,
    /// Those that are not clean.
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
struct Volumes {
    total: usize,
    creating: usize,
    open: usize,
    read_only: usize,
    /// Volumes with fewer current replicas than wanted.
    degraded: usize,
    replicas_rebuilding: usize,
}

/// Prints the state of the cluster; the exit code says whether all of it is well.
pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    match ask(args).and_then(|map| print(args, &status(&map))) {
        Ok(true) => exit::code(exit::OK),
        Ok(false) => exit::code(exit::FAULTS),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(error.code())
        }
    }
}

fn ask(args: &StatusArgs) -> Result<Topology, RoleError> {
    let config = RoleConfig::load(&args.config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RoleError::System)?.block_on(async {
        let managers = follow_as(&config).await?;
        Ok(Topology::clone(&managers.map()))
    })
}

fn print(args: &StatusArgs, status: &Status) -> Result<bool, RoleError> {
    let mut out = std::io::stdout().lock();
    let written = if args.json {
        serde_json::to_writer(&mut out, status)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        people(&mut out, status)
    };
    written.map_err(RoleError::System)?;
    let down = status.servers.iter().any(|server| server.state == "down");
    Ok(!down && status.pgs.clean == status.pgs.total && status.volumes.degraded == 0)
}

fn people(out: &mut impl Write, status: &Status) -> std::io::Result<()> {
    writeln!(out, "cluster {}, map version {}", status.cluster, status.map_version)?;
    writeln!(out, "\n  id  server               state    roles      leads / member of   volumes")?;
    for server in &status.servers {
        writeln!(
            out,
            "{:>4}  {:<20} {:<8} {:<10} {:>5} / {:<9} {:>7}",
            server.id,
            server.name,
            server.state,
            server.roles.join(","),
            server.leads,
            server.member_of,
            server.volumes,
        )?;
    }
    let Pgs { total, clean, degraded, recovering, inactive, unclean } = &status.pgs;
    writeln!(
        out,
        "\nplacement groups: {total}, of these {clean} clean, {degraded} degraded, {recovering} recovering, \
         {inactive} inactive"
    )?;
    for pg in unclean.iter().take(PGS_SHOWN_MAX) {
        writeln!(
            out,
            "  pg {}: {} in view {}, members {:?}, learners {:?}, wanted {:?}",
            pg.id, pg.state, pg.view, pg.members, pg.learners, pg.target
        )?;
    }
    if unclean.len() > PGS_SHOWN_MAX {
        writeln!(out, "  and {} more", unclean.len() - PGS_SHOWN_MAX)?;
    }
    let Volumes { total, creating, open, read_only, degraded, replicas_rebuilding } =
        &status.volumes;
    writeln!(
        out,
        "volumes: {total}, of these {open} open, {creating} being made, {read_only} read-only; {degraded} degraded, \
         {replicas_rebuilding} replicas being rebuilt"
    )?;
    writeln!(out, "buckets: {}", status.buckets)
}

fn status(map: &Topology) -> Status {
    let mut leads: BTreeMap<_, usize> = BTreeMap::new();
    let mut member_of: BTreeMap<_, usize> = BTreeMap::new();
    for pg in &map.pgs {
        pg.members.first().into_iter().for_each(|primary| *leads.entry(*primary).or_default() += 1);
        pg.members.iter().for_each(|member| *member_of.entry(*member).or_default() += 1);
    }
    let servers = map.servers.iter().map(|(id, record)| {
        let disks = record.disks.values();
        let (all, free) =
            disks.fold((0, 0), |(all, free), disk| (all + disk.pv_count, free + disk.pv_free()));
        Server {
            id: id.0,
            name: record.name.clone(),
            roles: record.roles.iter().map(role_name).collect(),
            state: state_name(record.state),
            draining: record.draining,
            address: record.addresses.first().cloned(),
            member_of: member_of.get(id).copied().unwrap_or(0),
            leads: leads.get(id).copied().unwrap_or(0),
            volumes: all - free,
            volumes_free: free,
        }
    });
    let cluster = map.founded.map_or_else(String::new, |(id, _)| format!("{:016x}", id.0));
    Status {
        cluster,
        map_version: map.version.0,
        servers: servers.collect(),
        pgs: pgs(map),
        volumes: volumes(map),
        buckets: map.buckets.len(),
    }
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

fn volumes(map: &Topology) -> Volumes {
    let Some((_, settings)) = map.founded else { return Volumes::default() };
    let mut volumes = Volumes { total: map.lvs.len(), ..Volumes::default() };
    for lv in &map.lvs {
        match lv.state {
            LvState::Creating => volumes.creating += 1,
            LvState::Open => volumes.open += 1,
            LvState::ReadOnly => volumes.read_only += 1,
        }
        let count = |state| lv.replicas.iter().filter(|replica| replica.state == state).count();
        volumes.replicas_rebuilding += count(ReplicaState::Rebuilding);
        let is_short = count(ReplicaState::Current) < usize::from(settings.copies);
        volumes.degraded += usize::from(lv.state != LvState::Creating && is_short);
    }
    volumes
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
mod tests {
    use larder_protocol::manager::quorum::LogIndex;
    use larder_protocol::manager::state::{ClusterId, Command};
    use larder_types::{ServerId, View};

    use super::*;

    fn map() -> Topology {
        let mut map = Topology::default();
        let settings = Settings {
            pg_count: 4,
            members: 2,
            min_members: 1,
            copies: 2,
            min_copies: 1,
            lv_blocks: 100,
        };
        map.apply(LogIndex(1), Command::Found(ClusterId(0xab), settings)).expect("founded");
        map
    }

    #[test]
    fn placement_groups_are_sorted_by_what_they_lack() {
        let mut map = map();
        let (one, two) = (ServerId(1), ServerId(2));
        let whole = PgRecord {
            view: View(3),
            activated: View(3),
            members: vec![two, one],
            ..PgRecord::default()
        };
        map.pgs[1] = whole.clone();
        map.pgs[2] = PgRecord { members: vec![two], learners: [one].into(), ..whole.clone() };
        map.pgs[3] = PgRecord { members: vec![two], ..whole };
        let pgs = status(&map).pgs;
        assert_eq!(
            (pgs.total, pgs.clean, pgs.degraded, pgs.recovering, pgs.inactive),
            (4, 1, 1, 1, 1)
        );
        let states: Vec<_> = pgs.unclean.iter().map(|pg| (pg.id, pg.state)).collect();
        assert_eq!(states, [(0, "inactive"), (2, "recovering"), (3, "degraded")]);
        let mut text = Vec::new();
        people(&mut text, &status(&map)).expect("memory takes it");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("cluster 00000000000000ab"), "{text}");
        assert!(
            text.contains("4, of these 1 clean, 1 degraded, 1 recovering, 1 inactive"),
            "{text}"
        );
    }
}
