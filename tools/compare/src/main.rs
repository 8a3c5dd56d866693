//! Larder beside other stores, and beside itself without parts of its design: `larder-compare`. It does not ship.
//!
//! A comparison writes its rows, plots and tables into the documents. Its result goes to stdout, everything else to
//! stderr.
//!
//! | module | what it answers |
//! |---|---|
//! | [`comparison`] | `systems`: how larder, the floor and other stores do in turn |
//! | [`ordered`], [`policies`] | parts of the design in real clusters, measured against what they replace |
//! | [`schedule`], [`rebalance`] | the read scheduler and the planner of moves, in simulated time |
//! | [`ports`] | `larder …`: the store itself, with worse disks and a slower network |
//! | [`systems`], [`clusters`], [`devcluster`] | which systems there are, and how they are started |
//! | [`works`] | what they are given to do |
//! | [`rounds`], [`launch`], [`process`], [`usage`], [`machine`] | the results |
//! | [`peaks`] | the most that each peer did, and larder under that load |
//! | [`results`], [`measured`], [`statistics`] | the rows, and what can be said of them |
//! | [`document`], [`tables`], [`plots`] | how it is shown, with `larder_plot` |
//! | [`args`], [`error`] | what was asked for, and why there is no comparison |

mod args;
mod clusters;
mod comparison;
mod devcluster;
mod document;
mod error;
mod launch;
mod machine;
mod measured;
mod ordered;
mod peaks;
mod plots;
mod policies;
mod ports;
mod process;
mod rebalance;
mod results;
mod rounds;
#[cfg(test)]
mod samples;
mod schedule;
mod statistics;
mod systems;
mod tables;
mod usage;
mod works;

use std::process::ExitCode;

use clap::Parser;

use args::{Command, Program};
use error::CompareError;

/// Exit status of a comparison in which a request failed or an answer was wrong.
const EXIT_FAULTS: u8 = 1;

fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    let ended = match line.get(1) {
        Some(word) if word == ports::WORD => ports::run(&line[1..]),
        _ => execute(&Program::parse().command).map(|faults| match faults {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(EXIT_FAULTS),
        }),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs a command and gives the number of errors in its result.
fn execute(command: &Command) -> Result<u64, CompareError> {
    let refused = |reason: String| CompareError::usage("--docs, --scratch", reason);
    for dir in command.written() {
        larder::check_unowned(dir).map_err(|error| refused(error.to_string()))?;
    }
    match command {
        Command::Systems(args) => comparison::run(args),
        Command::Ordered(args) => ordered::run(args),
        Command::Policies(args) => policies::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Rebalance(args) => rebalance::run(args),
        Command::Floor(args) => Ok(larder_floor::run(args.listen, args.bare).map(|()| 0)?),
    }
}
