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

use std::io::{Error, IsTerminal, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use larder_roles::breakdown::CountsStatus;
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::args::StatusArgs;
use crate::breakdown::{self, Breakdown, ServerCounts};
use crate::cluster::status::usage::Usage;
use crate::cluster::status::{CLEAR, WATCH_PAUSE};
use crate::exit;
use crate::kind::{self, Kind, KindError};
use crate::wall_clock::now_ms;
use document::Document;

pub(crate) use observer::Observer;
pub(crate) use socket::{SOCKET, Socket, SocketRequest, request_keys};

/// The reason that there is no status to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(
        "NOT WELL: no server runs on {dir}. Start it as this machine does: systemctl start larder, or larder server \
         {dir} as the user who owns it"
    )]
    NotRunning { dir: String },
    #[error("the server of {dir} does not answer: {reason}")]
    NoAnswer { dir: String, reason: String },
    #[error("{0}")]
    System(std::io::Error),
}

impl StatusError {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            // A store that runs nowhere is not well; all else is not known.
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
        if args.breakdown {
            let is_read = show_breakdown(dir, args, &runtime)?;
            if !args.watch || !is_read {
                return Ok(true);
            }
            runtime.block_on(async { sleep(WATCH_PAUSE).await });
            continue;
        }
        let reply = runtime.block_on(socket::ask(dir, SocketRequest::Status))?;
        let failed = |error: serde_json::Error| {
            let reason =
                format!("{error}; the server runs another release: restart it, or ask with --json");
            StatusError::NoAnswer { dir: dir.display().to_string(), reason }
        };
        let Outcome { is_well } = serde_json::from_slice(&reply).map_err(failed)?;
        let is_read = if args.json {
            print(args, |out| out.write_all(&reply).and_then(|()| writeln!(out)))?
        } else {
            let document: Document = serde_json::from_slice(&reply).map_err(failed)?;
            print(args, |out| text::write_text(out, &document, now_ms()))?
        };
        if !args.watch || !is_read {
            return Ok(is_well);
        }
        runtime.block_on(async { sleep(WATCH_PAUSE).await });
    }
}

/// The objects and bytes of the buckets of the store in a directory.
pub(crate) fn usage(dir: &Path) -> Result<Usage, StatusError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(StatusError::System)?;
    let reply = runtime.block_on(socket::ask(dir, SocketRequest::Status))?;
    serde_json::from_slice(&reply).map(Document::usage).map_err(|error| StatusError::NoAnswer {
        dir: dir.display().to_string(),
        reason: format!("{error}; the server runs another release: restart it"),
    })
}

/// Prints the counts of a store; false if nobody reads on.
fn show_breakdown(dir: &Path, args: &StatusArgs, runtime: &Runtime) -> Result<bool, StatusError> {
    let reply = runtime.block_on(socket::ask(dir, SocketRequest::Breakdown))?;
    let counts: CountsStatus =
        serde_json::from_slice(&reply).map_err(|error| StatusError::NoAnswer {
            dir: dir.display().to_string(),
            reason: format!("{error}; the server runs another release: restart it"),
        })?;
    let reply = ServerCounts { name: dir.display().to_string(), role: "store", counts: Ok(counts) };
    let all = Breakdown::of(true, vec![reply]);
    print(args, |out| match args.json {
        true => {
            serde_json::to_writer(&mut *out, &all).map_err(Error::from).and_then(|()| writeln!(out))
        }
        false => breakdown::write_text(out, &all),
    })
}

/// The part of the document that a release of any age has.
#[derive(Deserialize)]
struct Outcome {
    is_well: bool,
}

/// False if nobody reads on, such as `head`.
fn print(
    args: &StatusArgs,
    write: impl FnOnce(&mut StdoutLock<'_>) -> std::io::Result<()>,
) -> Result<bool, StatusError> {
    let mut out = std::io::stdout().lock();
    let clear = if args.watch && !args.json && out.is_terminal() { CLEAR } else { "" };
    match out.write_all(clear.as_bytes()).and_then(|()| write(&mut out)) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(StatusError::System),
    }
}
