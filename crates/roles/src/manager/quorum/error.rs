//! The reasons why a manager does not start, or stops.

use std::io;

use larder_env::DiskError;
use larder_identity::IdentityError;
use larder_protocol::manager::state::Refusal;

use crate::managers::NotIssued;

/// The reason why a manager does not start or has stopped, by what to do.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Look at the disk, then start again.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Use the release that wrote the file. If it is damaged, remove this manager and add another in an empty
    /// directory; the others have all that it had.
    #[error("{file} cannot be used: {why}")]
    Unusable {
        /// The file, within the manager's directory.
        file: &'static str,
        /// The fault.
        why: String,
    },
    /// Remove this manager and add another in an empty directory. Without a majority of the others, make managers anew.
    #[error(
        "quorum/log is gone, and what this manager had agreed to is not known any more. Remove it with `larder remove`, and \
         run another in an empty directory. If no majority of the managers is left, see docs/operations.md, managers are lost"
    )]
    LogGone,
    /// Remove this manager and add another in an empty directory: its log contradicts the leader's.
    #[error("this manager cannot go on: {0}")]
    Halted(String),
    /// Use the release of the other managers: this one cannot decode a command that they agreed on.
    #[error("the managers agreed on what this release does not know: {0}")]
    Unreadable(String),
    /// Fix the keys and certificates.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Choose another directory: this one is a member's already.
    #[error("the directory belongs to a server already")]
    Taken,
    /// Fix the request: the map refuses it.
    #[error("the cluster cannot be founded so: {0}")]
    Refused(#[from] Refusal),
    /// Fix the system: it gives no address, or no thread.
    #[error("the system: {0}")]
    System(#[from] io::Error),
}

impl From<ManagerError> for NotIssued {
    fn from(error: ManagerError) -> Self {
        Self::Manager(Box::new(error))
    }
}
