//! The managers as every role sees them: the latest map received from them, and calls to them.

mod client;
mod colocated;
mod committed;
mod contacts;
mod deferred_orders;
mod fetch;
mod fetch_state;
mod map_sources;
mod map_store;
mod presence;
mod stored_map;
mod versions;

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{
    Applied, Command, MapVersion, Refusal, ServerState, Topology,
};
use larder_types::ServerId;
use tokio::time::Instant;

pub use client::ManagersClient;
pub use colocated::Colocated;
pub use contacts::Contacts;
pub(crate) use deferred_orders::DeferredOrders;
pub use map_store::{MAP_FILE, MapStore, MapStoreError, OlderMap};
pub use presence::{Presence, Run};
pub use stored_map::{BadMap, StoredMap};
pub use versions::{NoMoreVersions, VersionWatch, Versions};

use crate::wire::Beat;

/// The managers, as the other roles of a cluster see them.
pub trait Managers: Send + Sync + 'static {
    /// The latest map that is known here.
    fn map(&self) -> Arc<Topology>;

    /// Changes with each map that comes.
    fn versions(&self) -> VersionWatch;

    /// Version of the map that is in this server's directory, too, where maps are kept. What must not be done twice, whatever is
    /// lost of the managers, is done by it: views, volumes and disks are taken up when it has them.
    fn kept(&self) -> MapVersion {
        self.map().version
    }

    /// Changes with it.
    fn kept_versions(&self) -> VersionWatch {
        self.versions()
    }

    /// Time since a manager confirmed that its map is the latest, or sent a later one.
    fn silent(&self) -> Duration {
        Duration::ZERO
    }

    /// Notes that a message referred to a map of this version. If that map does not arrive soon, another manager is
    /// asked for it.
    fn note_newer_map(&self, version: MapVersion);

    /// Has the managers agree on a command. The map that it made may come here later.
    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>>;

    /// The version of the map that has every command that was answered before this. The map here may be older.
    fn committed(&self, _deadline: Instant) -> BoxFuture<'_, Result<MapVersion, NotProposed>> {
        let version = self.map().version;
        Box::pin(std::future::ready(Ok(version)))
    }

    /// Tells the leading manager something; it may be lost, and is said again until it has its effect.
    fn send_message(&self, message: ServerMessage);

    /// Asks for a meta server's leases, and says that it goes on, with those servers of its process that do. They are added
    /// here.
    fn beat(&self, beat: Beat) {
        let Beat { boot, sent_ms, led, .. } = beat;
        self.send_message(ServerMessage::Renew { boot, sent_ms, led });
    }

    /// The servers of this process, of which one speaks for all.
    fn colocated(&self) -> Option<Arc<Colocated>> {
        None
    }

    /// This manager said something that only one that leads says.
    fn led_by(&self, _manager: ServerId) {}
}

/// Returns when the map says no longer that a server answers: a caller that waits for it need not find out
/// for itself.
pub(crate) async fn down(managers: &dyn Managers, server: ServerId) {
    let mut versions = managers.versions();
    let is_up = |map: Arc<Topology>| {
        map.servers.get(&server).is_some_and(|record| record.state == ServerState::Up)
    };
    while is_up(managers.map()) {
        if versions.changed().await.is_err() {
            // No map comes any more.
            return pending().await;
        }
    }
}

/// The reason why a command had no effect, or an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotProposed {
    /// Ask again: no manager leads at present, or none is within reach.
    #[error("no manager leads at present, or none is within reach")]
    NoLeader,
    /// Look at the map before asking again: it may be in effect or not.
    #[error("it is not known if the managers executed the command")]
    Unknown,
    /// Slow down.
    #[error("the managers have too much to do")]
    Busy,
    /// Give up: this server's certificate does not allow it, or the server was removed.
    #[error("the managers take no such command from this server")]
    NotAllowed,
    /// Nothing was done. Upgrade this manager, or start it, or remove it; then ask again.
    #[error(
        "manager {0} may be of an earlier release that does not know this, or has not been heard yet: upgrade or start it first"
    )]
    OlderManager(ServerId),
}

/// The reason why no token was made, by what to do.
#[derive(Debug, thiserror::Error)]
pub enum NotIssued {
    /// Retry later, or at another manager: this one does not have the authority's key yet.
    #[error(
        "this manager cannot sign certificates yet: the authority's key is still to come from another manager"
    )]
    NoAuthority,
    /// By the inner error. A server may have got an entry in the map, which no process uses.
    #[error(transparent)]
    NotProposed(#[from] NotProposed),
    /// Fix the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// As it says, of the manager's own directory.
    #[error(transparent)]
    Manager(Box<dyn Error + Send + Sync>),
    /// As the manager that was asked says.
    #[error("{0}")]
    Told(String),
}
