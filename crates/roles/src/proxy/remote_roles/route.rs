//! Where calls go, by the map.

use std::future::pending;
use std::time::Duration;

use larder_protocol::manager::state::{MapVersion, Topology};
use larder_types::{Holders, LvId, PgId, ServerId, View};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::managers::Managers;

/// A PG's primary, in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) server: ServerId,
    pub(super) view: View,
}

/// The server that leads a PG, as far as the map knows.
pub(super) fn primary(map: &Topology, pg: PgId) -> Option<Primary> {
    let record = map.pg(pg)?;
    record.members.first().map(|&server| Primary { server, view: record.view })
}

/// The replicas of an LV that a put's data goes to, with their servers; `None` if the map does not know one of them,
/// or if there is none.
pub(super) fn replicas(
    map: &Topology,
    lv: LvId,
    wanted: Holders,
) -> Option<Vec<(usize, ServerId)>> {
    let record = map.lvs.get(lv.0 as usize)?;
    let wanted_of = record.present().filter(|(index, _)| wanted.has(*index));
    let replicas: Vec<_> = wanted_of.map(|(index, replica)| (index, replica.server)).collect();
    (!wanted.is_empty() && replicas.len() == wanted.count()).then_some(replicas)
}

/// Looks for something in the map, as soon as it is there; `None` if it is not by the deadline.
pub(super) async fn found<T>(
    managers: &dyn Managers,
    deadline: Instant,
    mut look: impl FnMut(&Topology) -> Option<T> + Send,
) -> Option<T> {
    let mut versions = managers.versions();
    loop {
        if let Some(found) = look(&managers.map()) {
            return Some(found);
        }
        match timeout_at(deadline, versions.changed()).await {
            Ok(Ok(())) => {}
            // No map comes any more.
            Ok(Err(_)) => sleep_until(deadline).await,
            Err(_elapsed) => return None,
        }
        if Instant::now() >= deadline {
            return look(&managers.map());
        }
    }
}

/// Pauses, but not beyond the coming of a newer map; whether it came.
pub(super) async fn newer(managers: &dyn Managers, than: MapVersion, pause: Duration) -> bool {
    let deadline = Instant::now() + pause;
    found(managers, deadline, |map| (map.version > than).then_some(())).await.is_some()
}

/// Returns when the PG is in another view. For the side of a wait that has a deadline of its own: a timer for each
/// question would cost more than looking at the map.
pub(super) async fn view_passed(managers: &dyn Managers, pg: PgId, at: Primary) {
    let mut versions = managers.versions();
    while primary(&managers.map(), pg) == Some(at) {
        if versions.changed().await.is_err() {
            // No map comes any more.
            return pending().await;
        }
    }
}
