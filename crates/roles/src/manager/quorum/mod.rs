//! The manager of a cluster of several processes: its thread, its files, and what it serves.
//!
//! ```text
//!  connections ─▶ handler ─▶ inbox ─▶ driver (one thread) ─▶ member ─▶ quorum/log
//!       ▲            ▲                   │      │
//!       │            └────── maps ◀──────┘      │ Send, Tell, Answer
//!       └───────────────────────────────────────┘
//! ```
//!
//! | file | what |
//! |---|---|
//! | `member.rs` | quorum, map and policy as one, without connections |
//! | `committed.rs` | questions for the version of the map that is committed |
//! | `membership.rs` | changes of the quorum's members, and the managers' addresses |
//! | `disk.rs`, `v1.rs` | the log's file: `docs/formats/quorum.md` |
//! | `driver.rs`, `handler.rs`, `maps.rs` | the thread, its inputs, and the maps for askers |
//! | `releases.rs`, `routes.rs` | the commands that other managers know, and the managers through which servers are reached |
//! | `running.rs` | all of these together, on any disk and connections |
//! | `found.rs`, `tokens.rs` | the first start, and join tokens of other servers |
//! | `join.rs` | a further manager's first start |
//! | `begin.rs` | a log made anew from a map |
//! | `authority.rs` | the authority's key, which every manager has or asks the others for |
//!
//! To the other managers a manager is a server like any other. Through a [`ManagersClient`] it reports
//! its run, and sends its own proposals to the manager that leads.
//!
//! # Invariants
//!
//! 1. One process uses a directory at a time.
//! 2. No message about an entry leaves before the entry is durable here (`larder_protocol::manager::quorum`).
//! 3. A sender's certificate decides what it may send: messages of managers are taken from managers alone.

mod authority;
mod begin;
mod committed;
mod counts;
mod disk;
mod driver;
mod error;
mod found;
mod handler;
mod join;
mod maps;
mod member;
mod membership;
mod releases;
mod routes;
mod running;
mod tokens;
mod v1;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_env::RealDisk;
use larder_identity::{AuthorityCell, Credentials, JoinToken};
use larder_net::{Endpoint, ListenSocket};
use larder_protocol::manager::state::NewServer;
use larder_types::ServerId;
use tokio::sync::watch;

pub(crate) use begin::{LogStart, before, begin_log, forget_tokens_of, has_taken, map_in_log};
pub use counts::{ManagerCounts, ManagerRequests, QuorumStatus};
pub(crate) use disk::PATH;
pub use disk::PATH as LOG_FILE;
pub use error::ManagerError;
#[cfg(test)]
pub(crate) use found::Founder;
pub use found::{Founding, found};
pub(crate) use join::make_log;
pub use join::manager_identity_in;
pub(crate) use tokens::{add_token, admission_of};

use crate::directory::LOCK_FILE;
use crate::managers::{Colocated, ManagersClient, NotIssued};
use crate::observed::Observed;
use crate::renewal::{CertificateExpiry, Renewal};
use authority::{Keeper, KeyRequest};
pub(crate) use maps::Maps;
pub(crate) use running::{ManagerPorts, Running};
pub(crate) use v1::decode_file;

/// The authority's key and certificate, in each manager's directory.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// Returns true if a stopped manager's log begins with a snapshot of the map.
#[cfg(test)]
pub(crate) fn keeps_snapshot(
    disk: Arc<dyn larder_env::Disk>,
    cluster: larder_types::ClusterId,
    me: ServerId,
) -> Result<bool, ManagerError> {
    Ok(disk::QuorumDisk::open(disk, cluster, me)?.stored().snapshot.is_some())
}

/// The parameters that a manager starts with.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    /// Its directory, with the identity that it was founded or joined with.
    pub dir: PathBuf,
    /// The address at which others reach it, `host:port`; `None` for the socket's.
    pub address: Option<String>,
    /// Addresses of other managers, to be used until there is a map. A manager that has just joined needs some; others only
    /// those of managers that have moved.
    pub managers: Vec<(ServerId, String)>,
    /// The time for which certificates that it signs are valid.
    pub certificate_life: Duration,
    /// The servers of its process, if there are others.
    pub colocated: Option<Arc<Colocated>>,
}

/// A running manager of a cluster. Dropped, it stops soon; [`Manager::stop`] waits until it has.
pub struct Manager {
    me: ServerId,
    address: String,
    running: Running,
    renewal: Renewal,
    _key_request: Option<KeyRequest>,
}

impl Manager {
    /// Starts a manager on a directory that was founded or has joined, and serves what comes to this socket. Blocks
    /// while it reads its log.
    ///
    /// # Errors
    /// [`ManagerError`], by what to do.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        config: ManagerConfig,
        listen_socket: impl Into<ListenSocket>,
    ) -> Result<Self, ManagerError> {
        let listen_socket = listen_socket.into();
        let disk = Arc::new(RealDisk::open(&config.dir)?);
        let lock = disk.lock(LOCK_FILE)?;
        let keeper = Keeper::open(&config.dir, config.certificate_life)?;
        let identity = &keeper.identity;
        let (me, cluster) = (identity.subject().server, identity.subject().cluster);
        let address = match config.address {
            Some(address) => address,
            None => listen_socket.address()?.to_string(),
        };
        let credentials = Credentials::new(identity)?;
        let endpoint = Endpoint::new(credentials.clone());
        endpoint.share(&listen_socket);
        let ports = ManagerPorts {
            cluster,
            me,
            disk,
            lock: Some(lock),
            endpoint,
            address: address.clone(),
            managers: config.managers,
            authority: keeper.authority.clone(),
            certificate_life: config.certificate_life,
            colocated: config.colocated,
        };
        let running = Running::start(ports, listen_socket)?;
        let asking = keeper.request(&running.client);
        let renewal = keeper.renew(credentials, &running.client);
        Ok(Self { me, address, running, renewal, _key_request: asking })
    }

    /// Its id.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.me
    }

    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The managers, as this process sees them.
    #[must_use]
    pub fn managers(&self) -> &Arc<ManagersClient> {
        &self.running.client
    }

    /// The manager that leads and those that there are, as far as it knows, as it changes.
    #[must_use]
    pub fn quorum_status(&self) -> watch::Receiver<QuorumStatus> {
        self.running.quorum_status.clone()
    }

    /// Where it stands, for metrics.
    #[must_use]
    pub fn counts(&self) -> &Arc<ManagerCounts> {
        self.running.counts()
    }

    /// The observations that it tells. The program that runs it makes them.
    #[must_use]
    pub fn observed(&self) -> &Arc<Observed> {
        &self.running.observed
    }

    /// Its connections to other servers.
    #[must_use]
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.running.endpoint
    }

    /// The map as this manager has applied it: where it leads, whatever was answered is in it.
    pub(crate) fn maps(&self) -> Maps {
        self.running.maps.clone()
    }

    /// The authority, once it is here.
    #[must_use]
    pub fn authority(&self) -> &AuthorityCell {
        &self.running.issuer.authority
    }

    /// The time for which its certificate is good.
    #[must_use]
    pub fn certificate_expiry(&self) -> &Arc<CertificateExpiry> {
        self.renewal.certificate_expiry()
    }

    /// The counts of what its connections did.
    #[must_use]
    pub fn connections(&self) -> &Arc<larder_net::Metrics> {
        self.running.endpoint.metrics()
    }

    /// Gives a server a place in the map, and a token with which it takes it.
    ///
    /// # Errors
    /// [`NotIssued`], by what to do.
    pub async fn issue_token(
        &self,
        server: NewServer,
        expires: Option<SystemTime>,
    ) -> Result<(ServerId, JoinToken), NotIssued> {
        self.running.issuer.issue(server, expires).await
    }

    /// Waits until it has stopped; it is then to be dropped.
    ///
    /// # Errors
    /// Why it cannot go on. `Ok` if it was told to stop.
    pub async fn ended(&mut self) -> Result<(), ManagerError> {
        self.running.ended().await
    }

    /// Stops it, and waits until its directory is free.
    ///
    /// # Errors
    /// Why it had stopped already.
    pub async fn stop(mut self) -> Result<(), ManagerError> {
        self.running.stop();
        self.ended().await
    }
}

#[cfg(test)]
pub(crate) mod tests;
