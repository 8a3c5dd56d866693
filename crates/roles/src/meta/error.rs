//! Errors of opening a meta server.

use larder_env::DiskError;
use larder_kv::KvError;
use larder_metalog::LogError;
use larder_protocol::IndexError;
use larder_protocol::pg::LogGap;
use larder_types::PgId;
use larder_types::codec::CodecError;

use crate::manager::LocalManagerError;

/// The reason why a meta server did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log: damaged, newer, or its disk failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The index: damaged, newer, or its disk failed.
    #[error("the index: {0}")]
    Kv(#[from] KvError),
    /// The single node's map: see [`LocalManagerError`].
    #[error(transparent)]
    Manager(#[from] LocalManagerError),
    /// The disk of the directory failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Wait for the managers: the cluster's map is not known here yet.
    #[error("the cluster's map is not known here yet")]
    NoMap,
    /// The log and the index do not fit each other.
    #[error("the log does not fit the index: {0}; run `larder inspect`")]
    Gap(#[from] LogGap),
    /// A record is not an op of this cluster.
    #[error("the log holds a record that cannot be used: {0}")]
    Record(String),
    /// A member's index was damaged when its last run ended.
    #[error("the index was found damaged: {0}")]
    DamagedBefore(String),
    /// A member's index is damaged, and stays where it is.
    #[error("the index is damaged, and this server stays out: {0}")]
    NotSetAside(#[from] NotSetAside),
    /// METAX contradicts itself.
    #[error("the metadata contradicts itself: {0}; run `larder inspect`")]
    Contradiction(String),
}

impl OpenError {
    /// Returns true if the index did not open as it is damaged, not its disk or the log. The other members of a cluster
    /// have what it had.
    #[must_use]
    pub fn is_index_damage(&self) -> bool {
        matches!(self, Self::Kv(KvError::Damaged { .. }) | Self::DamagedBefore(_))
    }
}

/// The reason why a damaged index stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum NotSetAside {
    /// A group needs this server.
    #[error(
        "pg {0} cannot go on without this server yet: start the other meta servers of its group. If they are lost, restore kv/ and log/ together"
    )]
    Needed(PgId),
    /// The map may be old.
    #[error("no manager has confirmed the map: start managers")]
    NoManagers,
    /// Another is there.
    #[error(
        "{0} has an index that was damaged before: look at the disk, remove that folder, and start the server again"
    )]
    Before(String),
    /// There is no room for two.
    #[error(
        "the disk has room for {free} more bytes, and a second index and log may take {needed}: make room"
    )]
    NoRoom {
        /// Bytes that are free.
        free: u64,
        /// Bytes of the index and the log.
        needed: u64,
    },
    /// The system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl From<CodecError> for OpenError {
    fn from(error: CodecError) -> Self {
        Self::Record(error.to_string())
    }
}

impl From<IndexError> for OpenError {
    fn from(error: IndexError) -> Self {
        Self::Contradiction(error.to_string())
    }
}
