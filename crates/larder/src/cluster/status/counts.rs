//! The counts of a cluster's servers, for `larder status --breakdown`: of each proxy, meta server and data server of the map.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_net::{Endpoint, Peer, Service};
use larder_protocol::manager::state::{ServerRole, ServerState, Topology};
use larder_roles::breakdown::CountsNow;
use larder_roles::managers::Managers;
use larder_roles::peers::Peers;
use larder_roles::wire::{
    DataCall, DataReply, DataService, MetaCall, MetaReply, MetaService, ProxyCall, ProxyReply,
    ProxyService,
};
use larder_types::codec::decode;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::RoleError;
use super::super::beside::{self, connect};
use crate::breakdown::Breakdown;

/// The time that a server has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks the servers of the cluster that a configuration belongs to.
pub(super) async fn ask(path: &Path) -> Result<Breakdown, RoleError> {
    let (endpoint, managers) = connect(&beside::config(path)?).await?;
    let map = Topology::clone(&managers.map());
    Ok(Breakdown::of(asked(&endpoint, &map).await))
}

/// Asks all side by side; in the order of their ids.
async fn asked(
    endpoint: &Arc<Endpoint>,
    map: &Topology,
) -> Vec<(String, &'static str, Option<CountsNow>)> {
    let proxies = Peers::<ProxyService>::new(endpoint);
    let (metas, datas) = (Peers::<MetaService>::new(endpoint), Peers::<DataService>::new(endpoint));
    let (mut asked, until) = (JoinSet::new(), Instant::now() + PATIENCE);
    for (&id, record) in &map.servers {
        // A place that was given to one that never came has no counts.
        if !matches!(record.state, ServerState::Up | ServerState::Down) {
            continue;
        }
        let is_up = record.state == ServerState::Up;
        for role in &record.roles {
            let (name, role) = (record.name.clone(), *role);
            let proxy = proxies.of(map, id).filter(|_| is_up);
            let meta = metas.of(map, id).filter(|_| is_up);
            let data = datas.of(map, id).filter(|_| is_up);
            asked.spawn(async move {
                let told = match role {
                    ServerRole::Proxy => {
                        told(proxy, ProxyCall::Counts, &ProxyReply::Counts, until).await
                    }
                    ServerRole::Meta => {
                        told(meta, MetaCall::Counts, &MetaReply::Counts, until).await
                    }
                    ServerRole::Data => {
                        told(data, DataCall::Counts, &DataReply::Counts, until).await
                    }
                    // It has no part in operations of clients.
                    ServerRole::Manager => return None,
                };
                Some((id, (name, super::role_name(&role), told)))
            });
        }
    }
    let mut all: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
    all.sort_by_key(|(id, (_, role, _))| (*id, *role));
    all.into_iter().map(|(_, told)| told).collect()
}

/// The counts of one server; `None` if it is down, does not answer, or is of an earlier release.
async fn told<S: Service>(
    peer: Option<Peer<S>>,
    call: S::Request,
    expected: &S::Answer,
    until: Instant,
) -> Option<CountsNow>
where
    S::Answer: PartialEq,
{
    let (reply, payload) = peer?.call(&call, Bytes::new(), until).await.ok()?;
    let counts = decode::<CountsNow>("counts of a server", &payload).ok()?;
    (reply == *expected && counts.is_sound()).then_some(counts)
}
