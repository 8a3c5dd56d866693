//! `larder recover`: managers made anew from the maps that the other servers keep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use larder_protocol::manager::state::ServerRole;
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::recover::{
    BadRecovery, Loss, MadeRecovery, NoSource, NotMade, RecoveredDirectory, Recovery,
    RecoveryRefused, check, make, read, take,
};
use larder_types::ServerId;

use crate::args::RecoverCommand;
use crate::kind::{self, Kind, KindError, LockedDirectory, RECORD};
use crate::node::{NodeError, servers_of};
use crate::{exit, private_file};

/// Errors with which nothing is recovered.
#[derive(Debug, thiserror::Error)]
enum RecoverError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{path}: {source}")]
    Map { path: String, source: NoSource },
    #[error("{path}: {source}")]
    Recovery { path: String, source: BadRecovery },
    #[error("{0} is there already: name another file with --out, or delete it")]
    Exists(String),
    #[error("it is of the machine in {0}: name that directory")]
    OfMachine(String),
    #[error(
        "this machine has gone on with this recovery, and {0} is empty or gone now. A manager is not made anew from it twice, as it would have \
         forgotten what it agreed to. Remove it with `larder remove` on another machine"
    )]
    Emptied(String),
    #[error(transparent)]
    NotMade(#[from] NotMade),
    #[error(transparent)]
    RecoveryRefused(#[from] RecoveryRefused),
}

impl RecoverError {
    fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Kind(_) | Self::Node(_) | Self::File { .. } => exit::CANNOT_START,
            Self::RecoveryRefused(
                RecoveryRefused::InUse { .. }
                | RecoveryRefused::Disk(_)
                | RecoveryRefused::File { .. },
            ) => exit::CANNOT_START,
            Self::Map { .. }
            | Self::Recovery { .. }
            | Self::Exists(_)
            | Self::Emptied(_)
            | Self::OfMachine(_) => exit::USAGE,
            Self::NotMade(_) | Self::RecoveryRefused(_) => exit::FAULTS,
        }
    }
}

/// Runs one of the commands.
pub(crate) fn run(command: &RecoverCommand) -> ExitCode {
    let done = match command {
        RecoverCommand::Make { maps, lost, accept_loss, out } => {
            make_to(maps, lost, *accept_loss, out)
        }
        RecoverCommand::Take { recovery, dir, server } => {
            take_into(recovery, dir, server.map(ServerId))
        }
    };
    exit::printed(done, RecoverError::code)
}

fn make_to(
    files: &[PathBuf],
    lost: &[String],
    accepts_loss: bool,
    out: &Path,
) -> Result<Vec<String>, RecoverError> {
    let mut maps = Vec::new();
    for file in files {
        let path = file.display().to_string();
        let bytes = fs::read(file).map_err(|source| RecoverError::file(file, source))?;
        let map = read(path.clone(), &bytes);
        maps.push(map.map_err(|source| RecoverError::Map { path, source })?);
    }
    let made = make(&maps, lost, accepts_loss)?;
    let written = private_file::write_new(out, made.recovery.encode());
    if !written.map_err(|source| RecoverError::file(out, source))? {
        return Err(RecoverError::Exists(out.display().to_string()));
    }
    Ok(describe(&made, maps.len(), out))
}

fn describe(made: &MadeRecovery, files: usize, out: &Path) -> Vec<String> {
    let names = |servers: &[(ServerId, String)]| {
        let names = servers.iter().map(|(id, name)| format!("{name} (server {id})"));
        names.collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        format!("map {}, the latest of {files}, from {}", made.version, made.of),
        format!("managers: {}", names(&made.managers)),
    ];
    for log in &made.passed_over {
        lines.push(format!("passed over: {log}, which has something that was never agreed on"));
    }
    if !made.lost.is_empty() {
        lines.push(format!("lost: {}", names(&made.lost)));
    }
    if made.loss != Loss::default() {
        lines.push(format!("accepted: {}", made.loss));
    }
    if made.forgets_root {
        lines.push(
            "root's keys: proxies take those of their files, which may be some that were retired: rotate them when the cluster runs"
                .to_owned(),
        );
    }
    let (out, all) = (out.display(), made.managers_before);
    lines.push(format!(
        "if {} of the {all} managers of before still have their directories, start their machines instead: they know more",
        all / 2 + 1
    ));
    lines.push(format!("{out} has the recovery, with a key: keep it secret"));
    lines.push(format!("next, on each machine: larder recover take {out} DIR; then start all machines, and delete {out}"));
    lines
}

fn take_into(
    recovery: &Path,
    dir: &Path,
    server: Option<ServerId>,
) -> Result<Vec<String>, RecoverError> {
    let (servers, _held) = servers(dir, server)?;
    let bytes = fs::read(recovery).map_err(|source| RecoverError::file(recovery, source))?;
    let path = recovery.display().to_string();
    let recovery =
        Recovery::decode(&bytes).map_err(|source| RecoverError::Recovery { path, source })?;
    let (mut due, mut lines, mut has_gone_on) = (Vec::new(), Vec::new(), false);
    for (dir, server) in servers {
        match check(&recovery, &dir, server) {
            Ok(()) => due.push((dir, server)),
            Err(
                left @ (RecoveryRefused::Continued { .. } | RecoveryRefused::NoSuchServer { .. }),
            ) => {
                has_gone_on |= matches!(left, RecoveryRefused::Continued { .. });
                lines.push(format!("left as it is: {left}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let manages = |server: ServerId| {
        let record = recovery.map.servers.get(&server);
        record.is_some_and(|record| record.roles.contains(&ServerRole::Manager))
    };
    let is_empty = |(dir, server): &&(PathBuf, Option<ServerId>)| {
        server.is_some_and(manages) && !dir.join(IDENTITY_FILE).exists()
    };
    if let Some((emptied, _)) = due.iter().find(is_empty).filter(|_| has_gone_on) {
        return Err(RecoverError::Emptied(emptied.display().to_string()));
    }
    for (dir, server) in due {
        let RecoveredDirectory { server, name, goes_on, aside } = take(&recovery, &dir, server)?;
        lines.push(match goes_on {
            true => {
                format!("left as it is: {name} (server {server}) has taken this recovery before")
            }
            false => format!("{name} (server {server}) has taken the recovery"),
        });
        if let Some(aside) = aside {
            lines.push(format!("  its log of before is {}", aside.display()));
        }
    }
    Ok(lines)
}

type Servers = (Vec<(PathBuf, Option<ServerId>)>, Option<LockedDirectory>);

/// The directories of a machine's servers, with the machine held; or the one that was named.
fn servers(dir: &Path, server: Option<ServerId>) -> Result<Servers, RecoverError> {
    match servers_of(dir)? {
        Some(servers) => {
            let held = kind::bind(dir, Kind::Machine)?;
            let servers = servers.into_iter().map(|(dir, server)| (dir, Some(server)));
            Ok((servers.collect(), Some(held)))
        }
        None => {
            let absolute = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
            let above = absolute.parent().filter(|above| above.join(RECORD).exists());
            if let Some(machine) = above {
                return Err(RecoverError::OfMachine(machine.display().to_string()));
            }
            kind::allow(dir, Kind::is_role)?;
            // An empty one becomes a manager's.
            let kind = kind::found(dir)?.unwrap_or(Kind::Manager);
            let held = (dir.exists() || server.is_some()).then(|| kind::bind(dir, kind));
            Ok((vec![(dir.to_owned(), server)], held.transpose()?))
        }
    }
}
