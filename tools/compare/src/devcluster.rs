//! Clusters on this machine, `dev-cluster`, whose network and disks are slowed down in their [`ports`]: processes of this
//! program that are `larder`.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use crate::error::CompareError;
use crate::launch::{self, LaunchError, READY_MAX};
use crate::ports::{self, Sections};
use crate::process::{Interrupts, Server};
use crate::rounds::draw_keys;
use crate::systems::Keys;
use larder_bench::sign::Credentials;

/// Nodes of a cluster.
pub(crate) const NODES: usize = 3;

/// Starts clusters, all with the same keys.
pub(crate) struct Starter {
    keys: Keys,
    pub(crate) credentials: Credentials,
    pub(crate) interrupts: Arc<Interrupts>,
}

impl Starter {
    /// With keys drawn anew.
    pub(crate) fn new() -> Result<Self, CompareError> {
        let keys = draw_keys();
        let credentials = Credentials::new(&keys.access, &keys.secret, "us-east-1")?;
        Ok(Self { keys, credentials, interrupts: Interrupts::watch()? })
    }

    /// A cluster in a directory with these ports, options and variables of the environment, and the endpoints of its nodes.
    pub(crate) fn start(
        &self,
        directory: &Path,
        sections: &Sections,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(Server, Vec<String>), CompareError> {
        let ready = directory.join("ready");
        let log = directory.join("log");
        let ports = directory.join("ports.toml");
        sections.write(&ports)?;
        let mut command = Command::new(std::env::current_exe().map_err(CompareError::System)?);
        command
            .args([ports::WORD, "dev-cluster"])
            .arg(directory.join("cluster"))
            .args(["--nodes", &NODES.to_string(), "--json", "--no-restart"])
            .args(options)
            .env(ports::VARIABLE, &ports)
            .envs(variables.iter().copied())
            .env("LARDER_ROOT_ACCESS_KEY", &self.keys.access)
            .env("LARDER_ROOT_SECRET_KEY", &self.keys.secret);
        let out = File::create(&ready).map_err(CompareError::System)?;
        let server = Server::start_with_output(command, out, &log, &self.interrupts);
        let server = server.map_err(CompareError::System)?;
        let deadline = Instant::now() + READY_MAX;
        let begun = launch::announced(&ready, &server, deadline).and_then(|endpoints| {
            for endpoint in &endpoints {
                launch::call_until_ready(endpoint, false, &self.credentials, &server, deadline)?;
            }
            Ok(endpoints)
        });
        self.interrupts.check()?;
        match begun {
            Ok(endpoints) if endpoints.len() >= NODES => Ok((server, endpoints)),
            Ok(_) => Err(CompareError::usage("dev-cluster", "it announces too few nodes")),
            Err(LaunchError::Bench(error)) => Err(error),
            Err(error) => {
                let tail = server.log_tail();
                let reason = format!("{error}\n{tail}");
                Err(CompareError::usage("dev-cluster", reason))
            }
        }
    }
}
