//! The network of a cluster, and which servers are away from it.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_net::simulated::Network;
use larder_types::ServerId;
use parking_lot::Mutex;

/// See the module's head.
pub(super) struct ClusterNetwork {
    pub(super) network: Arc<Network>,
    /// All servers.
    all: Vec<ServerId>,
    /// Servers that do not run.
    away: Mutex<BTreeSet<ServerId>>,
}

impl ClusterNetwork {
    pub(super) fn new(network: Arc<Network>, all: Vec<ServerId>) -> Arc<Self> {
        Arc::new(Self { network, all, away: Mutex::default() })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ServerId> {
        self.all.iter().copied()
    }

    pub(super) fn cut(&self, from: ServerId, to: ServerId) {
        self.network.cut(from, to);
    }

    /// Lets through again what went from one to another, unless one of them is away.
    pub(super) fn heal(&self, from: ServerId, to: ServerId) {
        let away = self.away.lock();
        if !away.contains(&from) && !away.contains(&to) {
            self.network.heal(from, to);
        }
    }

    /// Nothing reaches a server, nor leaves it.
    pub(super) fn isolate(&self, server: ServerId, is_away: bool) {
        self.network.refuse(server, is_away);
        match is_away {
            true => self.away.lock().insert(server),
            false => self.away.lock().remove(&server),
        };
        for other in self.all().filter(|other| *other != server) {
            match is_away {
                true => {
                    self.network.cut(server, other);
                    self.network.cut(other, server);
                    self.network.reset(server, other);
                }
                false => {
                    self.heal(server, other);
                    self.heal(other, server);
                }
            }
        }
    }
}
