//! `larder inspect`: the report goes to stdout, its last line is the summary.

use std::process::ExitCode;

use larder_roles::StoreError;
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::inspect::{Report, inspect, inspect_role};
use larder_roles::store::DATA_FILE;

use crate::args::InspectArgs;
use crate::cluster::admin_client;
use crate::config::{Config, ConfigError, LogFormat, store_config};
use crate::kind::{self, Kind, RECORD};
use crate::{exit, logging};

/// Checks a stopped store, or what a role of a cluster keeps.
pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    if args.dir.join(RECORD).exists() {
        let dir = args.dir.display();
        eprintln!(
            "error: {dir} is a machine of a cluster: run `larder inspect {dir}/manager`, and the same for {dir}/meta and \
             {dir}/data"
        );
        return exit::code(exit::USAGE);
    }
    if let Err(error) = kind::allow(&args.dir, |kind| kind == Kind::Store || kind.is_role()) {
        return exit::failed(&error, exit::USAGE);
    }
    let looked = if args.dir.join(IDENTITY_FILE).exists() { role(args) } else { store(args) };
    let inspected = match looked {
        Ok(inspected) => inspected,
        Err(error) => return exit::failed(&error, exit::USAGE),
    };
    match inspected {
        Ok(report) => {
            println!("{report}");
            exit::code(if report.is_sound() { exit::OK } else { exit::FAULTS })
        }
        Err(error @ StoreError::Manager(_)) => {
            println!("map\n  FAULT: {error}\nNOT SOUND: 1 faults");
            exit::code(exit::FAULTS)
        }
        Err(error) => exit::failed(&error, exit::CANNOT_START),
    }
}

type Inspected = Result<Report, StoreError>;

fn store(args: &InspectArgs) -> Result<Inspected, ConfigError> {
    let config = Config::load(args.config.as_deref())?;
    logging::start(config.log_format);
    Ok(inspect(&store_config(&args.dir, &config), !args.metadata_only))
}

fn role(args: &InspectArgs) -> Result<Inspected, ConfigError> {
    let config = args.config.as_deref().map(admin_client::config).transpose()?;
    logging::start(config.as_ref().map_or(LogFormat::Text, |config| config.log_format));
    let data = config.map_or_else(|| DATA_FILE.to_owned(), |config| config.data);
    Ok(inspect_role(&args.dir, &data))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use larder_roles::Store;

    use super::*;

    #[test]
    fn a_lock_that_cannot_be_taken_is_not_called_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let config = store_config(dir.path(), &Config::default());
        let store = Store::open(&config).unwrap();
        let held = inspect(&config, false).err().unwrap();
        assert!(matches!(held, StoreError::InUse { .. }), "{held}");
        store.close();
        // As on a read-only file system, the lock cannot be opened.
        fs::remove_file(dir.path().join("lock")).unwrap();
        fs::create_dir(dir.path().join("lock")).unwrap();
        for error in [inspect(&config, false).err(), Store::open(&config).err()] {
            let error = error.unwrap().to_string();
            assert!(!error.contains("in use") && error.contains("lock"), "{error}");
        }
    }
}
