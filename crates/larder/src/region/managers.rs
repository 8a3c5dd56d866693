//! All that the commands of a region need to know of a cluster: its managers' map has it.

use std::path::Path;
use std::time::Duration;

use larder_roles::managers::Managers;
use larder_types::{BucketRecord, RegionId};
use tokio::time::timeout;

use crate::cluster::RoleError;
use crate::cluster::admin_client::{self, follow_as, runtime};

/// Longest wait for managers that may be down.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// The region that a cluster is, and the server that speaks with the others, as the managers' map says; `None` if it is no region.
pub(super) fn gateway(dir: &Path) -> Result<Option<(RegionId, String)>, RoleError> {
    let config = admin_client::config(dir)?;
    runtime()?.block_on(async {
        let Ok(managers) = timeout(ANSWER_TIME, follow_as(&config)).await else { return Ok(None) };
        let map = managers?.map();
        let server = map.gateway.and_then(|gateway| map.servers.get(&gateway.server));
        let name = server.map_or_else(|| "its gateway".to_owned(), |server| server.name.clone());
        Ok(map.region.map(|region| (region.number, name)))
    })
}

/// The buckets, as the managers' map says.
pub(super) fn records(dir: &Path) -> Result<Vec<BucketRecord>, RoleError> {
    let config = admin_client::config(dir)?;
    runtime()?.block_on(async {
        let managers = follow_as(&config).await?;
        Ok(managers.map().buckets.values().cloned().collect())
    })
}
