//! `larder server DIR --peer …`: one machine of a cluster of equal ones, with a server of every role in one process.
//!
//! ```text
//!  DIR/node.toml          which machine of which cluster this is; written last, when it has come in
//!  DIR/entering           there until then
//!  DIR/credentials.toml   root's keys, the same on all machines
//!  DIR/manager, meta, data, proxy   each role's directory
//! ```
//!
//! The machine's servers share one port: TLS names the one that is meant. A role that cannot go on ends the process, so
//! that its supervisor starts it again. One that was removed from the cluster leaves the others alone.

mod entering;
mod error;
mod own_name;
mod run;
pub(crate) mod secret;
mod watch;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_env::{DiskError, FileLock, RealDisk};
use larder_identity::PeerSecret;
use larder_net::Port;
use larder_roles::node::{Entered, NodeConfig, NotEntered, RootKeys, enter, role_name};
use larder_roles::store::LOCK_FILE;
use larder_types::ServerId;
use tokio::net::TcpListener;

use crate::access_log::{self, AccessLog};
use crate::cluster::config::Found;
use crate::cluster::record::Record;
use crate::cluster::{Stop, settings};
use crate::config::{Config, check_device};
use crate::credentials::CredentialsError;
use crate::kind::{self, Kind, LockedDirectory};
use crate::metrics::{Metrics, serve_metrics};
use crate::serving::{bind, check_gateway_options, metrics_listener};
use crate::shutdown_notice::ShutdownNotice;
use crate::{announce, credentials};
pub(crate) use error::NodeError;

/// Runs the machine until it is told to stop.
pub(crate) fn start(dir: &Path, config: &Config) -> Result<(), NodeError> {
    kind::check(dir, Kind::Machine)?;
    let record = Record::load(dir)?;
    let name = own_name::found_out(config, record.as_ref())?;
    check_gateway_options(&config.face())?;
    if record.is_none() {
        check_new(dir, config, &name)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(NodeError::System)?;
    let (mut taken, accesses) = (None, OnceCell::new());
    let outcome = runtime.block_on(serve(dir, config, (&name, record), &mut taken, &accesses));
    // A request that is cut off does the rest of its work before the process ends.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    if let Some(accesses) = accesses.into_inner() {
        accesses.close();
    }
    drop(taken);
    outcome
}

/// The name of this machine in its cluster, as a start finds it out. Changes nothing.
pub(crate) fn whoami(dir: &Path, config: &Config) -> Result<String, NodeError> {
    own_name::found_out(config, Record::load(dir)?.as_ref())
}

/// The servers of a machine and their directories, the manager first, if this is the directory of one.
pub(crate) fn servers_of(dir: &Path) -> Result<Option<Vec<(PathBuf, ServerId)>>, NodeError> {
    let Some(record) = Record::load(dir)? else { return Ok(None) };
    let servers = record.roles().filter_map(|role| {
        let role = role_name(role);
        Some((dir.join(role), ServerId(*record.servers.get(role)?)))
    });
    Ok(Some(servers.collect()))
}

/// Checks that a file has a secret that a machine may use.
pub(crate) fn check_secret(file: &Path) -> Result<(), NodeError> {
    secret::read(file).map(drop)
}

/// Checks what a machine that has not come in yet would find out after something was made. Changes nothing.
fn check_new(dir: &Path, config: &Config, name: &str) -> Result<(), NodeError> {
    secret_of(config)?;
    check_device(&config.data).map_err(|error| NodeError::Role(error.into()))?;
    let (peers, copies) = (config.peers.len(), config.copies);
    if config.peers.first().is_some_and(|first| first == name) && peers < usize::from(copies) {
        return Err(NotEntered::TooFew { peers, copies }.into());
    }
    entering::check(dir)
}

/// The secret of a machine that has not come in yet.
fn secret_of(config: &Config) -> Result<PeerSecret, NodeError> {
    secret::read(config.secret_file.as_ref().ok_or(NodeError::NoSecret)?)
}

/// A directory that this process has taken.
struct Taken {
    _lock: FileLock,
    _held: LockedDirectory,
}

/// Takes the directory for this process.
fn take_up(dir: &Path) -> Result<Taken, NodeError> {
    let held = kind::bind(dir, Kind::Machine)?;
    let failed = |error: DiskError| match error {
        DiskError::Held { .. } => {
            NodeError::InUse { dir: dir.display().to_string(), reason: error.to_string() }
        }
        error => NodeError::Disk(error),
    };
    let lock = RealDisk::open(dir).and_then(|disk| disk.lock(LOCK_FILE)).map_err(failed)?;
    Ok(Taken { _lock: lock, _held: held })
}

async fn serve(
    dir: &Path,
    config: &Config,
    (name, record): (&str, Option<Record>),
    taken: &mut Option<Taken>,
    accesses: &OnceCell<Arc<AccessLog>>,
) -> Result<(), NodeError> {
    let metrics = Arc::new(Metrics::of_none());
    let leaving = ShutdownNotice::new(config.stop_notice, metrics.clone());
    let mut stop = Stop::new(None, leaving)?;
    // A directory that is refused opens no port, and one whose ports are taken is left as it was.
    *taken = Some(take_up(dir)?);
    let unusable = |source| NodeError::Listen { name: name.to_owned(), source };
    let socket = TcpListener::bind(name).await.map_err(unusable)?;
    let port = Port::open(socket).map_err(NodeError::System)?;
    metrics.add_connections(port.metrics().clone());
    let log = access_log::follow(&config.access_log, config.access_log_again());
    let log = log.map_err(|error| NodeError::Role(error.into()))?;
    metrics.log_accesses(accesses.get_or_init(|| log).clone());
    // The proxy binds it later: a first start finds out now whether it can.
    drop(bind("the S3 address", &config.listen, "--listen").await?);
    if let Some(listener) = metrics_listener(config.metrics_listen.as_deref()).await? {
        announce::metrics_on(listener.local_addr().ok());
        tokio::spawn(serve_metrics(listener, metrics.clone()));
    }
    let dir = &dir.canonicalize().map_err(|source| NodeError::file(dir, source))?;
    let is_member = record.is_some();
    let record = match record {
        Some(record) => {
            entering::end(dir)?;
            record
        }
        None => tokio::select! {
            entered = enter_cluster(dir, config, name, &port) => entered?,
            () = stop.requested() => return Ok(()),
        },
    };
    let (machines, listen) = (config.peers.len(), &config.listen);
    let file = dir.join(credentials::FILE);
    // The managers may have those of a member whose file is missing: its proxy looks.
    let root = match (is_member, credentials::given()?.is_some() || file.exists()) {
        (true, false) => None,
        (true, true) => match credentials::load_file(&file) {
            Ok(root) => Some(root),
            Err(error @ CredentialsError::Exposed { .. }) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "the managers may have root's keys: checking before the proxy starts");
                None
            }
        },
        (false, _) => Some(credentials::load_file(&file)?),
    };
    announce::machine(name, machines, listen, root.as_ref(), dir);
    run::run_until_stopped(run::Machine { dir, config, record, port, metrics }, stop).await
}

/// Has the machine come in, and keeps what it is.
async fn enter_cluster(
    dir: &Path,
    config: &Config,
    name: &str,
    port: &Port,
) -> Result<Record, NodeError> {
    let secret = secret_of(config)?;
    entering::begin(dir)?;
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
    let entered = match enter(&node, port).await {
        Ok(entered) => entered,
        Err(error) => {
            entering::give_up(dir)?;
            return Err(error.into());
        }
    };
    let Entered { root, .. } = &entered;
    let root = larder_s3::Credentials {
        access_key: root.access_key.clone(),
        secret_key: root.secret_key.clone(),
    };
    credentials::keep(&path, &root).map_err(|source| NodeError::file(&path, source))?;
    let record = Record::of(name, &entered);
    record.save(dir)?;
    entering::end(dir)?;
    Ok(record)
}

#[cfg(test)]
mod tests;
