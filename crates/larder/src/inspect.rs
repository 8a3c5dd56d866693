//! `larder inspect`: the report goes to stdout, its last line is the summary.

use std::process::ExitCode;

use larder_roles::StoreError;
use larder_roles::inspect::inspect;

use crate::args::InspectArgs;
use crate::config::Config;
use crate::{exit, logging, server};

/// Checks a stopped store.
pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return exit::code(exit::USAGE);
        }
    };
    logging::start(config.log_format);
    match inspect(&server::store_config(&args.dir, &config), !args.metadata_only) {
        Ok(report) => {
            println!("{report}");
            exit::code(if report.is_sound() { exit::OK } else { exit::FAULTS })
        }
        Err(error @ StoreError::Manager(_)) => {
            println!("map\n  FAULT: {error}\nNOT SOUND: 1 faults");
            exit::code(exit::FAULTS)
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(exit::CANNOT_START)
        }
    }
}
