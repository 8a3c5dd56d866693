//! Errors that keep a run from being made, and failures of single requests within one.

use std::io;
use std::path::PathBuf;

use hyper::StatusCode;

/// A process id.
pub type Pid = u32;

/// The failure of one request.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent: the endpoint does not take connections.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection broke before the answer was complete; whether anything changed is not known.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// No complete answer within the time allowed; whether anything changed is not known.
    #[error("no answer in time")]
    TimedOut,
    /// The server said no.
    #[error("the server answered {status} {code}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// S3's error code; empty if there was none.
        code: String,
    },
    /// The server said yes, but not what is true.
    #[error("wrong answer: {0}")]
    Wrong(&'static str),
}

impl CallError {
    /// The kind under which it is counted: few, whatever goes wrong.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Connect(error) => format!("cannot connect ({:?})", error.kind()),
            Self::Broken(_) => "connection broke".into(),
            Self::TimedOut => "timed out".into(),
            Self::Refused { status, code } => {
                format!("{} {code}", status.as_u16()).trim_end().into()
            }
            Self::Wrong(what) => format!("wrong answer: {what}"),
        }
    }
}

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
            Self::Usage { .. } | Self::File { .. } | Self::Trace { .. } | Self::Process { .. } => 2,
            Self::Preparation { .. } | Self::System(_) => 3,
        }
    }
}
