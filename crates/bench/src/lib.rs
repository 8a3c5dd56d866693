//! The bench driver and the trace replay: `larder bench`.
//!
//! One driver for every scenario, against any S3 endpoint. It runs on the same cores as the server it
//! measures, so its own CPU time is kept small. It is a judge, so it trusts no answer. It compares
//! every read byte by byte, and every failure shows in the result and in the exit status.
//!
//! | module | what it answers |
//! |---|---|
//! | [`args`], [`units`] | what was asked for |
//! | [`scenario`], [`replay`] | the order of things: preload, measured time, verification |
//! | [`workload`] | which requests |
//! | [`load`] | when each begins, and which count |
//! | [`client`], [`sign`] | how a request is made and its answer checked |
//! | [`content`] | what objects contain |
//! | [`histogram`], [`cpu`], [`report`] | the results |
//! | [`pool`] | which thread makes them |

#![deny(unsafe_code)]

pub mod args;
pub mod client;
mod connection;
pub mod content;
pub mod cpu;
mod error;
mod fleet;
pub mod histogram;
pub mod load;
pub mod pool;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod sign;
pub mod units;
pub mod workload;

use std::process::ExitCode;

pub use args::BenchCommand;
pub use error::{BenchError, CallError, Pid};

use report::Report;
use sign::Credentials;
use workload::Operation;

/// Exit status of a run in which a request failed or an answer was wrong.
const EXIT_FAULTS: u8 = 1;

/// Runs a command: its result goes to stdout, everything else to stderr.
#[must_use]
pub fn run(command: BenchCommand) -> ExitCode {
    match execute(command) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_FAULTS),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs a command and gives the number of errors in its result.
fn execute(command: BenchCommand) -> Result<u64, BenchError> {
    let (operation, load, objects) = match command {
        BenchCommand::Put(load) => (Operation::Put, load, None),
        BenchCommand::Append(args) => {
            (Operation::Append { objects: args.objects }, args.load, None)
        }
        BenchCommand::Get(args) => (Operation::Get, args.load, args.objects),
        BenchCommand::Head(args) => (Operation::Head, args.load, args.objects),
        BenchCommand::Delete(args) => (Operation::Delete, args.load, args.objects),
        BenchCommand::Mixed(args) => {
            (Operation::Mixed(args.mix), args.preloaded.load, args.preloaded.objects)
        }
        BenchCommand::List(args) => {
            let operation = Operation::List { page: args.page };
            (operation, args.preloaded.load, args.preloaded.objects)
        }
        BenchCommand::Replay(args) => {
            let report = replay::replay(&args, Credentials::from_env()?)?;
            return Ok(show(&report, args.endpoint.json));
        }
    };
    let report = scenario::load(operation, &load, objects, Credentials::from_env()?)?;
    Ok(show(&report, load.endpoint.json))
}

fn show(report: &Report, json: bool) -> u64 {
    match json {
        true => println!("{}", report.json()),
        false => println!("{report}"),
    }
    report.errors
}
