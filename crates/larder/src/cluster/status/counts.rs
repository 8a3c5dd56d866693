//! The counts of a cluster's servers, for `larder status --breakdown`: of each proxy, meta server and data server of the map.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_identity::{Identity, Role, Roles};
use larder_net::{CallError, Endpoint, Peer, Rejected, Service};
use larder_protocol::manager::state::{ServerRole, ServerState, Topology};
use larder_roles::breakdown::CountsStatus;
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::managers::Managers;
use larder_roles::peers::Peers;
use larder_roles::wire::{
    DataCall, DataReply, DataService, MetaCall, MetaReply, MetaService, ProxyCall, ProxyReply,
    ProxyService,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::RoleError;
use super::super::admin_client::{self, connect, is_confirmed};
use crate::breakdown::{Breakdown, Missing, ServerCounts};

/// The time that a server has to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks the servers of the cluster that a configuration belongs to.
pub(super) async fn ask(path: &Path) -> Result<Breakdown, RoleError> {
    let config = admin_client::config(path)?;
    let roles = Identity::load(&config.dir.join(IDENTITY_FILE))?.subject().roles;
    let (endpoint, managers) = connect(&config).await?;
    // A map that nobody calls the latest may lack servers.
    let is_latest = is_confirmed(&*managers).await;
    let map = Topology::clone(&managers.map());
    Ok(Breakdown::of(is_latest, asked(&endpoint, roles, &map).await))
}

/// True if a server of these roles may ask one of that role for its counts. One that asks all the same is refused, and
/// the refusal is counted and logged there as that of a stranger.
fn may_query(roles: Roles, of: ServerRole) -> bool {
    let may = match of {
        ServerRole::Proxy => &[Role::Manager, Role::Proxy][..],
        ServerRole::Meta | ServerRole::Data => &[Role::Manager, Role::Meta, Role::Proxy],
        // It has no part in operations of clients.
        ServerRole::Manager => &[],
    };
    roles.meets(Roles::of(may))
}

/// Asks all side by side; in the order of their ids.
async fn asked(endpoint: &Arc<Endpoint>, roles: Roles, map: &Topology) -> Vec<ServerCounts> {
    let proxies = Peers::<ProxyService>::new(endpoint);
    let (metas, datas) = (Peers::<MetaService>::new(endpoint), Peers::<DataService>::new(endpoint));
    let (mut asked, until) = (JoinSet::new(), Instant::now() + TIMEOUT);
    for (&id, record) in &map.servers {
        // An entry of a server that never started has no counts.
        if !matches!(record.state, ServerState::Up | ServerState::Down) {
            continue;
        }
        let is_up = record.state == ServerState::Up;
        for role in record.roles.iter().filter(|role| **role != ServerRole::Manager) {
            let (name, role) = (record.name.clone(), *role);
            let is_asked = is_up && may_query(roles, role);
            let proxy = proxies.of(map, id).filter(|_| is_asked);
            let meta = metas.of(map, id).filter(|_| is_asked);
            let data = datas.of(map, id).filter(|_| is_asked);
            asked.spawn(async move {
                let counts = match role {
                    _ if !may_query(roles, role) => Err(Missing::NotAsked),
                    _ if !is_up => Err(Missing::Down),
                    ServerRole::Proxy => {
                        reported(proxy, ProxyCall::Counts, &ProxyReply::Counts, until).await
                    }
                    ServerRole::Meta => {
                        reported(meta, MetaCall::Counts, &MetaReply::Counts, until).await
                    }
                    ServerRole::Data => {
                        reported(data, DataCall::Counts, &DataReply::Counts, until).await
                    }
                    ServerRole::Manager => Err(Missing::NotAsked),
                };
                (id, ServerCounts { name, role: super::role_name(&role), counts })
            });
        }
    }
    let mut all = asked.join_all().await;
    all.sort_by_key(|(id, reported)| (*id, reported.role));
    all.into_iter().map(|(_, reported)| reported).collect()
}

/// The counts of one server; of none it has no address.
async fn reported<S: Service>(
    peer: Option<Peer<S>>,
    call: S::Request,
    expected: &S::Answer,
    until: Instant,
) -> Result<CountsStatus, Missing>
where
    S::Answer: PartialEq,
{
    let peer = peer.ok_or(Missing::NoAnswer)?;
    decoded(peer.call(&call, Bytes::new(), until).await, expected)
}

/// The counts in an answer.
fn decoded<A: PartialEq>(
    answer: Result<(A, Bytes), CallError>,
    expected: &A,
) -> Result<CountsStatus, Missing> {
    match answer {
        Ok((reply, reported)) if reply == *expected => {
            CountsStatus::decode(&reported).ok_or(Missing::Unsound)
        }
        Ok(_) => Err(Missing::Unsound),
        Err(CallError::Rejected(Rejected::NotUnderstood)) => Err(Missing::EarlierRelease),
        Err(_) => Err(Missing::NoAnswer),
    }
}

#[cfg(test)]
mod tests {
    use larder_net::{NotSent, Unknown};
    use larder_roles::breakdown::CountStatus;
    use larder_roles::limits::COUNTS_REPORT_BYTES_MAX;
    use larder_types::codec::encode;

    use super::*;

    fn counts(kind: &str) -> CountsStatus {
        let [table, kind, size] = ["meta", kind, ""].map(str::to_owned);
        let count = CountStatus { table, kind, size, ops: 1, bytes: 0, waited_us: 0, served_us: 0 };
        CountsStatus { age_s: 5, counts: vec![count] }
    }

    #[test]
    fn a_reply_is_received_or_named_as_missing() {
        let reported = |reply: MetaReply, payload: Vec<u8>| {
            decoded(Ok((reply, payload.into())), &MetaReply::Counts)
        };
        let failed = |error| decoded(Err(error), &MetaReply::Counts);
        assert_eq!(reported(MetaReply::Counts, encode(&counts("put"))), Ok(counts("put")));
        for payload in
            [Vec::new(), encode(&counts("\u{1b}[2J")), vec![0; COUNTS_REPORT_BYTES_MAX + 1]]
        {
            assert_eq!(reported(MetaReply::Counts, payload), Err(Missing::Unsound));
        }
        assert_eq!(reported(MetaReply::Space, encode(&counts("put"))), Err(Missing::Unsound));
        let old = CallError::Rejected(Rejected::NotUnderstood);
        assert_eq!(failed(old), Err(Missing::EarlierRelease));
        for error in [CallError::NotSent(NotSent::Late), CallError::Unknown(Unknown::Late)] {
            assert_eq!(failed(error), Err(Missing::NoAnswer));
        }
    }

    #[test]
    fn servers_that_would_refuse_get_no_requests() {
        let all = [ServerRole::Proxy, ServerRole::Meta, ServerRole::Data];
        for (role, expected) in [
            (Role::Manager, [true, true, true]),
            (Role::Proxy, [true, true, true]),
            (Role::Meta, [false, true, true]),
            (Role::Data, [false, false, false]),
        ] {
            let may = all.map(|of| may_query(Roles::of(&[role]), of));
            assert_eq!(may, expected, "{role}");
        }
    }
}
