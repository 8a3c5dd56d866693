//! Managers on loopback, servers that do nothing but be there, and ways to wait for what the map says.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_identity::limits::CERTIFICATE_VALIDITY;
use larder_identity::{Credentials, JoinToken};
use larder_net::Endpoint;
use larder_protocol::manager::state::{NewServer, ServerRole, ServerState, Settings, Topology};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, ServerId};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::identity::identity_in;
use crate::manager::quorum::{Founding, Manager, ManagerConfig, found, manager_identity_in};
use crate::managers::{Contacts, Managers, ManagersClient, Presence, Run};

pub(crate) const SETTINGS: Settings =
    Settings { pg_count: 8, members: 1, min_members: 1, copies: 1, min_copies: 1, lv_blocks: 64 };

pub(crate) fn new_server(name: &str, role: ServerRole) -> NewServer {
    NewServer {
        name: name.to_owned(),
        roles: BTreeSet::from([role]),
        addresses: Vec::new(),
        domains: FailureDomains::default(),
        weight: Weight(1 << 16),
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Waits until the map that is known there is so.
pub(crate) async fn until(
    managers: &ManagersClient,
    what: &str,
    is: impl Fn(&Topology) -> bool,
) -> Arc<Topology> {
    let (mut versions, deadline) = (managers.versions(), soon());
    loop {
        let map = managers.map();
        if is(&map) {
            return map;
        }
        let changed = timeout_at(deadline, versions.changed()).await;
        changed.unwrap_or_else(|_late| panic!("{what}: {map:?}")).unwrap();
    }
}

pub(super) fn is(map: &Topology, server: ServerId, state: ServerState) -> bool {
    map.servers.get(&server).is_some_and(|record| record.state == state)
}

/// Waits until what is watched is so.
pub(crate) async fn until_seen<T>(mut seen: watch::Receiver<T>, is: impl FnMut(&T) -> bool) {
    drop(timeout_at(soon(), seen.wait_for(is)).await.expect("in time").unwrap());
}

/// A new cluster: its founder's directory, and a token for each of the other servers.
pub(super) fn found_with(servers: Vec<NewServer>) -> (TempDir, Vec<(ServerId, JoinToken)>) {
    let dir = tempfile::tempdir().unwrap();
    let manager = new_server("m0", ServerRole::Manager);
    let founding = Founding { settings: SETTINGS, manager, servers, expires: None };
    let tokens = found(dir.path(), founding).unwrap();
    (dir, tokens)
}

pub(super) async fn start(dir: &Path, managers: Vec<(ServerId, String)>) -> Manager {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Manager::start(config(dir, managers), socket).unwrap()
}

pub(super) fn config(dir: &Path, managers: Vec<(ServerId, String)>) -> ManagerConfig {
    let certificate_life = CERTIFICATE_VALIDITY;
    ManagerConfig {
        dir: dir.to_owned(),
        address: None,
        managers,
        certificate_life,
        colocated: None,
    }
}

/// Waits until a manager has the authority's key.
pub(crate) async fn until_it_signs(manager: &Manager) {
    let deadline = soon();
    while manager.authority().get().is_none() {
        assert!(Instant::now() < deadline, "the authority's key never came");
        sleep(Duration::from_millis(10)).await;
    }
}

pub(super) fn contact(manager: &Manager) -> (ServerId, String) {
    (manager.server(), manager.address().to_owned())
}

/// Joins in a directory and starts as a further manager.
pub(super) async fn join_and_start(dir: &Path, founder: &Manager, token: &JoinToken) -> Manager {
    let address = founder.address().to_owned();
    manager_identity_in(dir, &[address], Some(token)).await.unwrap();
    start(dir, vec![contact(founder)]).await
}

/// A run of a server that only says that it is there.
pub(super) struct Idle {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) client: Arc<ManagersClient>,
    _presence: Presence,
}

impl Idle {
    pub(super) async fn start(
        dir: &Path,
        (managers, token): (Vec<(ServerId, String)>, Option<&JoinToken>),
        boot: BootId,
    ) -> Self {
        let addresses: Vec<String> = managers.iter().map(|(_, at)| at.clone()).collect();
        let identity = identity_in(dir, &addresses, token).await.unwrap();
        let endpoint = Endpoint::new(Credentials::new(&identity).unwrap());
        let contacts = Arc::new(Contacts::new(&endpoint, managers));
        let client = Arc::new(ManagersClient::start(contacts));
        let server = identity.subject().server;
        let addresses = vec![format!("idle-{server}:1")];
        let run = Run { server, boot, addresses, has: Vec::new() };
        let presence = Presence::start(client.clone(), run);
        Self { endpoint, client, _presence: presence }
    }
}
