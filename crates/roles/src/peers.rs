//! Connections to the other servers of the cluster that have one role.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_net::{Endpoint, Peer, Service};
use larder_protocol::manager::state::{ServerState, Topology};
use larder_types::ServerId;
use parking_lot::Mutex;

/// A handle for each server that was called, where the map says that it listens. A server that moved gets
/// another; one that was removed has none.
#[derive(Debug)]
pub struct Peers<S: Service> {
    endpoint: Arc<Endpoint>,
    known: Mutex<BTreeMap<ServerId, (String, Peer<S>)>>,
}

impl<S: Service> Peers<S> {
    /// None yet.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>) -> Self {
        Self { endpoint: endpoint.clone(), known: Mutex::default() }
    }

    /// The server's handle; `None` if the map does not name it, or without an address, or as removed.
    #[must_use]
    pub fn of(&self, map: &Topology, server: ServerId) -> Option<Peer<S>> {
        let record = map.servers.get(&server).filter(|it| it.state != ServerState::Removed);
        let address = record.and_then(|record| record.addresses.first());
        let mut known = self.known.lock();
        let Some(address) = address else {
            known.remove(&server);
            return None;
        };
        if let Some((at, peer)) = known.get(&server)
            && at == address
        {
            return Some(peer.clone());
        }
        let peer = Peer::new(&self.endpoint, server, address.clone());
        known.insert(server, (address.clone(), peer.clone()));
        Some(peer)
    }
}
