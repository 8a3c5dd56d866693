//! A manager with more to do than its inbox takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_env::RealDisk;
use larder_identity::{Authority, AuthorityCell, Credentials, Role, Roles};
use larder_net::limits::PROTOCOL_MAX;
use larder_net::{Endpoint, Listener, Peer, Services};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{self, Command, Outcome};
use larder_types::{BootId, ClusterId, ServerId};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::support::SETTINGS;
use crate::directory::LOCK_FILE;
use crate::inbox::inbox;
use crate::limits::MANAGER_INBOX_MAX;
use crate::manager::quorum::counts::QuorumStatus;
use crate::manager::quorum::disk::QuorumDisk;
use crate::manager::quorum::driver::{Driver, Input, PeerConnections, Route};
use crate::manager::quorum::handler::ManagerHandler;
use crate::manager::quorum::maps::maps;
use crate::manager::quorum::member::Member;
use crate::manager::quorum::tokens::{Issuer, TokenBook};
use crate::managers::{Contacts, ManagersClient};
use crate::wire::{ManagerCall, ManagerReply, ManagerService};

const CLUSTER: ClusterId = ClusterId(1);
const ME: ServerId = ServerId(0);

#[tokio::test(flavor = "multi_thread")]
async fn a_full_inbox_refuses_and_serves_again_once_it_is_drained() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let authority = Authority::create(CLUSTER).unwrap();
    let endpoint = |id| {
        let identity = authority.identity(ServerId(id), Roles::of(&[Role::Manager])).unwrap();
        Endpoint::new(Credentials::new(&identity).unwrap())
    };
    let own = endpoint(0);
    let contacts = Arc::new(Contacts::new(&own, Vec::new()));
    let (publisher, maps) = maps();
    let issuer = Issuer {
        authority: AuthorityCell::default(),
        book: Arc::new(TokenBook::begin(disk.clone())),
        managers: Arc::new(ManagersClient::start(contacts.clone())),
        maps: maps.clone(),
    };
    // Nobody takes anything out of it yet.
    let (inbox, taker) = inbox(MANAGER_INBOX_MAX);
    let beat = || {
        Input::Server(ServerId(7), ServerMessage::Heartbeat(BootId(1)), Route::Direct(PROTOCOL_MAX))
    };
    let taken = (0..).take_while(|_| inbox.put(beat()).is_ok()).count();
    assert_eq!(taken, MANAGER_INBOX_MAX);
    let (led, counts) = (Arc::default(), Arc::default());
    let observed = Arc::default();
    let manager_handler =
        ManagerHandler { inbox, maps, led, issuer: Arc::new(issuer), counts, observed };
    let services = Services::new().with::<ManagerService>(Roles::all(), manager_handler);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::start(&own, socket, services).unwrap();
    let address = listener.address().to_string();
    let peer: Peer<ManagerService> = Peer::new(&endpoint(9), ME, address);
    let founding = ManagerCall::Propose(Command::Found(state::ClusterId(CLUSTER.0), SETTINGS));
    let soon = || Instant::now() + Duration::from_secs(20);
    let propose = async || peer.call(&founding, Bytes::new(), soon()).await.unwrap().0;
    assert_eq!(propose().await, ManagerReply::Busy);

    let log = QuorumDisk::make(disk.clone(), CLUSTER, ME).unwrap();
    let stopping = Arc::new(AtomicBool::new(false));
    let (quorum_status, mut statuses) = watch::channel(QuorumStatus::default());
    let driver = Driver {
        member: Member::found(ME, log, 1, 0).unwrap(),
        inbox: taker,
        led: Arc::default(),
        out: PeerConnections::new(&own, contacts),
        maps: publisher,
        quorum_status,
        counts: Arc::default(),
        stopping: stopping.clone(),
        lock: Some(disk.lock(LOCK_FILE).unwrap()),
    };
    let driving = std::thread::spawn(move || driver.run());
    // By then it has taken what was in its inbox.
    let leads = statuses.wait_for(|quorum_status| quorum_status.leads);
    timeout(Duration::from_secs(60), leads).await.expect("it leads within a minute").unwrap();
    assert_eq!(propose().await, ManagerReply::Applied(Ok(Outcome::Done)));
    stopping.store(true, Ordering::Release);
    driving.join().unwrap().unwrap();
}
