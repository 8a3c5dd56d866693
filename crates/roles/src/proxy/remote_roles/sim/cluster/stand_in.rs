//! The managers: the real policy over the real map, in one place and without a quorum. What servers say comes late or not at
//! all, what they are told goes over the network, and each has the map that came last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use larder_identity::Role;
use larder_net::Endpoint;
use larder_net::limits::PROTOCOL_MAX;
use larder_net::simulated::Network;
use larder_protocol::manager::policy::{
    ManagerMessage, Policy, PolicyEffect, PolicyEvent, ServerMessage,
};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, MapVersion, NewServer, ServerRole, Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, MachineId, RackId, Weight};
use larder_types::{BootId, RegionId, ServerId};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::super::managers::{BOOT, proposed};
use super::super::{DATA, METAS, PGS, SimRng, address, subject};
use crate::limits::MANAGER_TICK_MS;
use crate::managers::{Managers, NotProposed, VersionWatch, Versions};
use crate::peers::Peers;
use crate::wire::{DataMessage, DataService, MetaMessage, MetaService};

pub(super) const MANAGER: ServerId = ServerId(9);
pub(super) const CLUSTER: u64 = 9;
/// Blocks of an LV: four MiB.
pub(super) const LV_BLOCKS: u32 = 1024;
/// PVs of each disk.
pub(super) const PV_COUNT: u32 = 64;
const HASH: [u8; 32] = [7; 32];

/// The commands that found a cluster, in order: its settings, then its servers, which get their ids by this order.
pub(super) fn founding(proxies: Range<u32>, managers: Range<u32>) -> Vec<Command> {
    let settings = Settings {
        pg_count: PGS,
        members: 3,
        min_members: 2,
        copies: 3,
        min_copies: 1,
        lv_blocks: LV_BLOCKS,
    };
    let all = [
        (METAS, ServerRole::Meta),
        (DATA, ServerRole::Data),
        (proxies, ServerRole::Proxy),
        (managers, ServerRole::Manager),
    ];
    let servers = all.into_iter().flat_map(|(ids, role)| ids.map(move |id| added(id, role)));
    let disks = DATA.map(|id| Command::AddDisk(ServerId(id), Weight(100), PV_COUNT));
    let first = [Command::Found(ClusterId(CLUSTER), settings), Command::AddToken(HASH, u64::MAX)];
    first.into_iter().chain(servers).chain(disks).collect()
}

fn added(id: u32, role: ServerRole) -> Command {
    let new = NewServer {
        name: format!("s{id}"),
        roles: BTreeSet::from([role]),
        addresses: vec![address(id).to_string()],
        domains: FailureDomains { region: RegionId(0), rack: RackId(0), machine: MachineId(id) },
        weight: Weight(100),
    };
    Command::AddServer(new, (id > 0).then_some((HASH, 1)))
}

/// See the module's head.
pub(super) struct StandIn {
    sim_rng: SimRng,
    network: Arc<Network>,
    map: Mutex<Arc<Topology>>,
    versions: Versions,
    policy: Mutex<Policy>,
    metas: Peers<MetaService>,
    datas: Peers<DataService>,
    proxies: Range<u32>,
    /// The stand-in says for them that they are there.
    beats_for_proxies: bool,
    began: Instant,
}

impl StandIn {
    pub(super) fn open(
        sim_rng: SimRng,
        network: Arc<Network>,
        proxies: Range<u32>,
        beats_for_proxies: bool,
    ) -> Arc<Self> {
        let endpoint = Endpoint::simulated(network.host(subject(MANAGER.0, Role::Manager)));
        let stand_in = Arc::new(Self {
            sim_rng,
            network,
            map: Mutex::default(),
            versions: Versions::new(MapVersion(0)),
            policy: Mutex::default(),
            metas: Peers::new(&endpoint),
            datas: Peers::new(&endpoint),
            proxies,
            beats_for_proxies,
            began: Instant::now(),
        });
        stand_in.found();
        stand_in.step(PolicyEvent::Elected { shortened_since_ms: Some(0) });
        tokio::spawn(stand_in.clone().tick());
        stand_in
    }

    fn found(&self) {
        for command in founding(self.proxies.clone(), 0..0) {
            self.agree(command);
        }
        for id in self.proxied_until() {
            let addresses = vec![address(id).to_string()];
            self.agree(Command::ServerStarted(ServerId(id), BOOT, addresses, Vec::new()));
        }
        self.agree(Command::RaiseClusterVersion(PROTOCOL_MAX));
    }

    fn proxied_until(&self) -> Range<u32> {
        if self.beats_for_proxies { self.proxies.clone() } else { 0..0 }
    }

    fn agree(&self, command: Command) {
        let text = format!("{command:?}");
        self.apply(command).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
    }

    /// Has a command take effect; everybody hears of it later.
    pub(super) fn apply(&self, command: Command) -> Applied {
        let mut held = self.map.lock();
        let mut map = (**held).clone();
        let applied = map.apply(LogIndex(map.applied.0 + 1), command);
        let version = map.version;
        *held = Arc::new(map);
        drop(held);
        self.versions.show(version);
        applied
    }

    pub(super) fn map(&self) -> Arc<Topology> {
        self.map.lock().clone()
    }

    async fn tick(self: Arc<Self>) {
        loop {
            sleep(Duration::from_millis(MANAGER_TICK_MS)).await;
            for id in self.proxied_until().map(ServerId) {
                self.step(PolicyEvent::From(id, ServerMessage::Heartbeat(BOOT)));
            }
            self.step(PolicyEvent::Tick);
        }
    }

    fn step(&self, event: PolicyEvent) {
        let mut policy = self.policy.lock();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now_ms = self.began.elapsed().as_millis() as u64;
            let mut effects = Vec::new();
            policy.step(now_ms, event, &self.map(), &mut effects);
            for effect in effects {
                match effect {
                    PolicyEffect::Propose(ticket, command) => {
                        let applied = self.apply(command);
                        events.push_back(PolicyEvent::Decided(ticket, Some(applied)));
                    }
                    PolicyEffect::Confirm(ticket) => {
                        events.push_back(PolicyEvent::Confirmed(ticket));
                    }
                    PolicyEffect::Tell(server, message) => self.notify(server, message),
                }
            }
        }
    }

    fn notify(&self, server: ServerId, message: ManagerMessage) {
        let map = self.map();
        if METAS.contains(&server.0) {
            if let Some(peer) = self.metas.of(&map, server) {
                drop(peer.send(&MetaMessage::Manager(message), Bytes::new()));
            }
        } else if DATA.contains(&server.0)
            && let Some(peer) = self.datas.of(&map, server)
        {
            drop(peer.send(&DataMessage::Manager(message), Bytes::new()));
        }
    }

    /// A server says something. It comes late, or not at all.
    fn receive(self: &Arc<Self>, server: ServerId, message: ServerMessage) {
        if self.sim_rng.one_in(24) || self.network.is_cut(server, MANAGER) {
            return;
        }
        let stand_in = self.clone();
        let late = self.sim_rng.ms(if self.sim_rng.one_in(16) { 400 } else { 8 });
        tokio::spawn(async move {
            sleep(late).await;
            stand_in.step(PolicyEvent::From(server, message));
        });
    }
}

/// The managers, as one server sees them.
pub(super) struct StandInClient {
    me: ServerId,
    stand_in: Arc<StandIn>,
    shown: Mutex<Arc<Topology>>,
    versions: Versions,
}

impl StandInClient {
    pub(super) fn new(me: ServerId, stand_in: &Arc<StandIn>) -> Arc<Self> {
        let map = stand_in.map();
        let versions = Versions::new(map.version);
        let this =
            Arc::new(Self { me, stand_in: stand_in.clone(), shown: Mutex::new(map), versions });
        tokio::spawn(follow(Arc::downgrade(&this), stand_in.clone()));
        this
    }
}

impl StandIn {
    /// The version that is agreed on when a question arrives, to a server that is not cut off.
    async fn committed(&self, me: ServerId) -> Result<MapVersion, NotProposed> {
        sleep(self.sim_rng.ms(10)).await;
        if self.network.is_cut(MANAGER, me) {
            return Err(NotProposed::NoLeader);
        }
        let version = self.map().version;
        sleep(self.sim_rng.ms(10)).await;
        Ok(version)
    }
}

/// Has a server hear of maps, mostly soon, as long as it is there.
async fn follow(of: std::sync::Weak<StandInClient>, stand_in: Arc<StandIn>) {
    let (mut versions, sim_rng) = (stand_in.versions.subscribe(), stand_in.sim_rng.clone());
    loop {
        sleep(sim_rng.ms(if sim_rng.one_in(16) { 1500 } else { 20 })).await;
        let Some(at) = of.upgrade() else { return };
        if !stand_in.network.is_cut(MANAGER, at.me) {
            let map = stand_in.map();
            let version = map.version;
            if version > at.shown.lock().version {
                *at.shown.lock() = map;
                at.versions.show(version);
            }
            drop(at);
            if versions.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Managers for StandInClient {
    fn map(&self) -> Arc<Topology> {
        self.shown.lock().clone()
    }

    fn versions(&self) -> VersionWatch {
        self.versions.subscribe()
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn committed(&self, _: Instant) -> BoxFuture<'_, Result<MapVersion, NotProposed>> {
        Box::pin(self.stand_in.committed(self.me))
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        Box::pin(proposed(&self.stand_in.sim_rng, || self.stand_in.apply(command)))
    }

    fn send_message(&self, message: ServerMessage) {
        self.stand_in.receive(self.me, message);
    }
}

/// Runs of servers are counted.
#[derive(Default)]
pub(super) struct Boots(Mutex<BTreeMap<ServerId, u64>>);

impl Boots {
    pub(super) fn next(&self, server: ServerId) -> BootId {
        let mut runs = self.0.lock();
        let run = runs.entry(server).or_default();
        *run += 1;
        BootId(u64::from(server.0) << 32 | *run)
    }
}
