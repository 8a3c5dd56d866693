//! Carries out the effects of a PG's machine that concern other servers. Their messages come in
//! `answering.rs` and `orders.rs`.
//!
//! # Invariants
//!
//! 1. The machine gets one answer to each request to a data server, `Failed` if need be, unless the view in which it
//!    made the request is over.
//! 2. No function that is called under a PG's lock blocks.

use bytes::Bytes;
use larder_net::{CallError, Peer};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::{DataAnswer, DataRequest, Effect, Event};
use larder_types::{LvId, PgId, View};
use tokio::time::{Instant, sleep};

use super::batch::may_wait;
use super::cluster::Cluster;
use super::{Member, Meta};
use crate::limits::{DATA_ANSWER_MAX, DATA_PAUSE, DATA_REACH_MAX};
use crate::managers::down;
use crate::wire::{DataCall, DataReply, DataService};

impl Meta {
    /// Carries out an effect that concerns other servers.
    pub(super) fn send_apart(&self, cluster: &Cluster, member: &mut Member, effect: Effect) {
        let pg = member.pg.id();
        match effect {
            Effect::Send { to, message } => match &mut member.sent {
                Some(sent) if may_wait(&message) => sent.push((to, message)),
                _ => cluster.send(pg, to, message),
            },
            Effect::Data { lv, replica, request } => {
                cluster.request_data(member, lv, replica, request)
            }
            Effect::NeedLv => {
                member.view_state.needs_lv = true;
                cluster.request_lv(member);
            }
            Effect::Rebuilt { lv, replica, disk } => {
                tracing::info!(%pg, %lv, replica, "a replica was rebuilt");
                cluster.managers.send_message(ServerMessage::Rebuilt(lv, replica as u8, disk));
            }
            Effect::Vacated { lv, replica, order } => {
                tracing::info!(%pg, %lv, replica, "a replica was vacated");
                let view = member.pg.view();
                let message = ServerMessage::Vacated(lv, replica as u8, view, order);
                cluster.managers.send_message(message);
            }
            Effect::ViewActive(view) => {
                tracing::debug!(%pg, %view, "a view became active");
                cluster.report_active(pg, view);
            }
            Effect::CaughtUp { view, learner } => {
                cluster.managers.send_message(ServerMessage::CaughtUp(pg, view, learner));
            }
            Effect::Snapshot { to, at } => self.keep_snapshot(member, to, at),
            Effect::SnapshotRows { to, at, after } => {
                self.send_rows(cluster, member, to, (at, after))
            }
            Effect::SnapshotOver { to } => {
                member.view_state.snapshots.remove(&to);
            }
            Effect::Digest { at } => self.begin_sum(cluster, pg, at),
            Effect::Compared { at, outcome, sums } => self.compared(pg, at, outcome, &sums),
            Effect::FlushIndex(flush) => self.flush.request_flush_of(pg, flush),
            effect => unreachable!("pg {pg}: carried out before: {effect:?}"),
        }
    }

    /// Steps a PG with the answer to a request of this view, if the view is still the present one. A failure in an
    /// earlier view says nothing about this one.
    fn data_answered_in(&self, view: View, pg: PgId, lv: LvId, replica: usize, answer: DataAnswer) {
        let mut member = self.lock(pg);
        if member.pg.view() == view {
            self.step(&mut member, Event::Data { lv, replica, answer });
        }
    }
}

/// Asks a data server until it answers; one that cannot be reached for [`DATA_REACH_MAX`] has failed. All requests are
/// idempotent.
async fn call_data(peer: &Peer<DataService>, lv: LvId, request: DataRequest) -> DataAnswer {
    let begun = Instant::now();
    let call = DataCall::Pg { lv, request };
    loop {
        let error = match peer.call(&call, Bytes::new(), begun + DATA_ANSWER_MAX).await {
            Ok((DataReply::Pg(answer), _)) => return answer,
            Ok((reply, _)) => {
                tracing::error!(%lv, ?reply, "a data server sent an unexpected response: do all servers run one release?");
                return DataAnswer::Failed;
            }
            Err(error) => error,
        };
        let is_final = matches!(error, CallError::Rejected(_) | CallError::Denied(_));
        if is_final || begun.elapsed() > DATA_REACH_MAX {
            tracing::warn!(%lv, ?peer, %error, "a data server did not respond to a primary");
            return DataAnswer::Failed;
        }
        sleep(DATA_PAUSE).await;
    }
}

impl Cluster {
    fn request_data(&self, member: &Member, lv: LvId, replica: usize, request: DataRequest) {
        let (pg, view) = (member.pg.id(), member.pg.view());
        let server = member.view_state.place(lv, replica);
        debug_assert!(
            server.is_some(),
            "pg {pg}: replica {replica} of lv {lv} is asked before it is noted"
        );
        let peer = |server| Some((server, self.data.of(&self.managers.map(), server)?));
        let peer = server.and_then(peer);
        let Some(meta) = self.meta.get().cloned() else { return };
        let managers = self.managers.clone();
        self.runtime.spawn(async move {
            let answer = match peer {
                Some((server, peer)) => tokio::select! {
                    biased;
                    answer = call_data(&peer, lv, request) => answer,
                    () = down(&*managers, server) => DataAnswer::Failed,
                },
                None => DataAnswer::Failed,
            };
            if let Some(meta) = meta.upgrade() {
                meta.data_answered_in(view, pg, lv, replica, answer);
            }
        });
    }
}
