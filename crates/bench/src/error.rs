//! Errors that keep a run from being made.

use std::io;
use std::path::PathBuf;

use crate::client::CallError;
use crate::cpu::Pid;

/// Errors that leave no result, sorted by what to do about them. A request that fails inside a run
/// is none of these: it is counted.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Change the command line or the environment.
    #[error("{field}: {reason}")]
    Usage {
        /// Option or variable.
        field: &'static str,
        /// The fault, and what would be right.
        reason: String,
    },
    /// Mend the file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Mend the trace.
    #[error("line {line}: {reason}")]
    Trace {
        /// Line, counted from 1.
        line: usize,
        /// The fault, and what would be right.
        reason: String,
    },
    /// Name a process that lives as long as the run.
    #[error("--pid {pid}: its CPU time cannot be read: {source}")]
    Process {
        /// The process.
        pid: Pid,
        /// The error of the system.
        source: io::Error,
    },
    /// Look at the endpoint: what comes before the measured time failed.
    #[error("{what}: {source}")]
    Preparation {
        /// The step of the preparation.
        what: &'static str,
        /// The error of the endpoint.
        source: CallError,
    },
    /// Mend the document.
    #[error("{}: {reason}", path.display())]
    Document {
        /// The document.
        path: PathBuf,
        /// The fault, and what would be right.
        reason: String,
    },
    /// Nothing to mend: SIGINT or SIGTERM ended it.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// Take another address to listen on, or one that is free.
    #[error("--listen {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// Free resources of this machine.
    #[error("the system refuses what the bench needs: {0}")]
    System(io::Error),
}

impl BenchError {
    pub(crate) fn usage(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Usage { field, reason: reason.into() }
    }

    /// The exit status that goes with it, as every command of the program has it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. }
            | Self::File { .. }
            | Self::Trace { .. }
            | Self::Process { .. }
            | Self::Document { .. } => 2,
            Self::Preparation { .. }
            | Self::Listen { .. }
            | Self::System(_)
            | Self::Interrupted => 3,
        }
    }
}
