//! Errors that keep a comparison from being made, sorted by what to do about them.

use std::io;
use std::path::PathBuf;

use larder_bench::BenchError;
use larder_floor::FloorError;
use larder_plot::document::DocumentError;

/// See the module's head. A request that fails inside a run is none of these: it is counted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    /// Change the command line, the environment or the program.
    #[error("{field}: {reason}")]
    Usage {
        /// Option, variable or program.
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
    /// Free resources of this machine.
    #[error("the system refuses what the comparison needs: {0}")]
    System(io::Error),
    /// As it says.
    #[error(transparent)]
    Page(#[from] DocumentError),
    /// As the driver says.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// As the floor server says.
    #[error(transparent)]
    Floor(#[from] FloorError),
}

impl CompareError {
    pub(crate) fn usage(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Usage { field, reason: reason.into() }
    }

    /// The exit status that goes with it, as every command of `larder` has it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::File { .. } | Self::Document { .. } | Self::Page(_) => 2,
            Self::Floor(FloorError::Keys { .. }) => 2,
            Self::Interrupted | Self::System(_) | Self::Floor(_) => 3,
            Self::Bench(error) => error.exit_code(),
        }
    }
}
