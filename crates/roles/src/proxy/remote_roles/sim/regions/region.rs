//! A region: a cluster, whose proxies begin and end. One of them is the gateway.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_identity::{Role, Roles};
use larder_link::{HomeOrder, RegionList, RegionStatus};
use larder_net::simulated::Network;
use larder_net::{Endpoint, Handler, Listener, PeerIdentity, Responder, Services};
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::{Command, GatewayRecord, RegionRecord};
use larder_protocol::scheduler::Policy;
use larder_types::codec::decode;
use larder_types::{BootId, RegionId, ServerId, Sharing};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::super::cluster::{ManagerKind, World};
use super::super::{ClusterConfig, PROXIES, SimRng, address, subject};
use super::wan;
use crate::blocking;
use crate::managers::{Managers, Presence, Run};
use crate::notifier::{Notifier, NotifierWatch};
use crate::proxy::ClusterProxy;
use crate::proxy::role_access::{RoleAccess, Scan, ScanStep};
use crate::regions::Regions;
use crate::wire::{ProxyCall, ProxyMessage, ProxyReply, ProxyService};

/// The time that a run may take to let go of everything.
const END_MAX: Duration = Duration::from_secs(90);
/// Time from one claim at the managers to the next.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Proxies of each region.
pub(super) const PROXIES_OF_EACH: usize = 2;

fn proxies() -> Range<u32> {
    PROXIES.start..PROXIES.start + PROXIES_OF_EACH as u32
}

/// The answers of a proxy to managers and to other proxies.
struct ProxyFrontend {
    presence: Presence,
    proxy: Weak<ClusterProxy>,
}

impl Handler<ProxyService> for ProxyFrontend {
    fn request(
        &self,
        _: &PeerIdentity,
        call: ProxyCall,
        payload: Bytes,
        responder: Responder<ProxyService>,
    ) {
        let Some(proxy) = self.proxy.upgrade() else {
            return responder.answer(&ProxyReply::NotGateway, Bytes::new());
        };
        tokio::spawn(async move { proxy.answer_proxy(call, payload, responder).await });
    }

    fn message(&self, _: &PeerIdentity, message: ProxyMessage, _: Bytes) {
        let ProxyMessage::Manager(message) = message;
        if message == ManagerMessage::WhoAreYou {
            self.presence.who_are_you();
        }
    }
}

/// A proxy that runs.
struct Running {
    proxy: Arc<ClusterProxy>,
    listener: Listener,
    regions: Option<Regions>,
}

/// A place where a proxy runs, or not.
#[derive(Default)]
struct ProxySlot {
    running: Mutex<Option<Running>>,
    ended: Notifier,
    boots: AtomicU64,
}

/// The events that befell gateways, and what they did.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Coverage {
    /// Runs of proxies that were ended.
    pub(super) restarts: u64,
    /// Times that another proxy became the gateway.
    pub(super) moved: u64,
    /// Changes taken from other regions.
    pub(super) taken: u64,
    /// Those that could not be taken when they came.
    pub(super) failed: u64,
    /// Tombstones freed.
    pub(super) freed: u64,
    /// Reads of keys that were not here, and came from another region.
    pub(super) filled: u64,
    /// Comparisons of all keys.
    pub(super) compared: u64,
    /// Versions of which only what was appended was fetched.
    pub(super) tails: u64,
}

impl Coverage {
    /// Counts another in.
    pub(super) fn add(&mut self, other: &Self) {
        self.restarts += other.restarts;
        self.moved += other.moved;
        self.taken += other.taken;
        self.failed += other.failed;
        self.freed += other.freed;
        self.filled += other.filled;
        self.compared += other.compared;
        self.tails += other.tails;
    }
}

/// See the module's head.
pub(super) struct Region {
    pub(super) number: RegionId,
    pub(super) world: Arc<World>,
    pub(super) sim_rng: SimRng,
    network: Arc<Network>,
    /// Of the gateway: it has the list of regions.
    dir: TempDir,
    slots: Vec<ProxySlot>,
    /// The number of the proxy that is the gateway.
    gateway: AtomicUsize,
    coverage: Mutex<Coverage>,
}

impl Region {
    /// Begins one of so many.
    pub(super) async fn begin(
        sim_rng: SimRng,
        by: ManagerKind,
        network: &Arc<Network>,
        (number, count): (RegionId, u16),
    ) -> Arc<Self> {
        let dir = tempfile::tempdir().expect("a directory is made");
        wan::become_one_of(dir.path(), number, count).expect("the store becomes a region");
        let region = Arc::new(Self {
            number,
            world: World::for_proxies(sim_rng.clone(), by, proxies()).await,
            sim_rng,
            network: network.clone(),
            dir,
            gateway: AtomicUsize::new(0),
            slots: (0..PROXIES_OF_EACH).map(|_| ProxySlot::default()).collect(),
            coverage: Mutex::default(),
        });
        for at in 0..PROXIES_OF_EACH {
            region.begin_proxy(at).await;
        }
        region
    }

    /// A proxy that runs, and what tells when it ends.
    pub(super) fn proxy(&self, at: usize) -> Option<(Arc<ClusterProxy>, NotifierWatch)> {
        let slot = &self.slots[at];
        // Before the look: an end that comes behind it is heard.
        let ends = slot.ended.subscribe();
        let running = slot.running.lock();
        running.as_ref().map(|it| (it.proxy.clone(), ends))
    }

    /// The number of the proxy that is the gateway.
    pub(super) fn gateway(&self) -> usize {
        self.gateway.load(Ordering::Relaxed)
    }

    async fn begin_proxy(&self, at: usize) {
        let slot = &self.slots[at];
        let id = ServerId(PROXIES.start + at as u32);
        let boot = BootId(1 + slot.boots.fetch_add(1, Ordering::Relaxed));
        let host = self.world.network().host(subject(id.0, Role::Proxy));
        let (arrivals, endpoint) = (host.listen(address(id.0)), Endpoint::simulated(host));
        let managers = self.world.managers(id, &endpoint).await;
        let addresses = vec![address(id.0).to_string()];
        let run = Run { server: id, boot, addresses, has: Vec::new() };
        let presence = Presence::start(managers.clone(), run);
        let proxy = ClusterProxy::begin(ClusterConfig {
            endpoint: endpoint.clone(),
            managers: managers.clone(),
            me: id,
            boot,
            read_policy: Policy::ALL[self.sim_rng.below(Policy::ALL.len() as u64) as usize],
        });
        let proxy = Arc::new(proxy.await);
        let frontend = ProxyFrontend { presence, proxy: Arc::downgrade(&proxy) };
        let callers = Roles::of(&[Role::Manager, Role::Proxy]);
        let services = Services::new().with::<ProxyService>(callers, frontend);
        let listener = Listener::start(&endpoint, arrivals, services).expect("it listens");
        let regions = match at == self.gateway() {
            true => Some(self.begin_gateway(&proxy, &managers).await),
            false => None,
        };
        let before = slot.running.lock().replace(Running { proxy, listener, regions });
        assert!(before.is_none(), "a proxy runs once");
    }

    /// Does what the process of a gateway does.
    async fn begin_gateway(
        &self,
        proxy: &Arc<ClusterProxy>,
        managers: &Arc<dyn Managers>,
    ) -> Regions {
        self.claim(managers, proxy.access.as_gateway()).await;
        let opened = wan::open(&self.network, self.number, self.dir.path());
        let (site, listen_socket) = opened.expect("its files are whole");
        let map = managers.map();
        if !map.regions.is_empty() {
            let known: RegionList = decode("list of regions", &map.regions).expect("it is one");
            site.learn(&known).expect("it contradicts nothing");
        }
        let dir = self.dir.path().to_owned();
        Regions::start(site, proxy, listen_socket, dir).expect("a thread is had")
    }

    async fn claim(&self, managers: &Arc<dyn Managers>, own: GatewayRecord) {
        let fingerprint = wan::own(self.number).fingerprint.0;
        let region = RegionRecord { number: self.number, fingerprint };
        let mut versions = managers.versions();
        while managers.map().gateway != Some(own) {
            // The map shows what came of it.
            drop(managers.propose(Command::ClaimGateway(region, own)).await);
            let _news = timeout(CLAIM_INTERVAL, versions.changed()).await;
        }
    }

    /// Ends a proxy's run, if it runs; it begins another after a while. One that is killed is cut off first.
    pub(super) async fn restart_proxy(&self, at: usize, is_killed: bool, away: Duration) {
        let Some(running) = self.slots[at].running.lock().take() else { return };
        self.coverage.lock().restarts += 1;
        let id = ServerId(PROXIES.start + at as u32);
        if is_killed {
            self.world.isolate(id, true);
        }
        self.end_proxy(at, running).await;
        self.world.isolate(id, true);
        if at == self.gateway() && self.sim_rng.one_in(3) {
            self.move_gateway((at + 1) % PROXIES_OF_EACH).await;
        }
        sleep(away).await;
        self.world.isolate(id, false);
        self.begin_proxy(at).await;
    }

    /// Has another proxy begin anew as the gateway, with the directory of the one that has ended.
    async fn move_gateway(&self, to: usize) {
        let Some(running) = self.slots[to].running.lock().take() else { return };
        self.coverage.lock().moved += 1;
        self.end_proxy(to, running).await;
        self.gateway.store(to, Ordering::Relaxed);
        self.begin_proxy(to).await;
    }

    async fn end_proxy(&self, at: usize, running: Running) {
        let Running { proxy, listener, regions } = running;
        self.slots[at].ended.notify();
        if at == self.gateway() {
            self.reset_links();
        }
        if let Some(regions) = regions {
            self.note(&regions);
            let stopping = blocking::run(move || regions.stop());
            if timeout(END_MAX, stopping).await.is_err() {
                self.world.violated("a gateway does not stop".to_owned());
            }
        }
        drop(listener);
        let left = Arc::downgrade(&proxy);
        drop(proxy);
        let deadline = Instant::now() + END_MAX;
        while left.strong_count() > 0 {
            if Instant::now() > deadline {
                let what = format!("proxy {at} of {} does not let go of everything", self.number);
                return self.world.violated(what);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn reset_links(&self) {
        let own = wan::place(self.number);
        for other in (1..=super::REGIONS_MAX).map(RegionId).filter(|it| *it != self.number) {
            self.network.reset(own, wan::place(other));
        }
    }

    /// The directory of its gateway.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The things left that must not be when nothing fails any more.
    pub(super) async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let Some((proxy, _)) = self.proxy(self.gateway()) else {
            left.push("the gateway does not run".to_owned());
            return left;
        };
        if let Some(status) = self.status() {
            left.extend(status.peers.iter().filter_map(not_level));
        }
        let sharing = proxy.access.buckets().into_iter().filter(|it| it.sharing != Sharing::All);
        left.extend(sharing.map(|it| format!("bucket {} is {:?}", it.name, it.sharing)));
        let orders = larder_link::asked::<HomeOrder>(self.dir()).expect("they can be read");
        left.extend(orders.iter().map(|order| format!("{order:?}")));
        match tombstones(&proxy).await {
            Ok(0) => {}
            Ok(count) => left.push(format!("{count} tombstones")),
            Err(error) => left.push(format!("tombstones cannot be read: {error}")),
        }
        left.iter().map(|what| format!("region {}: {what}", self.number)).collect()
    }

    /// The status that operators are shown.
    pub(super) fn status(&self) -> Option<RegionStatus> {
        let running = self.slots[self.gateway()].running.lock();
        running.as_ref()?.regions.as_ref().map(Regions::status)
    }

    /// The counts of what its gateways did.
    pub(super) fn coverage(&self) -> Coverage {
        *self.coverage.lock()
    }

    fn note(&self, regions: &Regions) {
        let counters = regions.counters();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.coverage.lock().add(&Coverage {
            restarts: 0,
            moved: 0,
            taken: count(&counters.taken),
            failed: count(&counters.failed),
            freed: count(&counters.freed),
            filled: count(&counters.misses_filled),
            compared: count(&counters.comparisons),
            tails: count(&counters.tails),
        });
    }

    /// Ends everything.
    pub(super) async fn close(&self) {
        for (at, slot) in self.slots.iter().enumerate() {
            let running = slot.running.lock().take();
            if let Some(running) = running {
                self.end_proxy(at, running).await;
            }
        }
        self.world.end_all().await;
    }
}

/// The part of another region's line of the status that is not level.
fn not_level(peer: &larder_link::PeerStatus) -> Option<String> {
    let is_level = peer.unreachable.is_none()
        && !peer.comparing
        && peer.operations_behind == 0
        && !peer.stuck
        && peer.alarm.is_none()
        && peer.lacks_groups == 0;
    (!is_level).then(|| format!("not level: {peer:?}"))
}

/// Tombstones that the store has.
async fn tombstones(proxy: &ClusterProxy) -> Result<usize, larder_objects::ObjectError> {
    let (from, to) = (b"T".to_vec(), Some(b"U".as_slice()));
    let mut count = 0;
    let scan = Scan { pg: None, settle: true, from, to, wanted: 100 };
    let counts = |_: &[u8], _: &[u8]| {
        count += 1;
        ScanStep::Next
    };
    proxy.access.scan(scan, counts).await?;
    Ok(count)
}
