//! A meta server: PGs, log and index, with the thin driver that a real one has too.
//!
//! # Invariants
//!
//! 1. A machine's effects are carried out before it is stepped again: log order is op order.
//! 2. The index is written only by [`Pg::apply`].
//! 3. What tells a proxy about a key's present state leaves only under a lease, which is looked at after the
//!    index was read.

mod data_calls;
mod digest;
mod early;
mod ledger;
mod managed;
mod moves;
mod refill;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_env::SimDisk;
use larder_kv::{Kv, KvError, KvReader, SimKv};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::{CopyPriority, LedgerWalk, owner, read_piece};
use larder_protocol::rebuild::SpaceScan;
use larder_protocol::{
    Answer, Call, Content, Effect, Event, EventTime, IndexError, LvInfo, Outbox, PeerMessage, Pg,
    Refusal, RowSpan, Token,
};
use larder_types::{BootId, Chunk, LvId, Op, OpId, OpSeq, PgId, ServerId, SessionId, View, rows};

use crate::agreed::Shared;
use crate::clock::MS;
use crate::event::{Caller, NodeIn, PgRequest, ProxyEvent, ProxyIn};
use crate::index::Port;
use crate::log::Log;
use crate::managers::Managers;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::servers::Server;
use crate::setup::Setup;
use crate::verdict::Finding;
pub(crate) use start::NoStart;

/// Names no call: the answer, if any, is dropped.
const NOBODY: Token = Token(u64::MAX);

/// The demands of a caller on its answer.
#[derive(Debug, Clone)]
enum Wanted {
    Answer,
    Locate(larder_types::BucketId, larder_types::ObjectKey),
    List(larder_types::BucketId, RowSpan),
    Parts(larder_types::BucketId, larder_types::UploadId),
}

/// A PG with what its driver keeps beside it.
struct Member {
    pg: Pg,
    waiting: BTreeMap<Token, (Caller, Wanted)>,
    next_token: u64,
    /// In this view the primary may tell what is there until then, by the server's clock.
    lease: (View, u64),
    /// LVs that it was told of in this view.
    lvs: BTreeSet<LvId>,
    /// It waits for another LV in this view.
    wants_lv: Option<View>,
}

/// A run of the server.
struct Life {
    managers: Managers,
    /// With each PG, the view of its last op at the start; `None` if it is not whole.
    has: Vec<(PgId, Option<View>)>,
    log: Log,
    members: Vec<Member>,
    /// Data servers of each LV's replicas, by index, as of a map.
    places: BTreeMap<LvId, (MapVersion, Vec<usize>)>,
    /// Requests to data servers that were not answered; each is answered once.
    requests: BTreeMap<u64, data_calls::Request>,
    next_request: u64,
    /// Sessions that this run knows to have ended.
    closed: BTreeSet<SessionId>,
    /// Snapshots that followers take, each at its op.
    snapshots: BTreeMap<(PgId, ServerId), (OpId, Box<dyn KvReader>)>,
    /// The index as it was at a digest, until it is summed.
    digests: BTreeMap<PgId, (OpId, Box<dyn KvReader>)>,
    walking: Option<refill::Walking>,
    compacting: Option<moves::Compacting>,
    /// The walk under way for the ledgers of members.
    reading: Option<LedgerWalk>,
    /// True if there is one, or one is to begin.
    is_reading: bool,
    /// The run is of a release that knows no high-water marks.
    is_older: bool,
    /// The bound of the next walk.
    bound: CopyPriority,
}

/// A meta server and its disk.
pub(crate) struct Node {
    id: usize,
    setup: Arc<Setup>,
    agreed: Shared,
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) kv: Arc<SimKv>,
    pub(crate) run: BootId,
    /// Milliseconds by which its clock is ahead.
    pub(crate) skew_ms: i64,
    life: Option<Life>,
}

impl Node {
    pub(crate) fn new(id: usize, setup: &Arc<Setup>, agreed: &Shared, disk: Arc<SimDisk>) -> Self {
        Self {
            id,
            setup: setup.clone(),
            agreed: agreed.clone(),
            disk,
            kv: Arc::new(SimKv::new()),
            run: BootId(0),
            skew_ms: 0,
            life: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// The process is gone, and with it what its index had not flushed.
    pub(crate) fn die(&mut self) {
        if self.life.take().is_some() {
            self.kv.crash();
        }
    }

    fn now(&self, net: &Net) -> EventTime {
        let steady_ms = net.now_us() / MS;
        let wall_ms = (self.setup.epoch_ms + steady_ms).saturating_add_signed(self.skew_ms);
        EventTime { steady_ms, wall_ms }
    }

    /// Takes what happens to it; what was meant for an earlier run is lost.
    pub(crate) fn handle(&mut self, input: NodeIn, net: &mut Net) -> Result<(), ProcessEnd> {
        if self.life.is_none() {
            return Ok(());
        }
        let run = self.run;
        match input {
            NodeIn::PgRequest { pg, view, caller, ask } => {
                let current = self.member(pg).pg.view();
                match caller {
                    Some(caller) if view != current => {
                        let answer = Answer::Refused(Refusal::NotPrimary);
                        hear(self.id, caller, ProxyEvent::Answer(answer, current), net);
                        Ok(())
                    }
                    caller => self.ask(pg, caller, ask, net),
                }
            }
            NodeIn::Floor { session, floor } => {
                for pg in (0..self.setup.pgs).map(PgId) {
                    self.step(pg, Event::Floor { session, floor }, net)?;
                }
                Ok(())
            }
            NodeIn::FlushFor { run: meant, pg, flush } if meant == run => {
                self.flush_for(pg, flush, net)
            }
            NodeIn::Peer { pg, from, message } => self.step(pg, Event::Peer { from, message }, net),
            NodeIn::Data { run: meant, id, answer } if meant == run => {
                self.data_answered(id, answer, net)
            }
            NodeIn::Managers(what) => self.hear_managers(what, net),
            NodeIn::Copy { run: meant, copy, received } if meant == run => {
                if self.move_answered(copy, &received, net)? {
                    return Ok(());
                }
                self.copy_answered(copy, received, net)
            }
            NodeIn::Beat { run: meant } if meant == run => {
                self.beat(net);
                self.refresh_away(net)?;
                Ok(())
            }
            NodeIn::TakeBatch { run: meant } if meant == run => {
                if self.life().log.take() {
                    let slow = if net.rng.one_in(30) { 6 * MS } else { 300 };
                    let delay = 20 + net.rng.below(slow);
                    net.after(delay, (self.id, NodeIn::CommitBatch { run }));
                }
                Ok(())
            }
            NodeIn::CommitBatch { run: meant } if meant == run => self.commit_batch(net),
            NodeIn::Apply { run: meant, pg } if meant == run => self.apply(pg, net).map(|_| ()),
            NodeIn::ReadIndex { run: meant, step } if meant == run => self.read_index(step, net),
            NodeIn::Tick { run: meant } if meant == run => self.tick(net),
            NodeIn::Flush { run: meant } if meant == run => self.flush(net),
            NodeIn::Sum { run: meant, pg, at } if meant == run => self.sum(pg, at, net),
            _ => Ok(()),
        }
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().expect("checked when the input came")
    }

    fn member(&mut self, pg: PgId) -> &mut Member {
        &mut self.life().members[pg.0 as usize]
    }

    /// Steps a machine and carries out what it wants.
    fn step(&mut self, pg: PgId, event: Event, net: &mut Net) -> Result<(), ProcessEnd> {
        let now = self.now(net);
        let kv = self.kv.clone();
        let mut out = Outbox::new();
        self.member(pg).pg.step(now, event, &Port(&kv), &mut out);
        self.perform(pg, out, net)
    }

    fn apply(&mut self, pg: PgId, net: &mut Net) -> Result<usize, ProcessEnd> {
        let now = self.now(net);
        let kv = self.kv.clone();
        let mut out = Outbox::new();
        let moved = self.member(pg).pg.move_counts();
        let marks = self.marks_to_keep(pg);
        let applied = self.member(pg).pg.apply(now, &Port(&kv), &mut out);
        if let Some(marks) = marks {
            self.keep_marks(pg, &marks)?;
        }
        self.note_moves(pg, moved, net);
        self.check_ledger(pg, net);
        self.perform(pg, out, net)?;
        let pg_now = &self.member(pg).pg;
        if applied > 0 && pg_now.applied().seq < pg_now.commit() {
            net.soon((self.id, NodeIn::Apply { run: self.run, pg }));
        }
        Ok(applied)
    }

    fn perform(&mut self, pg: PgId, out: Outbox, net: &mut Net) -> Result<(), ProcessEnd> {
        let (id, run) = (self.id, self.run);
        for effect in out {
            match effect {
                Effect::Append(entry) => {
                    let life = self.life();
                    let commit = life.members[pg.0 as usize].pg.commit();
                    let is_outcome = matches!(*entry.op, Op::Outcome { .. });
                    life.log.append(pg, entry, commit)?;
                    if is_outcome {
                        let patience = 2 * MS + net.rng.below(30 * MS);
                        net.after(patience, (id, NodeIn::TakeBatch { run }));
                    } else {
                        net.soon((id, NodeIn::TakeBatch { run }));
                    }
                }
                Effect::SyncSoon => net.soon((id, NodeIn::TakeBatch { run })),
                Effect::Send { to, message } => {
                    let from = ServerId(id as u32);
                    let to = (to.0 as usize, NodeIn::Peer { pg, from, message });
                    net.send(Server::Node(id), to);
                }
                Effect::Reply { token, answer } => self.reply(pg, token, answer, net),
                Effect::Data { lv, replica, request } => {
                    self.request_data((pg, lv, replica), request, net);
                }
                Effect::Committed => net.soon((id, NodeIn::Apply { run, pg })),
                Effect::NeedLv => self.need_lv(pg, net),
                Effect::Rebuilt { lv, replica, disk } => {
                    net.faults.add("replicas rebuilt", 1);
                    let message = ServerMessage::Rebuilt(lv, replica as u8, disk);
                    self.life().managers.say(message, net);
                }
                Effect::Vacated { lv, replica, order } => {
                    net.faults.add("replicas vacated", 1);
                    let view = self.member(pg).pg.view();
                    let message = ServerMessage::Vacated(lv, replica as u8, view, order);
                    self.life().managers.say(message, net);
                }
                Effect::ViewActive(view) => self.view_active(pg, view, net),
                Effect::CaughtUp { view, learner } => {
                    let message = ServerMessage::CaughtUp(pg, view, learner);
                    self.life().managers.say(message, net);
                }
                Effect::Snapshot { to, at } => {
                    net.faults.add("snapshots begun", 1);
                    let reader = self.kv.snapshot().map_err(kv_fate)?;
                    self.life().snapshots.insert((pg, to), (at, reader));
                }
                Effect::SnapshotRows { to, at, after } => self.send_rows(pg, (to, at), after, net),
                Effect::SnapshotOver { to } => {
                    self.life().snapshots.remove(&(pg, to));
                }
                Effect::Digest { at } => self.keep_for_sum(pg, at, net)?,
                Effect::Compared { outcome, sums, .. } => self.compared(pg, outcome, &sums, net),
                Effect::FlushIndex(flush) => net.soon((id, NodeIn::FlushFor { run, pg, flush })),
                Effect::Halt(reason) => net.find(Finding::Contradiction(reason)),
            }
        }
        Ok(())
    }

    fn ask(
        &mut self,
        pg: PgId,
        caller: Option<Caller>,
        ask: PgRequest,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let (call, wanted) = match ask {
            PgRequest::Call(call) => (call, Wanted::Answer),
            PgRequest::Locate(bucket, key) => {
                let call = Call::Read { bucket, key: key.clone() };
                (call, Wanted::Locate(bucket, key))
            }
            PgRequest::List(bucket, from) => {
                let to = rows::prefix_end(&rows::bucket(b'V', bucket));
                let span = RowSpan { from, to };
                (Call::Settle(span.clone()), Wanted::List(bucket, span))
            }
            PgRequest::Parts(bucket, upload) => (Call::Barrier, Wanted::Parts(bucket, upload)),
        };
        let adds_data = match &call {
            Call::Put(put) => !matches!(put.content, Content::Stream { .. }),
            Call::CreateUpload { .. } => true,
            _ => false,
        };
        let Some(caller) = caller else {
            return self.step(pg, Event::Call { token: NOBODY, call }, net);
        };
        let becomes_op = matches!(wanted, Wanted::Answer);
        let (is_full, is_busy) = (self.life().log.is_full(), self.life().log.is_busy());
        if adds_data && is_full || becomes_op && is_busy {
            net.faults.add("calls turned away by a full or busy log", 1);
            let answer =
                ProxyEvent::Answer(Answer::Refused(Refusal::Busy), self.member(pg).pg.view());
            hear(self.id, caller, answer, net);
            return Ok(());
        }
        let member = self.member(pg);
        let token = Token(member.next_token);
        member.next_token += 1;
        member.waiting.insert(token, (caller, wanted));
        self.step(pg, Event::Call { token, call }, net)
    }

    fn reply(&mut self, pg: PgId, token: Token, answer: Answer, net: &mut Net) {
        let (now_ms, bug) = (self.clock_ms(net), self.setup.options.bugs.driver);
        let member = self.member(pg);
        let Some((caller, wanted)) = member.waiting.get(&token).cloned() else { return };
        let more_follows = matches!(answer, Answer::Granted { .. });
        if !more_follows {
            member.waiting.remove(&token);
        }
        let (view, until_ms) = member.lease;
        let is_leased = view == member.pg.view() && now_ms < until_ms || bug.reads_without_lease();
        let tells = !matches!(
            answer,
            Answer::Granted { .. } | Answer::Persisted { .. } | Answer::Done { .. }
        );
        let received = if tells && !is_leased {
            Ok(ProxyEvent::Answer(Answer::Refused(Refusal::NotPrimary), member.pg.view()))
        } else {
            let view = member.pg.view();
            if tells {
                self.check_leads(pg, view, net);
            }
            self.look_up(pg, view, wanted, answer)
        };
        match received {
            Ok(received) => hear(self.id, caller, received, net),
            Err(error) => net.find(Finding::Contradiction(format!("pg {pg}: {error}"))),
        }
    }

    fn look_up(
        &self,
        pg: PgId,
        view: View,
        wanted: Wanted,
        answer: Answer,
    ) -> Result<ProxyEvent, IndexError> {
        let port = Port(&self.kv);
        Ok(match (wanted, answer) {
            (Wanted::Locate(bucket, _), Answer::Version(Some(row))) => {
                ProxyEvent::Located(Some(Box::new(port.located(bucket, *row)?)))
            }
            (Wanted::Locate(..), Answer::Version(None)) => ProxyEvent::Located(None),
            (Wanted::Locate(bucket, key), Answer::AskIndex) => {
                ProxyEvent::Located(port.locate(bucket, &key)?.map(Box::new))
            }
            (Wanted::List(bucket, span), Answer::Settled(before)) => {
                let span = RowSpan { to: before.clone().or(span.to), ..span };
                ProxyEvent::Listed(port.list(bucket, &span, (pg, self.setup.pgs))?, before)
            }
            (Wanted::Parts(bucket, upload), Answer::Passed) => {
                ProxyEvent::Parts(port.parts(bucket, upload)?)
            }
            (_, answer) => ProxyEvent::Answer(answer, view),
        })
    }

    fn commit_batch(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let durable = self.life().log.commit()?;
        for (pg, last) in durable {
            self.step(pg, Event::Durable(last), net)?;
        }
        if self.life().log.has_waiting() {
            net.soon((self.id, NodeIn::TakeBatch { run: self.run }));
        }
        Ok(())
    }

    fn tick(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let (id, run) = (self.id, self.run);
        if net.rng.one_in(4) {
            self.life().log.mark()?;
        }
        net.soon((id, NodeIn::TakeBatch { run }));
        for pg in (0..self.setup.pgs).map(PgId) {
            if self.member(pg).pg.wants_tick() {
                self.step(pg, Event::Tick, net)?;
            }
            if self.member(pg).pg.wants_to_reap(true) {
                self.step(pg, Event::Reap { may_begin: true }, net)?;
            }
        }
        self.retry_requests(net)?;
        self.walk_on(net)?;
        self.compact_on(net)?;
        self.compare_indexes(net)?;
        let pause = 150 * MS + net.rng.below(100 * MS);
        net.after(pause, (id, NodeIn::Tick { run }));
        Ok(())
    }

    /// Makes the index durable and frees the log behind it.
    fn flush(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let pause = 30 * MS + net.rng.below(400 * MS);
        net.after(pause, (self.id, NodeIn::Flush { run: self.run }));
        let retain: BTreeMap<PgId, OpSeq> = (0..self.setup.pgs)
            .map(PgId)
            .map(|pg| (pg, self.member(pg).pg.retain_from()))
            .collect();
        match self.kv.flush() {
            Ok(_) => self.life().log.trim(&retain),
            Err(KvError::Full { .. }) => Ok(()),
            Err(error) => Err(kv_fate(error)),
        }
    }

    /// Makes the index durable for a snapshot that was taken.
    fn flush_for(&mut self, pg: PgId, flush: u64, net: &mut Net) -> Result<(), ProcessEnd> {
        match self.kv.flush() {
            Ok(_) => self.step(pg, Event::IndexFlushed(flush), net),
            Err(KvError::Full { .. }) => {
                net.after(100 * MS, (self.id, NodeIn::FlushFor { run: self.run, pg, flush }));
                Ok(())
            }
            Err(error) => Err(kv_fate(error)),
        }
    }

    /// Sends a follower the next rows of its snapshot.
    fn send_rows(
        &mut self,
        pg: PgId,
        (to, at): (ServerId, OpId),
        after: Option<Vec<u8>>,
        net: &mut Net,
    ) {
        let (from, view, pgs) =
            (ServerId(self.id as u32), self.member(pg).pg.view(), self.setup.pgs);
        let (kv, is_live) = (self.kv.clone(), self.setup.options.bugs.driver.copies_live_rows());
        let Some((of, reader)) = self.life().snapshots.get(&(pg, to)) else { return };
        if *of != at {
            return;
        }
        let reader: &dyn KvReader = if is_live { &*kv } else { &**reader };
        let scan = |from: &[u8], visit: &mut larder_protocol::index::Visit<'_>| {
            reader.scan(from, None, visit).map_err(|error| IndexError(error.to_string()))
        };
        match read_piece(&scan, (pg, pgs), after.as_deref()) {
            Ok(piece) => {
                let message = PeerMessage::SnapshotRows { view, at, after, piece };
                let to = (to.0 as usize, NodeIn::Peer { pg, from, message });
                net.send(Server::Node(self.id), to);
            }
            Err(error) => net.find(Finding::Contradiction(error.0)),
        }
    }

    /// Chunks that the index shows of a PG.
    pub(crate) fn chunks_of(&self, pg: PgId) -> Vec<Chunk> {
        let mut chunks = Port(&self.kv).chunks().unwrap_or_default();
        chunks.retain(|chunk| chunk.grant.pg == pg);
        chunks
    }

    /// True if a PG waits for a volume here.
    pub(crate) fn wants_lv(&self, pg: PgId) -> bool {
        let mut members = self.life.iter().flat_map(|life| &life.members);
        members.any(|member| member.pg.id() == pg && member.wants_lv == Some(member.pg.view()))
    }

    /// The work it has under way for others, if any.
    pub(crate) fn under_way(&self) -> Option<String> {
        let life = self.life.as_ref()?;
        let (requests, snapshots) = (life.requests.len(), life.snapshots.len());
        if requests > 0 {
            return Some(format!("{requests} requests to data servers are not answered"));
        }
        if snapshots > 0 {
            return Some(format!("{snapshots} snapshots are kept"));
        }
        None
    }

    /// The machines, for the checks at the end.
    pub(crate) fn pgs(&self) -> impl Iterator<Item = &Pg> {
        self.life.iter().flat_map(|life| life.members.iter().map(|member| &member.pg))
    }
}

impl Life {
    /// The data server of a replica.
    fn store_of(&self, lv: LvId, replica: usize) -> Option<usize> {
        self.places.get(&lv).and_then(|(_, at)| at.get(replica)).copied()
    }
}

impl Member {
    fn new(pg: Pg) -> Self {
        Self {
            pg,
            waiting: BTreeMap::new(),
            next_token: 0,
            lease: (View(0), 0),
            lvs: BTreeSet::new(),
            wants_lv: None,
        }
    }
}

/// Derives the space of these PGs from the index and from what is open in them. Rows of others are what a member
/// left behind that is none any more.
pub(crate) fn scan(
    port: &Port<'_>,
    pg_count: u32,
    lvs: impl Iterator<Item = LvInfo>,
    pgs: &[&Pg],
) -> Result<larder_protocol::rebuild::Derived, IndexError> {
    let mut scan = SpaceScan::new(lvs);
    for table in rows::SPACE_TABLES.into_iter().chain([b'Q']) {
        for (row, value) in port.collect(&[table])? {
            let of = owner(&row, &value, pg_count)?;
            if pgs.iter().any(|pg| Some(pg.id()) == of) {
                scan.note(&row, &value)?;
            }
        }
    }
    for pg in pgs {
        pg.open_chunks().for_each(|chunk| scan.claim(chunk));
    }
    Ok(scan.finish())
}

fn kv_fate(error: KvError) -> ProcessEnd {
    match error {
        KvError::PoweredOff => ProcessEnd::PowerLost,
        error => ProcessEnd::Ends(error.to_string()),
    }
}

fn hear(node: usize, caller: Caller, received: ProxyEvent, net: &mut Net) {
    let Caller { proxy, session, token } = caller;
    net.send(Server::Node(node), (proxy, ProxyIn::ProxyEvent { session, token, received }));
}
