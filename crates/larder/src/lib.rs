//! The `larder` program as a library: every role, command and bench. Its `main` calls [`run`] and does nothing else.
//! A developer's tool may call it too, from a process that differs from the shipped one in its ports alone.
//!
//! stdout carries results, stderr everything else. Exit codes are those of [`exit`].
//!
//! A module uses those below it alone:
//!
//! | layer | modules |
//! |---|---|
//! | commands over others | [`status`], [`usage`] |
//! | commands | [`server`], [`pack`], [`dev`], [`keys`], [`region`], [`recover`], [`inspect`], [`doctor`], [`bench`], [`manual`] |
//! | a machine of a cluster; a running store, as commands see it | [`node`]; [`store_status`] |
//! | roles of a cluster, and the commands beside them | [`cluster`] |
//! | listeners, and the end of a process | [`serving`], [`announce`], [`leaving`] |
//! | counts of a process, and what it knows | [`metrics`], [`health`], [`root_keys`], [`breakdown`] |
//! | settings | [`config`], [`logging`], [`access_log`] |
//! | the command line, directories and files | [`args`], [`exit`], [`kind`], [`credentials`], [`private`], [`release`], [`wall_clock`], [`quantity`] |

#![deny(unsafe_code)]

mod access_log;
mod announce;
mod args;
mod bench;
mod breakdown;
mod cluster;
mod config;
mod credentials;
mod dev;
mod doctor;
mod exit;
mod health;
mod inspect;
mod keys;
mod kind;
mod logging;
mod manual;
mod metrics;
mod minio;
mod node;
mod pack;
mod private_file;
mod quantity;
mod recover;
mod region;
mod release;
mod root_keys;
mod server;
mod serving;
mod shutdown_notice;
mod status;
mod store_status;
mod usage;
mod wall_clock;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::{BucketCommand, Command, Program};
use larder_protocol::manager::state::ServerRole;

/// Bodies and METAX are allocated on one thread and freed on another, thousands of times a second:
/// the system's allocator spends a tenth of a small put on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs a command line, whose first word is the program's name, and returns the exit code of [`exit`].
///
/// `reached_by` are the words after which this executable reads its own arguments as such a command line: none in
/// `larder` itself. `dev-cluster` starts its processes through them. A panic ends the process from here on.
#[must_use]
pub fn run(line: impl IntoIterator<Item = OsString>, reached_by: &[&'static str]) -> ExitCode {
    end_at_panics();
    larder_env::open_files::raise();
    let program = Program::parse_from(line);
    match program.command {
        Command::Server(args) => server::run(&args),
        Command::Manager(args) => cluster::run(ServerRole::Manager, &args),
        Command::Meta(args) => cluster::run(ServerRole::Meta, &args),
        Command::Data(args) => cluster::run(ServerRole::Data, &args),
        Command::Proxy(args) => cluster::run(ServerRole::Proxy, &args),
        Command::Token(args) => cluster::token::run(&args),
        Command::Secret => node::secret::run(),
        Command::Status(args) => status::run(&args),
        Command::Drain(args) => cluster::operate::drain(&args),
        Command::Remove(args) => cluster::operate::remove(&args),
        Command::Disk { command } => cluster::operate::disk(&command),
        Command::Rebalance { command } => cluster::rebalance::run(&command),
        Command::Keys { command } => keys::run(&command),
        Command::Recover { command } => recover::run(&command),
        Command::Bucket { command: BucketCommand::Usage(args) } => usage::run(&args),
        Command::Bucket { command: BucketCommand::Policy { config, name, policy } } => {
            cluster::bucket::run(&config, &name, policy)
        }
        Command::DevCluster(args) => dev::run(&args, reached_by),
        Command::Pack(args) => pack::run(*args),
        Command::Region { command } => region::run(command),
        Command::Inspect(args) => inspect::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench { command } => bench::run(command),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::pages(&dir),
    }
}

/// Refuses a directory that is one of Larder's, or lies in one: what a tool wrote there would spoil it. Changes nothing.
///
/// # Errors
/// The reason, for people.
pub fn check_unowned(dir: &Path) -> Result<(), impl std::error::Error + use<>> {
    kind::check_unowned(dir)
}

/// A broken invariant ends the process in every build, not only the thread or task that met it.
fn end_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}
