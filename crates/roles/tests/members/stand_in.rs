//! The managers of a test: the real policy over the real map, in one place and without a quorum; and one data
//! server that says yes to everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use larder_identity::{Authority, Role, Roles};
use larder_net::limits::PROTOCOL_MAX;
use larder_net::{Endpoint, Handler, Listener, Peer, PeerIdentity, Responder, Services};
use larder_protocol::manager::policy::{
    ManagerMessage, Policy, PolicyEffect, PolicyEvent, ServerMessage,
};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, GatewayRecord, MapVersion, NewServer, RegionRecord, ServerRole,
    Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, MachineId, RackId, Weight};
use larder_protocol::{DataAnswer, DataRequest};
use larder_roles::managers::{Managers, NotProposed, VersionWatch, Versions};
use larder_roles::wire::{
    CopyState, DataCall, DataMessage, DataReply, DataService, MetaMessage, MetaService,
};
use larder_types::{BootId, BucketName, RegionId, ServerId, SessionId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use super::support::{OTHER_SESSION, SESSION, endpoint, socket};

/// Servers of the test: three meta servers, then these.
pub const DATA: ServerId = ServerId(3);
pub const PROXY: ServerId = ServerId(4);
const MANAGER: ServerId = ServerId(9);
const DATA_BOOT: BootId = BootId(33);
const PROXY_BOOT: BootId = BootId(44);

/// Messages that wait at the stand-in; more are lost.
const MESSAGES_MAX: usize = 4096;

type SentMessage = (ServerId, ServerMessage);

/// See the module's head.
pub struct StandIn {
    map: RwLock<Arc<Topology>>,
    versions: Versions,
    leading: Mutex<Leading>,
    inbox: mpsc::Sender<SentMessage>,
    /// Leases do not arrive.
    pub keeps_leases: AtomicBool,
    /// The map that servers have meanwhile, if newer ones do not arrive.
    held: Mutex<Option<Arc<Topology>>>,
    /// The latest map of which a server was told that it did not have.
    pub note_newer_map: watch::Sender<MapVersion>,
}

struct Leading {
    policy: Policy,
    applied: u64,
    metas: BTreeMap<ServerId, Peer<MetaService>>,
    endpoint: Arc<Endpoint>,
    _data: Listener,
    begun: std::time::Instant,
}

/// The only bucket.
pub fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

impl StandIn {
    pub async fn open(authority: &Authority, pg_count: u32) -> Arc<Self> {
        let data = endpoint(authority, DATA, Role::Data);
        let (socket, callers) = (socket().await, Roles::of(&[Role::Meta]));
        let address = socket.local_addr().unwrap().to_string();
        let services = Services::new().with::<DataService>(callers, Agreeable);
        let leading = Leading {
            policy: Policy::default(),
            applied: 0,
            metas: BTreeMap::new(),
            endpoint: endpoint(authority, MANAGER, Role::Manager),
            _data: Listener::start(&data, socket, services).unwrap(),
            begun: std::time::Instant::now(),
        };
        let (inbox, said) = mpsc::channel(MESSAGES_MAX);
        let stand_in = Arc::new(Self {
            map: RwLock::default(),
            versions: Versions::new(MapVersion(0)),
            leading: Mutex::new(leading),
            inbox,
            keeps_leases: AtomicBool::new(false),
            held: Mutex::new(None),
            note_newer_map: watch::Sender::new(MapVersion(0)),
        });
        stand_in.found(pg_count);
        stand_in.step(PolicyEvent::Elected { shortened_since_ms: None });
        let start = (DATA_BOOT, vec![address], Vec::new());
        stand_in.send_message(DATA, ServerMessage::started(&stand_in.map(), DATA, start));
        tokio::spawn(run(stand_in.clone(), said));
        stand_in
    }

    fn found(&self, pg_count: u32) {
        let settings = Settings {
            pg_count,
            members: 3,
            min_members: 2,
            copies: 1,
            min_copies: 1,
            lv_blocks: 256,
        };
        self.apply(Command::Found(ClusterId(7), settings)).unwrap();
        self.apply(Command::AddToken([1; 32], u64::MAX)).unwrap();
        self.apply(Command::RaiseClusterVersion(PROTOCOL_MAX)).unwrap();
        for id in 0..5 {
            let role = match ServerId(id) {
                DATA => ServerRole::Data,
                PROXY => ServerRole::Proxy,
                _ => ServerRole::Meta,
            };
            self.add(id, role);
        }
        self.apply(Command::AddDisk(DATA, Weight(100), 16)).unwrap();
        self.apply(Command::CreateBucket(bucket(), None, 0)).unwrap();
        self.apply(Command::ServerStarted(PROXY, PROXY_BOOT, vec![], vec![])).unwrap();
        for session in [SESSION, OTHER_SESSION] {
            self.apply(Command::OpenSession(session, PROXY, PROXY_BOOT)).unwrap();
        }
    }

    fn add(&self, id: u32, role: ServerRole) {
        let new = NewServer {
            name: format!("s{id}"),
            roles: BTreeSet::from([role]),
            addresses: Vec::new(),
            domains: FailureDomains {
                region: RegionId(0),
                rack: RackId(0),
                machine: MachineId(id),
            },
            weight: Weight(100),
        };
        let token = (id > 0).then_some(([1; 32], 0));
        self.apply(Command::AddServer(new, token)).unwrap();
    }

    /// This region has the proxy as its gateway, once.
    pub fn claim(&self, region: RegionRecord) {
        let gateway = GatewayRecord { server: PROXY, boot: PROXY_BOOT };
        self.apply(Command::ClaimGateway(region, gateway)).unwrap();
    }

    /// Another proxy is the gateway from now on, as the sessions of the one before are over; that one has this session then.
    pub fn another_gateway(&self, region: RegionRecord, session: SessionId) {
        let gateway = GatewayRecord { server: ServerId(5), boot: BootId(77) };
        self.add(5, ServerRole::Proxy);
        let started = Command::ServerStarted(gateway.server, gateway.boot, vec![], vec![]);
        self.apply(started).unwrap();
        for open in [SESSION, OTHER_SESSION] {
            self.apply(Command::CloseSession(open)).unwrap();
        }
        self.apply(Command::ClaimGateway(region, gateway)).unwrap();
        self.apply(Command::OpenSession(session, PROXY, PROXY_BOOT)).unwrap();
    }

    pub fn map(&self) -> Arc<Topology> {
        self.map.read().clone()
    }

    /// From now on no newer map arrives at the servers.
    pub fn hold_map(&self) {
        *self.held.lock() = Some(self.map());
    }

    /// They have the newest again.
    pub fn show_map(&self) {
        *self.held.lock() = None;
        self.versions.show(self.map().version);
    }

    fn send_message(&self, server: ServerId, message: ServerMessage) {
        drop(self.inbox.try_send((server, message)));
    }

    /// Has a command take effect.
    pub fn apply(&self, command: Command) -> Applied {
        let mut leading = self.leading.lock();
        self.apply_in(&mut leading, command)
    }

    fn apply_in(&self, leading: &mut Leading, command: Command) -> Applied {
        let mut map = (*self.map()).clone();
        leading.applied += 1;
        let applied = map.apply(LogIndex(leading.applied), command);
        let version = map.version;
        *self.map.write() = Arc::new(map);
        if self.held.lock().is_none() {
            self.versions.show(version);
        }
        applied
    }

    /// The proxy begins a session, and has ended the one before it by number.
    pub fn begin_session(&self, session: SessionId) {
        self.apply(Command::OpenSession(session, PROXY, PROXY_BOOT)).unwrap();
        drop(self.apply(Command::CloseSession(SessionId(session.0 - 1))));
    }

    fn step(&self, event: PolicyEvent) {
        let mut leading = self.leading.lock();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now_ms = leading.begun.elapsed().as_millis() as u64;
            let mut effects = Vec::new();
            leading.policy.step(now_ms, event, &self.map(), &mut effects);
            for effect in effects {
                match effect {
                    PolicyEffect::Propose(ticket, command) => {
                        let applied = self.apply_in(&mut leading, command);
                        events.push(PolicyEvent::Decided(ticket, Some(applied)));
                    }
                    PolicyEffect::Confirm(ticket) => events.push(PolicyEvent::Confirmed(ticket)),
                    PolicyEffect::Tell(server, message) => {
                        self.notify(&mut leading, server, message);
                    }
                }
            }
        }
    }

    fn notify(&self, leading: &mut Leading, server: ServerId, message: ManagerMessage) {
        match message {
            ManagerMessage::CreatePv { lv, replica, disk, pv, .. } => {
                self.send_message(server, ServerMessage::Created(lv, replica, disk, pv));
            }
            ManagerMessage::Leases { .. } if self.keeps_leases.load(Ordering::Relaxed) => {}
            message => {
                if let Some(peer) = leading.metas.get(&server) {
                    drop(peer.send(&MetaMessage::Manager(message), Bytes::new()));
                }
            }
        }
    }
}

async fn run(stand_in: Arc<StandIn>, mut said: mpsc::Receiver<SentMessage>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            message = said.recv() => {
                let Some((server, message)) = message else { return };
                if let ServerMessage::StartedAfter { addresses, .. } = &message
                    && server != DATA
                {
                    let mut leading = stand_in.leading.lock();
                    let peer = Peer::new(&leading.endpoint, server, addresses[0].clone());
                    leading.metas.insert(server, peer);
                }
                stand_in.step(PolicyEvent::From(server, message));
            }
            _ = ticks.tick() => {
                stand_in.step(PolicyEvent::From(DATA, ServerMessage::Heartbeat(DATA_BOOT)));
                stand_in.step(PolicyEvent::From(PROXY, ServerMessage::Heartbeat(PROXY_BOOT)));
                stand_in.step(PolicyEvent::Tick);
            }
        }
    }
}

/// One server's side of the stand-in.
pub struct StandInClient {
    pub me: ServerId,
    pub stand_in: Arc<StandIn>,
}

impl Managers for StandInClient {
    fn map(&self) -> Arc<Topology> {
        let held = self.stand_in.held.lock().clone();
        held.unwrap_or_else(|| self.stand_in.map())
    }

    fn versions(&self) -> VersionWatch {
        self.stand_in.versions.subscribe()
    }

    fn note_newer_map(&self, version: MapVersion) {
        self.stand_in.note_newer_map.send_replace(version);
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        futures::future::ready(Ok(self.stand_in.apply(command))).boxed()
    }

    fn send_message(&self, message: ServerMessage) {
        self.stand_in.send_message(self.me, message);
    }
}

/// A data server whose copies always verify when a primary asks, and never when a scrub does.
struct Agreeable;

impl Handler<DataService> for Agreeable {
    fn request(
        &self,
        _: &PeerIdentity,
        request: DataCall,
        _: Bytes,
        responder: Responder<DataService>,
    ) {
        let request = match request {
            DataCall::Pg { request, .. } => request,
            DataCall::Verify(_) => {
                let reply = DataReply::Verified(CopyState::Damaged);
                return responder.answer(&reply, Bytes::new());
            }
            _ => return,
        };
        let answer = match request {
            DataRequest::Open { floor, .. } | DataRequest::RaiseFloor { floor } => {
                DataAnswer::Floor(floor)
            }
            DataRequest::Void { grant } => DataAnswer::Voided(grant),
            DataRequest::Verify { chunk } => DataAnswer::Verified(chunk.grant),
        };
        responder.answer(&DataReply::Pg(answer), Bytes::new());
    }

    fn message(&self, _: &PeerIdentity, _: DataMessage, _: Bytes) {}
}
