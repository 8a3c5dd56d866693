//! Positions of other regions in the journals of PGs, as the gateway sent them. Puts that wait for regions read them, and
//! clients that ask where a version is.
//!
//! # Invariants
//!
//! 1. A position stays true as long as its region keeps its data. So one that is heard late, or by a server that leads the PG no
//!    more, does no harm. A region that has lost data is to be removed, and is then named no more.
//! 2. Nothing here is durable. A new primary knows no positions until the gateway has told it.
//! 3. Calls that wait are bounded in number and in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_net::{PeerIdentity, Responder};
use larder_protocol::Refusal;
use larder_types::{OpSeq, PgId, RegionId, View};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::Meta;
use super::callers::refuse;
use super::cluster::Cluster;
use crate::limits::{POSITION_WAITS_MAX, POSITIONS_MAX, REGION_WAIT_MS};
use crate::news::News;
use crate::wire::{MetaReply, MetaService, Position};

/// See the module's head.
pub(super) struct Positions {
    /// By PG, in the order of regions.
    of_pgs: Vec<Mutex<Vec<Position>>>,
    /// Tells when a region comes further.
    moved: News,
    /// Places for calls that wait.
    waits: Semaphore,
}

/// An op, and the number of other regions that must have it before a call is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    pub(crate) op: OpSeq,
    pub(crate) count: usize,
}

impl Awaited {
    fn is_met(self, positions: &[Position]) -> bool {
        positions.iter().filter(|(_, through)| *through >= self.op).count() >= self.count
    }
}

impl Positions {
    pub(super) fn new(pgs: usize) -> Self {
        let of_pgs = (0..pgs).map(|_| Mutex::default()).collect();
        Self { of_pgs, moved: News::default(), waits: Semaphore::new(POSITION_WAITS_MAX) }
    }

    /// Takes what the gateway says of a PG; returns whether that is news. Regions that it does not name are no more.
    fn hear(&self, pg: PgId, told: &[Position]) -> bool {
        let mut known = self.of_pgs[pg.0 as usize].lock();
        let before: BTreeMap<RegionId, OpSeq> = known.iter().copied().collect();
        let later = |&(region, through): &Position| {
            // Two calls may come in another order than they were made.
            (region, through.max(before.get(&region).copied().unwrap_or_default()))
        };
        let now: Vec<Position> = told.iter().map(later).collect();
        let is_news = *known != now;
        *known = now;
        is_news
    }

    fn of(&self, pg: PgId) -> Vec<Position> {
        self.of_pgs[pg.0 as usize].lock().clone()
    }
}

impl Meta {
    /// Takes what the gateway says of PGs.
    pub(crate) fn hear_positions(&self, told: &[(PgId, Vec<Position>)]) {
        let news = told.iter().filter(|(pg, positions)| self.positions.hear(*pg, positions));
        // All of them are heard.
        if news.count() > 0 {
            self.positions.moved.tell();
        }
    }

    /// Returns the positions of other regions in a PG's journal. Waits until as many have an op as are awaited, for this long
    /// at most; `None` if too many wait.
    pub(crate) async fn positions(
        &self,
        pg: PgId,
        awaited: Awaited,
        wait: Duration,
    ) -> Option<Vec<Position>> {
        let until = Instant::now() + wait.min(Duration::from_millis(REGION_WAIT_MS));
        let mut moved = self.positions.moved.subscribe();
        let place = self.positions.waits.try_acquire();
        loop {
            moved.mark_seen();
            let now = self.positions.of(pg);
            if awaited.is_met(&now) {
                return Some(now);
            }
            if place.is_err() {
                return None;
            }
            if !matches!(timeout_at(until, moved.changed()).await, Ok(Ok(()))) {
                return Some(now);
            }
        }
    }

    /// The gateway says how far other regions are.
    pub(super) fn serve_told_positions(
        &self,
        cluster: &Cluster,
        from: &PeerIdentity,
        told: &[(PgId, Vec<Position>)],
        responder: Responder<MetaService>,
    ) {
        let gateway = cluster.managers.map().gateway;
        if gateway.is_none_or(|gateway| gateway.server != from.subject.server) {
            // Its map or this one is older.
            return refuse(responder, Refusal::Busy);
        }
        if told.len() > POSITIONS_MAX || told.iter().any(|(pg, _)| !self.has(*pg)) {
            // The caller hears that there is no answer.
            return tracing::error!("positions that no gateway tells: use one release");
        }
        self.hear_positions(told);
        responder.answer(&MetaReply::Positions(Vec::new()), Bytes::new());
    }

    pub(super) fn serve_positions(
        &self,
        cluster: &Cluster,
        (pg, view): (PgId, View),
        awaited: Awaited,
        wait: Duration,
        responder: Responder<MetaService>,
    ) {
        if self.member_in(pg, view).is_none() {
            return refuse(responder, Refusal::NotPrimary);
        }
        let Some(meta) = cluster.meta() else { return };
        // A client that goes away leaves its place to others.
        let unwanted = Arc::new(Notify::new());
        let tells = unwanted.clone();
        responder.when_unwanted(move || tells.notify_one());
        cluster.runtime.spawn(async move {
            let now = tokio::select! {
                biased;
                now = meta.positions(pg, awaited, wait) => now,
                () = unwanted.notified() => return,
            };
            match now {
                Some(now) => responder.answer(&MetaReply::Positions(now), Bytes::new()),
                None => refuse(responder, Refusal::Busy),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_comes_no_less_far_and_one_that_is_not_named_is_no_more() {
        let positions = Positions::new(2);
        let at = |region, op| (RegionId(region), OpSeq(op));
        let pg = PgId(1);
        let waits = |op, count| !Awaited { op: OpSeq(op), count }.is_met(&positions.of(pg));
        assert!(!waits(9, 0) && waits(9, 1), "nothing is known");
        positions.hear(pg, &[at(2, 9), at(3, 4)]);
        assert!(!waits(9, 1) && waits(9, 2) && !waits(4, 2));
        positions.hear(pg, &[at(2, 7), at(3, 10)]);
        assert_eq!(positions.of(pg), [at(2, 9), at(3, 10)]);
        positions.hear(pg, &[at(3, 10)]);
        assert_eq!(positions.of(pg), [at(3, 10)]);
        assert_eq!(positions.of(PgId(0)), []);
    }
}
