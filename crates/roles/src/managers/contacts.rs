//! Addresses of managers: those of the map, and those of the configuration before there is a map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{CallError, Endpoint, NotSent, Peer, SendError};
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::peers::Peers;
use crate::wire::{ManagerCall, ManagerMessageIn, ManagerReply, ManagerService};

/// All known managers. The configured addresses stay of use: a map may be from before a manager moved.
#[derive(Debug)]
pub struct Contacts {
    endpoint: Arc<Endpoint>,
    named: Peers<ManagerService>,
    first: Mutex<BTreeMap<ServerId, First>>,
}

/// A manager that this process was told of.
#[derive(Debug)]
struct First {
    address: String,
    /// While the map does not name the same address.
    peer: Option<Peer<ManagerService>>,
}

impl Contacts {
    /// With these managers to begin with, at `host:port`; of two places of one the later counts.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>, first: Vec<(ServerId, String)>) -> Self {
        let first = first.into_iter().map(|(id, address)| (id, First { address, peer: None }));
        let (named, first) = (Peers::new(endpoint), Mutex::new(first.collect()));
        Self { endpoint: endpoint.clone(), named, first }
    }

    /// Managers that may be there, by id.
    pub(super) fn all(&self, map: &Topology) -> Vec<ServerId> {
        let manages = |record: &ServerRecord| record.roles.contains(&ServerRole::Manager);
        let named = map.servers.iter().filter(|(_, record)| manages(record)).map(|(id, _)| *id);
        let first = self.first.lock().keys().copied().collect::<Vec<_>>();
        let all: BTreeSet<ServerId> = named.chain(first).collect();
        all.into_iter().filter(|id| !is_removed(map, *id)).collect()
    }

    /// Has this process's connections refuse the servers that a map calls removed, and those that do not speak the cluster's
    /// version.
    pub(super) fn refuse_by(&self, map: &Topology) {
        self.endpoint.require(map.cluster_version);
        let removed = map.servers.keys().copied().filter(|id| is_removed(map, *id));
        self.endpoint.refuse_removed(removed.collect());
    }

    /// Where they may be: each as the map says, and as this process was told.
    pub(super) fn places(&self, map: &Topology) -> Vec<(ServerId, String)> {
        let named = |id: &ServerId| map.servers.get(id)?.addresses.first().cloned();
        let reported = |id: &ServerId| self.first.lock().get(id).map(|first| first.address.clone());
        let mut places = Vec::new();
        for id in self.all(map) {
            let known: BTreeSet<String> = named(&id).into_iter().chain(reported(&id)).collect();
            places.extend(known.into_iter().map(|address| (id, address)));
        }
        places
    }

    /// Ways to a manager, the likeliest first.
    fn of(&self, map: &Topology, manager: ServerId) -> Vec<Peer<ManagerService>> {
        if is_removed(map, manager) {
            return Vec::new();
        }
        let named = self.named.of(map, manager);
        let named_at = map.servers.get(&manager).and_then(|record| record.addresses.first());
        let mut first = self.first.lock();
        let reported = first.get_mut(&manager).and_then(|first| {
            if named_at == Some(&first.address) {
                first.peer = None;
                return None;
            }
            let First { address, peer } = first;
            let made = || Peer::new(&self.endpoint, manager, address.clone());
            Some(peer.get_or_insert_with(made).clone())
        });
        named.into_iter().chain(reported).collect()
    }

    /// Sends to a manager; may be lost.
    ///
    /// # Errors
    /// [`SendError`] of the last way, if no way took it.
    pub(crate) fn send(
        &self,
        map: &Topology,
        manager: ServerId,
        message: &ManagerMessageIn,
        payload: &Bytes,
    ) -> Result<(), SendError> {
        let mut error = SendError::Unreachable("nobody knows where it is".into());
        for peer in self.of(map, manager) {
            match peer.send(message, payload.clone()) {
                Ok(()) => return Ok(()),
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }

    /// Asks a manager.
    ///
    /// # Errors
    /// [`CallError`] of the last way, if none led there.
    pub(crate) async fn call(
        &self,
        map: &Topology,
        manager: ServerId,
        call: &ManagerCall,
        deadline: Instant,
    ) -> Result<(ManagerReply, Bytes), CallError> {
        let nowhere = NotSent::Unreachable("nobody knows where it is".into());
        let mut error = CallError::NotSent(nowhere);
        for peer in self.of(map, manager) {
            match peer.call(call, Bytes::new(), deadline).await {
                Err(refused @ (CallError::NotSent(_) | CallError::Denied(_))) => error = refused,
                answered => return answered,
            }
        }
        Err(error)
    }
}

fn is_removed(map: &Topology, server: ServerId) -> bool {
    map.servers.get(&server).is_some_and(|record| record.state == ServerState::Removed)
}
