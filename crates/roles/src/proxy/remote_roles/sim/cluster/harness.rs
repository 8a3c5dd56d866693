//! A cluster as others use it that start and end its proxies themselves (`sim/regions/`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_net::Endpoint;
use larder_net::simulated::Network;
use larder_protocol::manager::state::Command;
use larder_types::ServerId;

use super::super::SimRng;
use super::managers::ClusterManagers;
use super::{ManagerKind, World, faults};
use crate::managers::Managers;

impl World {
    /// Begins a cluster for these proxies, which say to the managers that they are there.
    pub(in super::super) async fn for_proxies(
        sim_rng: SimRng,
        by: ManagerKind,
        proxies: Range<u32>,
    ) -> Arc<Self> {
        Self::begin(sim_rng, by, Some(proxies)).await.0
    }

    pub(in super::super) fn network(&self) -> &Arc<Network> {
        &self.sim_network.network
    }

    /// The managers, as a server sees them.
    pub(in super::super) async fn managers(
        &self,
        id: ServerId,
        endpoint: &Arc<Endpoint>,
    ) -> Arc<dyn Managers> {
        self.managing.of(id, endpoint, None).await
    }

    /// Has the managers agree on a command; everybody hears of it later.
    pub(in super::super) fn agree(&self, command: Command) {
        self.managing.agree(command);
    }

    /// Nothing reaches a server, nor leaves it.
    pub(in super::super) fn isolate(&self, server: ServerId, is_away: bool) {
        self.sim_network.isolate(server, is_away);
    }

    /// Has faults happen until the cluster is calm, and waits for the end of each.
    pub(in super::super) async fn happen(self: Arc<Self>) {
        faults::happen(self).await;
    }

    /// Has no more faults begin.
    pub(in super::super) fn stop_faults(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    pub(in super::super) fn violated(&self, what: String) {
        self.findings.violated(what);
    }

    /// Violations that were found.
    pub(in super::super) fn violations(&self) -> Vec<String> {
        self.findings.all()
    }

    /// Runs that were ended.
    pub(in super::super) fn restarts(&self) -> u64 {
        self.metas.restarts() + self.datas.restarts()
    }

    /// Ends all servers but the proxies.
    pub(in super::super) async fn end_all(self: &Arc<Self>) {
        self.end().await;
        if let ClusterManagers::Quorum(quorum) = &self.managing {
            quorum.end().await;
        }
    }
}
