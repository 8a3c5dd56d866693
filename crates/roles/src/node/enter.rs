//! A machine joins: it sends discovery requests until a member admits it, or creates the cluster if it is the first of
//! the list.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use larder_env::RealDisk;
use larder_identity::{Authority, Identity, IdentityRequest, PublicKey, Subject};
use larder_net::{DiscoveryError, DiscoveryResponder, Port, Reply, discover};
use larder_protocol::manager::state::ServerRole;
use larder_protocol::placement::{FailureDomains, MachineId};
use larder_types::ServerId;
use larder_types::codec::{decode, encode};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::admit::new_server;
use super::bootstrap::Bootstrap;
use super::v1::{Answer, DiscoveryRequest, Welcome};
use super::{Entered, NodeConfig, NotEntered, ROLES, role_name, roles_at};
use crate::identity::{IDENTITY_FILE, roles_of};
use crate::limits::{DISCOVERY_LOG_PAUSE, DISCOVERY_PAUSE};
use crate::manager::quorum::{AUTHORITY_FILE, Founding, ManagerError, found, make_log};

/// The id of the first server of a cluster.
const FIRST: ServerId = ServerId(0);

/// Has the machine let in, or founds a cluster together with the others of the list, however long they take to come.
/// Its identities are then in its directory, one for each role. What comes back is to be kept durably, last: a
/// directory without it begins anew.
///
/// # Errors
/// [`NotEntered`], by what to do.
pub async fn enter(config: &NodeConfig, port: &Port) -> Result<Entered, NotEntered> {
    let mut requests = Vec::new();
    for _ in ROLES {
        requests.push(IdentityRequest::new()?);
    }
    let keys: Vec<PublicKey> = requests.iter().map(IdentityRequest::key).collect();
    let payload = DiscoveryRequest { node: config.name.clone(), peers: config.peers.clone(), keys };
    let mut round = Round::new(config, encode(&payload));
    let bootstrap = founds(config).then(|| open_bootstrap(config, port)).transpose()?;
    loop {
        if let Some(welcome) = round.discover().await? {
            return take(config, requests, *welcome);
        }
        if let Some(bootstrap) = &bootstrap
            && round.nobody_is_a_member
            && bootstrap.lock().close(Instant::now())
        {
            let config = config.clone();
            let founding = tokio::task::spawn_blocking(move || begin(&config));
            let ended = founding.await;
            return ended.map_err(|ended| file_error(&round.config.dir, ended.into()))?;
        }
        let missing = bootstrap.as_ref().map(|bootstrap| bootstrap.lock().missing(Instant::now()));
        round.log_missing(missing);
        sleep(DISCOVERY_PAUSE).await;
    }
}

/// Returns true if it is this machine's part to found the cluster.
fn founds(config: &NodeConfig) -> bool {
    config.peers.first() == Some(&config.name)
}

fn open_bootstrap(config: &NodeConfig, port: &Port) -> Result<Arc<Mutex<Bootstrap>>, NotEntered> {
    let copies = config.settings.copies;
    if config.peers.len() < usize::from(copies) {
        return Err(NotEntered::TooFew { peers: config.peers.len(), copies });
    }
    let bootstrap = Arc::new(Mutex::new(Bootstrap::new(&config.name, &config.peers)));
    let at = bootstrap.clone();
    let decide = move |address, payload: Vec<u8>| -> Reply {
        let answer = match decode::<DiscoveryRequest>("a discovery request", &payload) {
            Ok(discover) => {
                let answer = at.lock().requested(Instant::now(), &discover);
                if matches!(answer, Answer::OtherList(_)) {
                    let (node, theirs) = (&discover.node, discover.peers.join(" "));
                    tracing::warn!(%address, %node, %theirs, "received a discovery request with another list of peers");
                }
                answer
            }
            Err(error) => Answer::NotNow(error.to_string()),
        };
        Box::pin(async move { encode(&answer) })
    };
    port.answer(DiscoveryResponder::new(config.secret.clone(), decide)?);
    Ok(bootstrap)
}

/// Rounds of asking everybody, and what they showed.
struct Round<'a> {
    config: &'a NodeConfig,
    payload: Vec<u8>,
    /// Managers that members have named besides.
    named: BTreeSet<String>,
    /// In the last round nobody had a cluster, nor another opinion of how it is formed.
    nobody_is_a_member: bool,
    last_logged: Option<(Instant, String)>,
    waits_for: String,
    /// Those that could not be reached in the last round, each with the reason.
    unreached: String,
}

impl<'a> Round<'a> {
    fn new(config: &'a NodeConfig, payload: Vec<u8>) -> Self {
        Self {
            config,
            payload,
            named: BTreeSet::new(),
            nobody_is_a_member: false,
            last_logged: None,
            waits_for: String::new(),
            unreached: String::new(),
        }
    }

    /// Asks each of the others once, at all of them at the same time.
    async fn discover(&mut self) -> Result<Option<Box<Welcome>>, NotEntered> {
        let own = &self.config.name;
        let all: BTreeSet<String> =
            self.config.peers.iter().chain(&self.named).filter(|at| *at != own).cloned().collect();
        let answers = all.into_iter().map(|at| async {
            let answer = discover(&at, &self.config.secret, &self.payload).await;
            (at, answer)
        });
        let (mut refused, mut members) = (None, false);
        let (mut reasons, mut unreached) = (Vec::new(), Vec::new());
        for (at, answer) in join_all(answers).await {
            let answer = match answer {
                Ok(payload) => decode::<Answer>("the answer to a discovery request", &payload),
                Err(DiscoveryError::OtherSecret) => {
                    refused.get_or_insert(NotEntered::OtherSecret { at });
                    continue;
                }
                Err(DiscoveryError::Unreachable(why)) => {
                    tracing::debug!(%at, %why, "no peer has answered a discovery request yet");
                    unreached.push(format!("{at} ({why})"));
                    continue;
                }
            };
            match answer {
                Ok(Answer::Welcome(welcome)) => return Ok(Some(welcome)),
                Ok(Answer::Waiting(missing)) if missing.is_empty() => {
                    reasons.push(format!("{at}, which is about to go on"));
                }
                Ok(Answer::Waiting(missing)) => {
                    reasons.push(format!("{at}, which waits for {}", missing.join(", ")));
                }
                Ok(Answer::NotNow(why)) => {
                    members = true;
                    reasons.push(format!("{at}: {why}"));
                }
                Ok(Answer::Elsewhere(managers)) => {
                    members = true;
                    self.named.extend(managers);
                }
                Ok(Answer::OtherList(theirs)) => {
                    let (theirs, ours) = (theirs.join(" "), self.config.peers.join(" "));
                    refused.get_or_insert(NotEntered::OtherList { at, theirs, ours });
                }
                Ok(Answer::Taken(servers)) => {
                    let (name, servers) = (own.clone(), servers.join(", "));
                    refused.get_or_insert(NotEntered::Taken { name, servers });
                }
                Err(error) => {
                    let why = error.to_string();
                    refused.get_or_insert(NotEntered::NotUnderstood { at, why });
                }
            }
        }
        self.nobody_is_a_member = !members;
        self.waits_for = reasons.join("; ");
        self.unreached = unreached.join("; ");
        refused.map_or(Ok(None), Err)
    }

    /// Says what it waits for, when that changes and now and then.
    fn log_missing(&mut self, missing: Option<Vec<String>>) {
        let waits_for = match missing {
            _ if !self.waits_for.is_empty() => self.waits_for.clone(),
            Some(missing) => format!("{} to start with the same list", missing.join(", ")),
            None => format!("{}, or a member of the cluster", self.config.peers[0]),
        };
        let waits_for = match self.unreached.as_str() {
            "" => waits_for,
            unreached => format!("{waits_for}; not reached: {unreached}"),
        };
        let known = self.last_logged.as_ref();
        if known.is_none_or(|(at, last_logged)| {
            *last_logged != waits_for || at.elapsed() >= DISCOVERY_LOG_PAUSE
        }) {
            tracing::info!(name = %self.config.name, "waiting for {waits_for}");
            self.last_logged = Some((Instant::now(), waits_for));
        }
    }
}

/// Keeps what the machine was given.
fn take(
    config: &NodeConfig,
    requests: Vec<IdentityRequest>,
    welcome: Welcome,
) -> Result<Entered, NotEntered> {
    let Welcome { authority, servers: places, managers, root } = welcome;
    let mut requests: Vec<_> = ROLES.into_iter().zip(requests).collect();
    let (mut servers, mut cluster) = (Vec::new(), None);
    for place in places {
        let Some(at) = requests.iter().position(|(role, _)| *role == place.role) else { continue };
        let (role, request) = requests.swap_remove(at);
        let identity = request.complete(place.certificate, authority.clone())?;
        cluster = Some(identity.subject().cluster);
        keep(&config.dir, role, &identity)?;
        servers.push((role, place.server));
    }
    let Some(cluster) = cluster else {
        let (at, why) = ("the cluster".to_owned(), "it gave this machine nothing to do".to_owned());
        return Err(NotEntered::NotUnderstood { at, why });
    };
    tracing::info!(cluster = format!("{:016x}", cluster.0), name = %config.name, "this machine was admitted to the cluster");
    Ok(Entered { cluster, servers, managers, root })
}

fn keep(dir: &Path, role: ServerRole, identity: &Identity) -> Result<(), NotEntered> {
    let dir = dir.join(role_name(role));
    fs::create_dir_all(&dir).map_err(|source| file_error(&dir, source))?;
    if role == ServerRole::Manager {
        let disk = RealDisk::open(&dir).map_err(ManagerError::from)?;
        let Subject { cluster, server, .. } = identity.subject();
        make_log(Arc::new(disk), cluster, server)?;
    }
    Ok(identity.save(&dir.join(IDENTITY_FILE))?)
}

/// Founds the cluster, with this machine's servers in it and no others: they ask. Blocks.
fn begin(config: &NodeConfig) -> Result<Entered, NotEntered> {
    let domains = FailureDomains { machine: MachineId(0), ..FailureDomains::default() };
    let mut own = roles_at(Some(0), config.peers.len());
    let server = |role| new_server(&config.name, role, domains);
    let manager = server(own.next().expect("the first of a list manages"));
    let rest: Vec<ServerRole> = own.collect();
    let servers = rest.iter().map(|role| server(*role)).collect();
    let settings = config.settings;
    let dir = config.dir.join(role_name(ServerRole::Manager));
    let tokens = found(&dir, Founding { settings, manager, servers, expires: None })?;
    let first = Identity::load(&dir.join(IDENTITY_FILE))?;
    let cluster = first.subject().cluster;
    let authority = Authority::load(cluster, &dir.join(AUTHORITY_FILE))?;
    let mut servers = vec![(ServerRole::Manager, FIRST)];
    for (role, (server, _token)) in rest.into_iter().zip(tokens) {
        let roles = roles_of(&[role].into());
        let identity = authority.identity_for(server, roles, config.certificate_life)?;
        keep(&config.dir, role, &identity)?;
        servers.push((role, server));
    }
    let managers = vec![(FIRST, config.name.clone())];
    Ok(Entered { cluster, servers, managers, root: config.root.clone() })
}

fn file_error(path: &Path, source: io::Error) -> NotEntered {
    NotEntered::File { path: path.to_owned(), source }
}
