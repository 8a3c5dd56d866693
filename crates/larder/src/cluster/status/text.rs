//! The state of a cluster for people.

use std::io::Write;

use larder_net::limits::PROTOCOL_MAX;

use super::bar::bar;
use super::growth::foretold;
use super::{Pgs, Server, Status, background, space};
use crate::health::volumes::Volumes;

/// PGs and volumes that are shown one by one, at most; the others are counted.
const ROWS_SHOWN_MAX: usize = 20;

pub(super) fn write_text(out: &mut impl Write, status: &Status) -> std::io::Result<()> {
    let Status { verdict, cluster, cluster_version: version, map_version, .. } = status;
    writeln!(out, "{verdict}\n")?;
    writeln!(out, "cluster {cluster}, version {version}, map version {map_version}")?;
    if *version < PROTOCOL_MAX {
        writeln!(
            out,
            "version {PROTOCOL_MAX}, which this command's release speaks, comes once all servers are up and speak it; until then some of what is new waits"
        )?;
    }
    if !status.is_latest {
        writeln!(
            out,
            "NO MANAGER LEADS, or no leader is reachable: most managers are down or cut off. The state below is the last one known"
        )?;
    }
    let there = || status.servers.iter().filter(|server| server.state != "removed");
    servers(out, there())?;
    for server in there() {
        draining(out, server)?;
    }
    pgs(out, &status.pgs)?;
    volumes(out, &status.volumes)?;
    for reported in &status.rebalancing.reported {
        writeln!(out, "{reported}")?;
    }
    space::write_text(out, &status.space, status.growth.as_ref())?;
    if let Some(number) = status.region {
        writeln!(
            out,
            "region: {number} of several, by way of the proxy with a directory `region`"
        )?;
    }
    background::write_text(out, &status.background)
}

fn servers<'a>(
    out: &mut impl Write,
    servers: impl Iterator<Item = &'a Server>,
) -> std::io::Result<()> {
    let servers: Vec<&Server> = servers.collect();
    let wide = servers.iter().map(|server| server.name.chars().count()).max().unwrap_or(0).max(20);
    writeln!(
        out,
        "\n  id  {:<wide$} state    roles      leads / member of   volumes  disk ids  space taken",
        "server"
    )?;
    for server in servers {
        let disks: Vec<String> = server.disks.iter().map(|disk| disk.id.to_string()).collect();
        let line = format!(
            "{:>4}  {:<wide$} {:<8} {:<10} {:>5} / {:<9} {:>7}  {:<8}  {}",
            server.id,
            server.name,
            server.state,
            server.roles.join(","),
            server.leads,
            server.member_of,
            server.volumes,
            disks.join(","),
            if server.space.bytes > 0 { server.space.text() } else { String::new() }
        );
        let line = line.trim_end().to_owned() + &foretold(server.growth.as_ref());
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The rest that a server or a disk that drains has to give away; the part that has left is known
/// of volumes alone.
fn draining(out: &mut impl Write, server: &Server) -> std::io::Result<()> {
    let Server { name, copies, member_of, .. } = server;
    let all = server.disks.iter().filter(|_| server.draining);
    let (freed, used) = all
        .fold((0, 0), |(freed, used), disk| (freed + disk.volumes_freed, used + disk.volumes_used));
    if server.draining {
        write!(
            out,
            "{name} drains: {copies} copies of volumes and {member_of} places in placement groups left"
        )?;
        if freed + used > 0 {
            write!(out, "  {}", bar(freed as usize, (freed + used) as usize))?;
        }
        writeln!(out)?;
    }
    for disk in server.disks.iter().filter(|disk| disk.draining) {
        let (freed, used) = (disk.volumes_freed as usize, disk.volumes_used as usize);
        let bar = bar(freed, freed + used);
        writeln!(out, "disk {} of {name} drains: {used} copies of volumes left  {bar}", disk.id)?;
    }
    Ok(())
}

fn pgs(out: &mut impl Write, pgs: &Pgs) -> std::io::Result<()> {
    let Pgs { total, clean, degraded, recovering, inactive, unclean } = pgs;
    writeln!(
        out,
        "\nplacement groups: {total}, of these {clean} clean, {degraded} degraded, {recovering} recovering, \
         {inactive} inactive"
    )?;
    for pg in unclean.iter().take(ROWS_SHOWN_MAX) {
        writeln!(
            out,
            "  pg {}: {} in view {}, members {:?}, learners {:?}, wanted {:?}",
            pg.id, pg.state, pg.view, pg.members, pg.learners, pg.target
        )?;
    }
    more(out, unclean.len())
}

fn volumes(out: &mut impl Write, volumes: &Volumes) -> std::io::Result<()> {
    let Volumes { total, creating, open, read_only, degraded, unclean, .. } = volumes;
    let (current, wanted) = (volumes.replicas_current, volumes.replicas_wanted);
    writeln!(
        out,
        "volumes: {total}, of these {open} open, {creating} being made, {read_only} read-only; {degraded} degraded"
    )?;
    if current < wanted || volumes.replicas_rebuilding > 0 {
        writeln!(
            out,
            "  {}  {current} of {wanted} copies are current, {} are being rebuilt",
            bar(current, wanted),
            volumes.replicas_rebuilding
        )?;
    }
    for volume in unclean.iter().take(ROWS_SHOWN_MAX) {
        writeln!(
            out,
            "  volume {} of pg {}: {} copies current, {} on servers that are away, {} being rebuilt, {} gone",
            volume.id, volume.pg, volume.current, volume.away, volume.rebuilding, volume.gone
        )?;
    }
    more(out, unclean.len())
}

fn more(out: &mut impl Write, all: usize) -> std::io::Result<()> {
    match all.saturating_sub(ROWS_SHOWN_MAX) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}
