//! A running manager, on any disk and any kind of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_env::rng::unique_u64;
use larder_env::{Disk, FileLock, threads};
use larder_identity::{AuthorityCell, Enrolment, Roles};
use larder_net::{Endpoint, ListenSocket, Listener, Services};
use larder_types::{BootId, ClusterId, ServerId};
use tokio::sync::{oneshot, watch};

use super::counts::{ManagerCounts, QuorumStatus};
use super::disk::QuorumDisk;
use super::driver::{Driver, LedAt, PeerConnections};
use super::error::ManagerError;
use super::handler::ManagerHandler;
use super::maps::{Maps, maps};
use super::member::Member;
use super::membership::named_in;
use super::tokens::{Admitted, Issuer, TokenBook};
use crate::inbox::inbox;
use crate::limits::MANAGER_INBOX_MAX;
use crate::managers::{Colocated, Contacts, ManagersClient, Presence, Run};
use crate::observed::Observed;
use crate::wire::ManagerService;

/// The ports and settings that a manager runs on.
pub(crate) struct ManagerPorts {
    pub(crate) cluster: ClusterId,
    pub(crate) me: ServerId,
    pub(crate) disk: Arc<dyn Disk>,
    /// The directory is this manager's until its thread ends.
    pub(crate) lock: Option<FileLock>,
    pub(crate) endpoint: Arc<Endpoint>,
    /// The address at which others reach it, `host:port`.
    pub(crate) address: String,
    /// Addresses of other managers, to be used until there is a map.
    pub(crate) managers: Vec<(ServerId, String)>,
    pub(crate) authority: AuthorityCell,
    /// The time for which certificates that it signs are valid.
    pub(crate) certificate_life: Duration,
    /// The servers of its process, if there are others.
    pub(crate) colocated: Option<Arc<Colocated>>,
}

/// A running manager. Dropped, it stops soon; [`Running::ended`] waits until it has.
pub(crate) struct Running {
    pub(crate) client: Arc<ManagersClient>,
    pub(crate) quorum_status: watch::Receiver<QuorumStatus>,
    pub(crate) maps: Maps,
    counts: Arc<ManagerCounts>,
    pub(super) observed: Arc<Observed>,
    pub(super) issuer: Arc<Issuer>,
    pub(super) endpoint: Arc<Endpoint>,
    stopping: Arc<AtomicBool>,
    ended: Option<oneshot::Receiver<Result<(), ManagerError>>>,
    _listener: Listener,
    _presence: Presence,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    /// Reads the log, which blocks, and serves connections to `listen_socket`.
    pub(crate) fn start(
        ports: ManagerPorts,
        listen_socket: ListenSocket,
    ) -> Result<Self, ManagerError> {
        let ManagerPorts { cluster, me, disk, lock, endpoint, address, authority, .. } = ports;
        let log = QuorumDisk::open(disk.clone(), cluster, me)?;
        let own = [(me, address.clone())];
        let first = named_in(log.stored()).into_iter().chain(ports.managers).chain(own);
        let contacts = Arc::new(Contacts::new(&endpoint, first.collect()));
        let member = Member::restore(me, log, unique_u64(), 0)?;
        let (publisher, maps) = maps();
        let (inbox, taker) = inbox(MANAGER_INBOX_MAX);
        let (seat_in, quorum_status) = watch::channel(QuorumStatus::default());
        let led = Arc::new(LedAt::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(ManagerCounts::default());
        let driver = Driver {
            member,
            inbox: taker,
            out: PeerConnections::new(&endpoint, contacts.clone()),
            maps: publisher,
            quorum_status: seat_in,
            led: led.clone(),
            counts: counts.clone(),
            stopping: stopping.clone(),
            lock,
        };

        let client = Arc::new(ManagersClient::start(contacts).with_colocated(ports.colocated));
        let book = Arc::new(TokenBook::open(disk)?);
        let issuer = Arc::new(Issuer {
            authority: authority.clone(),
            book: book.clone(),
            managers: client.clone(),
            maps: maps.clone(),
        });
        let admitted = Admitted { book, maps: maps.clone() };
        let enrolment = Enrolment::new(authority, admitted, ports.certificate_life);
        let (maps_of_desk, issuer_of_desk) = (maps.clone(), issuer.clone());
        let observed = Arc::new(Observed::default());
        let manager_handler = ManagerHandler {
            inbox,
            maps: maps_of_desk,
            led,
            issuer: issuer_of_desk,
            counts: counts.clone(),
            observed: observed.clone(),
        };
        let services = Services::new().with_enrolment(enrolment);
        // A removed server learns of that from the map; the handler takes nothing else from it.
        let services = services.with_removed::<ManagerService>(Roles::all(), manager_handler);
        let listener = Listener::start(&endpoint, listen_socket, services)?;
        let ended = Some(begin(driver)?);
        let (boot, addresses) = (BootId(unique_u64()), vec![address.clone()]);
        let run = Run { server: me, boot, addresses, has: Vec::new() };
        let presence = Presence::of_manager(client.clone(), run);
        tracing::info!(server = %me, %address, "the manager has started");
        Ok(Self {
            client,
            quorum_status,
            maps,
            counts,
            observed,
            issuer,
            endpoint,
            stopping,
            ended,
            _listener: listener,
            _presence: presence,
        })
    }

    /// Its counts and state.
    pub(crate) fn counts(&self) -> &Arc<ManagerCounts> {
        &self.counts
    }

    /// Tells its thread to stop.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Waits until it has stopped, and returns the reason, once; drop it then. It is cancel safe: a caller may wait again.
    pub(crate) async fn ended(&mut self) -> Result<(), ManagerError> {
        let Some(ended) = &mut self.ended else { return Ok(()) };
        let end = ended.await;
        self.ended = None;
        match end {
            Ok(why) => why,
            Err(_panicked) => Err(ManagerError::Halted("its thread panicked".to_owned())),
        }
    }
}

/// Starts the thread. Returns the receiver of its result.
fn begin(driver: Driver) -> Result<oneshot::Receiver<Result<(), ManagerError>>, ManagerError> {
    let (ended_in, ended) = oneshot::channel();
    let run = move || {
        let end = driver.run();
        if let Err(error) = &end {
            tracing::error!(%error, "this manager has stopped");
        }
        // It fails if no caller waits: the error was logged.
        drop(ended_in.send(end));
    };
    drop(threads::spawn("manager", run)?);
    Ok(ended)
}
