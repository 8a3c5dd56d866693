//! Meta servers that share one state, as if their groups never differed. They keep to what a proxy relies
//! on. A request takes effect once, and not when it is finished. A caller that asks for a key waits until
//! it is at rest. A put without an outcome is resolved when its proxy is silent or has finished it; one
//! that is not persisted may be gone with its view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::{Answer, Call, Content, PutCall, Refusal};
use larder_types::codec::encode;
use larder_types::{BucketId, ObjectKey, OpId, PgId, ServerId, SessionId, View, rows};
use tokio::time::{Instant, sleep, timeout_at};

use super::World;
use super::store::{Open, Store};
use crate::wire::{MetaCall, MetaMessage, MetaReply, MetaService, Rows};

/// The time that an asker waits for puts under way.
const DOUBT_MAX: Duration = Duration::from_secs(9);
/// The time after which a put of a finished request is resolved.
const ABANDONED: Duration = Duration::from_secs(1);
/// For how long a session may be silent before its puts are resolved.
const SILENCE: Duration = Duration::from_secs(2);
/// The interval of looks for puts to be resolved.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One meta server.
pub(super) struct SimMetaHandler {
    pub(super) me: ServerId,
    pub(super) world: Arc<World>,
}

/// The answer to a question.
type Reply = (MetaReply, Bytes);

fn answered(answer: Answer) -> Reply {
    (MetaReply::Answered(answer), Bytes::new())
}

fn refused(refusal: Refusal) -> Reply {
    (MetaReply::Refused(refusal), Bytes::new())
}

impl Handler<MetaService> for SimMetaHandler {
    fn request(
        &self,
        _: &PeerIdentity,
        request: MetaCall,
        _: Bytes,
        responder: Responder<MetaService>,
    ) {
        let asked = PendingRequest { me: self.me, world: self.world.clone() };
        tokio::spawn(async move {
            if asked.world.sim_rng.one_in(60) {
                return responder.busy();
            }
            sleep(asked.world.sim_rng.ms(6)).await;
            let (reply, payload) = asked.answer(request).await;
            responder.answer(&reply, payload);
        });
    }

    fn message(&self, _: &PeerIdentity, message: MetaMessage, _: Bytes) {
        let world = &self.world;
        match message {
            MetaMessage::Call { pg, view, call } => {
                if world.agreed.leads(self.me, pg, view) {
                    world.reported(pg, call);
                }
            }
            MetaMessage::Floor { session, floor } => {
                let mut store = world.store.lock();
                store.observe(session);
                store.finished_below(session, floor);
            }
            MetaMessage::Finished { session, below, open } => {
                let mut store = world.store.lock();
                store.observe(session);
                store.finished(session, below, open);
            }
            other => unreachable!("no proxy says this: {other:?}"),
        }
    }
}

/// A question under way.
struct PendingRequest {
    me: ServerId,
    world: Arc<World>,
}

impl PendingRequest {
    fn leads(&self, pg: PgId, view: View) -> bool {
        self.world.agreed.leads(self.me, pg, view)
    }

    async fn answer(&self, call: MetaCall) -> Reply {
        match call {
            MetaCall::Call { pg, view, call } => self.call(pg, view, call).await,
            MetaCall::Await { pg, view, op } => self.persisted(pg, view, op).await,
            MetaCall::Find { pg, view, bucket, key } => {
                let row = rows::version(bucket, &key, rows::UNVERSIONED);
                self.at_rest(
                    pg,
                    view,
                    |open| open.row == row,
                    |store| {
                        let found = store.version(bucket, &key).map(Box::new);
                        (MetaReply::Found(found), Bytes::new())
                    },
                )
                .await
            }
            MetaCall::GetRow { pg, view, row } => {
                if !self.leads(pg, view) {
                    return refused(Refusal::NotPrimary);
                }
                let found = self.world.store.lock().row(&row);
                (MetaReply::Row(found.is_some()), found.unwrap_or_default())
            }
            MetaCall::Scan { pgs, settled, from, to, count_max, .. } => {
                let asked = (from, to, count_max);
                self.scan(pgs, settled, asked).await
            }
            MetaCall::Progress
            | MetaCall::Doubts
            | MetaCall::Space
            | MetaCall::Counts
            | MetaCall::Journals { .. }
            | MetaCall::Kept { .. }
            | MetaCall::TellPositions(_)
            | MetaCall::Positions { .. } => unreachable!("no proxy asks"),
        }
    }

    /// Waits until no put is open that stands in the way, and then looks.
    async fn at_rest(
        &self,
        pg: PgId,
        view: View,
        in_the_way: impl Fn(&Open) -> bool,
        look: impl FnOnce(&mut Store) -> Reply,
    ) -> Reply {
        let deadline = Instant::now() + DOUBT_MAX;
        loop {
            let changed = self.world.changed.notified();
            if !self.leads(pg, view) {
                return refused(Refusal::NotPrimary);
            }
            {
                let mut store = self.world.store.lock();
                if !store.open().any(&in_the_way) {
                    return look(&mut store);
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return refused(Refusal::InDoubt);
            }
        }
    }

    async fn call(&self, pg: PgId, view: View, call: Call) -> Reply {
        let not_primary = || refused(Refusal::NotPrimary);
        let world = &self.world;
        if !self.leads(pg, view) {
            return not_primary();
        }
        if matches!(call, Call::Put(_)) && world.sim_rng.one_in(40) {
            // Said before it is looked whether it has done it already.
            let refusal = if world.sim_rng.one_in(2) { Refusal::Full } else { Refusal::Busy };
            return answered(Answer::Refused(refusal));
        }
        match call {
            Call::Put(put) if matches!(put.content, Content::Data { .. }) => {
                self.grant(pg, view, *put).await
            }
            Call::DropStream { .. } => answered(Answer::Passed),
            call => {
                // It is in effect when it is durable.
                sleep(world.sim_rng.ms(if world.sim_rng.one_in(20) { 2000 } else { 10 })).await;
                let conditional = match &call {
                    Call::Put(put) if !put.condition.is_none() => {
                        Some((put.bucket, put.key.clone()))
                    }
                    Call::CompleteUpload { bucket, key, .. } => Some((*bucket, key.clone())),
                    _ => None,
                };
                let row = conditional.map(|(bucket, key)| row_of(bucket, &key));
                let in_the_way = |open: &Open| Some(&open.row) == row.as_ref();
                self.at_rest(pg, view, in_the_way, |store| {
                    answered(store.execute(pg, view, call, |bucket| world.agreed.epoch(bucket)))
                })
                .await
            }
        }
    }

    async fn grant(&self, pg: PgId, view: View, put: PutCall) -> Reply {
        let world = &self.world;
        let row = row_of(put.bucket, &put.key);
        let conditional = !put.condition.is_none();
        let request = put.request;
        let replicas = world.replicas_up();
        let in_the_way =
            |open: &Open| conditional && open.row == row && open.put.request != request;
        let reply = self.at_rest(pg, view, in_the_way, |store| {
            let epoch = world.agreed.epoch(put.bucket);
            let as_of = world.agreed.version();
            answered(store.grant((pg, view), put, epoch, (replicas, as_of)))
        });
        let reply = reply.await;
        if let MetaReply::Answered(Answer::Granted { grant, .. }) = &reply.0 {
            let (world, op) = (world.clone(), grant.op);
            tokio::spawn(async move {
                sleep(world.sim_rng.ms(if world.sim_rng.one_in(20) { 3000 } else { 20 })).await;
                world.store.lock().persist(op);
                world.changed.notify_waiters();
            });
        }
        reply
    }

    async fn persisted(&self, pg: PgId, view: View, op: OpId) -> Reply {
        loop {
            let changed = self.world.changed.notified();
            if !self.leads(pg, view) {
                return refused(Refusal::NotPrimary);
            }
            match self.world.store.lock().persisted(op) {
                Some(Some(answer)) => return answered(answer),
                Some(None) => {}
                None => return refused(Refusal::NotPrimary),
            }
            changed.await;
        }
    }

    async fn scan(
        &self,
        pgs: Vec<(PgId, View)>,
        settled: bool,
        (from, to, count_max): (Vec<u8>, Option<Vec<u8>>, u32),
    ) -> Reply {
        let asked: BTreeSet<PgId> = pgs.iter().map(|(pg, _)| *pg).collect();
        let now = self.world.store.lock().latest();
        let deadline = Instant::now() + DOUBT_MAX;
        let short = self.world.sim_rng.one_in(4);
        loop {
            let changed = self.world.changed.notified();
            if !pgs.iter().all(|(pg, view)| self.leads(*pg, *view)) {
                return refused(Refusal::NotPrimary);
            }
            {
                let store = self.world.store.lock();
                let in_the_way = |open: &Open| asked.contains(&open.pg) && open.op.seq <= now;
                if !settled || !store.open().any(in_the_way) {
                    let count = if short { count_max.div_ceil(3) } else { count_max } as usize;
                    let (taken, next): (Rows, _) = store.scan(&asked, from, to, count);
                    return (MetaReply::Rows(next), encode(&taken).into());
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return refused(Refusal::InDoubt);
            }
        }
    }
}

fn row_of(bucket: BucketId, key: &ObjectKey) -> Vec<u8> {
    rows::version(bucket, key, rows::UNVERSIONED)
}

impl World {
    /// A word that is not answered.
    fn reported(self: &Arc<Self>, pg: PgId, call: Call) {
        match call {
            Call::Commit { op, holders, .. } => {
                let committed = self.store.lock().commit(op, holders, |open, replica| {
                    self.disks[replica].has(&open.chunk.grant)
                });
                if let Err(why) = committed {
                    self.violated(format!("{pg}: a commit of {op:?}: {why}"));
                }
                self.changed.notify_waiters();
            }
            Call::Withdraw { op, .. } | Call::Abandon { op, .. } => {
                let world = self.clone();
                tokio::spawn(async move {
                    sleep(world.sim_rng.ms(40)).await;
                    let revoked = world.store.lock().revoke(op);
                    if let Some(grant) = revoked {
                        for disk in &world.disks {
                            disk.forbid(grant);
                        }
                    }
                    world.changed.notify_waiters();
                });
            }
            Call::NoRoom { .. } | Call::Suspect { .. } => {}
            other => unreachable!("no proxy says this: {other:?}"),
        }
    }

    /// Resolves the puts that nobody will end any more.
    pub(super) async fn resolve(self: Arc<Self>) {
        loop {
            sleep(POLL_INTERVAL).await;
            let due = self.store.lock().abandoned_since(ABANDONED, SILENCE);
            for grant in due {
                let world = self.clone();
                tokio::spawn(async move {
                    let has: Vec<bool> =
                        world.disks.iter().map(|disk| disk.forbid(grant)).collect();
                    sleep(world.sim_rng.ms(200)).await;
                    world.store.lock().resolved(grant.op, &has);
                    world.changed.notify_waiters();
                });
            }
        }
    }
}

/// Sessions, and which of their requests are finished.
#[derive(Default)]
pub(super) struct Sessions {
    received: BTreeMap<SessionId, Instant>,
    finished: BTreeMap<SessionId, (u64, BTreeSet<u64>)>,
}

impl Sessions {
    pub(super) fn observe(&mut self, session: SessionId) {
        self.received.insert(session, Instant::now());
    }

    /// A later report is of more.
    pub(super) fn finished(&mut self, session: SessionId, below: u64, open: Vec<u64>) {
        let known = self.finished.entry(session).or_default();
        if below >= known.0 {
            *known = (below, open.into_iter().collect());
        }
    }

    /// All below it are.
    pub(super) fn finished_below(&mut self, session: SessionId, floor: u64) {
        let (below, open) = self.finished.entry(session).or_default();
        *below = floor.max(*below);
        open.retain(|number| *number >= floor);
    }

    pub(super) fn is_finished(&self, session: SessionId, number: u64) -> bool {
        let reported = self.finished.get(&session);
        reported.is_some_and(|(below, open)| number < *below && !open.contains(&number))
    }

    pub(super) fn silent_since(&self, session: SessionId) -> Option<Instant> {
        self.received.get(&session).copied()
    }
}
