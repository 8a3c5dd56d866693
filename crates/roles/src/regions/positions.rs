//! Tells this store's primaries how far other regions are in the journals of their PGs: puts may wait for that, and clients
//! ask for it.
//!
//! # Invariants
//!
//! 1. A primary is told what it has not heard in its view, and all again from time to time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_types::{PgId, View};
use tokio::time::{Instant, sleep, timeout_at};

use super::Shared;
use super::source::SourceState;
use crate::limits::{POSITIONS_AGAIN_MS, POSITIONS_PAUSE_MS, POSITIONS_RETRY_MS};
use crate::proxy::RegionReach;
use crate::wire::Position;

/// See the module's head. Does not end.
pub(super) async fn tell<R: RegionReach>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    let reach = shared.shown.reach();
    let (mut moved, mut members) = (state.moved(), shared.site.members());
    // What the primaries have heard.
    let mut heard: BTreeMap<PgId, (View, Vec<Position>)> = BTreeMap::new();
    let mut again = Instant::now() + Duration::from_millis(POSITIONS_AGAIN_MS);
    loop {
        moved.mark_unchanged();
        let map = reach.map_version();
        let others: Vec<_> = members.borrow_and_update().live().map(|peer| peer.number).collect();
        let now = Instant::now();
        if now >= again {
            heard.clear();
            again = now + Duration::from_millis(POSITIONS_AGAIN_MS);
        }
        let mut news = state.positions(&others);
        news.retain(|pg, positions| {
            let known = heard.get(pg).filter(|(view, _)| reach.view_of(*pg) == Some(*view));
            known.is_none_or(|(_, known)| known != positions)
        });
        let mut until = again;
        if !news.is_empty() {
            let told = reach.tell_positions(&news).await;
            if told.len() < news.len() {
                until = Instant::now() + Duration::from_millis(POSITIONS_RETRY_MS);
            }
            for (pg, view) in told {
                heard.extend(news.remove(&pg).map(|positions| (pg, (view, positions))));
            }
        }
        let change = async {
            tokio::select! {
                biased;
                _moved = moved.changed() => {}
                _members = members.changed() => {}
                () = reach.map_passes(map) => {}
            }
        };
        let _in_time = timeout_at(until, change).await;
        sleep(Duration::from_millis(POSITIONS_PAUSE_MS)).await;
    }
}
