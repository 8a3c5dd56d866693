//! A machine's roles, side by side.
//!
//! # Invariants
//!
//! 1. Told to stop, the proxy goes first, with all others there: what it had begun it can end.
//! 2. A role that ends by itself takes the process with it, unless it was removed from the cluster for good.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_identity::PeerSecret;
use larder_net::Port;
use larder_protocol::manager::state::ServerRole;
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::managers::Colocated;
use larder_roles::node::{Admission, admit_machines, role_name};
use larder_roles::quorum::LOG_FILE;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{NodeError, secret};
use crate::cluster::record::Record;
use crate::cluster::{self, OnStarted, RoleConfig, RoleContext, RoleError, StartedRole, Stop};
use crate::config::Config;
use crate::credentials;
use crate::metrics::Metrics;

/// A machine that has come in.
pub(super) struct Machine<'a> {
    pub(super) dir: &'a Path,
    pub(super) config: &'a Config,
    pub(super) record: Record,
    pub(super) port: Arc<Port>,
    pub(super) metrics: Arc<Metrics>,
}

/// The secret, if there is one: a member runs without it, but admits no other machine.
fn secret_for_others(config: &Config) -> Option<PeerSecret> {
    let path = config.secret_file.as_deref()?;
    match secret::read(path) {
        Ok(secret) => Some(secret),
        Err(error) => {
            tracing::warn!(%error, "this machine does not admit other machines");
            None
        }
    }
}

/// Interval of checks for a lost manager's directory. No file system announces that it was mounted.
const MANAGER_POLL_INTERVAL: Duration = Duration::from_secs(1);

type Ended = (ServerRole, Result<(), RoleError>);

/// Runs all roles until the process is told to stop, or one of them cannot go on.
pub(super) async fn run_until_stopped(
    machine: Machine<'_>,
    mut stop: Stop,
) -> Result<(), NodeError> {
    let (mut running, mut stops) = (JoinSet::new(), BTreeMap::new());
    let returned = machine.manager_returns();
    tokio::pin!(returned);
    let secret = secret_for_others(machine.config);
    let colocated = Arc::new(Colocated::default());
    for role in machine.roles() {
        let (tell, stopped) = watch::channel(false);
        stops.insert(role, tell);
        let on_started = machine.on_started(role, secret.clone())?;
        let (house, metrics) = ((machine.port.clone(), colocated.clone()), machine.metrics.clone());
        let context = RoleContext::shared(Stop::when(stopped), house, metrics, on_started);
        let config = machine.role(role);
        running.spawn(async move { (role, cluster::serve(role, config, context).await) });
    }
    let outcome = loop {
        tokio::select! {
            () = stop.requested() => break Ok(()),
            error = &mut returned => break Err(error),
            ended = running.join_next() => match ended.map(|ended| role_ended(ended, &mut stops)) {
                Some(Ok(())) => {}
                Some(Err(error)) => break Err(error),
                None => {
                    let dir = machine.dir.display().to_string();
                    return Err(NodeError::AllRemoved { dir });
                }
            },
        }
    };
    if let Some(proxy) = stops.remove(&ServerRole::Proxy) {
        proxy.send_replace(true);
        while let Some(ended) = running.join_next().await {
            let is_proxy = matches!(&ended, Ok((ServerRole::Proxy, _)));
            drop(role_ended(ended, &mut stops));
            if is_proxy {
                break;
            }
        }
    }
    for role in stops.values() {
        role.send_replace(true);
    }
    while let Some(ended) = running.join_next().await {
        drop(role_ended(ended, &mut BTreeMap::new()));
    }
    outcome
}

/// Decides what the end of a role means for the others.
fn role_ended(
    ended: Result<Ended, tokio::task::JoinError>,
    stops: &mut BTreeMap<ServerRole, watch::Sender<bool>>,
) -> Result<(), NodeError> {
    let (role, outcome) =
        ended.map_err(|panicked| RoleError::Fatal(format!("a role has ended: {panicked}")))?;
    stops.remove(&role);
    match outcome {
        Ok(()) => Ok(()),
        Err(RoleError::Removed { server, name, .. }) => {
            tracing::error!(
                %server,
                %name,
                "this server was removed from the cluster for good, and ends; the machine's others go on. To use the \
                 machine again, remove those too and start it with an empty directory"
            );
            Ok(())
        }
        Err(error) => {
            tracing::error!(role = role_name(role), %error, "a role of this machine failed");
            Err(error.into())
        }
    }
}

impl Machine<'_> {
    /// The roles that have a directory. Without its manager a machine serves what it has.
    fn roles(&self) -> impl Iterator<Item = ServerRole> {
        self.record.roles().filter(|role| *role != ServerRole::Manager || self.has_manager())
    }

    /// True if the manager's identity and its log are there, or it is not known.
    fn has_manager(&self) -> bool {
        let dir = self.dir.join(role_name(ServerRole::Manager));
        [IDENTITY_FILE, LOG_FILE].iter().all(|file| dir.join(file).try_exists().unwrap_or(true))
    }

    /// Tells of a manager that has lost its directory or its log, and returns when that is back, as of a file system that was
    /// mounted late.
    fn manager_returns(&self) -> impl Future<Output = NodeError> + use<'_> {
        let manager = role_name(ServerRole::Manager);
        let is_lost = self.record.servers.contains_key(manager) && !self.has_manager();
        if is_lost {
            tracing::error!(
                dir = %self.dir.join(manager).display(),
                "this machine's manager has lost its directory, or its log there, and does not run; the machine's other servers \
                 do. If a majority of the managers is left, remove this one with `larder remove`; if not, nothing can be decided: \
                 stop all machines, and make managers anew with `larder recover`"
            );
        }
        async move {
            if !is_lost {
                return std::future::pending().await;
            }
            let mut looks = tokio::time::interval(MANAGER_POLL_INTERVAL);
            while !self.has_manager() {
                looks.tick().await;
            }
            NodeError::ManagerReturned { dir: self.dir.join(manager).display().to_string() }
        }
    }

    /// The configuration of one of its roles.
    fn role(&self, role: ServerRole) -> RoleConfig {
        let config = self.config;
        RoleConfig {
            certificate_life: config.certificate_life,
            data: config.data.clone(),
            log_segment_mib: config.log_segment_mib,
            background_mib_per_s: config.background_mib_per_s,
            scrub_within: config.scrub_within,
            read_policy: config.read_policy,
            upload_life: config.upload_life,
            s3_listen: config.listen.clone(),
            credentials: Some(self.dir.join(credentials::FILE)),
            region: config.region.clone(),
            domains: config.domains.clone(),
            html_forms: config.html_forms,
            presigned_v2: config.presigned_v2,
            log_format: config.log_format,
            region_home: Some(self.dir.to_owned()),
            ..self.record.role(self.dir, role)
        }
    }

    /// The work to begin once a role has begun. The manager answers discovery requests; without one, the machine
    /// answers with the managers' addresses. The proxy watches the map.
    fn on_started(
        &self,
        role: ServerRole,
        secret: Option<PeerSecret>,
    ) -> Result<Option<OnStarted>, NodeError> {
        let port = self.port.clone();
        let answer = move |admission| {
            if let Some(secret) = secret
                && let Err(error) = admit_machines(&port, secret, admission)
            {
                tracing::error!(%error, "this machine cannot answer discovery requests");
            }
        };
        match role {
            ServerRole::Manager => {
                let file = self.dir.join(credentials::FILE);
                // Those of the start: a file that was edited since counts at the next one.
                let first = OnceLock::new();
                let root = move || {
                    let read = || {
                        let keys = credentials::read_given(&file).ok()?;
                        let larder_s3::Credentials { access_key, secret_key } = keys;
                        Some(larder_roles::node::RootKeys { access_key, secret_key })
                    };
                    if let (None, Some(keys)) = (first.get(), read()) {
                        first.get_or_init(|| keys);
                    }
                    first.get().cloned()
                };
                root();
                let root = Box::new(root);
                let life = self.config.certificate_life.0;
                Ok(Some(Box::new(move |greeted| {
                    if let StartedRole::Manager(manager) = greeted {
                        answer(Admission::of(manager, root, life));
                    }
                })))
            }
            ServerRole::Proxy => {
                let manages = self.roles().any(|role| role == ServerRole::Manager);
                let watch = super::watch::Watch::new(self.dir, &self.config.peers, &self.record);
                Ok(Some(Box::new(move |greeted| {
                    if let StartedRole::Member(managers) = greeted {
                        if !manages {
                            answer(Admission::Elsewhere(managers.clone()));
                        }
                        drop(tokio::spawn(watch.run(managers.clone())));
                    }
                })))
            }
            _ => Ok(None),
        }
    }
}
