//! The state that the driver of a member among several keeps beside its machine. All of it belongs to one
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
use super::snapshots::Kept;
use super::turns::Turns;
use crate::limits::CALL_MAX;
use crate::planted::{Bug, has};
use crate::wire::{MetaReply, MetaService};

/// See the module's head.
#[derive(Default)]
pub(super) struct Duties {
    /// In this view the primary may tell what is there, until then by the machine's uptime in milliseconds.
    pub(super) lease: (View, u64),
    /// The callers that wait for the METAX of puts that are not persisted yet. Each is a request of a
    /// connection, which bounds them.
    awaited: BTreeMap<OpSeq, Vec<(OpId, Responder<MetaService>)>>,
    /// Snapshots that followers take.
    pub(super) snapshots: BTreeMap<ServerId, Kept>,
    /// Data servers of the replicas of each LV that the PG knows of, by index, as of a map.
    pub(super) places: BTreeMap<LvId, (MapVersion, Vec<ServerId>)>,
    /// The volumes that the space is to be derived from.
    pub(super) volumes: Option<Volumes>,
    /// The machine waits for another LV.
    pub(super) needs_lv: bool,
    /// Of its ops while the log is behind.
    pub(super) turns: Turns,
    /// METAX contradicts itself: the PG is not served in this view.
    pub(super) contradicts: bool,
}

/// The manager's word on a PG's LVs and on who has a session, for a view.
pub(super) struct Volumes {
    pub(super) view: View,
    /// The map that says so.
    pub(super) as_of: MapVersion,
    pub(super) lvs: Vec<LvInfo>,
    pub(super) sessions: BTreeSet<SessionId>,
}

impl Volumes {
    /// As it came. A data server of which no run is known is taken for one that runs no more.
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

impl Duties {
    /// The PG is told of an LV, unless it knows it from a newer map; returns whether it is new.
    pub(super) fn note_lv(&mut self, info: &LvInfo) -> bool {
        let servers = info.replicas.iter().map(|replica| replica.server).collect();
        let is_new = !self.places.contains_key(&info.lv);
        if !self.knows_newer(info) {
            self.places.insert(info.lv, (info.as_of, servers));
        }
        is_new
    }

    /// The number of those that wait for METAX.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.awaited.values().map(Vec::len).sum()
    }

    /// Returns true if the PG knows an LV from a newer map.
    pub(super) fn knows_newer(&self, info: &LvInfo) -> bool {
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
    /// Returns true if this primary may answer alone what is there.
    pub(super) fn is_leased(&self) -> bool {
        let (view, until_ms) = self.duties.lease;
        view == self.pg.view() && uptime_ms() < until_ms
    }

    /// Returns true if it tells proxies of this view what its index shows.
    pub(super) fn tells(&self, view: View) -> bool {
        self.pg.view() == view && self.pg.role() == Role::Serving && self.is_leased()
    }

    /// Answers when METAX of a put is persisted, or that it is not known.
    pub(super) fn await_metax(&mut self, op: OpId, responder: Responder<MetaService>) {
        match self.pg.grant_of(op) {
            Some((grant, true)) => {
                let answer = Answer::Persisted { grant };
                responder.answer(&MetaReply::Answered(answer), Bytes::new());
            }
            Some((_, false)) => {
                self.duties.awaited.entry(op.seq).or_default().push((op, responder));
            }
            None => refuse(responder, Refusal::NotPrimary),
        }
    }

    /// After each step: answers those who wait for METAX that is persisted by now.
    pub(super) fn answer_awaited(&mut self) {
        if self.duties.awaited.is_empty() {
            return;
        }
        let commit = self.pg.commit();
        let end = if has(Bug::AnswersOneLate) { commit } else { commit.next() };
        let above = self.duties.awaited.split_off(&end);
        let reached = std::mem::replace(&mut self.duties.awaited, above);
        for (op, responder) in reached.into_values().flatten() {
            self.await_metax(op, responder);
        }
    }

    /// The view is over, and with it all that was asked in it.
    pub(super) fn end_view(&mut self) {
        let duties = std::mem::take(&mut self.duties);
        for (_, responder) in duties.awaited.into_values().flatten() {
            refuse(responder, Refusal::NotPrimary);
        }
        for asker in self.callers.take_apart(|_| true) {
            asker.wants.refuse(Refusal::NotPrimary);
        }
    }

    /// Lets go of callers whom nobody will answer, such as one whose request was repeated by another call.
    pub(super) fn drop_overdue(&mut self, now: Instant) {
        self.callers.take_apart(|asker| now.duration_since(asker.since) > CALL_MAX);
    }
}
