//! `larder status DIR` of a single node: the state of a running store, as the process that serves it says.
//!
//! That process answers on `DIR/status.sock` ([`socket`]) with a document ([`document`]) that [`observer`] makes. The command
//! prints it, and says so if no process does.

mod document;
mod growth;
mod observer;
mod socket;
mod text;
mod verdict;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use tokio::time::sleep;

use crate::args::StatusArgs;
use crate::cluster::status::{CLEAR, WATCH_PAUSE};
use crate::exit;
use crate::kind::{self, Kind, KindError};
use document::Document;

pub(crate) use observer::Observer;
pub(crate) use socket::{SOCKET, Socket};

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error("NOT WELL: no server runs on {dir} ({source}). Start it: larder server {dir}")]
    NotRunning { dir: String, source: std::io::Error },
    #[error("the server of {dir} does not answer: {reason}")]
    NoAnswer { dir: String, reason: String },
    #[error("{0}")]
    System(std::io::Error),
}

impl StatusError {
    const fn code(&self) -> u8 {
        match self {
            // What runs nowhere is not well; all else is not known.
            Self::NotRunning { .. } => exit::FAULTS,
            _ => exit::CANNOT_START,
        }
    }
}

/// Prints the state of the store in a directory; the exit code says whether it is well.
pub(crate) fn run(dir: &Path, args: &StatusArgs) -> ExitCode {
    match watch(dir, args) {
        Ok(true) => exit::code(exit::OK),
        Ok(false) => exit::code(exit::FAULTS),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(error.code())
        }
    }
}

/// Prints it once, or again and again until it is stopped.
fn watch(dir: &Path, args: &StatusArgs) -> Result<bool, StatusError> {
    kind::allow(dir, |found| found == Kind::Store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(StatusError::System)?;
    loop {
        let told = runtime.block_on(socket::ask(dir))?;
        let document: Document = serde_json::from_slice(&told).map_err(|error| {
            let reason = format!("{error}; use the release that runs there");
            StatusError::NoAnswer { dir: dir.display().to_string(), reason }
        })?;
        let is_read = print(args, &document, &told)?;
        if !args.watch || !is_read {
            return Ok(document.is_well);
        }
        runtime.block_on(async { sleep(WATCH_PAUSE).await });
    }
}

/// False if nobody reads on, such as `head`.
fn print(args: &StatusArgs, document: &Document, told: &[u8]) -> Result<bool, StatusError> {
    let mut out = std::io::stdout().lock();
    let clear = if args.watch && out.is_terminal() { CLEAR } else { "" };
    let written = if args.json {
        out.write_all(told).and_then(|()| writeln!(out))
    } else {
        let now_ms = observer::wall_ms();
        out.write_all(clear.as_bytes()).and_then(|()| text::people(&mut out, document, now_ms))
    };
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(StatusError::System),
    }
}
