//! `larder keys`: root's keys, how they are rotated and how those before are retired.
//!
//! A single node keeps them in `DIR/credentials.toml`, and is asked to read that file ([`store`]). The proxies of a cluster take
//! them from the managers ([`cluster`]). No command prints a secret key: they lie in files.

mod cluster;
mod store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use larder_s3::Credentials;

use crate::args::KeysCommand;
use crate::cluster::{RoleError, admin_client};
use crate::credentials::{self, CredentialsError};
use crate::exit;
use crate::kind::{self, Kind, KindError};

/// Errors with which keys are not rotated, retired or shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// Nothing was changed, or it is said what was.
    #[error("{0}")]
    NotDone(String),
}

impl KeysError {
    fn code(&self) -> u8 {
        match self {
            Self::Kind(_) => exit::CANNOT_START,
            Self::Role(error) => error.code(),
            Self::Credentials(error) => error.code(),
            Self::Usage(_) => exit::USAGE,
            Self::NotDone(_) => exit::FAULTS,
        }
    }
}

/// The keys that a rotation makes current.
struct NewKeys<'a> {
    /// A file with them; they are drawn without one.
    keys: Option<&'a Path>,
    /// Those before are refused as soon as they are replaced.
    at_once: bool,
}

impl NewKeys<'_> {
    fn made(&self) -> Result<Credentials, CredentialsError> {
        self.keys.map_or_else(|| Ok(credentials::drawn()), credentials::read_given)
    }
}

/// Outcome of a command, for people.
struct Done {
    lines: Vec<String>,
    /// True if all that is to take keys, or to refuse them, does so now.
    is_whole: bool,
}

impl Done {
    fn all(lines: Vec<String>) -> Self {
        Self { lines, is_whole: true }
    }
}

/// Runs one of the commands.
pub(crate) fn run(command: &KeysCommand) -> ExitCode {
    match carried_out(command) {
        Ok(Done { lines, is_whole }) => {
            lines.iter().for_each(|line| println!("{line}"));
            exit::code(if is_whole { exit::OK } else { exit::FAULTS })
        }
        Err(error) => exit::failed(&error, error.code()),
    }
}

/// Keeper of root's keys.
enum Keeper {
    /// A single node, in this directory.
    Store(PathBuf),
    /// The managers of a cluster.
    Cluster(Box<cluster::Keeper>),
}

fn keeper(dir: Option<&Path>, config: Option<&Path>) -> Result<Keeper, KeysError> {
    let Some(dir) = dir else {
        let config = admin_client::config(config.unwrap_or(Path::new("")));
        let config = config.map_err(RoleError::from)?;
        let kept = cluster::KeyPlace::Elsewhere;
        return Ok(Keeper::Cluster(Box::new(cluster::Keeper {
            config,
            kept,
            hint: String::new(),
        })));
    };
    let (file, hint) = (dir.join(credentials::FILE), format!(" {}", dir.display()));
    let of = |path: &Path, kept| {
        let config = admin_client::config(path).map_err(RoleError::from)?;
        Ok(Keeper::Cluster(Box::new(cluster::Keeper { config, kept, hint })))
    };
    match kind::found(dir)? {
        Some(Kind::Store) => Ok(Keeper::Store(dir.to_owned())),
        Some(Kind::Machine) => of(dir, cluster::KeyPlace::ByProxy(file)),
        Some(Kind::DevCluster) => {
            of(&dir.join("node-1/manager/role.toml"), cluster::KeyPlace::ByCommand(file))
        }
        Some(Kind::Worker) => Err(KeysError::Usage(format!(
            "{0} is the directory of a pack worker, whose keys are rotated by hand: stop it, change {0}/{1}, start it",
            dir.display(),
            credentials::FILE
        ))),
        Some(_) => {
            kind::allow(dir, |found| found == Kind::Machine)?;
            Err(KeysError::Usage(format!("{} has no root keys", dir.display())))
        }
        None => Err(KeysError::Usage(format!(
            "nothing of Larder's is in {}: name the directory of a store or of a machine of a cluster",
            dir.display()
        ))),
    }
}

fn carried_out(command: &KeysCommand) -> Result<Done, KeysError> {
    match command {
        KeysCommand::Status { of } => match keeper(of.dir.as_deref(), of.config.as_deref())? {
            Keeper::Store(dir) => store::status(&dir),
            Keeper::Cluster(keeper) => keeper.status(),
        },
        KeysCommand::Rotate { of, keys, at_once, current, into } => {
            let wanted = NewKeys { keys: keys.as_deref(), at_once: *at_once };
            match keeper(of.dir.as_deref(), of.config.as_deref())? {
                Keeper::Store(_) if current.is_some() || into.is_some() => {
                    Err(KeysError::Usage(
                        "--current and --into are for the servers of a cluster that have no machine's directory: leave \
                         them out"
                            .to_owned(),
                    ))
                }
                Keeper::Store(dir) => store::rotate(&dir, &wanted),
                Keeper::Cluster(keeper) => {
                    keeper.rotate(&wanted, current.as_deref(), into.as_deref())
                }
            }
        }
        KeysCommand::Retire { of, yes } => match keeper(of.dir.as_deref(), of.config.as_deref())? {
            Keeper::Store(dir) => store::retire(&dir, *yes),
            Keeper::Cluster(keeper) => keeper.retire(*yes),
        },
    }
}

/// Use of the pair before the current one, for people.
fn used(requests: u64, last_s: Option<u64>) -> String {
    match last_s {
        Some(last_s) => format!("the pair before was used {requests} times, last {last_s} s ago"),
        None => "the pair before was not used since both are taken, or since a restart".to_owned(),
    }
}
