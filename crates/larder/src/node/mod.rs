//! `larder server DIR --peer …`: one machine of a cluster of equal ones, with a server of every role in one process.
//!
//! ```text
//!  DIR/node.toml          which machine of which cluster this is; written last, when it has come in
//!  DIR/credentials.toml   root's keys, the same on all machines
//!  DIR/manager, meta, data, proxy   each role's directory
//! ```
//!
//! The machine's servers share one port: TLS names the one that is meant. A role that cannot go on ends the process, so
//! that whoever started it starts it again; one that was removed from the cluster leaves the others alone.

mod error;
mod me;
mod record;
mod run;
pub(crate) mod secret;
mod watch;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use larder_env::{FileLock, RealDisk};
use larder_net::{PeerSecret, Port};
use larder_protocol::manager::state::ServerRole;
use larder_roles::node::{Entered, NodeConfig, ROLES, RootKeys, enter, role_name};
use larder_roles::store::LOCK_FILE;
use tokio::net::TcpListener;

use crate::cluster::config::Found;
use crate::cluster::{RoleConfig, Stop, settings};
use crate::config::{Config, ConfigError};
use crate::credentials;
use crate::kind::{self, Kind};
use crate::metrics::{Metrics, serve_metrics};
use crate::server::{bind, metrics_listener};
pub(crate) use error::NodeError;
pub(crate) use record::RECORD;
use record::Record;

/// What may lie in a role's directory of a machine that was cut off while it came in.
const BEFORE_ENTERED: [&str; 6] = [
    "identity.pem",
    "identity.pem.draft",
    "authority.pem",
    "authority.pem.draft",
    "lock",
    "tokens",
];
/// The managers' log of a cluster that was being founded.
const QUORUM_DIR: &str = "quorum";

/// Runs the machine until it is told to stop.
pub(crate) fn start(dir: &Path, config: &Config) -> Result<(), NodeError> {
    kind::check(dir, Kind::Machine)?;
    let record = Record::load(dir)?;
    let name = me::found_out(config, record.as_ref())?;
    if record.is_none() {
        secret_of(config)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(NodeError::System)?;
    let mut lock = None;
    let outcome = runtime.block_on(serve(dir, config, &name, record, &mut lock));
    // Whatever a cut-off request still does, it does before the process ends.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    drop(lock);
    outcome
}

/// The secret of a machine that has not come in yet.
fn secret_of(config: &Config) -> Result<PeerSecret, NodeError> {
    secret::read(config.secret_file.as_ref().ok_or(NodeError::NoSecret)?)
}

/// Takes the directory for this process.
fn take_up(dir: &Path) -> Result<FileLock, NodeError> {
    let in_use = |reason: String| NodeError::InUse { dir: dir.display().to_string(), reason };
    let disk = RealDisk::open(dir).map_err(|error| in_use(error.to_string()))?;
    disk.lock(LOCK_FILE).map_err(|error| in_use(error.to_string()))
}

async fn serve(
    dir: &Path,
    config: &Config,
    name: &str,
    record: Option<Record>,
    lock: &mut Option<FileLock>,
) -> Result<(), NodeError> {
    let mut stop = Stop::new(None)?;
    let unusable = |source| NodeError::Listen { name: name.to_owned(), source };
    let socket = TcpListener::bind(name).await.map_err(unusable)?;
    let port = Port::open(socket).map_err(NodeError::System)?;
    let metrics = Arc::new(Metrics::of_none());
    // The proxy binds it later: a first start finds out now whether it can.
    drop(bind("the S3 address", &config.listen, "--listen").await?);
    if let Some(listener) = metrics_listener(config.metrics_listen.as_deref()).await? {
        if let Ok(addr) = listener.local_addr() {
            eprintln!("Metrics are on http://{addr}/metrics");
        }
        tokio::spawn(serve_metrics(listener, metrics.clone()));
    }
    kind::bind(dir, Kind::Machine)?;
    let dir = &dir.canonicalize().map_err(|source| NodeError::file(dir, source))?;
    *lock = Some(take_up(dir)?);
    let record = match record {
        Some(record) => record,
        None => tokio::select! {
            entered = come_in(dir, config, name, &port) => entered?,
            () = stop.told() => return Ok(()),
        },
    };
    eprintln!(
        "This is {name}, one of {} machines. It serves S3 on {} as soon as the cluster is there; root's keys are in {}",
        config.peers.len(),
        config.listen,
        dir.join(credentials::FILE).display()
    );
    run::until_told(run::Machine { dir, config, record, port, metrics }, stop).await
}

/// Has the machine come in, and keeps what it is.
async fn come_in(
    dir: &Path,
    config: &Config,
    name: &str,
    port: &Port,
) -> Result<Record, NodeError> {
    let secret = secret_of(config)?;
    clear(dir)?;
    let path = dir.join(credentials::FILE);
    // The keys of a cluster that this machine founds; else it is given others.
    let root = if config.peers.first().is_some_and(|first| first == name) {
        let root = credentials::load_file(&path)?.keys;
        RootKeys { access_key: root.access_key, secret_key: root.secret_key }
    } else {
        RootKeys { access_key: String::new(), secret_key: String::new() }
    };
    let found = Found {
        name: String::new(),
        pg_count: config.pg_count.unwrap_or(larder_roles::store::PG_COUNT),
        copies: config.copies,
        volume_mib: config.volume_mib,
    };
    let node = NodeConfig {
        dir: dir.to_owned(),
        name: name.to_owned(),
        peers: config.peers.clone(),
        secret,
        settings: settings(&found),
        root,
        certificate_life: config.certificate_life.0,
    };
    let entered = enter(&node, port).await?;
    let Entered { root, .. } = &entered;
    let root = larder_s3::Credentials {
        access_key: root.access_key.clone(),
        secret_key: root.secret_key.clone(),
    };
    credentials::keep(&path, &root).map_err(|source| NodeError::file(&path, source))?;
    let record = Record::of(name, &entered);
    record.save(dir)?;
    Ok(record)
}

/// Removes what is left of a coming in that was cut off. Nothing else is ever removed.
fn clear(dir: &Path) -> Result<(), NodeError> {
    for role in ROLES {
        let role_dir = dir.join(role_name(role));
        let entries = match fs::read_dir(&role_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(NodeError::file(&role_dir, source)),
        };
        let is_manager = role == ServerRole::Manager;
        for entry in entries {
            let name = entry.map_err(|source| NodeError::file(&role_dir, source))?.file_name();
            let known = BEFORE_ENTERED.iter().any(|known| name == *known);
            let is_left_over = known || (is_manager && name == QUORUM_DIR);
            if !is_left_over {
                let found = role_dir.join(name).display().to_string();
                return Err(NodeError::NoRecord { dir: dir.display().to_string(), found });
            }
        }
    }
    for role in ROLES {
        let role_dir = dir.join(role_name(role));
        match fs::remove_dir_all(&role_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(NodeError::file(&role_dir, error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The configuration of a role of the machine in this directory: the manager if it has one, for operators' commands.
pub(crate) fn role_beside(dir: &Path) -> Result<RoleConfig, ConfigError> {
    kind::check(dir, Kind::Machine)?;
    let wrong = |reason: String| ConfigError::Directory { dir: dir.display().to_string(), reason };
    match Record::load(dir) {
        Ok(Some(record)) => Ok(record.role_beside(dir)),
        Ok(None) => Err(wrong(format!("there is no {RECORD}"))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
