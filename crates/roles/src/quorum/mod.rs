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
//! | `found.rs`, `tokens.rs` | the first start, and how other servers come in |
//!
//! Towards the other managers a manager is a server like any other: it says through a [`ManagersClient`] that it is
//! there, and has its own proposals agreed on through it, whoever leads.
//!
//! # Invariants
//!
//! 1. One process uses a directory at a time.
//! 2. Nothing that was agreed on leaves before it is durable here: `larder_protocol::manager::quorum`.
//! 3. Who speaks is who its certificate says; what only managers may say is taken from managers alone.

mod disk;
mod driver;
mod error;
mod found;
mod handler;
mod maps;
mod member;
mod membership;
mod tokens;
mod v1;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use larder_env::RealDisk;
use larder_env::rng::{fill_secret, unique_u64};
use larder_net::{
    Authority, Credentials, Endpoint, Enrolment, Fingerprint, Identity, JoinToken, Listener, Roles,
    Services,
};
use larder_protocol::manager::state::{NewServer, Outcome};
use larder_types::{BootId, ServerId};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

pub use error::{ManagerError, NotIssued};
pub use found::{Founding, found};
pub use member::Standing;

use crate::identity::{IDENTITY_FILE, roles_of};
use crate::limits::{MANAGER_INBOX_MAX, PROPOSE_WAIT_MS};
use crate::managers::{Contacts, Managers, ManagersClient, NotProposed, Presence, Run};
use crate::wire::ManagerService;
use disk::QuorumDisk;
use driver::{Driver, Outlets};
use handler::Desk;
use maps::Published;
use member::Member;
use membership::named_in;
use tokens::{Admitted, TokenBook, admission_of};

/// The authority's key and certificate, in the founder's directory.
const AUTHORITY_FILE: &str = "authority.pem";
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
}

/// A manager that runs. Dropped, it stops soon; [`Manager::stop`] waits until it has.
pub struct Manager {
    me: ServerId,
    address: String,
    client: Arc<ManagersClient>,
    maps: watch::Receiver<Arc<Published>>,
    standing: watch::Receiver<Standing>,
    signing: Option<Signing>,
    stopping: Arc<AtomicBool>,
    ended: Option<oneshot::Receiver<Result<(), ManagerError>>>,
    _listener: Listener,
    _presence: Presence,
}

/// What only the founder has.
struct Signing {
    authority: Fingerprint,
    book: Arc<TokenBook>,
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
    pub fn start(config: ManagerConfig, socket: TcpListener) -> Result<Self, ManagerError> {
        let disk = Arc::new(RealDisk::open(&config.dir)?);
        let lock = disk.lock(LOCK_FILE)?;
        let identity = Identity::load(&config.dir.join(IDENTITY_FILE))?;
        let (me, cluster) = (identity.subject().server, identity.subject().cluster);
        let address = match config.address {
            Some(address) => address,
            None => socket.local_addr()?.to_string(),
        };
        let endpoint = Endpoint::new(Credentials::new(&identity)?);
        let log = QuorumDisk::open(disk.clone(), cluster, me)?;
        let own = [(me, address.clone())];
        let first = named_in(log.stored()).into_iter().chain(config.managers).chain(own);
        let contacts = Arc::new(Contacts::new(&endpoint, first.collect()));
        let member = Member::restore(me, log, unique_u64(), 0)?;
        let (maps_in, maps) = watch::channel(Arc::new(Published::default()));
        let (inbox_in, inbox) = sync_channel(MANAGER_INBOX_MAX);
        let stopping = Arc::new(AtomicBool::new(false));
        let out = Outlets::new(&endpoint, contacts.clone());
        let (standing_in, standing) = watch::channel(Standing::default());
        let driver = Driver {
            member,
            inbox,
            out,
            maps: maps_in,
            standing: standing_in,
            stopping: stopping.clone(),
            lock,
        };

        let desk = Desk { inbox: inbox_in, maps: maps.clone() };
        let mut services = Services::new().with::<ManagerService>(Roles::all(), desk);
        let mut signing = None;
        if let Some((with, enrolment)) = Signing::open(&config.dir, &identity, disk, &maps)? {
            signing = Some(with);
            services = services.with_enrolment(enrolment);
        }
        let listener = Listener::start(&endpoint, socket, services)?;
        let ended = Some(begin(driver)?);
        let client = Arc::new(ManagersClient::start(contacts));
        let (boot, addresses) = (BootId(unique_u64()), vec![address.clone()]);
        let run = Run { server: me, boot, addresses, has: Vec::new() };
        let presence = Presence::start(client.clone(), run);
        tracing::info!(server = %me, %address, "a manager runs");
        Ok(Self {
            me,
            address,
            client,
            maps,
            standing,
            signing,
            stopping,
            ended,
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

    /// Its place among the managers, as it changes.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Gives a server a place in the map, and a token with which it takes it. Only the founder can.
    ///
    /// # Errors
    /// [`NotIssued`], by what to do.
    pub async fn issue_token(
        &self,
        server: NewServer,
        expires: Option<SystemTime>,
    ) -> Result<(ServerId, JoinToken), NotIssued> {
        let signing = self.signing.as_ref().ok_or(NotIssued::NotFounder)?;
        let roles = roles_of(&server.roles);
        let mut hash = [0; 32];
        fill_secret(&mut hash);
        let [add_token, add_server] = admission_of(hash, server, expires);
        let Outcome::Token(place) = self.client.propose(add_token).await?? else {
            return Err(NotProposed::Unknown.into());
        };
        let Outcome::Server(server) = self.client.propose(add_server).await?? else {
            return Err(NotProposed::Unknown.into());
        };
        // Joiners are let in by the map as it is here.
        let mut maps = self.maps.clone();
        let named = maps.wait_for(|newest| newest.map.servers.contains_key(&server));
        let newest = match timeout(Duration::from_millis(PROPOSE_WAIT_MS), named).await {
            Ok(Ok(newest)) => newest.clone(),
            Ok(Err(_)) | Err(_) => return Err(NotProposed::Unknown.into()),
        };
        let token = signing.book.add(signing.authority, (server, roles), place, expires)?;
        let book = signing.book.clone();
        let saved = tokio::task::spawn_blocking(move || book.save(&newest.map));
        saved.await.map_err(|ended| ManagerError::System(ended.into()))??;
        Ok((server, token))
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

impl Signing {
    /// What the founder needs to let servers join; `None` without the authority's key.
    fn open(
        dir: &Path,
        identity: &Identity,
        disk: Arc<RealDisk>,
        maps: &watch::Receiver<Arc<Published>>,
    ) -> Result<Option<(Self, Enrolment)>, ManagerError> {
        let path = dir.join(AUTHORITY_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let authority = Authority::load(identity.subject().cluster, &path)?;
        let fingerprint = authority.fingerprint();
        let book = Arc::new(TokenBook::open(disk)?);
        let admitted = Admitted { book: book.clone(), maps: maps.clone() };
        let enrolment = Enrolment::new(authority, admitted);
        Ok(Some((Self { authority: fingerprint, book }, enrolment)))
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
mod tests;
