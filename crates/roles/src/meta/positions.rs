//! Positions of other regions in the journals of PGs, as the gateway reports them. Puts that wait for regions read them, and
//! requests that show where a version is.
//!
//! # Invariants
//!
//! 1. A position stays true as long as its region keeps its data. So one that comes late, or to a server that no longer leads
//!    the PG, does no harm. An operator removes a region that has lost data, and the gateway then no longer names it.
//! 2. Nothing here is durable. A new primary knows no positions until the gateway reports them.
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
use crate::notifier::Notifier;
use crate::wire::{MetaReply, MetaService, Position};

/// The positions of other regions in all PGs' journals.
pub(super) struct Positions {
    /// By PG, in the order of regions.
    of_pgs: Vec<Mutex<Vec<Position>>>,
    /// News that a position has changed.
    moved: Notifier,
    /// Bounds the calls that wait.
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
        Self { of_pgs, moved: Notifier::default(), waits: Semaphore::new(POSITION_WAITS_MAX) }
    }

    /// Takes the gateway's report for a PG. Returns true if a position has changed. Regions that it does not name are
    /// forgotten.
    fn receive(&self, pg: PgId, received: &[Position]) -> bool {
        let mut known = self.of_pgs[pg.0 as usize].lock();
        let before: BTreeMap<RegionId, OpSeq> = known.iter().copied().collect();
        let later = |&(region, through): &Position| {
            // Reports may arrive out of order.
            (region, through.max(before.get(&region).copied().unwrap_or_default()))
        };
        let now: Vec<Position> = received.iter().map(later).collect();
        let is_news = *known != now;
        *known = now;
        is_news
    }

    fn of(&self, pg: PgId) -> Vec<Position> {
        self.of_pgs[pg.0 as usize].lock().clone()
    }
}

impl Meta {
    /// Takes the gateway's report for several PGs.
    pub(crate) fn receive_positions(&self, received: &[(PgId, Vec<Position>)]) {
        let notifier =
            received.iter().filter(|(pg, positions)| self.positions.receive(*pg, positions));
        // `count` takes all reports, those after the first change too.
        if notifier.count() > 0 {
            self.positions.moved.notify();
        }
    }

    /// Returns the positions of other regions in a PG's journal, once as many as are awaited have the op or `wait` is over.
    /// `None` if too many calls wait.
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

    /// Answers the gateway's report of positions.
    pub(super) fn serve_reported_positions(
        &self,
        cluster: &Cluster,
        from: &PeerIdentity,
        received: &[(PgId, Vec<Position>)],
        responder: Responder<MetaService>,
    ) {
        let gateway = cluster.managers.map().gateway;
        if gateway.is_none_or(|gateway| gateway.server != from.subject.server) {
            // The sender's map or this one is older.
            return refuse(responder, Refusal::Busy);
        }
        if received.len() > POSITIONS_MAX || received.iter().any(|(pg, _)| !self.has(*pg)) {
            // Dropping the responder tells the caller that there is no answer.
            return tracing::error!(
                "refused invalid positions of a gateway: do all servers run one release?"
            );
        }
        self.receive_positions(received);
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
        // A call that is cancelled no longer counts against the bound.
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
        positions.receive(pg, &[at(2, 9), at(3, 4)]);
        assert!(!waits(9, 1) && waits(9, 2) && !waits(4, 2));
        positions.receive(pg, &[at(2, 7), at(3, 10)]);
        assert_eq!(positions.of(pg), [at(2, 9), at(3, 10)]);
        positions.receive(pg, &[at(3, 10)]);
        assert_eq!(positions.of(pg), [at(3, 10)]);
        assert_eq!(positions.of(PgId(0)), []);
    }
}
