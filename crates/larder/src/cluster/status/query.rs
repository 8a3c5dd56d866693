//! The state of a cluster for programs that ask a proxy, as `larder status --json` prints it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join3};
use larder_net::Endpoint;
use larder_roles::limits::MANAGERS_SILENT_MS;
use larder_roles::managers::Managers;
use larder_roles::observed::Observations;
use larder_roles::peers::Peers;
use larder_roles::wire::{DataService, ManagerService, MetaService};
use tokio::task::spawn_blocking;

use super::{background, issues, status};
use crate::cluster::disk_free_space::DiskFreeSpace;
use crate::metrics::State;

/// A proxy's side of the state: whom it asks.
pub(crate) struct StatusQuery {
    managers: Arc<dyn Managers>,
    metas: Peers<MetaService>,
    others: Peers<ManagerService>,
    datas: Peers<DataService>,
}

impl StatusQuery {
    /// Asks with the connections of a proxy.
    pub(crate) fn new(endpoint: &Arc<Endpoint>, managers: Arc<dyn Managers>) -> Self {
        let (metas, others) = (Peers::new(endpoint), Peers::new(endpoint));
        Self { managers, metas, others, datas: Peers::new(endpoint) }
    }
}

impl State for StatusQuery {
    fn state_json(&self) -> BoxFuture<'_, Option<Bytes>> {
        async move {
            let map = self.managers.map();
            // As long as `/readyz` takes them for there.
            let is_latest = self.managers.silent() < Duration::from_millis(MANAGERS_SILENT_MS);
            let (background, observed, disk_free_space) = join3(
                background::ask(&self.metas, &map),
                issues::ask(&self.others, &map, None),
                DiskFreeSpace::ask(&self.datas, &map),
            )
            .await;
            // It walks all volumes and buckets and plans the balance: the threads that serve S3 have no time for it.
            let made = spawn_blocking(move || {
                let observed = Observations::together(observed);
                serde_json::to_vec(&status(&map, is_latest, background, &disk_free_space, observed))
            });
            let made = made.await.map_err(std::io::Error::other);
            made.and_then(|it| it.map_err(Into::into))
                .map(Bytes::from)
                .inspect_err(
                    |error| tracing::warn!(%error, "the cluster's state cannot be reported"),
                )
                .ok()
        }
        .boxed()
    }
}
