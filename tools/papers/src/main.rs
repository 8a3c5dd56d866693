//! Figures of the papers behind Larder beside Larder's own, at the papers' scale and in simulated time: `larder-papers`. It
//! does not ship.
//!
//! Each command runs the machines that ship over models of what the paper had, and writes a part of a page. The result goes
//! to stdout, everything else to stderr.
//!
//! | module | what it answers |
//! |---|---|
//! | [`gfs`] | how soon chunks have all copies again after servers are lost, and in which order |
//! | [`cheetah`] | how evenly groups lie on meta servers |
//! | [`scale`] | what a thousand servers cost the managers |
//! | [`world`] | the cluster in simulated time |

mod cheetah;
mod gfs;
mod scale;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use larder_plot::document::DocumentError;

/// Exit status of a command that could not write its page.
const EXIT_USAGE: u8 = 2;

/// Puts figures of papers beside Larder's, in simulated time
#[derive(Debug, Parser)]
#[command(name = "larder-papers", version)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Loses one server of 227 and two, as in section 6.2.5 of the Google File System
    Gfs(Options),
    /// Places groups on 3 to 15 meta servers, as in Figure 10 of Cheetah
    Cheetah(Options),
    /// Measures what a thousand servers cost the managers
    Scale(Options),
}

/// The options of every command.
#[derive(Debug, Args)]
struct Options {
    /// Writes the page below this folder
    #[arg(long, value_name = "DIR", default_value = "docs")]
    docs: PathBuf,
    /// Moves what servers do at the same time apart by this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulates small clusters, in seconds
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    let ended: Result<(), DocumentError> = match Program::parse().command {
        Command::Gfs(options) => gfs::run(&options),
        Command::Cheetah(options) => cheetah::run(&options),
        Command::Scale(options) => scale::run(&options),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
