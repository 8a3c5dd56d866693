//! `larder bench`, kept out of directories that belong to Larder.

use std::process::ExitCode;

use larder_bench::BenchCommand;

use crate::{exit, kind};

/// Measures, unless the result would go into a directory of Larder's, or into one that lies in such a directory.
pub(crate) fn run(command: BenchCommand) -> ExitCode {
    match command.written().into_iter().try_for_each(kind::check_unowned) {
        Ok(()) => larder_bench::run(command),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(exit::USAGE)
        }
    }
}
