//! The gateway of a cluster among regions: the proxy with a directory `region`. It alone speaks with other regions.
//!
//! # Invariants
//!
//! 1. The managers know which region the cluster is before the gateway answers another one. The number stays with the cluster:
//!    a gateway with the key of another region is refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_link::Site;
use larder_protocol::manager::state::{Command, Refusal, RegionRecord};
use larder_roles::managers::{Managers, NotProposed};
use larder_roles::proxy::ClusterProxy;
use larder_roles::regions::Regions;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{RoleConfig, RoleError, bind};

/// Time after which the managers are told again which region the cluster is.
const AGAIN: Duration = Duration::from_secs(1);
/// The command and flag that set the address for other regions.
const REGION_FLAG: &str = "--listen of larder region create|join";

/// See the module's head.
pub(super) struct Gateway {
    dir: PathBuf,
    site: Arc<Site>,
    socket: TcpListener,
}

impl Gateway {
    /// Opens what the directory has, and the address for other regions, before anything is made; `None` if the proxy is no
    /// gateway.
    pub(super) async fn open(config: &RoleConfig) -> Result<Option<Self>, RoleError> {
        let dir = config.region_home.as_ref().unwrap_or(&config.dir);
        let Some(site) = Site::open(dir)? else { return Ok(None) };
        let listen = site.members().borrow().own.listen.clone();
        let socket = bind(&listen, REGION_FLAG).await?;
        Ok(Some(Self { dir: dir.clone(), site, socket }))
    }

    /// Has the managers agree which region the cluster is. As long as it takes: the first time nothing is served before.
    pub(super) async fn agree(&self, managers: &dyn Managers) -> Result<(), RoleError> {
        let own = self.site.members().borrow().own.clone();
        let region = RegionRecord { number: own.number, fingerprint: own.fingerprint.0 };
        let (mut versions, mut is_told) = (managers.versions(), false);
        loop {
            match managers.map().region {
                Some(known) if known == region => return Ok(()),
                Some(known) => {
                    let dir = self.dir.display().to_string();
                    return Err(RoleError::OtherRegion { dir, number: known.number });
                }
                None => {}
            }
            match managers.propose(Command::SetRegion(region)).await {
                // The map that says so comes.
                Ok(Ok(_) | Err(Refusal::OtherRegion)) => {}
                Ok(Err(refusal)) => return Err(RoleError::NotDone(refusal.to_string())),
                Err(error @ NotProposed::NotAllowed) => {
                    return Err(RoleError::NotDone(error.to_string()));
                }
                Err(error) if !is_told => {
                    tracing::warn!(%error, "the managers have not agreed yet which region this cluster is");
                    is_told = true;
                }
                Err(_) => {}
            }
            let _news = timeout(AGAIN, versions.changed()).await;
        }
    }

    /// Begins to speak with the other regions.
    pub(super) fn start(self, proxy: &Arc<ClusterProxy>) -> Result<Arc<Regions>, RoleError> {
        let number = self.site.number();
        let started = Regions::start(self.site, proxy, self.socket, self.dir);
        let regions = started.map_err(RoleError::System)?;
        tracing::info!(%number, "this proxy is the gateway of the cluster, which is a region");
        Ok(Arc::new(regions))
    }
}
