//! Errors of the index.

use std::io::ErrorKind;

use bytes::Bytes;

/// Sorted by what the caller should do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Free space, then try again: nothing is lost, reads and applies go on.
    #[error("no space left on the disk while the index {operation}")]
    Full {
        /// The operation that failed.
        operation: &'static str,
    },
    /// Stop using this index and rebuild it from the log or from peers: bytes on disk or in memory
    /// are not what was written.
    #[error("the index is damaged{}: {reason}", at_key(key.as_ref()))]
    Damaged {
        /// The row that was asked for or met, if it is one row.
        key: Option<Bytes>,
        /// The damage found.
        reason: String,
    },
    /// Stop using this index and its disk: an operation of the system failed.
    #[error("the disk failed while the index {operation}: {reason}")]
    Broken {
        /// The operation that failed.
        operation: &'static str,
        /// The operating system's words.
        reason: String,
    },
    /// Use the release that wrote it.
    #[error("the index has engine format {found}: use the release that wrote it")]
    Format {
        /// Version found.
        found: u8,
    },
    /// The simulated machine has lost its power; only the simulator makes this.
    #[error("the simulated machine is down")]
    PoweredOff,
}

fn at_key(key: Option<&Bytes>) -> String {
    key.map_or_else(String::new, |key| format!(" at key {}", key.escape_ascii()))
}

impl KvError {
    pub(crate) fn from_engine(
        operation: &'static str,
        key: Option<&[u8]>,
        error: lsm_tree::Error,
    ) -> Self {
        match error {
            lsm_tree::Error::Io(error) => Self::from_io(operation, &error),
            lsm_tree::Error::InvalidVersion(found) => Self::Format { found },
            other => Self::Damaged {
                key: key.map(Bytes::copy_from_slice),
                reason: format!("{other:?} while it {operation}"),
            },
        }
    }

    pub(crate) fn from_io(operation: &'static str, error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full { operation },
            // The engine goes only to files and places that its own files name: to be sent where
            // nothing is means that one of them is damaged.
            ErrorKind::UnexpectedEof
            | ErrorKind::NotFound
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData => Self::Damaged {
                key: None,
                reason: format!("a file is not as it was written while it {operation}: {error}"),
            },
            _ => Self::Broken { operation, reason: error.to_string() },
        }
    }
}
