//! The gateway of a cluster among regions: the proxy with a directory `region`. It alone speaks with other regions.
//!
//! # Invariants
//!
//! 1. The managers know which region the cluster is before anything is served at its first gateway. The number stays with the
//!    cluster: a gateway with the key of another region is refused.
//! 2. The managers know one gateway at a time, and give another its place only when what the one before asked for can come no
//!    more: its sessions are closed, and meta servers take from a gateway what they take from no other proxy. One that has lost
//!    its place stops for good.
//! 3. It begins with all regions that a gateway before it knew: the managers keep the list, too.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_link::{KnownRegions, Site};
use larder_protocol::manager::state::{Command, GatewayRecord, Refusal, RegionRecord, Topology};
use larder_roles::managers::{Managers, NotProposed};
use larder_roles::proxy::ClusterProxy;
use larder_roles::regions::Regions;
use larder_types::Seldom;
use larder_types::codec::decode;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use super::{RoleConfig, RoleError, bind};

/// Time after which the managers are told again which region the cluster is, and who its gateway.
const AGAIN: Duration = Duration::from_secs(1);
/// The command and flag that set the address for other regions.
const REGION_FLAG: &str = "--listen of larder region create|join";

/// A process's end of the other regions, once it is the gateway: for metrics.
pub(super) type Shown = Arc<OnceLock<Arc<Regions>>>;

/// See the module's head.
pub(super) struct Gateway {
    dir: PathBuf,
    site: Arc<Site>,
    socket: Option<TcpListener>,
    own: GatewayRecord,
    managers: Arc<dyn Managers>,
}

/// What a gateway needs before its process is a member of the cluster.
pub(super) struct Place {
    dir: PathBuf,
    site: Arc<Site>,
    socket: Option<TcpListener>,
}

impl Place {
    /// Opens what the directory has, and the address for other regions, before anything is made; `None` if the proxy is no
    /// gateway. The address may be another gateway's still, as one that goes with the gateway is: it is bound then when this
    /// one has the place.
    pub(super) async fn open(config: &RoleConfig) -> Result<Option<Self>, RoleError> {
        let dir = config.region_home.as_ref().unwrap_or(&config.dir);
        let Some(site) = Site::open(dir)? else { return Ok(None) };
        let socket = match bind(&listen_of(&site), REGION_FLAG).await {
            Ok(socket) => Some(socket),
            Err(RoleError::Listen { source, .. }) if is_anothers(&source) => None,
            Err(error) => return Err(error),
        };
        Ok(Some(Self { dir: dir.clone(), site, socket }))
    }

    /// The gateway that this run of a proxy is.
    pub(super) fn of(self, own: GatewayRecord, managers: Arc<dyn Managers>) -> Gateway {
        let Self { dir, site, socket } = self;
        Gateway { dir, site, socket, own, managers }
    }
}

fn listen_of(site: &Site) -> String {
    site.members().borrow().own.listen.clone()
}

fn is_anothers(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

impl Gateway {
    /// Has the managers agree which region the cluster is. As long as it takes: the first time nothing is served before.
    pub(super) async fn agree(&self) -> Result<(), RoleError> {
        self.claimed(|map| map.region.is_some()).await
    }

    /// Speaks with the other regions from when the managers have this proxy for the gateway until they have another. Then it
    /// waits, as it does while another is.
    pub(super) async fn run(
        self,
        proxy: &Arc<ClusterProxy>,
        shown: &Shown,
    ) -> Result<std::convert::Infallible, RoleError> {
        let own = self.own;
        self.claimed(|map| map.gateway == Some(own)).await?;
        self.learn().await?;
        let Self { dir, site, socket, managers, .. } = self;
        let socket = match socket {
            Some(socket) => socket,
            None => bind(&listen_of(&site), REGION_FLAG).await?,
        };
        let (number, mut versions) = (site.number(), managers.versions());
        let started = Regions::start(site, proxy, socket, dir.clone());
        let regions = Arc::new(started.map_err(RoleError::System)?);
        assert!(shown.set(regions.clone()).is_ok(), "a process is the gateway once");
        tracing::info!(%number, "this proxy is the gateway of the cluster, which is a region");
        while managers.map().gateway == Some(own) {
            if versions.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
        // It waits for a thread.
        drop(tokio::task::spawn_blocking(move || regions.stop()).await);
        let region = dir.join("region");
        tracing::error!(
            gateway = ?managers.map().gateway.map(|it| it.server),
            "another proxy is the gateway now, and this one is none any more: remove {}", region.display()
        );
        std::future::pending().await
    }

    /// Claims to be the gateway until the map shows what is waited for.
    async fn claimed(&self, is_so: impl Fn(&Topology) -> bool) -> Result<(), RoleError> {
        let own = self.site.members().borrow().own.clone();
        let region = RegionRecord { number: own.number, fingerprint: own.fingerprint.0 };
        let (since, mut lines) = (Instant::now(), Seldom::default());
        let mut versions = self.managers.versions();
        loop {
            let map = self.managers.map();
            if let Some(known) = map.region.filter(|known| *known != region) {
                let dir = self.dir.display().to_string();
                return Err(RoleError::OtherRegion { dir, number: known.number });
            }
            if is_so(&map) {
                return Ok(());
            }
            let mut is_told = || lines.happens(since.elapsed().as_millis() as u64).is_some();
            match self.managers.propose(Command::ClaimGateway(region, self.own)).await {
                // The map that says so comes.
                Ok(Ok(_) | Err(Refusal::OtherRegion)) => {}
                Ok(Err(Refusal::OtherGateway)) => {
                    let gateway = self.managers.map().gateway.map(|it| it.server);
                    if is_told() {
                        tracing::warn!(
                            ?gateway,
                            "another proxy is the gateway: this one takes its place when that one has ended"
                        );
                    }
                }
                Ok(Err(refusal)) => return Err(RoleError::NotDone(refusal.to_string())),
                Err(error @ NotProposed::NotAllowed) => {
                    return Err(RoleError::NotDone(error.to_string()));
                }
                Err(error) => {
                    if is_told() {
                        tracing::warn!(%error, "the managers have not agreed yet who the gateway is");
                    }
                }
            }
            let _news = timeout(AGAIN, versions.changed()).await;
        }
    }

    /// Takes what the gateway before knew of regions: the directory may be an older copy.
    async fn learn(&self) -> Result<(), RoleError> {
        let map = self.managers.map();
        if map.regions.is_empty() {
            return Ok(());
        }
        let known: KnownRegions = decode("list of regions", &map.regions).map_err(|error| {
            RoleError::NotDone(format!("the managers' list of regions: {error}"))
        })?;
        let site = self.site.clone();
        let learned = tokio::task::spawn_blocking(move || site.learn(&known)).await;
        learned.map_err(|error| RoleError::Fatal(error.to_string()))?.map_err(RoleError::Region)
    }
}
