//! `larder token`: a place in the map for another server, and the token with which it takes it.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use larder_protocol::manager::state::{NewServer, ServerRole};
use larder_protocol::placement::{FailureDomains, MachineId};
use larder_roles::managers::Managers;

use super::RoleError;
use super::admin_client::{self, managers};
use super::servers::WEIGHT;
use crate::args::TokenArgs;
use crate::exit;

/// The time for which an unused token is valid.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// Prints a token, and what the new server's configuration needs.
pub(crate) fn run(args: &TokenArgs) -> ExitCode {
    match ask(args) {
        Ok(lines) => {
            print!("{lines}");
            exit::code(exit::OK)
        }
        Err(error) => exit::failed(&error, error.code()),
    }
}

fn ask(args: &TokenArgs) -> Result<String, RoleError> {
    let config = admin_client::config(&args.config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RoleError::System)?.block_on(async {
        let managers = managers(&config).await?;
        let server = NewServer {
            name: args.name.clone(),
            roles: [ServerRole::from(args.role)].into(),
            addresses: Vec::new(),
            domains: FailureDomains { machine: MachineId(args.machine), ..FailureDomains::default() },
            weight: WEIGHT,
        };
        let issued = managers.issue_token(server, Some(SystemTime::now() + VALID)).await;
        let (id, token) = issued.map_err(|error| RoleError::Token(error.to_string()))?;
        let map = managers.map();
        let known = map.servers.iter().filter(|(_, it)| it.roles.contains(&ServerRole::Manager));
        let known = known.filter_map(|(id, it)| Some(format!("\"{id}@{}\"", it.addresses.first()?)));
        let known: Vec<String> = known.collect();
        Ok(format!(
            "# {}, server {id}: good for one server, within {} hours\nmanagers = [{}]\njoin = \"{token}\"\n",
            args.name,
            VALID.as_secs() / 3600,
            known.join(", "),
        ))
    })
}
