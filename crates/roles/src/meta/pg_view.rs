//! The state that the driver of a PG keeps beside its machine in a cluster. All of it belongs to one
//! view.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use larder_env::clock::uptime_ms;
use larder_net::Responder;
use larder_protocol::manager::state::{LvRecord, MapVersion, ReplicaRecord};
use larder_protocol::pg::Role;
use larder_protocol::{Answer, LvInfo, Refusal, Replica};
use larder_types::{BootId, LvId, OpId, OpSeq, ServerId, SessionId, View};
use tokio::time::Instant;

use super::Member;
use super::callers::refuse;
use super::op_quota::OpQuota;
use super::snapshots::FollowerSnapshot;
use crate::limits::CALL_MAX;
use crate::planted::{Bug, has};
use crate::wire::{MetaReply, MetaService};

/// A driver's state for one PG in one view.
#[derive(Default)]
pub(super) struct PgViewState {
    /// The view of the lease, and its end by the machine's uptime in milliseconds: until then the primary may answer alone.
    pub(super) lease: (View, u64),
    /// The callers that wait for the METAX of puts to be persisted. Each is a request of a
    /// connection, which bounds them.
    awaited: BTreeMap<OpSeq, Vec<(OpId, Responder<MetaService>)>>,
    /// Snapshots that followers take.
    pub(super) snapshots: BTreeMap<ServerId, FollowerSnapshot>,
    /// Data servers of the replicas of each LV that the PG has, by index, as of a map.
    pub(super) places: BTreeMap<LvId, (MapVersion, Vec<ServerId>)>,
    /// The volumes that the PG is to be adopted with.
    pub(super) volumes: Option<Volumes>,
    /// The machine waits for another LV.
    pub(super) needs_lv: bool,
    /// Bounds the ops that are taken while the log is behind.
    pub(super) quota: OpQuota,
    /// METAX contradicts itself: the PG is not served in this view.
    pub(super) contradicts: bool,
}

/// A PG's LVs and the open sessions, as the leading manager sent them for a view.
pub(super) struct Volumes {
    pub(super) view: View,
    /// The map that they were taken from.
    pub(super) as_of: MapVersion,
    pub(super) lvs: Vec<LvInfo>,
    pub(super) sessions: BTreeSet<SessionId>,
}

impl Volumes {
    /// Volumes from a manager's message. A data server whose run is not in it counts as not running.
    pub(super) fn new(
        view: View,
        lvs: Vec<(LvId, LvRecord)>,
        boots: &[(ServerId, BootId)],
        as_of: MapVersion,
        sessions: Vec<SessionId>,
    ) -> Self {
        let boots: BTreeMap<ServerId, BootId> = boots.iter().copied().collect();
        let info = |(lv, record): (LvId, LvRecord)| {
            let replica = |it: &ReplicaRecord| {
                let ReplicaRecord { server, disk, pv, state } = *it;
                let boot = boots.get(&server).copied().unwrap_or(BootId(0));
                Replica { server, boot, disk, pv, state }
            };
            let replicas = record.replicas.iter().map(replica).collect();
            LvInfo { lv, blocks: record.blocks, copies: record.width, replicas, as_of }
        };
        let lvs = lvs.into_iter().map(info).collect();
        Self { view, as_of, lvs, sessions: sessions.into_iter().collect() }
    }
}

impl PgViewState {
    /// Notes the servers of an LV, unless they are known from a newer map. Returns true if the LV is new.
    pub(super) fn note_lv(&mut self, info: &LvInfo) -> bool {
        let servers = info.replicas.iter().map(|replica| replica.server).collect();
        let is_new = !self.places.contains_key(&info.lv);
        if !self.has_newer(info) {
            self.places.insert(info.lv, (info.as_of, servers));
        }
        is_new
    }

    /// The number of callers that wait for METAX.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.awaited.values().map(Vec::len).sum()
    }

    /// Returns true if an LV is known from a newer map.
    pub(super) fn has_newer(&self, info: &LvInfo) -> bool {
        self.places.get(&info.lv).is_some_and(|(as_of, _)| *as_of > info.as_of)
    }

    /// The data servers of an LV's replicas, by number.
    pub(super) fn places_of(&self, lv: LvId) -> Vec<ServerId> {
        self.places.get(&lv).map(|(_, at)| at.clone()).unwrap_or_default()
    }

    /// The data server of a replica.
    pub(super) fn place(&self, lv: LvId, replica: usize) -> Option<ServerId> {
        self.places.get(&lv).and_then(|(_, at)| at.get(replica)).copied()
    }
}

impl Member {
    /// Returns true if this primary holds a lease, and may answer reads alone.
    pub(super) fn is_leased(&self) -> bool {
        let (view, until_ms) = self.view_state.lease;
        view == self.pg.view() && uptime_ms() < until_ms
    }

    /// Returns true if it may answer proxies of this view from its index.
    pub(super) fn accepts_reads(&self, view: View) -> bool {
        self.pg.view() == view && self.pg.role() == Role::Serving && self.is_leased()
    }

    /// Answers once the METAX of a put is persisted; refuses a put that is not known.
    pub(super) fn await_metax(&mut self, op: OpId, responder: Responder<MetaService>) {
        match self.pg.grant_of(op) {
            Some((grant, true)) => {
                let answer = Answer::Persisted { grant };
                responder.answer(&MetaReply::Answered(answer), Bytes::new());
            }
            Some((_, false)) => {
                self.view_state.awaited.entry(op.seq).or_default().push((op, responder));
            }
            None => refuse(responder, Refusal::NotPrimary),
        }
    }

    /// Answers callers whose METAX is persisted by now; runs after each step.
    pub(super) fn answer_awaited(&mut self) {
        if self.view_state.awaited.is_empty() {
            return;
        }
        let commit = self.pg.commit();
        let end = if has(Bug::AnswersOneLate) { commit } else { commit.next() };
        let above = self.view_state.awaited.split_off(&end);
        let reached = std::mem::replace(&mut self.view_state.awaited, above);
        for (op, responder) in reached.into_values().flatten() {
            self.await_metax(op, responder);
        }
    }

    /// Ends the state of a view that is over, and refuses all calls that were made in it.
    pub(super) fn end_view(&mut self) {
        let view_state = std::mem::take(&mut self.view_state);
        for (_, responder) in view_state.awaited.into_values().flatten() {
            refuse(responder, Refusal::NotPrimary);
        }
        for requester in self.callers.take_apart(|_| true) {
            requester.wants.refuse(Refusal::NotPrimary);
        }
    }

    /// Drops callers that will get no answer, such as one whose request another call has repeated.
    pub(super) fn drop_overdue(&mut self, now: Instant) {
        self.callers.take_apart(|requester| now.duration_since(requester.since) > CALL_MAX);
    }
}
