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
//! | `membership.rs` | who ought to be a manager, and where managers are |
//! | `disk.rs`, `v1.rs` | the log's file: `docs/formats/quorum.md` |
//! | `driver.rs`, `handler.rs`, `maps.rs` | the thread, what it is told, and the map for those who ask |
//! | `inspect.rs` | what of it a stopped manager keeps, checked |
//! | `found.rs`, `tokens.rs` | the first start, and how other servers come in |
//! | `authority.rs` | the authority's key, which every manager has or asks the others for |
//!
//! Towards the other managers a manager is a server like any other: it says through a [`ManagersClient`] that it is
//! there, and has its own proposals agreed on through it, whoever leads.
//!
//! # Invariants
//!
//! 1. One process uses a directory at a time.
//! 2. Nothing that was agreed on leaves before it is durable here: `larder_protocol::manager::quorum`.
//! 3. Who speaks is who its certificate says; what only managers may say is taken from managers alone.

mod authority;
mod counts;
mod disk;
mod driver;
mod error;
mod found;
mod handler;
mod inspect;
mod maps;
mod member;
mod membership;
mod releases;
mod tokens;
mod v1;
mod ways;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use larder_env::RealDisk;
use larder_env::rng::unique_u64;
use larder_net::{
    AuthorityCell, Credentials, Ear, Endpoint, Enrolment, JoinToken, Listener, Roles, Services,
};
use larder_protocol::manager::state::NewServer;
use larder_types::{BootId, ServerId};
use tokio::sync::{oneshot, watch};

pub use counts::ManagerCounts;
pub use error::{ManagerError, NotIssued};
pub use found::{Founding, found};
pub(crate) use inspect::inspect;
pub use member::Seat;
pub(crate) use tokens::{add_token, admission_of};

use crate::limits::MANAGER_INBOX_MAX;
use crate::managers::{Contacts, ManagersClient, Presence, Run};
use crate::renewal::{Renewal, Standing};
use crate::wire::ManagerService;
use authority::{Asking, Keeper};
use disk::QuorumDisk;
use driver::{Driver, Outlets};
use handler::Desk;
pub(crate) use maps::Published;
use member::Member;
use membership::named_in;
use tokens::{Admitted, Issuer, TokenBook};

/// The authority's key and certificate, in each manager's directory.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// Held while a process uses the directory.
const LOCK_FILE: &str = "lock";

/// Where a manager is and whom it knows.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    /// Its directory, with the identity that it was founded or joined with.
    pub dir: PathBuf,
    /// Where others reach it, `host:port`; as the socket says if there is nothing here.
    pub address: Option<String>,
    /// Other managers, to begin with: some of those that there are, for one that has joined; for others only those
    /// that have moved since.
    pub managers: Vec<(ServerId, String)>,
    /// How long the certificates are valid that it signs.
    pub certificate_life: Duration,
}

/// A manager that runs. Dropped, it stops soon; [`Manager::stop`] waits until it has.
pub struct Manager {
    me: ServerId,
    address: String,
    client: Arc<ManagersClient>,
    seat: watch::Receiver<Seat>,
    counts: Arc<ManagerCounts>,
    issuer: Arc<Issuer>,
    renewal: Renewal,
    endpoint: Arc<Endpoint>,
    stopping: Arc<AtomicBool>,
    ended: Option<oneshot::Receiver<Result<(), ManagerError>>>,
    _asking: Option<Asking>,
    _listener: Listener,
    _presence: Presence,
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
    }
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
    pub fn start(config: ManagerConfig, ear: impl Into<Ear>) -> Result<Self, ManagerError> {
        let ear = ear.into();
        let disk = Arc::new(RealDisk::open(&config.dir)?);
        let lock = disk.lock(LOCK_FILE)?;
        let keeper = Keeper::open(&config.dir, config.certificate_life)?;
        let identity = &keeper.identity;
        let (me, cluster) = (identity.subject().server, identity.subject().cluster);
        let address = match config.address {
            Some(address) => address,
            None => ear.address()?.to_string(),
        };
        let credentials = Credentials::new(identity)?;
        let endpoint = Endpoint::new(credentials.clone());
        endpoint.share(&ear);
        let log = QuorumDisk::open(disk.clone(), cluster, me)?;
        let own = [(me, address.clone())];
        let first = named_in(log.stored()).into_iter().chain(config.managers).chain(own);
        let contacts = Arc::new(Contacts::new(&endpoint, first.collect()));
        let member = Member::restore(me, log, unique_u64(), 0)?;
        let (maps_in, maps) = watch::channel(Arc::new(Published::default()));
        let (inbox_in, inbox) = sync_channel(MANAGER_INBOX_MAX);
        let stopping = Arc::new(AtomicBool::new(false));
        let out = Outlets::new(&endpoint, contacts.clone());
        let (seat_in, seat) = watch::channel(Seat::default());
        let counts = Arc::new(ManagerCounts::default());
        let driver = Driver {
            member,
            inbox,
            out,
            maps: maps_in,
            seat: seat_in,
            counts: counts.clone(),
            stopping: stopping.clone(),
            lock,
        };

        let client = Arc::new(ManagersClient::start(contacts));
        let (book, authority) = (Arc::new(TokenBook::open(disk)?), keeper.authority.clone());
        let issuer = Arc::new(Issuer {
            authority: authority.clone(),
            book: book.clone(),
            managers: client.clone(),
            maps: maps.clone(),
        });
        let admitted = Admitted { book, maps: maps.clone() };
        let enrolment = Enrolment::new(authority, admitted, config.certificate_life);
        let desk = Desk { inbox: inbox_in, maps, issuer: issuer.clone() };
        let services = Services::new().with_enrolment(enrolment);
        // One that was removed finds that in the map; the desk takes nothing else from it.
        let services = services.with_removed::<ManagerService>(Roles::all(), desk);
        let listener = Listener::start(&endpoint, ear, services)?;
        let asking = keeper.ask(&client);
        let renewal = keeper.renew(credentials, &client);
        let ended = Some(begin(driver)?);
        let (boot, addresses) = (BootId(unique_u64()), vec![address.clone()]);
        let run = Run { server: me, boot, addresses, has: Vec::new() };
        let presence = Presence::start(client.clone(), run);
        tracing::info!(server = %me, %address, "a manager runs");
        Ok(Self {
            me,
            address,
            client,
            seat,
            counts,
            issuer,
            renewal,
            endpoint,
            stopping,
            ended,
            _asking: asking,
            _listener: listener,
            _presence: presence,
        })
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
        &self.client
    }

    /// Who leads and who the managers are, as far as it knows, as it changes.
    #[must_use]
    pub fn seat(&self) -> watch::Receiver<Seat> {
        self.seat.clone()
    }

    /// Where it stands, for metrics.
    #[must_use]
    pub fn counts(&self) -> &Arc<ManagerCounts> {
        &self.counts
    }

    /// The map as this manager has applied it: where it leads, whatever was answered is in it.
    pub(crate) fn maps(&self) -> watch::Receiver<Arc<Published>> {
        self.issuer.maps.clone()
    }

    /// The authority, once it is here.
    #[must_use]
    pub fn authority(&self) -> &AuthorityCell {
        &self.issuer.authority
    }

    /// How long its certificate is good for.
    #[must_use]
    pub fn standing(&self) -> &Arc<Standing> {
        self.renewal.standing()
    }

    /// What its connections did.
    #[must_use]
    pub fn connections(&self) -> &Arc<larder_net::Metrics> {
        self.endpoint.metrics()
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
        self.issuer.issue(server, expires).await
    }

    /// Waits until it has stopped; it is then to be dropped.
    ///
    /// # Errors
    /// Why it cannot go on. `Ok` if it was told to stop.
    pub async fn ended(&mut self) -> Result<(), ManagerError> {
        let Some(ended) = self.ended.take() else { return Ok(()) };
        match ended.await {
            Ok(why) => why,
            Err(_panicked) => Err(ManagerError::Halted("its thread panicked".to_owned())),
        }
    }

    /// Stops it, and waits until its directory is free.
    ///
    /// # Errors
    /// Why it had stopped already.
    pub async fn stop(mut self) -> Result<(), ManagerError> {
        self.stopping.store(true, Ordering::Release);
        self.ended().await
    }
}

/// Starts the thread, and tells how it ended.
fn begin(driver: Driver) -> Result<oneshot::Receiver<Result<(), ManagerError>>, ManagerError> {
    let (ended_in, ended) = oneshot::channel();
    let run = move || {
        let end = driver.run();
        if let Err(error) = &end {
            tracing::error!(%error, "this manager has stopped");
        }
        // Nobody may be waiting: it was logged.
        drop(ended_in.send(end));
    };
    std::thread::Builder::new().name("manager".to_owned()).spawn(run)?;
    Ok(ended)
}

#[cfg(test)]
pub(crate) mod tests;
