//! Tells this store's primaries how far other regions are in the journals of their PGs: puts may wait for that, and clients
//! ask for it.
//!
//! # Invariants
//!
//! 1. A primary is told what it has not heard in its view, and all again from time to time. Of a region that has reported
//!    nothing it is told so: silence is not taken for having all.
//! 2. One call to each server is under way at a time: one that is slow delays itself alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_types::{PgId, RegionId, ServerId, View};
use tokio::time::{Instant, sleep, sleep_until};

use super::Shared;
use super::source::SourceState;
use crate::limits::{
    POSITIONS_AGAIN_MS, POSITIONS_IDLE_MS, POSITIONS_MAX, POSITIONS_PAUSE_MS, POSITIONS_RETRY_MS,
};
use crate::proxy::RegionReach;
use crate::wire::Position;

/// What one server is told.
struct Telling {
    server: ServerId,
    /// PGs, each in the view in which the server leads it.
    pgs: Vec<(PgId, View)>,
    positions: Vec<(PgId, Vec<Position>)>,
}

/// What is to be told.
#[derive(Default)]
struct ToTell {
    pgs: BTreeSet<PgId>,
    /// The view in which each PG's primary has heard.
    heard: BTreeMap<PgId, View>,
    /// Servers that are being told.
    busy: BTreeSet<ServerId>,
}

impl ToTell {
    /// Adds PGs whose primaries have not heard in their views.
    fn add_unheard<R: RegionReach>(&mut self, reach: &R) {
        for pg in (0..reach.pg_count()).map(PgId) {
            let led = reach.led_by(pg);
            if led.is_some_and(|(_, view)| self.heard.get(&pg) != Some(&view)) {
                self.pgs.insert(pg);
            }
        }
    }

    /// Takes what is to be told to servers that are not being told.
    fn take<R: RegionReach>(
        &mut self,
        state: &SourceState<R>,
        reach: &R,
        others: &[RegionId],
    ) -> Vec<Telling> {
        let mut by_server: BTreeMap<ServerId, Vec<(PgId, View)>> = BTreeMap::new();
        for pg in &self.pgs {
            let Some((server, view)) = reach.led_by(*pg) else { continue };
            let pgs = by_server.entry(server).or_default();
            if !self.busy.contains(&server) && pgs.len() < POSITIONS_MAX {
                pgs.push((*pg, view));
            }
        }
        by_server.retain(|_, pgs| !pgs.is_empty());
        let telling = by_server.into_iter().map(|(server, pgs)| {
            self.busy.insert(server);
            for (pg, _) in &pgs {
                self.pgs.remove(pg);
            }
            let positions = state.positions(others, pgs.iter().map(|(pg, _)| *pg));
            Telling { server, pgs, positions }
        });
        telling.collect()
    }

    fn told(&mut self, Telling { server, pgs, .. }: Telling, is_heard: bool) {
        self.busy.remove(&server);
        for (pg, view) in pgs {
            if is_heard {
                self.heard.insert(pg, view);
            } else {
                self.pgs.insert(pg);
            }
        }
    }
}

/// See the module's head. Does not end.
pub(super) async fn tell<R: RegionReach>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    let reach = shared.shown.reach();
    let (mut moved, mut members) = (state.moved(), shared.site.members());
    let (mut to_tell, mut under_way) = (ToTell::default(), FuturesUnordered::new());
    let mut others: Vec<RegionId> = Vec::new();
    let mut again = Instant::now();
    // The map by which it was looked who leads.
    let mut looked_at = None;
    loop {
        moved.mark_unchanged();
        let map = reach.map_version();
        let now: Vec<_> = members.borrow_and_update().live().map(|peer| peer.number).collect();
        if now != others || Instant::now() >= again {
            others = now;
            to_tell.heard.clear();
            looked_at = None;
            again = Instant::now() + Duration::from_millis(POSITIONS_AGAIN_MS);
        }
        to_tell.pgs.extend(state.take_moved());
        if looked_at != Some(map) {
            looked_at = Some(map);
            to_tell.add_unheard(reach);
        }
        for telling in to_tell.take(&state, reach, &others) {
            let shared = shared.clone();
            under_way.push(async move {
                let reach = shared.shown.reach();
                let is_heard = reach.tell_positions(telling.server, &telling.positions).await;
                let pause_ms = match is_heard {
                    false => POSITIONS_RETRY_MS,
                    true if reach.waits_for_regions() => POSITIONS_PAUSE_MS,
                    true => POSITIONS_IDLE_MS,
                };
                sleep(Duration::from_millis(pause_ms)).await;
                (telling, is_heard)
            });
        }
        tokio::select! {
            biased;
            Some((telling, is_heard)) = under_way.next() => to_tell.told(telling, is_heard),
            _moved = moved.changed() => {}
            _members = members.changed() => {}
            () = reach.map_passes(map) => {}
            () = sleep_until(again) => {}
        }
    }
}
