//! The members' side of joining: a machine that proves the secret gets its servers' entries in the map, and identities
//! for them.
//!
//! # Invariants
//!
//! 1. Only the manager that leads lets machines in, and one at a time: so each gets a number of its own, by which copies
//!    are kept apart.
//! 2. A server's place is agreed on before its certificate is signed.
//! 3. A machine that lost the answer gets the same places when it asks again, until one of its servers has begun.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_identity::{AuthorityCell, IdentityError, PeerSecret};
use larder_net::{DiscoveryResponder, Port, Reply};
use larder_protocol::limits::MANAGERS_MAX;
use larder_protocol::manager::state::{
    Applied, Command, NewServer, Outcome, ServerRecord, ServerRole, ServerState, Topology,
};
use larder_protocol::placement::{FailureDomains, MachineId, Weight};
use larder_types::ServerId;
use larder_types::codec::{decode, encode};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::v1::{Answer, DiscoveryRequest, Place, Welcome};
use super::{ROLES, RootKeys, node_of, roles_at, server_name};
use crate::identity::roles_of;
use crate::limits::{ADMIT_MAX, PEER_NAME_BYTES_MAX, PEERS_MAX};
use crate::manager::quorum::{Manager, Maps, QuorumStatus, add_token, admission_of};
use crate::managers::{Managers, ManagersClient, NotProposed};

/// A meta server's share of the PGs: machines are equal.
const WEIGHT: Weight = Weight(100);

/// The life of the token that lets a machine's servers into the map. It leaves the managers never.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// The way in which a member answers discovery requests.
pub enum Admission {
    /// By letting them in, if it leads.
    Here(Box<Admitter>),
    /// By naming the managers.
    Elsewhere(Arc<ManagersClient>),
}

/// Root's keys as this machine has them; `None` while it has none.
pub type RootHere = Box<dyn Fn() -> Option<RootKeys> + Send + Sync>;

impl Admission {
    /// Of a machine with this manager. Others are given root's keys as they were rotated last, else those here.
    #[must_use]
    pub fn of(manager: &Manager, root: RootHere, certificate_life: Duration) -> Self {
        Self::Here(Box::new(Admitter {
            authority: manager.authority().clone(),
            managers: manager.managers().clone(),
            maps: manager.maps(),
            quorum_status: manager.quorum_status(),
            root,
            certificate_life,
            busy: Mutex::new(()),
        }))
    }

    async fn answer(&self, request: &DiscoveryRequest) -> Answer {
        match self {
            Self::Here(admitter) => admitter.answer(request).await,
            Self::Elsewhere(managers) => {
                let places = managers.places().into_iter().map(|(_, address)| address);
                Answer::Elsewhere(places.collect())
            }
        }
    }
}

/// Answers discovery requests at this port from now on.
///
/// # Errors
/// If the system gives no randomness.
pub fn admit_machines(
    port: &Port,
    secret: PeerSecret,
    admission: Admission,
) -> Result<(), IdentityError> {
    let admission = Arc::new(admission);
    let decide = move |address: SocketAddr, said: Vec<u8>| -> Reply {
        let admission = admission.clone();
        Box::pin(async move {
            let answer = match decode::<DiscoveryRequest>("a discovery request", &said) {
                Ok(request) => {
                    let answer = admission.answer(&request).await;
                    log(address, &request.node, &answer);
                    answer
                }
                Err(error) => Answer::NotNow(error.to_string()),
            };
            encode(&answer)
        })
    };
    port.answer(DiscoveryResponder::new(secret, decide)?);
    Ok(())
}

fn log(address: SocketAddr, node: &str, answer: &Answer) {
    match answer {
        Answer::Welcome(welcome) => {
            let servers: Vec<_> = welcome.servers.iter().map(|place| place.server.0).collect();
            tracing::info!(%address, %node, ?servers, "admitted a machine to the cluster");
        }
        Answer::Taken(_) => {
            tracing::warn!(%address, %node, "refused a discovery request under the name of a present member");
        }
        _ => tracing::debug!(%address, %node, ?answer, "received a discovery request"),
    }
}

/// See [`Admission::Here`].
pub struct Admitter {
    authority: AuthorityCell,
    managers: Arc<ManagersClient>,
    /// Not the client's, which may be older: a machine whose servers were just removed is let in.
    maps: Maps,
    quorum_status: watch::Receiver<QuorumStatus>,
    root: RootHere,
    certificate_life: Duration,
    busy: Mutex<()>,
}

impl Admitter {
    async fn answer(&self, request: &DiscoveryRequest) -> Answer {
        if !self.quorum_status.borrow().leads {
            let others = self.managers.places().into_iter().map(|(_, address)| address);
            return Answer::Elsewhere(others.collect());
        }
        match timeout(ADMIT_MAX, self.admit(request)).await {
            Ok(Ok(welcome)) => Answer::Welcome(Box::new(welcome)),
            Ok(Err(answer)) => answer,
            Err(_late) => not_now("the managers have not agreed in time"),
        }
    }

    async fn admit(&self, request: &DiscoveryRequest) -> Result<Welcome, Answer> {
        let _alone = self.busy.lock().await;
        if !is_sane(request) {
            return Err(not_now("the request is not as it should be"));
        }
        let Some(authority) = self.authority.get() else {
            return Err(not_now("the leading manager has not the authority's key yet"));
        };
        let now = self.maps.newest();
        let rotated = now.map.root.as_ref().map(|root| RootKeys {
            access_key: root.current.access_key.clone(),
            secret_key: root.current.secret_key.clone(),
        });
        let root = rotated.or_else(&self.root);
        let root = root.ok_or_else(|| not_now("root's keys are not known here yet"))?;
        let places = places_in(&now.map, request)?;
        let mut servers = places.known;
        servers.extend(self.agree_on(places.new).await?);
        let mut signed = Vec::new();
        for (role, server) in servers {
            let at = ROLES.iter().position(|it| *it == role).expect("a machine has these roles");
            let (roles, key) = (roles_of(&[role].into()), &request.keys[at]);
            let certificate = authority.certify(server, roles, key, self.certificate_life);
            let certificate = certificate.map_err(|error| not_now(&error.to_string()))?;
            signed.push(Place { role, server, certificate });
        }
        let managers = managers_in(&self.maps.newest().map);
        let authority = authority.certificate().to_vec();
        Ok(Welcome { authority, servers: signed, managers, root })
    }

    /// Gives the servers their places, and waits until the map here shows them: the next machine is to see them.
    async fn agree_on(
        &self,
        servers: Vec<NewServer>,
    ) -> Result<Vec<(ServerRole, ServerId)>, Answer> {
        let expires = Some(SystemTime::now() + TOKEN_LIFE);
        let (mut token, mut agreed) = (None, Vec::new());
        for server in servers {
            let role = *server.roles.first().expect("each server has one role");
            let [admits, add_server] = admission_of(server, expires);
            let Command::AddServer(server, Some((hash, now_ms))) = add_server else {
                unreachable!("a server comes in by a token")
            };
            let hash = match token {
                Some(hash) => hash,
                None => {
                    agreed_on(add_token(&*self.managers, admits).await)?;
                    *token.insert(hash)
                }
            };
            let command = Command::AddServer(server, Some((hash, now_ms)));
            let Outcome::Server(id) = self.propose(command).await? else {
                return Err(not_now("the managers answer otherwise than asked"));
            };
            agreed.push((role, id));
        }
        let shown =
            |map: &Topology| agreed.iter().all(|(_, server)| map.servers.contains_key(server));
        let mut maps = self.maps.clone();
        maps.wait_for(shown).await.map_err(|_gone| not_now("this manager stops"))?;
        Ok(agreed)
    }

    async fn propose(&self, command: Command) -> Result<Outcome, Answer> {
        agreed_on(self.managers.propose(command).await)
    }
}

fn agreed_on(proposed: Result<Applied, NotProposed>) -> Result<Outcome, Answer> {
    let applied = proposed.map_err(|error| not_now(&error.to_string()))?;
    applied.map_err(|refusal| not_now(&refusal.to_string()))
}

fn not_now(why: &str) -> Answer {
    Answer::NotNow(why.to_owned())
}

fn is_sane(request: &DiscoveryRequest) -> bool {
    request.keys.len() == ROLES.len()
        && !request.node.is_empty()
        && request.node.len() <= PEER_NAME_BYTES_MAX
        && request.peers.len() <= PEERS_MAX
        && request.peers.contains(&request.node)
}

/// The places that a machine has in the map, and is to have besides.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    /// It was given these, and has not begun.
    known: Vec<(ServerRole, ServerId)>,
    new: Vec<NewServer>,
}

/// Pure: what the map says of a machine that asks to be let in.
fn places_in(map: &Topology, request: &DiscoveryRequest) -> Result<Places, Answer> {
    let lives = |record: &&ServerRecord| record.state != ServerState::Removed;
    let own: Vec<(ServerId, &ServerRecord)> = map
        .servers
        .iter()
        .filter(|(_, record)| lives(record) && node_of(&record.name) == Some(&request.node))
        .map(|(id, record)| (*id, record))
        .collect();
    if own.iter().any(|(_, record)| record.state != ServerState::Joining) {
        let names = own.into_iter().map(|(_, record)| record.name.clone());
        return Err(Answer::Taken(names.collect()));
    }
    let manage = map.servers.values().filter(lives);
    let manage = manage.filter(|record| record.roles.contains(&ServerRole::Manager)).count();
    let place = request.peers.iter().position(|peer| *peer == request.node);
    let has = |role: ServerRole| own.iter().find(|(_, record)| record.roles.contains(&role));
    let wanted: Vec<ServerRole> = roles_at(place, request.peers.len())
        .filter(|role| {
            *role != ServerRole::Manager || has(*role).is_some() || manage < MANAGERS_MAX
        })
        .collect();
    let known: Vec<_> = wanted.iter().filter_map(|role| Some((*role, has(*role)?.0))).collect();
    let last = map.servers.values().map(|record| record.domains.machine.0).max();
    let next = MachineId(last.map_or(0, |last| last + 1));
    // One that was cut off in the middle keeps its number.
    let machine = own.first().map_or(next, |(_, record)| record.domains.machine);
    let domains = FailureDomains { machine, ..FailureDomains::default() };
    let missing = wanted.into_iter().filter(|role| has(*role).is_none());
    let new = missing.map(|role| new_server(&request.node, role, domains)).collect();
    Ok(Places { known, new })
}

/// One server of a machine.
pub(super) fn new_server(node: &str, role: ServerRole, domains: FailureDomains) -> NewServer {
    NewServer {
        name: server_name(node, role),
        roles: BTreeSet::from([role]),
        addresses: vec![node.to_owned()],
        domains,
        weight: WEIGHT,
    }
}

fn managers_in(map: &Topology) -> Vec<(ServerId, String)> {
    let manages = |record: &ServerRecord| {
        record.roles.contains(&ServerRole::Manager) && record.state != ServerState::Removed
    };
    let managers = map.servers.iter().filter(|(_, record)| manages(record));
    managers.filter_map(|(id, record)| Some((*id, record.addresses.first()?.clone()))).collect()
}

#[cfg(test)]
mod tests;
