//! Commands beside a cluster that runs: they follow its managers with the identity of a server of this machine, and have them
//! agree on changes. This module names no command: the modules of the commands use it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use larder_identity::{Credentials, Identity, Role};
use larder_net::Endpoint;
use larder_protocol::manager::state::{Command, Outcome, Refusal};
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::managers::{Contacts, Managers, ManagersClient};
use larder_types::ServerId;
use tokio::time::{Instant, sleep};

use super::config::RoleConfig;
use super::record::Record;
use super::{RoleError, START_TIMEOUT, no_map, wait_until_known};
use crate::config::ConfigError;
use crate::exit;
use crate::kind::{self, Kind, RECORD};

/// Time in which one of the managers says that its map is the latest, if one of them leads.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(4);
/// Pause between two looks at that.
const CONFIRMED_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Reads the configuration of a role. Of the directory of `larder server --peer` it is that of a role of the machine.
pub(crate) fn config(path: &Path) -> Result<RoleConfig, ConfigError> {
    if path.is_dir() { role_of_machine(path) } else { RoleConfig::load(path) }
}

/// The configuration of a role of the machine in this directory: the manager, if it has one.
fn role_of_machine(dir: &Path) -> Result<RoleConfig, ConfigError> {
    let wrong = |reason: String| ConfigError::Directory { dir: dir.display().to_string(), reason };
    if kind::found(dir)? == Some(Kind::DevCluster) {
        let config = dir.join("node-1/manager/role.toml").display().to_string();
        return Err(wrong(format!(
            "it is a development cluster; name the configuration of one of its managers, such as {config}"
        )));
    }
    kind::allow(dir, |found| found == Kind::Machine)?;
    match Record::load(dir) {
        Ok(Some(record)) => Ok(record.operator_role(dir)),
        Ok(None) => Err(wrong(format!("there is no {RECORD}"))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, RoleError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RoleError::System)
}

/// Follows the managers, and waits until they have told their map.
async fn follow(
    endpoint: &Arc<Endpoint>,
    first: Vec<(ServerId, String)>,
) -> Result<Arc<ManagersClient>, RoleError> {
    let managers = Arc::new(ManagersClient::start(Arc::new(Contacts::new(endpoint, first))));
    // A person waits: a server would go on waiting for the managers.
    tokio::select! {
        biased;
        known = wait_until_known(&managers, Some(START_TIMEOUT)) => known?,
        () = managers.without_quorum() => return Err(no_map(&managers)),
    }
    Ok(managers)
}

/// Follows the managers with the identity of a server of this machine, beside it.
pub(crate) async fn follow_as(config: &RoleConfig) -> Result<Arc<ManagersClient>, RoleError> {
    Ok(connect(config).await?.1)
}

/// The same, with the connections that the identity allows.
pub(crate) async fn connect(
    config: &RoleConfig,
) -> Result<(Arc<Endpoint>, Arc<ManagersClient>), RoleError> {
    let identity = Identity::load(&config.dir.join(IDENTITY_FILE))?;
    let me = identity.subject();
    let endpoint = Endpoint::new(Credentials::new(&identity)?);
    let mut first = super::managers(config);
    // The founder may know no other to begin with than itself.
    if first.is_empty() {
        first.push((me.server, config.listen.clone()));
    }
    let managers = follow(&endpoint, first).await?;
    Ok((endpoint, managers))
}

/// Follows the managers as one of them: nobody else may change servers and disks.
pub(crate) async fn managers(config: &RoleConfig) -> Result<Arc<ManagersClient>, RoleError> {
    Ok(connect_as_manager(config).await?.1)
}

/// The same, with the connections that a manager's identity allows.
pub(crate) async fn connect_as_manager(
    config: &RoleConfig,
) -> Result<(Arc<Endpoint>, Arc<ManagersClient>), RoleError> {
    let roles = Identity::load(&config.dir.join(IDENTITY_FILE))?.subject().roles;
    if !roles.has(Role::Manager) {
        return Err(RoleError::Named(format!(
            "this is the configuration of a {roles}: servers, disks and buckets are changed, \
             and tokens made, with a manager's"
        )));
    }
    connect(config).await
}

pub(crate) async fn agreed(
    managers: &ManagersClient,
    command: Command,
) -> Result<Result<Outcome, Refusal>, RoleError> {
    managers.propose(command).await.map_err(|error| {
        RoleError::NotDone(format!("{error}; `larder status` shows whether it was done"))
    })
}

/// True once a manager with a leader has confirmed that there is no later map than the one here. A received map does
/// not confirm that: it may be from a manager without a leader.
pub(crate) async fn is_confirmed(managers: &dyn Managers) -> bool {
    let until = Instant::now() + CONFIRMED_WITHIN;
    let state = || (managers.map().version, managers.silent());
    let mut before = state();
    while Instant::now() < until {
        sleep(CONFIRMED_POLL_INTERVAL).await;
        let now = state();
        if now.0 == before.0 && now.1 < before.1 {
            return true;
        }
        before = now;
    }
    false
}

/// Prints the outcome of a command.
pub(super) fn finish(outcome: Result<Vec<String>, RoleError>) -> ExitCode {
    exit::printed(outcome, RoleError::code)
}
