//! `larder drain`, `remove` and `disk`: what an operator wants done with servers and disks.
//!
//! The managers' map decides what may be removed; here it is told beforehand, in words.

use std::collections::BTreeSet;
use std::process::ExitCode;

use larder_protocol::manager::balance::drain_outlook;
use larder_protocol::manager::state::{
    Command, DiskRecord, DiskState, Loss, Outcome, Refusal, ServerRecord, ServerRole, ServerState,
    Topology,
};
use larder_roles::managers::Managers;
use larder_roles::node::role_name;
use larder_roles::peers::Peers;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{DiskId, ServerId};

use super::RoleError;
use super::admin_client::{self, agreed, connect_as_manager, finish, managers, runtime};
use super::disk_free_space::DiskFreeSpace;
use crate::args::{DiskCommand, DrainArgs, RemoveArgs};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Ids that are named one by one, at most; the others are counted.
const IDS_NAMED_MAX: usize = 10;

/// The server or disk that a command is about.
struct Subject {
    server: ServerId,
    record: ServerRecord,
    /// A disk of the server, or all of it.
    disk: Option<(DiskId, DiskRecord)>,
}

/// Has a server drain, or not any more.
pub(crate) fn drain(args: &DrainArgs) -> ExitCode {
    finish(drained(args, None))
}

/// Removes a server, or says what that would do.
pub(crate) fn remove(args: &RemoveArgs) -> ExitCode {
    finish(removed(args, None))
}

/// The same for a disk.
pub(crate) fn disk(command: &DiskCommand) -> ExitCode {
    finish(match command {
        DiskCommand::Drain { server, disk } => drained(server, Some(DiskId(*disk))),
        DiskCommand::Remove { server, disk } => removed(server, Some(DiskId(*disk))),
    })
}

fn drained(args: &DrainArgs, disk: Option<DiskId>) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(&args.config)?;
    runtime()?.block_on(async {
        let (endpoint, managers) = connect_as_manager(&config).await?;
        let map = managers.map();
        let mut subjects = Subject::all(&map, &args.name, disk)?;
        // Of a machine's servers these have something to give away.
        if subjects.len() > 1 {
            subjects.retain(Subject::holds_something);
        }
        let mut all_lines = Vec::new();
        if !args.undo && !args.partly {
            let disk_free_space = DiskFreeSpace::ask(&Peers::new(&endpoint), &map).await;
            all_lines.extend(has_places(&map, &disk_free_space, &subjects, &args.name)?);
        }
        for subject in subjects {
            let lines = subject.drain_report(&map, args.undo)?;
            let command = match disk {
                Some(disk) => Command::SetDiskDraining(subject.server, disk, !args.undo),
                None => Command::SetDraining(subject.server, !args.undo),
            };
            let agreed = agreed(&managers, command).await?;
            match agreed.map_err(|refusal| not_done(&subject, refusal))? {
                Outcome::Already => {
                    all_lines.push(format!("nothing to do: {} was so already", subject.name()));
                }
                _ => all_lines.extend(lines),
            }
        }
        Ok(all_lines)
    })
}

fn removed(args: &RemoveArgs, disk: Option<DiskId>) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(&args.config)?;
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let map = managers.map();
        let subjects = Subject::all(&map, &args.name, disk)?;
        let loss_of = |subject: &Subject| match disk {
            Some(disk) => map.loss_of_disk(disk),
            None => map.loss_of_server(subject.server),
        };
        // Of a machine none of its servers is, if one of them cannot be.
        for subject in &subjects {
            if let Some(reasons) = reasons_against(&map, &loss_of(subject)) {
                return Err(RoleError::NotDone(format!("{} stays: {reasons}", subject.name())));
            }
        }
        let mut lines = Vec::new();
        for subject in &subjects {
            if args.yes {
                let command = match disk {
                    Some(disk) => Command::RemoveDisk(subject.server, disk),
                    None => Command::RemoveServer(subject.server),
                };
                let removed = agreed(&managers, command).await?;
                removed.map_err(|refusal| not_removed(subject, refusal, &lines))?;
            }
            let done = if args.yes { "is removed" } else { "would be removed" };
            lines.push(format!("{} {done} for good:", subject.name()));
            lines.extend(subject.loss_report(&loss_of(subject)));
        }
        if !args.yes {
            lines.push("nothing was changed: to do it, add --yes".to_owned());
        }
        Ok(lines)
    })
}

/// The same as [`not_done`], of a machine of which other servers are removed by then.
fn not_removed(subject: &Subject, refusal: Refusal, lines: &[String]) -> RoleError {
    match (not_done(subject, refusal), lines.is_empty()) {
        (RoleError::NotDone(why), false) => RoleError::NotDone(format!(
            "{}\n{why}: what stands above was done; run the command again once that has changed",
            lines.join("\n")
        )),
        (error, _) => error,
    }
}

/// The error of a command that the managers refused, though the map seemed to allow it: it may be
/// older than theirs.
fn not_done(subject: &Subject, refusal: Refusal) -> RoleError {
    let name = subject.name();
    match refusal {
        Refusal::ServerRemoved | Refusal::NoSuchDisk => {
            RoleError::Named(format!("{name} was removed for good already"))
        }
        refusal => RoleError::NotDone(format!("{name} is as it was: {refusal}")),
    }
}

/// The reason that something cannot be removed yet, and what to do about it.
fn reasons_against(map: &Topology, loss: &Loss) -> Option<String> {
    let mut reasons = Vec::new();
    if !loss.lvs_last.is_empty() {
        reasons.push(format!(
            "it has the last copy of {}; drain it, and remove it once it is empty, or bring back a server that has \
             another copy",
            named("volume", loss.lvs_last.iter())
        ));
    }
    if !loss.pgs_last.is_empty() {
        reasons.push(format!(
            "nobody else has all of {}; wait until they are clean, or bring back another of their members",
            named("placement group", loss.pgs_last.iter())
        ));
    } else if !loss.pgs_short.is_empty() {
        reasons.push(format!(
            "{} would have fewer than {} members; add a meta server, and wait until they are clean",
            named("placement group", loss.pgs_short.iter()),
            map.settings().min_members
        ));
    }
    if loss.no_majority {
        reasons.push(
            "the managers that stay and are up are no majority of all managers; start those that are down, or add \
             one, first"
                .to_owned(),
        );
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Refuses a drain of which not all finds a place elsewhere, with what is missing, or says on what that depends. One that is
/// under way was allowed.
fn has_places(
    map: &Topology,
    disk_free_space: &DiskFreeSpace,
    subjects: &[Subject],
    name: &str,
) -> Result<Option<String>, RoleError> {
    let leave: BTreeSet<DiskId> = subjects.iter().flat_map(Subject::disks_that_stay).collect();
    let (with_down, without) = drain_outlook(map, &leave, &disk_free_space.lacking());
    let volume_bytes = u64::from(map.settings().lv_blocks) * u64::from(BLOCK_BYTES);
    let gib = |stay: usize| (stay as u64 * volume_bytes) as f64 / GIB;
    let (copies, least) = (with_down.copies, with_down.stay.min(without.stay));
    if least > 0 {
        return Err(RoleError::NotDone(format!(
            "{name} is as it was: {least} of its {copies} copies of volumes, {:.1} GiB, would find no place \
             elsewhere. No other disk that is up and stays has both a place and no copy of the same volume. Add a disk or a \
             machine, or begin with --partly: those stay until there is a place",
            gib(least)
        )));
    }
    let shortfall = (copies > 0).then(|| disk_free_space.shortfall(map, &leave)).flatten();
    if let Some(shortfall) = shortfall {
        return Err(RoleError::NotDone(format!(
            "{name} is as it was: {shortfall}. Make their file systems larger, add a disk or a machine, or begin with --partly: \
             what finds no room stays until there is some"
        )));
    }
    let most = with_down.stay.max(without.stay);
    Ok((most > 0).then(|| {
        format!(
            "warning: servers are down. As they come back or not, up to {most} copies find no place elsewhere, {:.1} GiB",
            gib(most)
        )
    }))
}

/// Shows the number of ids, and the first of them.
fn named<T: std::fmt::Display>(what: &str, ids: impl ExactSizeIterator<Item = T>) -> String {
    let (count, plural) = (ids.len(), if ids.len() == 1 { "" } else { "s" });
    let first: Vec<String> = ids.take(IDS_NAMED_MAX).map(|id| id.to_string()).collect();
    let more = if count > IDS_NAMED_MAX { ", …" } else { "" };
    format!("{count} {what}{plural} ({}{more})", first.join(", "))
}

impl Subject {
    /// Finds a server, a disk of one, or all servers of a machine, in the order in which they are removed.
    fn all(map: &Topology, name: &str, disk: Option<DiskId>) -> Result<Vec<Self>, RoleError> {
        let is_of_machine = |(_, record): &(&ServerId, &ServerRecord)| {
            let is_named =
                |role: &ServerRole| record.name == format!("{name}/{}", role_name(*role));
            record.state != ServerState::Removed && record.roles.iter().any(is_named)
        };
        let of_machine = map.servers.iter().filter(is_of_machine);
        let mut all: Vec<Self> = of_machine
            .map(|(server, record)| Self { server: *server, record: record.clone(), disk: None })
            .collect();
        if disk.is_some() || all.is_empty() {
            return Ok(vec![Self::find(map, name, disk)?]);
        }
        // Servers that hold data go first, and the manager, which agrees on it, last.
        all.sort_by_key(|subject| {
            let has = |role| subject.record.roles.contains(&role);
            [ServerRole::Data, ServerRole::Meta, ServerRole::Proxy]
                .into_iter()
                .position(has)
                .unwrap_or(3)
        });
        Ok(all)
    }

    /// Disks that would drain, and do not yet.
    fn disks_that_stay(&self) -> impl Iterator<Item = DiskId> {
        let is_meant = |id: &DiskId| self.disk.as_ref().is_none_or(|(disk, _)| disk == id);
        let disks = self.record.disks.iter().filter(move |(id, disk)| {
            !self.record.draining && disk.state == DiskState::In && is_meant(id)
        });
        disks.map(|(id, _)| *id)
    }

    fn holds_something(&self) -> bool {
        let has = |role| self.record.roles.contains(&role);
        has(ServerRole::Meta) || has(ServerRole::Data)
    }

    fn find(map: &Topology, name: &str, disk: Option<DiskId>) -> Result<Self, RoleError> {
        let there = |record: &ServerRecord| record.state != ServerState::Removed;
        let mut named = map.servers.iter().filter(|(_, record)| record.name == name);
        let Some((server, record)) = named.clone().find(|(_, record)| there(record)) else {
            if named.next().is_some() {
                return Err(RoleError::Named(format!("{name} was removed for good already")));
            }
            let known = map.servers.values().filter(|record| there(record));
            let known: Vec<&str> = known.map(|record| &*record.name).collect();
            return Err(RoleError::Named(format!(
                "there is no server {name:?}, nor a machine of that name; there are {}",
                known.join(", ")
            )));
        };
        let disk = disk.map(|id| {
            let mut there = record.disks.iter().filter(|(_, it)| it.state != DiskState::Removed);
            let found = there.clone().find(|(it, _)| **it == id);
            let found = found.map(|(id, record)| (*id, record.clone()));
            let first = there.next().map_or("none".to_owned(), |(id, _)| id.to_string());
            found.ok_or_else(|| {
                RoleError::Named(format!("{name} has no disk {id}; the first it has is {first}"))
            })
        });
        Ok(Self { server: *server, record: record.clone(), disk: disk.transpose()? })
    }

    fn name(&self) -> String {
        match &self.disk {
            Some((disk, _)) => format!("disk {disk} of {}", self.record.name),
            None => self.record.name.clone(),
        }
    }

    /// The lines to print about a drain that begins or ends.
    fn drain_report(&self, map: &Topology, undo: bool) -> Result<Vec<String>, RoleError> {
        let has = |role| self.record.roles.contains(&role);
        let (keeps_ops, keeps_data) =
            (has(ServerRole::Meta) && self.disk.is_none(), has(ServerRole::Data));
        let name = self.name();
        if !keeps_ops && !keeps_data {
            return Err(RoleError::Named(format!(
                "{name} holds no data to move: it can be removed as it is"
            )));
        }
        if undo {
            return Ok(vec![format!("drain of {name} is cancelled; its data will move back")]);
        }
        let loss = match &self.disk {
            Some((disk, _)) => map.loss_of_disk(*disk),
            None => map.loss_of_server(self.server),
        };
        let mut lines = vec![format!(
            "{name} drains: {} copies of volumes and {} places in placement groups are to move; see `larder \
             status`",
            loss.lvs.len(),
            loss.pgs.len()
        )];
        let settings = map.settings();
        for (keeps, role, wanted) in [
            (keeps_ops, ServerRole::Meta, settings.members),
            (keeps_data, ServerRole::Data, settings.copies),
        ] {
            let others = self.others_that_take(map, role);
            if keeps && others < usize::from(wanted) {
                lines.push(format!(
                    "warning: only {others} others could take it, and {wanted} copies are wanted: not all of it \
                     finds a place before another server joins"
                ));
            }
        }
        Ok(lines)
    }

    /// Other servers of this role that are to keep what they have; for a disk also its own server, if it has another.
    fn others_that_take(&self, map: &Topology, role: ServerRole) -> usize {
        let takes_disk = |server: ServerId, disk: (&DiskId, &DiskRecord)| {
            let is_it =
                self.disk.as_ref().is_some_and(|(id, _)| server == self.server && id == disk.0);
            disk.1.state == DiskState::In && !is_it
        };
        let takes = |(server, record): &(&ServerId, &ServerRecord)| {
            (**server != self.server || self.disk.is_some())
                && record.roles.contains(&role)
                && record.state != ServerState::Removed
                && !record.draining
                && (role != ServerRole::Data
                    || record.disks.iter().any(|it| takes_disk(**server, it)))
        };
        map.servers.iter().filter(takes).count()
    }

    /// The lines about what goes with it.
    fn loss_report(&self, loss: &Loss) -> Vec<String> {
        let mut lines = Vec::new();
        if !loss.lvs.is_empty() {
            lines.push(format!("  a copy of {} is gone", named("volume", loss.lvs.iter())));
        }
        if !loss.pgs.is_empty() {
            lines.push(format!(
                "  a member of {} is gone",
                named("placement group", loss.pgs.iter())
            ));
        }
        if self.record.state == ServerState::Up {
            let what = if self.disk.is_some() { "its server's process" } else { "its process" };
            lines.push(format!("  {what} runs, and ends"));
        }
        if lines.is_empty() {
            lines.push("  nothing is lost by it".to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests;
