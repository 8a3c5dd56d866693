//! A meta server of a cluster. It opens its log and its index and begins no view by itself. It reports the views that
//! it has to the managers, and serves a PG once they appoint it primary.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use larder_env::Disk;
use larder_net::Endpoint;
use larder_protocol::Pg;
use larder_types::{BootId, OpId, PgId, View};
use tokio::runtime::Handle;

use super::adoption::Adoption;
use super::cluster::Cluster;
use super::copy_backoff::CopyBackoff;
use super::damage::{self, IndexDamage};
use super::index::{Buckets, LiveBuckets};
use super::recover::recover;
use super::set_aside;
use super::{BackgroundConfig, Meta, MetaConfig, MetaHandler, OpenError, OtherRoles, Threads};
use crate::managers::{DeferredOrders, Managers};
use crate::peers::Peers;

/// The configuration that a meta server of a cluster is opened with.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The server's identity, and its log.
    pub meta: MetaConfig,
    /// The id of this run; no other run has it.
    pub boot: BootId,
    /// The addresses at which it listens, `host:port`, for the map.
    pub addresses: Vec<String>,
    /// Its background work.
    pub background: BackgroundConfig,
}

/// A meta server of a cluster.
pub struct MetaServer {
    meta: Arc<Meta>,
    threads: Threads,
}

impl MetaServer {
    /// Opens the meta server in a directory that no other process uses: `root` is the root of `disk`. It reports
    /// its start to the managers until the map has this run, and its life after that. So no other role of the same
    /// server may report.
    ///
    /// # Errors
    /// [`OpenError`]. [`OpenError::NoMap`] before the managers' map is known. If the index is damaged
    /// ([`OpenError::is_index_damage`]), [`set_index_aside`](super::set_index_aside) may help, and then this again.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(
        disk: Arc<dyn Disk>,
        root: &Path,
        endpoint: &Arc<Endpoint>,
        managers: Arc<dyn Managers>,
        config: &ServerConfig,
    ) -> Result<Self, OpenError> {
        let map = managers.map();
        if map.founded.is_none() {
            return Err(OpenError::NoMap);
        }
        let set_aside = set_aside::resume(&*disk, root)?;
        if let Some(IndexDamage { reason, .. }) = damage::load(&*disk)? {
            return Err(OpenError::DamagedBefore(reason));
        }
        let recovered =
            recover(disk.clone(), root, map.settings().pg_count as usize, &config.meta)?;
        if recovered.created && recovered.pgs.iter().any(|pg| pg.applied() != OpId::default()) {
            let reason = "there is an index, but its log is gone: restore log/, or remove kv/ as well to have \
                          both copied from the other servers";
            return Err(OpenError::Contradiction(reason.to_owned()));
        }
        let cluster = Cluster {
            me: config.meta.me,
            boot: config.boot,
            addresses: config.addresses.clone(),
            had: recovered.pgs.iter().filter_map(had).collect(),
            metas: Peers::new(endpoint),
            data: Peers::new(endpoint),
            copy_backoff: CopyBackoff::default(),
            disk: disk.clone(),
            set_aside: set_aside.map(|aside| root.join(aside.folder)),
            runtime: Handle::current(),
            meta: OnceLock::new(),
            adoption: Adoption::default(),
            deferred_orders: DeferredOrders::new(managers.clone()),
            renew_soon: AtomicBool::new(false),
            renewals: parking_lot::Mutex::default(),
            batches: AtomicU64::new(0),
            batched: AtomicU64::new(0),
            sessions_seen: parking_lot::Mutex::new((map.version, 0)),
            managers: managers.clone(),
        };
        let buckets = Buckets::Apart(LiveBuckets::new(managers));
        let (meta, writer) = recovered.assemble(buckets, OtherRoles::Apart(Box::new(cluster)));
        let meta = Arc::new(meta);
        if let Some(cluster) = meta.cluster() {
            assert!(cluster.meta.set(Arc::downgrade(&meta)).is_ok(), "it is one server's");
            cluster.say_started();
        }
        let mut threads = Meta::start(&meta, writer);
        let (adopt, rows) = (meta.clone(), meta.clone());
        threads.spawn("adopt", move || {
            if let Some(cluster) = adopt.cluster() {
                adopt.adopt_loop(cluster);
            }
        });
        threads.spawn("rows", move || {
            if let Some(cluster) = rows.cluster() {
                rows.rows_loop(cluster);
            }
        });
        meta.start_background(disk, &config.background);
        Ok(Self { meta, threads })
    }

    /// The handler for a [`Listener`](larder_net::Listener), which answers proxies, meta servers and managers.
    #[must_use]
    pub fn handler(&self) -> MetaHandler {
        MetaHandler { meta: self.meta.clone() }
    }

    /// The server.
    #[must_use]
    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Stops the server once everything that was accepted is durable; blocks until then.
    pub fn close(self) {
        self.meta.stop();
        self.threads.join();
    }
}

/// The view of a PG's last op, as reported to the managers: `None` in place of the view if the PG is not whole. An empty PG is
/// not reported.
fn had(pg: &Pg) -> Option<(PgId, Option<View>)> {
    let last = pg.last();
    match pg.is_whole() {
        true => (last != OpId::default()).then(|| (pg.id(), Some(last.view))),
        false => Some((pg.id(), None)),
    }
}
