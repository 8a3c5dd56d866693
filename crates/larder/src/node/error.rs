//! Errors with which a machine of a cluster does not start, or stops.

use std::io;
use std::path::Path;

use larder_identity::SecretError;
use larder_roles::node::NotEntered;

use crate::cluster::RoleError;
use crate::cluster::record::RecordError;
use crate::credentials::CredentialsError;
use crate::exit;
use crate::kind::{KindError, RECORD};
use crate::serving::ServingError;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("{what} {found:?} is not allowed; use {remedy}")]
    Peers { what: &'static str, found: String, remedy: &'static str },
    #[error(
        "which of the peers is this machine? {why}: say so with --me HOST:PORT, as it stands in the list"
    )]
    WhoAmI { why: String },
    #[error(
        "the peer {name} stands for no address now: {source}; is the name right, and does DNS answer?"
    )]
    Unresolved { name: String, source: io::Error },
    #[error("--me {me} is none of the peers: add it to the list on all machines")]
    NotAPeer { me: String },
    #[error(
        "this directory is {name}'s, which is not in the list of peers any more. To have it in the cluster, put it back \
         into the list. To take it out for good, start it with the old list, then on another machine `larder drain` and \
         `larder remove` each of its servers, and empty this directory"
    )]
    NotListed { name: String },
    #[error(
        "this directory is {name}'s, and not {me}'s: a machine keeps its name. Start it with --me {name}, or take {name} \
         out of the cluster with `larder remove` and start {me} with an empty directory"
    )]
    OtherName { name: String, me: String },
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error("{dir} is in use by another process: {reason}")]
    InUse { dir: String, reason: String },
    #[error(transparent)]
    Disk(#[from] larder_env::DiskError),
    #[error(
        "{dir} has no {RECORD}, but {found} is there: restore {RECORD}. If the machine is to begin anew, remove its \
         servers from the cluster and empty the directory"
    )]
    NoRecord { dir: String, found: String },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "a machine comes in with a secret: make one with `larder secret`, and name its file with --secret-file"
    )]
    NoSecret,
    #[error("the secret file {path}: {source}")]
    SecretFile { path: String, source: io::Error },
    #[error(
        "the secret file {path} can be read or changed by others: chmod 600, or 640 if it is root's"
    )]
    SecretExposed { path: String },
    #[error("the secret file {path}: {source}")]
    Secret { path: String, source: SecretError },
    #[error(
        "the address {name} cannot be listened on: {source}; name a free one of this machine with --peer"
    )]
    Listen { name: String, source: io::Error },
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Entered(#[from] NotEntered),
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error(
        "all servers of this machine were removed from the cluster for good; empty {dir} to use it again"
    )]
    AllRemoved { dir: String },
    #[error("this machine's manager has its directory again, {dir}: start the machine again")]
    ManagerReturned { dir: String },
    #[error("{0}")]
    Serving(#[from] Box<ServingError>),
    #[error("the system does not let the server run: {0}")]
    System(io::Error),
}

impl From<ServingError> for NodeError {
    fn from(error: ServingError) -> Self {
        Self::Serving(Box::new(error))
    }
}

impl NodeError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Peers { .. }
            | Self::WhoAmI { .. }
            | Self::NotAPeer { .. }
            | Self::NotListed { .. }
            | Self::OtherName { .. }
            | Self::NoSecret
            | Self::Secret { .. }
            | Self::SecretFile { .. }
            | Self::SecretExposed { .. }
            | Self::Entered(NotEntered::OtherList { .. } | NotEntered::TooFew { .. }) => {
                exit::USAGE
            }
            Self::Credentials(error) => error.code(),
            Self::Role(error) => error.code(),
            Self::Serving(error) => error.code(),
            Self::AllRemoved { .. } => exit::REMOVED,
            Self::ManagerReturned { .. } => exit::EXIT_RESTART,
            _ => exit::CANNOT_START,
        }
    }
}
