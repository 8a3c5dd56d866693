//! The `larder` program: one binary with every role, tool and bench.
//!
//! stdout carries results, stderr everything else. Exit codes are those of [`exit`].

#![deny(unsafe_code)]

mod args;
mod config;
mod credentials;
mod exit;
mod inspect;
mod logging;
mod metrics;
mod server;

use std::process::ExitCode;

use clap::Parser;

use args::{Command, Program};

fn main() -> ExitCode {
    let program = Program::parse();
    match program.command {
        Command::Server(args) => server::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench { command } => larder_bench::run(command),
    }
}
