//! `larder bucket usage`: how many objects and bytes buckets have, of a store and of a cluster.

use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::UsageArgs;
use crate::cluster::RoleError;
use crate::cluster::status::usage::{self, Usage};
use crate::kind::{self, Kind, KindError};
use crate::store_status::{self, StatusError};
use crate::{dev, exit};

/// The reason that there are no counts to show.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    Store(#[from] StatusError),
    #[error(transparent)]
    Cluster(#[from] RoleError),
    #[error(
        "{0} is the directory of a pack worker, which does not count by bucket: `larder pack status {0}` shows what it has"
    )]
    Worker(String),
    #[error("nothing of Larder's is in {0} yet. Start a server on it")]
    Nothing(String),
    #[error("there is no bucket {0:?}")]
    NoBucket(String),
    #[error(
        "the last map known has no bucket {0:?}, and no manager says that it is the latest. See `larder status`"
    )]
    BucketUnknown(String),
    #[error("{0}")]
    System(#[from] Error),
}

impl UsageError {
    fn code(&self) -> u8 {
        match self {
            Self::Store(error) => error.code(),
            Self::Cluster(error) => error.code(),
            Self::Worker(_) | Self::NoBucket(_) => exit::USAGE,
            Self::Nothing(_) | Self::BucketUnknown(_) => exit::FAULTS,
            Self::Kind(_) | Self::System(_) => exit::CANNOT_START,
        }
    }
}

/// Prints the counts of buckets; the exit code says whether they are exact.
pub(crate) fn run(args: &UsageArgs) -> ExitCode {
    match shown(args) {
        Ok(true) => exit::code(exit::OK),
        Ok(false) => exit::code(exit::FAULTS),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(error.code())
        }
    }
}

fn shown(args: &UsageArgs) -> Result<bool, UsageError> {
    let path = args.dir.as_ref().or(args.config.as_ref()).map_or(Path::new(""), PathBuf::as_path);
    let mut all = asked(path)?;
    if let Some(name) = &args.bucket {
        let refusal = match all.is_latest {
            true => UsageError::NoBucket,
            false => UsageError::BucketUnknown,
        };
        all = all.of_bucket(name).ok_or_else(|| refusal(name.clone()))?;
    }
    let mut out = std::io::stdout().lock();
    let written = match args.json {
        true => {
            serde_json::to_writer(&mut out, &all).map_err(Error::from).and_then(|()| writeln!(out))
        }
        false => usage::write_text(&mut out, &all),
    };
    match written {
        // Nobody reads on, such as `head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(all.is_exact)
}

fn asked(path: &Path) -> Result<Usage, UsageError> {
    let found = if path.is_dir() { kind::found(path)? } else { None };
    let name = || path.display().to_string();
    match found {
        Some(Kind::Store) => Ok(store_status::usage(path)?),
        Some(Kind::Worker) => Err(UsageError::Worker(name())),
        Some(Kind::DevCluster) => Ok(usage::ask(&dev::operator_role(path))?),
        None if path.is_dir() => Err(UsageError::Nothing(name())),
        _ => Ok(usage::ask(path)?),
    }
}
