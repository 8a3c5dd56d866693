//! The reasons why a packed store does not open, or does not go on, sorted by what the operator
//! should do.

use larder_env::DiskError;
use larder_kv::KvError;
use larder_metalog::LogError;
use larder_objects::ObjectError;
use larder_types::CodecError;

use crate::ids::{BlobId, WorkerId};

/// An error outside of a single request.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Fix the command line.
    #[error("{what}: {found} is not allowed; use {remedy}")]
    Config {
        /// The setting.
        what: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        remedy: String,
    },
    /// Stop the other process, or name another directory.
    #[error("{dir} is in use by another process: {reason}")]
    InUse {
        /// The directory.
        dir: String,
        /// The error of the lock.
        reason: String,
    },
    /// The directory is new, the backend is not: find the other directory, or say that it is lost.
    #[error(
        "the backend belongs to worker {owner}, whose directory is another. Start with that directory; \
         only if it is lost, start with --take-over: everything uploaded is found again, what was only \
         in that directory is lost"
    )]
    Owned {
        /// Its owner.
        owner: WorkerId,
    },
    /// Another worker took the backend over: this directory must not be used with it any more.
    #[error(
        "worker {by} has taken over this backend from worker {worker}, which answers and uploads nothing \
         more: send requests to the other one. Objects that were acknowledged here and not uploaded are \
         in this directory still"
    )]
    Superseded {
        /// This worker.
        worker: WorkerId,
        /// The one that took over.
        by: WorkerId,
    },
    /// Two processes ran on copies of one directory: keep one of them.
    #[error(
        "another process runs, or ran, on a copy of the directory of worker {worker}: it has made {name}. This process \
         stops and uploads nothing more. Run one of the copies only: stop the other, and start this one if it has what you \
         want. Objects that were acknowledged here and not uploaded are nowhere else, so keep this directory until you know"
    )]
    Copied {
        /// The worker that both are.
        worker: WorkerId,
        /// The object that the other made.
        name: String,
    },
    /// The directory was put back from a copy: find the newer one, or say that it is lost.
    #[error(
        "another copy of this worker's directory has gone on: this one does not know {name}, which is in the backend. Start \
         with the other directory; only if that is lost, start with an empty one and --take-over: everything uploaded is \
         found again. Keep this directory: what was acknowledged here alone, and not uploaded, is nowhere else"
    )]
    OlderCopy {
        /// The object that it does not know.
        name: String,
    },
    /// Name the backend that the directory was made with.
    #[error("the directory was made with another backend: {reason}")]
    OtherBackend {
        /// The evidence for that.
        reason: String,
    },
    /// Try again later, or repair the backend.
    #[error("the backend cannot {operation} {name}: {reason}")]
    Backend {
        /// The operation that failed.
        operation: &'static str,
        /// Name of the object.
        name: String,
        /// Its words.
        reason: String,
    },
    /// The backend does not have what it had.
    #[error(
        "blob {blob} is not in the backend, though it is needed: restore it. Only if it is lost, start with \
         --accept-loss: the store goes on without it, and writes down which keys that concerns"
    )]
    Missing {
        /// The blob.
        blob: BlobId,
    },
    /// Work in the background was put off: it is begun again by itself.
    #[error("put off: {reason}")]
    Deferred {
        /// The reason.
        reason: String,
    },
    /// Restore the blob or file named from a copy.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// The file or object that is damaged.
        name: String,
        /// The damage.
        reason: String,
    },
    /// Use a newer release.
    #[error(
        "{name} has format version {found}, this release knows up to {known}: use a newer release"
    )]
    Version {
        /// The file or object.
        name: String,
        /// Version found.
        found: u32,
        /// The last that this release knows.
        known: u32,
    },
    /// The disk of the directory failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The index failed. Without `kv/` it is rebuilt at the next start.
    #[error(transparent)]
    Index(#[from] KvError),
    /// A stored value is not what it should be.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The system does not let it run.
    #[error("the system does not let the packer run: {0}")]
    System(#[from] std::io::Error),
}

impl PackError {
    /// Returns true if this process may upload nothing any more: another owns the backend, or has
    /// what this one does not know.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded().is_some()
    }

    /// The same error again, if [`PackError::is_superseded`]: it is the answer to everything from then on.
    pub(crate) fn superseded(&self) -> Option<Self> {
        match self {
            &Self::Superseded { worker, by } => Some(Self::Superseded { worker, by }),
            Self::Copied { worker, name } => {
                Some(Self::Copied { worker: *worker, name: name.clone() })
            }
            Self::OlderCopy { name } => Some(Self::OlderCopy { name: name.clone() }),
            _ => None,
        }
    }

    /// Of an object that is named as none of its kind is.
    pub(crate) fn unknown(name: impl Into<String>, kind: &str) -> Self {
        let reason = format!(
            "it is not named as {kind} is; if a later release made it, this one must not be used here"
        );
        Self::Damaged { name: name.into(), reason }
    }

    pub(crate) fn damaged(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Damaged { name: name.into(), reason: reason.into() }
    }
}

/// The index does not give a row.
pub(crate) fn unread(error: PackError) -> ObjectError {
    tracing::error!(%error, "the index cannot be read");
    unavailable(&error.to_string())
}

/// A request is not answered now.
pub(crate) fn unavailable(reason: &str) -> ObjectError {
    ObjectError::Unavailable { reason: reason.to_owned() }
}
