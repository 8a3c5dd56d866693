//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::exit;

/// An S3-compatible object store: durable, strongly consistent, one binary.
#[derive(Debug, Parser)]
#[command(version, about, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve S3 from a directory.
    ///
    /// The first start makes the directory, draws root credentials (kept in DIR/credentials.toml,
    /// readable by you alone, and printed once) and prints a line for the AWS command line. Nothing
    /// listens beyond this machine unless you say so with --listen. SIGTERM and SIGINT let requests
    /// finish and stop the server within 10 seconds. A put that was answered is on disk: the server
    /// may be killed at any moment.
    #[command(after_help = exit::HELP)]
    Server(ServerArgs),
    /// Check a stopped store, without changing anything.
    ///
    /// Verifies the log's chain, the index against the log, that extents neither overlap nor leak, and
    /// every object's checksums. The report goes to stdout; its last line is the summary. Exits with 0
    /// only if all is sound, with 1 if anything is not.
    #[command(after_help = exit::HELP)]
    Inspect(InspectArgs),
    /// Measure an S3 endpoint, replay a trace, or run the floor server.
    Bench {
        #[command(subcommand)]
        command: larder_bench::BenchCommand,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Directory of the store; made if it is missing.
    pub(crate) dir: PathBuf,
    /// Address for S3, such as 127.0.0.1:9000 (the default) or 0.0.0.0:9000. Port 0 lets the system
    /// choose.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Address for Prometheus' /metrics; "off" for none. Default: 127.0.0.1:9001, or any free port if
    /// that is taken.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<String>,
    /// Configuration file (TOML); see docs/configuration.md. The command line goes before it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Directory of the store; no server may be running on it.
    pub(crate) dir: PathBuf,
    /// Configuration file of the server, if its data lies on a block device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Skip reading every object's data: check metadata and space only.
    #[arg(long)]
    pub(crate) metadata_only: bool,
}
