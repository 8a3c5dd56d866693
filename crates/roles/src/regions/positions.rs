//! Reports other regions' positions in the journals to this store's primaries: puts may wait for them, and clients
//! query them.
//!
//! # Invariants
//!
//! 1. A primary gets each position that has moved, all positions in a new view, and all again every ten seconds: it keeps
//!    them in memory alone. A region that has reported nothing is named with op 0.
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
use crate::proxy::RegionAccess;

/// A call to a server: PGs, each in the view in which it leads them.
#[derive(Debug, PartialEq, Eq)]
struct ServerReport {
    server: ServerId,
    pgs: Vec<(PgId, View)>,
}

/// The PGs whose primaries need a report, and the servers with a report under way.
#[derive(Default)]
struct PendingReports {
    pgs: BTreeSet<PgId>,
    /// The view in which each PG's primary has heard.
    delivered: BTreeMap<PgId, View>,
    /// Servers that are being told.
    busy: BTreeSet<ServerId>,
}

impl PendingReports {
    /// All is to be told again.
    fn begin_anew(&mut self) {
        self.delivered.clear();
    }

    /// Adds PGs whose primaries have not heard in their views.
    fn add_unreported(&mut self, pg_count: u32, led_by: impl Fn(PgId) -> Option<(ServerId, View)>) {
        for pg in (0..pg_count).map(PgId) {
            if led_by(pg).is_some_and(|(_, view)| self.delivered.get(&pg) != Some(&view)) {
                self.pgs.insert(pg);
            }
        }
    }

    /// Takes the reports that are due, for servers without a report under way.
    fn take(&mut self, led_by: impl Fn(PgId) -> Option<(ServerId, View)>) -> Vec<ServerReport> {
        let mut by_server: BTreeMap<ServerId, Vec<(PgId, View)>> = BTreeMap::new();
        for pg in &self.pgs {
            let Some((server, view)) = led_by(*pg) else { continue };
            let pgs = by_server.entry(server).or_default();
            if !self.busy.contains(&server) && pgs.len() < POSITIONS_MAX {
                pgs.push((*pg, view));
            }
        }
        by_server.retain(|_, pgs| !pgs.is_empty());
        for (server, pgs) in &by_server {
            self.busy.insert(*server);
            for (pg, _) in pgs {
                self.pgs.remove(pg);
            }
        }
        by_server.into_iter().map(|(server, pgs)| ServerReport { server, pgs }).collect()
    }

    /// A call has ended.
    fn ended(&mut self, ServerReport { server, pgs }: ServerReport, is_heard: bool) {
        self.busy.remove(&server);
        for (pg, view) in pgs {
            if is_heard {
                self.delivered.insert(pg, view);
            } else {
                self.pgs.insert(pg);
            }
        }
    }
}

/// See the module's head. Does not end.
pub(super) async fn report_loop<R: RegionAccess>(
    shared: Arc<Shared<R>>,
    state: Arc<SourceState<R>>,
) {
    let access = shared.shown.access();
    let (mut moved, mut members) = (state.moved(), shared.region_endpoint.members());
    let (mut to_tell, mut under_way) = (PendingReports::default(), FuturesUnordered::new());
    let mut others: Vec<RegionId> = Vec::new();
    let mut again = Instant::now();
    // The map by which it was looked who leads.
    let mut looked_at = None;
    loop {
        moved.mark_seen();
        let map = access.map_version();
        let now: Vec<_> = members.borrow_and_update().live().map(|peer| peer.number).collect();
        if now != others || Instant::now() >= again {
            others = now;
            to_tell.begin_anew();
            looked_at = None;
            again = Instant::now() + Duration::from_millis(POSITIONS_AGAIN_MS);
        }
        to_tell.pgs.extend(state.take_moved());
        if looked_at != Some(map) {
            looked_at = Some(map);
            to_tell.add_unreported(access.pg_count(), |pg| access.led_by(pg));
        }
        for telling in to_tell.take(|pg| access.led_by(pg)) {
            let positions = state.positions(&others, telling.pgs.iter().map(|(pg, _)| *pg));
            let shared = shared.clone();
            under_way.push(async move {
                let access = shared.shown.access();
                let is_heard = access.tell_positions(telling.server, &positions).await;
                let pause_ms = match is_heard {
                    false => POSITIONS_RETRY_MS,
                    true if access.waits_for_regions() => POSITIONS_PAUSE_MS,
                    true => POSITIONS_IDLE_MS,
                };
                sleep(Duration::from_millis(pause_ms)).await;
                (telling, is_heard)
            });
        }
        tokio::select! {
            biased;
            Some((telling, is_heard)) = under_way.next() => to_tell.ended(telling, is_heard),
            _moved = moved.changed() => {}
            _members = members.changed() => {}
            () = access.map_passes(map) => {}
            () = sleep_until(again) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ServerId = ServerId(1);
    const TWO: ServerId = ServerId(2);

    /// Server 1 leads PG 0, server 2 the others, all in this view.
    fn in_view(view: u64) -> impl Fn(PgId) -> Option<(ServerId, View)> {
        move |pg| Some((if pg == PgId(0) { ONE } else { TWO }, View(view)))
    }

    fn server_report(server: ServerId, view: u64, pgs: &[u32]) -> ServerReport {
        ServerReport { server, pgs: pgs.iter().map(|pg| (PgId(*pg), View(view))).collect() }
    }

    #[test]
    fn a_primary_receives_what_it_missed_in_its_view() {
        let mut to_tell = PendingReports::default();
        to_tell.add_unreported(3, in_view(4));
        let both = to_tell.take(in_view(4));
        assert_eq!(both, [server_report(ONE, 4, &[0]), server_report(TWO, 4, &[1, 2])]);
        both.into_iter().for_each(|it| to_tell.ended(it, true));
        to_tell.add_unreported(3, in_view(4));
        assert_eq!(to_tell.take(in_view(4)), [], "all have heard");
        to_tell.pgs.insert(PgId(2));
        assert_eq!(
            to_tell.take(in_view(4)),
            [server_report(TWO, 4, &[2])],
            "a region came further"
        );
        let next = |pg| in_view(if pg == PgId(1) { 5 } else { 4 })(pg);
        to_tell.ended(server_report(TWO, 4, &[2]), true);
        to_tell.add_unreported(3, next);
        assert_eq!(to_tell.take(next), [server_report(TWO, 5, &[1])], "another primary");
        to_tell.ended(server_report(TWO, 5, &[1]), true);
        to_tell.begin_anew();
        to_tell.add_unreported(3, |_| None);
        assert_eq!(to_tell.take(|_| None), [], "nobody leads");
        to_tell.add_unreported(3, next);
        assert_eq!(to_tell.take(next).len(), 2);
    }

    #[test]
    fn a_slow_or_unreachable_server_delays_only_itself() {
        let mut to_tell = PendingReports::default();
        to_tell.pgs.extend([PgId(0), PgId(1)]);
        let [slow, quick] = <[_; 2]>::try_from(to_tell.take(in_view(4))).unwrap();
        to_tell.ended(quick, true);
        to_tell.pgs.extend([PgId(0), PgId(1)]);
        assert_eq!(
            to_tell.take(in_view(4)),
            [server_report(TWO, 4, &[1])],
            "the other is being told"
        );
        to_tell.ended(slow, false);
        assert_eq!(to_tell.take(in_view(4)), [server_report(ONE, 4, &[0])], "it has not heard");
    }
}
