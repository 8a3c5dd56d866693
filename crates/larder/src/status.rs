//! `larder status`: shows the state of a store, a cluster or a pack worker, whichever a directory is of.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::StatusArgs;
use crate::kind::{self, Kind};
use crate::{cluster, dev, exit, pack, store_status};

/// Prints the state of what is in a directory, or of the cluster of a configuration; the exit code says whether all of it is
/// well.
pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    let path = args.dir.as_ref().or(args.config.as_ref()).map_or(Path::new(""), PathBuf::as_path);
    let found = if path.is_dir() { kind::found(path) } else { Ok(None) };
    match found {
        Ok(Some(Kind::Store)) => store_status::run(path, args),
        Ok(Some(Kind::Worker)) if args.breakdown => {
            let dir = path.display();
            eprintln!(
                "error: --breakdown is of stores and clusters, and {dir} is of a pack worker: leave it out, or see \
                 larder_operations_total at the worker's /metrics"
            );
            exit::code(exit::USAGE)
        }
        Ok(Some(Kind::Worker)) => pack::status::show(path, args.json),
        Ok(Some(Kind::DevCluster)) => cluster::status::run(&dev::operator_role(path), args),
        Ok(None) if path.is_dir() => {
            let dir = path.display();
            eprintln!("error: NOT WELL: nothing of Larder's is in {dir} yet. Start a server on it");
            exit::code(exit::FAULTS)
        }
        Ok(_) if args.config.is_none() && !path.exists() => {
            let dir = path.display();
            eprintln!("error: {dir} is not there: name the directory of a store or of a machine");
            exit::code(exit::USAGE)
        }
        Ok(_) => cluster::status::run(path, args),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(exit::CANNOT_START)
        }
    }
}
