//! The gateway of a cluster among regions: the proxy with a directory `region`. It alone speaks with other regions.
//!
//! # Invariants
//!
//! 1. The managers know the cluster's region before its first gateway serves anything. The number stays with the
//!    cluster: a gateway with the key of another region is refused.
//! 2. The managers have one gateway at a time. They give its place to another only when its sessions are closed, so
//!    that none of its requests comes late. Meta servers take told changes, notes and freed tombstones from the gateway
//!    alone. One that has lost its place stops for good.
//! 3. A gateway begins with all regions that those before it knew: the managers keep the list, too.
//! 4. A proxy that cannot be the gateway goes on, as its machine is needed. It ends only if the cluster is another
//!    region.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_link::{RegionEndpoint, RegionList};
use larder_protocol::manager::state::{Command, GatewayRecord, Refusal, RegionRecord, Topology};
use larder_roles::managers::{Managers, NotProposed};
use larder_roles::proxy::ClusterProxy;
use larder_roles::regions::Regions;
use larder_types::LogLimiter;
use larder_types::codec::{CodecError, decode};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::{RoleConfig, RoleError, bind};

/// Time from one claim at the managers to the next.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// The command and flag that set the address for other regions.
const REGION_FLAG: &str = "--listen of larder region create|join";

/// A process's regions, for metrics; empty until it is the gateway.
pub(super) type PublishedRegions = Arc<OnceLock<Arc<Regions>>>;

/// See the module's head.
pub(super) struct Gateway {
    dir: PathBuf,
    region_endpoint: Arc<RegionEndpoint>,
    own: GatewayRecord,
    managers: Arc<dyn Managers>,
}

/// A gateway to be, before its process is a member of the cluster.
pub(super) struct Candidate {
    dir: PathBuf,
    region_endpoint: Arc<RegionEndpoint>,
}

impl Candidate {
    /// Opens the region in the directory; `None` if the proxy is no gateway. Refuses an address for other regions that
    /// no machine can have, before anything is made. One that this machine does not have now may come with the place.
    pub(super) async fn open(config: &RoleConfig) -> Result<Option<Self>, RoleError> {
        let dir = config.region_home.as_ref().unwrap_or(&config.dir);
        let Some(region_endpoint) = RegionEndpoint::open(dir)? else { return Ok(None) };
        match bind(&listen_of(&region_endpoint), REGION_FLAG).await {
            Ok(_free) => {}
            Err(RoleError::Listen { source, .. }) if is_anothers(&source) => {}
            Err(error) => return Err(error),
        }
        Ok(Some(Self { dir: dir.clone(), region_endpoint }))
    }

    /// Makes the gateway of this run of a proxy.
    pub(super) fn of(self, own: GatewayRecord, managers: Arc<dyn Managers>) -> Gateway {
        let Self { dir, region_endpoint } = self;
        Gateway { dir, region_endpoint, own, managers }
    }
}

fn listen_of(region_endpoint: &RegionEndpoint) -> String {
    region_endpoint.members().borrow().own.listen.clone()
}

fn is_anothers(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

impl Gateway {
    /// Waits until the managers agree on the cluster's region, as long as it takes: the first time nothing is served
    /// before.
    pub(super) async fn agree(&self) -> Result<(), RoleError> {
        self.claim_until(|map| map.region.is_some()).await
    }

    /// Speaks with the other regions while the managers have this proxy for the gateway. It waits before that, and for
    /// good afterwards. It tries again after a failure: the proxy serves its clients meanwhile, and the machine's other
    /// roles serve the cluster. Ends with the process alone, or when the cluster is another region.
    pub(super) async fn run(
        self,
        proxy: &Arc<ClusterProxy>,
        shown: &PublishedRegions,
    ) -> Result<Infallible, RoleError> {
        let (own, number, mut said) = (self.own, self.region_endpoint.number(), LogLimit::new());
        let regions = loop {
            // Until then nothing listens here: a region that knows two addresses for the name is refused at this one.
            self.wait_until_free().await;
            // An address that is not this machine's now moves with the gateway, or another has it still: a proxy
            // without it does not take the place.
            let bound = match bind(&listen_of(&self.region_endpoint), REGION_FLAG).await {
                Ok(socket) => self.start(socket, proxy).await,
                Err(error) => Err(error),
            };
            match bound {
                Ok(Some(regions)) => break Arc::new(regions),
                Ok(None) => continue,
                Err(error @ RoleError::OtherRegion { .. }) => return Err(error),
                Err(error) if said.is_due() => {
                    tracing::error!(%error, "this proxy cannot be the gateway to the other regions now");
                }
                Err(_) => {}
            }
            sleep(CLAIM_INTERVAL).await;
        };
        assert!(shown.set(regions.clone()).is_ok(), "a process is the gateway once");
        tracing::info!(%number, "this proxy is the gateway of the cluster, which is a region");
        let mut versions = self.managers.versions();
        while self.managers.map().gateway == Some(own) {
            if versions.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
        // The stop waits for a thread.
        drop(tokio::task::spawn_blocking(move || regions.stop()).await);
        let region = self.dir.join("region");
        tracing::error!(
            gateway = ?self.managers.map().gateway.map(|it| it.server),
            "another proxy is the gateway now, and this one is none until it is started again: remove {}", region.display()
        );
        std::future::pending().await
    }

    /// Takes the place and the list of the gateway before, and begins; `None` if another proxy was faster.
    async fn start(
        &self,
        socket: TcpListener,
        proxy: &Arc<ClusterProxy>,
    ) -> Result<Option<Regions>, RoleError> {
        let is_own = |map: &Topology| map.gateway == Some(self.own);
        self.claim_until(|map| is_own(map) || self.live_gateway(map).is_some()).await?;
        if !is_own(&self.managers.map()) {
            return Ok(None);
        }
        self.merge_regions().await?;
        let started = Regions::start(self.region_endpoint.clone(), proxy, socket, self.dir.clone());
        started.map(Some).map_err(RoleError::System)
    }

    /// Claims to be the gateway until the map is as `is_so` wants it.
    async fn claim_until(&self, is_so: impl Fn(&Topology) -> bool) -> Result<(), RoleError> {
        let own = self.region_endpoint.members().borrow().own.clone();
        let region = RegionRecord { number: own.number, fingerprint: own.fingerprint.0 };
        let (mut versions, mut said) = (self.managers.versions(), LogLimit::new());
        loop {
            let map = self.managers.map();
            if let Some(known) = map.region.filter(|known| *known != region) {
                let dir = self.dir.display().to_string();
                return Err(RoleError::OtherRegion { dir, number: known.number });
            }
            if is_so(&map) {
                return Ok(());
            }
            if self.live_gateway(&map).is_none() {
                self.claim(region, &mut said).await?;
            }
            let _news = timeout(CLAIM_INTERVAL, versions.changed()).await;
        }
    }

    /// Another proxy that is the gateway, and has not ended.
    fn live_gateway(&self, map: &Topology) -> Option<GatewayRecord> {
        map.gateway.filter(|it| *it != self.own && map.has_session_of(*it))
    }

    /// Waits until no other proxy is the gateway.
    async fn wait_until_free(&self) {
        let (mut versions, mut said) = (self.managers.versions(), LogLimit::new());
        while let Some(GatewayRecord { server, .. }) = self.live_gateway(&self.managers.map()) {
            if said.is_due() {
                tracing::warn!(gateway = %server, "another proxy is the gateway: this one takes over when that one stops");
            }
            let _news = timeout(CLAIM_INTERVAL, versions.changed()).await;
        }
    }

    /// Claims the place once. The map shows it later.
    async fn claim(&self, region: RegionRecord, said: &mut LogLimit) -> Result<(), RoleError> {
        match self.managers.propose(Command::ClaimGateway(region, self.own)).await {
            Ok(Ok(_) | Err(Refusal::OtherRegion | Refusal::OtherGateway)) => Ok(()),
            Ok(Err(refusal)) => Err(RoleError::NotDone(refusal.to_string())),
            Err(error @ NotProposed::NotAllowed) => Err(RoleError::NotDone(error.to_string())),
            Err(error) => {
                if said.is_due() {
                    tracing::warn!(%error, "the managers have not agreed on a gateway yet");
                }
                Ok(())
            }
        }
    }

    /// Joins in the list of the gateway before: the directory may be an older copy.
    async fn merge_regions(&self) -> Result<(), RoleError> {
        let map = self.managers.map();
        if map.regions.is_empty() {
            return Ok(());
        }
        let unreadable = |error: CodecError| {
            RoleError::NotDone(format!("the managers' list of regions: {error}"))
        };
        let known: RegionList = decode("list of regions", &map.regions).map_err(unreadable)?;
        let region_endpoint = self.region_endpoint.clone();
        let learned = tokio::task::spawn_blocking(move || region_endpoint.learn(&known)).await;
        learned.map_err(|error| RoleError::Fatal(error.to_string()))?.map_err(RoleError::Region)
    }
}

/// Limits a log line that would be due at each turn: the start, and the last line.
struct LogLimit(Instant, LogLimiter);

impl LogLimit {
    fn new() -> Self {
        Self(Instant::now(), LogLimiter::default())
    }

    fn is_due(&mut self) -> bool {
        self.1.happens(self.0.elapsed().as_millis() as u64).is_some()
    }
}
