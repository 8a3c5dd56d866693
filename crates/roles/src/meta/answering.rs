//! Handles proxies' calls, other members' messages and managers' orders, in a cluster. It runs on the connections' tasks,
//! where machines are stepped. Reads of the index for proxies go to the blocking pool, but for one row of an index that is
//! in memory.
//!
//! # Invariants
//!
//! 1. A call is stepped only in the view that it names.
//! 2. Each request gets one answer, or its caller the error that there is none.
//! 3. A call or message is stepped only once the machine has admitted it: machines assert what they admit.
//! 4. A server does not answer that a key, or a bucket's keys, are not there if by its map the bucket is gone. Nor
//!    does it answer that a key is not there if the bucket is marked for deletion. Each primary's map had the
//!    mark before the bucket was gone.
//! 5. A request is stepped only under a session that the map names as its sender's. Groups forget the requests
//!    of a closed session, so late ones count as finished, whichever process sends them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_env::clock::uptime_ms;
use larder_identity::Role as ServerRole;
use larder_kv::KvReader;
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::GatewayRecord;
use larder_protocol::pg::Role;
use larder_protocol::region::RemoteChange;
use larder_protocol::{Answer, Call, Content, Event, PeerMessage, Refusal};
use larder_types::codec::{decode, encode};
use larder_types::{
    Body, BucketId, ObjectKey, OpId, PgId, ServerId, SessionId, VersionRow, View, rows,
};
use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::batch::MessageBatch;
use super::callers::{Caller, NOBODY, Requester, Scan, ScanCall, Wants, refuse};
use super::cluster::Cluster;
use super::{Awaited, JournalCall, Member, Meta, MetaKind};
use crate::blocking;
use crate::limits::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX};
use crate::wire::{MetaCall, MetaMessage, MetaReply, MetaService};

/// The handler of a cluster's meta server: [`MetaServer::handler`](super::MetaServer::handler).
pub struct MetaHandler {
    pub(super) meta: Arc<Meta>,
}

impl Handler<MetaService> for MetaHandler {
    fn request(
        &self,
        from: &PeerIdentity,
        request: MetaCall,
        _payload: Bytes,
        responder: Responder<MetaService>,
    ) {
        let Some(cluster) = self.meta.cluster() else { return };
        let meta = &self.meta;
        // Counted before anything may refuse it: each retry counts, of every kind.
        match &request {
            MetaCall::Call { call, .. } => meta.requests_by_kind.note_call(call),
            request => kind_of(request).into_iter().for_each(|it| meta.requests_by_kind.note(it)),
        }
        match request {
            MetaCall::Call { pg, view, call } => match session_of(cluster, from, &call) {
                Named::Own => meta.serve_call(pg, view, call, responder),
                Named::Closed => refuse(responder, Refusal::Finished),
                Named::Unknown => refuse(responder, Refusal::Busy),
                // Dropping the responder tells the caller that there is no answer.
                Named::Anothers => {
                    tracing::error!(%from, "refused a request under another proxy's session")
                }
            },
            MetaCall::Await { pg, view, op } => meta.serve_await(pg, view, op, responder),
            MetaCall::Find { pg, view, bucket, key } => {
                meta.serve_find(cluster, (pg, view), bucket, key, responder);
            }
            MetaCall::GetRow { pg, view, row } => {
                meta.serve_row(cluster, (pg, view), row, responder);
            }
            MetaCall::Scan { pgs, map, settled, from, to, count_max } => {
                let call = ScanCall { pgs, from, to, count_max };
                meta.serve_scan_under(map, cluster, call, settled, responder);
            }
            MetaCall::Progress => {
                responder.answer(&MetaReply::Progress, encode(&meta.progress()).into());
            }
            MetaCall::Space => {
                responder.answer(&MetaReply::Space, encode(&meta.space_now()).into());
            }
            MetaCall::Counts => {
                let counts = meta.requests_by_kind.now();
                responder.answer(&MetaReply::Counts, encode(&counts).into());
            }
            MetaCall::Doubts => {
                responder.answer(&MetaReply::Doubts, encode(&meta.doubts_now(cluster)).into());
            }
            MetaCall::Journals { pgs, map, ids_max, settled, wait_ms } => {
                let wait = Duration::from_millis(wait_ms.into());
                let call = JournalCall { pgs, ids_max: ids_max as usize, settled, wait };
                meta.serve_journals(cluster, map, call, responder);
            }
            MetaCall::Kept { pgs, keys } => meta.serve_kept(cluster, pgs, keys, responder),
            MetaCall::TellPositions(reported) => {
                meta.serve_reported_positions(cluster, from, &reported, responder);
            }
            MetaCall::Positions { pg, view, op, count, wait_ms } => {
                let awaited = Awaited { op, count: count.into() };
                let wait = Duration::from_millis(wait_ms.into());
                meta.serve_positions(cluster, (pg, view), awaited, wait, responder);
            }
        }
    }

    fn message(&self, from: &PeerIdentity, message: MetaMessage, payload: Bytes) {
        let Some(cluster) = self.meta.cluster() else { return };
        let (server, roles) = (from.subject.server, from.subject.roles);
        match message {
            MetaMessage::Peer(pg) if roles.has(ServerRole::Meta) => {
                self.meta.receive_message(pg, server, &payload, None);
            }
            MetaMessage::Peers if roles.has(ServerRole::Meta) => {
                self.meta.receive_batch(server, &payload);
            }
            MetaMessage::Call { pg, view: _, call } if roles.has(ServerRole::Proxy) => {
                self.meta.handle_call(pg, call);
            }
            MetaMessage::Floor { session, floor } if roles.has(ServerRole::Proxy) => {
                let event = Event::Floor { session, floor };
                self.meta.handle_session_event(cluster, server, session, &event);
            }
            MetaMessage::Finished { session, below, open } if roles.has(ServerRole::Proxy) => {
                let event = Event::Finished { session, below, open: open.into() };
                self.meta.handle_session_event(cluster, server, session, &event);
            }
            MetaMessage::Manager(message) if roles.has(ServerRole::Manager) => {
                if let ManagerMessage::Leases { boot, sent_ms, .. } = message
                    && boot == cluster.boot
                {
                    cluster.granted(server, sent_ms);
                }
                self.meta.handle_manager_message(cluster, message);
            }
            other => {
                tracing::warn!(%from, ?other, "refused a message that this server may not send")
            }
        }
    }
}

/// The kind of a request; `None` for a call, which has kinds of its own, and for a find, which has one of two kinds.
fn kind_of(request: &MetaCall) -> Option<MetaKind> {
    match request {
        MetaCall::Call { .. } | MetaCall::Find { .. } => None,
        MetaCall::Await { .. } => Some(MetaKind::AwaitPut),
        MetaCall::GetRow { .. } => Some(MetaKind::Row),
        MetaCall::Scan { .. } => Some(MetaKind::List),
        MetaCall::Progress | MetaCall::Space | MetaCall::Doubts | MetaCall::Counts => {
            Some(MetaKind::Status)
        }
        MetaCall::Journals { .. }
        | MetaCall::Kept { .. }
        | MetaCall::TellPositions(_)
        | MetaCall::Positions { .. } => Some(MetaKind::Region),
    }
}

/// The owner of the session that a request names, by the map.
enum Named {
    /// The sender.
    Own,
    /// The session is closed.
    Closed,
    /// Another proxy.
    Anothers,
    /// The map has no such session yet. A proxy uses a session only once its map names it; the map of this server may be a
    /// moment older. So it is for calls of a gateway that this map does not name.
    Unknown,
}

/// Finds the owner of a call's session. A session that is not in the map must not be served: groups remember its requests
/// until it is closed, and it might never be.
fn session_of(cluster: &Cluster, from: &PeerIdentity, call: &Call) -> Named {
    let Some(request) = call.request() else { return Named::Own };
    let map = cluster.managers.map();
    match map.sessions.get(&request.session) {
        Some(record) if record.server == from.subject.server => {
            // Two gateways would undo each other's changes: this one is no gateway yet, or no more.
            let is_other = |it: GatewayRecord| (it.server, it.boot) != (record.server, record.boot);
            match call {
                Call::RemoteChange(_) if map.gateway.is_some_and(is_other) => Named::Unknown,
                _ => Named::Own,
            }
        }
        Some(_) => Named::Anothers,
        None if map.closed.iter().any(|(_, it)| *it == request.session) => Named::Closed,
        None => Named::Unknown,
    }
}

impl Meta {
    /// The member of a PG, if it is in this view.
    pub(super) fn member_in(&self, pg: PgId, view: View) -> Option<MutexGuard<'_, Member>> {
        self.member(pg).filter(|member| member.pg.view() == view)
    }

    fn serve_call(&self, pg: PgId, view: View, call: Call, responder: Responder<MetaService>) {
        if let Some(refusal) = self.unfit(&call) {
            return refuse(responder, refusal);
        }
        let Some(mut member) = self.member_in(pg, view) else {
            return refuse(responder, Refusal::NotPrimary);
        };
        if let Err(why) = member.pg.admits_call(&call) {
            // Dropping the responder tells the caller that there is no answer.
            return tracing::error!(%pg, %why, "refused an invalid call: do all servers run one release?");
        }
        if matches!(call, Call::Commit { .. } | Call::Abandon { .. } | Call::Withdraw { .. }) {
            // None of these has an answer: dropping the responder tells the caller so.
            return self.step(&mut member, Event::Call { token: NOBODY, call });
        }
        self.call_machine(&mut member, Wants::Answer(responder), call);
    }

    pub(super) fn call_machine(&self, member: &mut Member, wants: Wants, call: Call) {
        let requester = Box::new(Requester { since: Instant::now(), wants });
        let token = member.callers.insert(Caller::Apart(requester));
        self.step(member, Event::Call { token, call });
    }

    /// The refusal of a call before it is stepped, if the log is full or behind.
    fn unfit(&self, call: &Call) -> Option<Refusal> {
        let adds_data = match call {
            Call::Put(_) | Call::RemoteChange(_) => {
                let reported = |reported: &RemoteChange| match reported {
                    RemoteChange::Append(append) => {
                        !matches!(append.content, Content::Stream { .. })
                    }
                    _ => false,
                };
                let put = call.put();
                put.is_some_and(|put| !matches!(put.content, Content::Stream { .. }))
                    || matches!(call, Call::RemoteChange(of) if reported(of))
            }
            Call::Append(append) => !matches!(append.content, Content::Stream { .. }),
            Call::Coalesce(of) => !matches!(of.content, Content::Stream { .. }),
            Call::CreateUpload { .. } => true,
            _ => false,
        };
        let becomes_op = !matches!(
            call,
            Call::Commit { .. }
                | Call::Abandon { .. }
                | Call::Withdraw { .. }
                | Call::Read { .. }
                | Call::PlanCoalesce(_)
                | Call::Settle(_)
                | Call::Barrier
        );
        if adds_data && self.log_is_full() {
            return Some(Refusal::Full);
        }
        (becomes_op && self.log_is_busy()).then_some(Refusal::Busy)
    }

    fn serve_await(&self, pg: PgId, view: View, op: OpId, responder: Responder<MetaService>) {
        match self.member_in(pg, view) {
            Some(mut member) => member.await_metax(op, responder),
            None => refuse(responder, Refusal::NotPrimary),
        }
    }

    fn serve_find(
        &self,
        cluster: &Cluster,
        (pg, view): (PgId, View),
        bucket: BucketId,
        key: ObjectKey,
        responder: Responder<MetaService>,
    ) {
        let right_pg = self.pg_of(bucket, &key) == pg;
        let Some(mut member) = self.member_in(pg, view).filter(|_| right_pg) else {
            self.requests_by_kind.note(MetaKind::LookUp);
            return refuse(responder, Refusal::NotPrimary);
        };
        if member.pg.is_quiescent(bucket, &key) {
            drop(member);
            self.requests_by_kind.note(MetaKind::LookUp);
            if self.index.is_in_memory() {
                // Handing it to another thread would cost more than the read.
                return self.answer_from_index((pg, view), &(bucket, key), responder);
            }
            return self.find_in_index(cluster, (pg, view), (bucket, key), responder);
        }
        self.requests_by_kind.note(MetaKind::LookUpOpen);
        let call = Call::Read { bucket, key: key.clone() };
        self.call_machine(&mut member, Wants::Version(bucket, key, responder), call);
    }

    /// Reads the key's version on the blocking pool. May be called under the PG's lock.
    fn find_in_index(
        &self,
        cluster: &Cluster,
        at: (PgId, View),
        key: (BucketId, ObjectKey),
        responder: Responder<MetaService>,
    ) {
        let Some(meta) = cluster.meta() else { return };
        drop(blocking::run_on(&cluster.runtime, move || {
            meta.answer_from_index(at, &key, responder);
        }));
    }

    /// Answers from the index. The state that it reads was the present one after the question came, if the
    /// lease still holds after the read. Takes the PG's lock.
    fn answer_from_index(
        &self,
        (pg, view): (PgId, View),
        (bucket, key): &(BucketId, ObjectKey),
        responder: Responder<MetaService>,
    ) {
        let row = self.index.kv.get(&rows::version(*bucket, key, rows::UNVERSIONED));
        let found = row.map_err(|error| error.to_string()).and_then(|row| {
            let version = row.map(|row| VersionRow::read(&row));
            version.transpose().map_err(|error| error.to_string())
        });
        let mut member = self.lock(pg);
        if !member.accepts_reads(view) {
            return refuse(responder, Refusal::NotPrimary);
        }
        if let Ok(Some(VersionRow { body: Body::Chunk(chunk), .. })) = &found {
            member.pg.note_read(chunk.lv, uptime_ms());
        }
        drop(member);
        match found {
            Ok(found) => self.send_found(*bucket, found.map(Box::new), responder),
            Err(error) => {
                tracing::error!(%pg, %error, "a row of the index cannot be used");
                refuse(responder, Refusal::IndexDamaged);
            }
        }
    }

    /// Answers with the version, or that there is none. Of a bucket that is being deleted or is gone it does not say the latter:
    /// the asker may have an old map, and the name may be another bucket's. A bucket that this map does not
    /// know is neither: each primary's map has a bucket, and the mark of its deletion, before the bucket is gone.
    fn send_found(
        &self,
        bucket: BucketId,
        found: Option<Box<VersionRow>>,
        responder: Responder<MetaService>,
    ) {
        if found.is_none() && self.index.is_ended(bucket) {
            return refuse(responder, Refusal::StaleBucket);
        }
        responder.answer(&MetaReply::Found(found), Bytes::new());
    }

    /// Sends a machine's answer to its caller in another process.
    pub(super) fn reply_apart(&self, member: &Member, requester: Requester, answer: Answer) {
        let tells = !matches!(
            answer,
            Answer::Granted { .. }
                | Answer::Persisted { .. }
                | Answer::Done { .. }
                | Answer::Appended(_)
        );
        let answer = if tells && !member.is_leased() {
            Answer::Refused(Refusal::NotPrimary)
        } else {
            answer
        };
        match (requester.wants, answer) {
            (wants, Answer::Refused(refusal)) => wants.refuse(refusal),
            (Wants::Answer(responder), answer) => {
                responder.answer(&MetaReply::Answered(answer), Bytes::new());
            }
            (Wants::Version(bucket, _, responder), Answer::Version(row)) => {
                self.send_found(bucket, row, responder);
            }
            (Wants::Version(bucket, key, responder), Answer::AskIndex) => {
                let at = (member.pg.id(), member.pg.view());
                if let Some(cluster) = self.cluster() {
                    self.find_in_index(cluster, at, (bucket, key), responder);
                }
            }
            (Wants::Settled(scan), Answer::Settled(before)) => Scan::settled(&scan, before),
            (Wants::Version(..) | Wants::Settled(_), answer) => {
                unreachable!("neither a read nor a barrier is answered by {answer:?}")
            }
        }
    }

    /// Takes messages of several groups from another server. The answers leave together, too.
    fn receive_batch(&self, from: ServerId, payload: &[u8]) {
        if payload.len() > BATCH_BYTES_MAX {
            let bytes = payload.len();
            return tracing::error!(%from, bytes, "refused messages of a member that are too long: do all servers run one release?");
        }
        let sent = match decode::<Vec<(PgId, Bytes)>>("messages of a member", payload) {
            Ok(sent) if sent.len() <= BATCH_MESSAGES_MAX => sent,
            Ok(sent) => {
                let count = sent.len();
                return tracing::error!(%from, count, "refused a batch of too many messages: do all servers run one release?");
            }
            Err(error) => {
                return tracing::warn!(%from, %error, "messages of a member cannot be decoded");
            }
        };
        let mut together = self.together();
        for (pg, payload) in sent {
            self.receive_message(pg, from, &payload, Some(&mut together));
        }
    }

    /// Takes a message of a member or a learner.
    fn receive_message(
        &self,
        pg: PgId,
        from: ServerId,
        payload: &[u8],
        together: Option<&mut MessageBatch<'_>>,
    ) {
        let message = match decode::<PeerMessage>("message of a member", payload) {
            Ok(message) => message,
            Err(error) => {
                return tracing::warn!(%pg, %from, %error, "a member's message cannot be decoded");
            }
        };
        let Some(mut member) = self.member(pg) else { return };
        if let Err(why) = member.pg.admits(&message, payload.len()) {
            return tracing::error!(%pg, %from, %why, "refused a member's message: do all servers run one release?");
        }
        match self.cluster() {
            Some(cluster) if member.pg.begins_snapshot(from, &message) => {
                self.hold_report(cluster, pg, from, message);
            }
            _ => {
                let Some(message) = self.bounded(&mut member, message) else { return };
                let event = Event::Peer { from, message };
                match together {
                    Some(together) => together.with(&mut member, |member| self.step(member, event)),
                    None => self.step(&mut member, event),
                }
            }
        }
    }

    /// The part of a message that is taken: hardly any ops while the log is behind. Their sender repeats
    /// them until they are acknowledged, and sends no more until then.
    fn bounded(&self, member: &mut Member, message: PeerMessage) -> Option<PeerMessage> {
        match message {
            PeerMessage::Append { view, prev, mut entries, commit } if !entries.is_empty() => {
                let is_behind = self.log_is_busy();
                // Ops that do not follow would only make this member ask for those before them.
                let follows = prev.seq <= member.pg.last().seq;
                if !is_behind || follows {
                    let takes =
                        member.view_state.quota.takes(Instant::now(), is_behind, entries.len());
                    entries.truncate(takes);
                    return Some(PeerMessage::Append { view, prev, entries, commit });
                }
                None
            }
            message => Some(message),
        }
    }

    /// Takes a proxy's statement about an op, which holds in every view and has no answer.
    fn handle_call(&self, pg: PgId, call: Call) {
        self.requests_by_kind.note_call(&call);
        if !call.is_report() {
            return tracing::warn!(%pg, ?call, "refused a call that must be sent as a request");
        }
        if let Some(mut member) = self.member(pg)
            && member.pg.role() == Role::Serving
        {
            self.step(&mut member, Event::Call { token: NOBODY, call });
        }
    }

    /// Takes a proxy's statement about its finished requests, if the session is its own.
    fn handle_session_event(
        &self,
        cluster: &Cluster,
        from: ServerId,
        session: SessionId,
        event: &Event,
    ) {
        let map = cluster.managers.map();
        if map.sessions.get(&session).is_none_or(|record| record.server != from) {
            return tracing::debug!(%from, ?session, "refused a message about another proxy's session");
        }
        let time = self.clock.now();
        for pg in self.pg_ids() {
            self.step_at(time, &mut self.lock(pg), event.clone());
        }
    }
}
