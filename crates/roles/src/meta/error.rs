//! Errors of opening a meta server.

use larder_env::DiskError;
use larder_kv::KvError;
use larder_metalog::LogError;
use larder_protocol::IndexError;
use larder_protocol::pg::LogGap;
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
    /// METAX contradicts itself.
    #[error("the metadata contradicts itself: {0}; run `larder inspect`")]
    Contradiction(String),
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
