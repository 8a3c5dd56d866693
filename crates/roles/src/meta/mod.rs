//! The meta server: members of PGs, their log, their index.
//!
//! ```text
//!  caller's thread: lock PG ─ step ─ append to log buffer, submit to disks, reply inline
//!  log thread:      write + sync a group ─ step(Durable) of each PG in it
//!  disk thread:     write + sync a group ─ ticket, or step(Data)
//!  apply thread:    lock PG ─ apply what is committed to the index
//!  tick thread:     every 100 ms: lazy outcomes, ticks, new LVs
//!  flush thread:    flush the index, free the log behind it, compact
//! ```
//!
//! # Invariants
//!
//! 1. A PG's machine is stepped under its lock, and its effects are carried out before the lock is
//!    released: log order equals op order.
//! 2. Locks are taken in the order PG, then log or disk queue or ticket; never two PGs.
//! 3. The index is written only by [`Pg::apply`], below the commit point.

mod log;
mod maintain;
mod recover;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use larder_kv::{Batch, Kv, KvError, KvReader, LsmKv};
use larder_protocol::pg::PgGauges;
use larder_protocol::placement::pg_of;
use larder_protocol::{
    Call, Changes, DataAnswer, Effect, Event, Index, IndexError, Outbox, Pg, Token,
};
use larder_types::{BucketId, Epoch, LvId, ObjectKey, PgId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use crate::clock::now_ms;
use crate::data::DataServer;
use crate::manager::Manager;
use crate::requests::Requests;
use crate::ticket::Ticket;
use log::Log;
pub use log::LogCounters;
pub(crate) use recover::Replay;
pub use recover::{KV_DIR, LOG_DIR, MetaConfig, OpenError, Threads};

/// Names no call: the answer, if any, is dropped.
const NOBODY: Token = Token(u64::MAX);

/// A PG with what its driver keeps beside it.
struct Member {
    pg: Pg,
    out: Outbox,
    tickets: Tickets,
    scratch: Vec<u8>,
}

/// Calls in flight, by token.
#[derive(Default)]
struct Tickets {
    slots: Vec<Option<Arc<Ticket>>>,
    free: Vec<usize>,
}

impl Tickets {
    fn insert(&mut self, ticket: Arc<Ticket>) -> Token {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(ticket);
        Token(at as u64)
    }

    fn get(&self, token: Token) -> Option<&Arc<Ticket>> {
        self.slots.get(usize::try_from(token.0).ok()?)?.as_ref()
    }

    fn remove(&mut self, token: Token) {
        if let Some(slot) = usize::try_from(token.0).ok().and_then(|at| self.slots.get_mut(at))
            && slot.take().is_some()
        {
            self.free.push(token.0 as usize);
        }
    }
}

/// PGs that have something to be done by another thread; each at most once.
struct PgQueue {
    state: Mutex<PgQueueState>,
    ready: Condvar,
}

struct PgQueueState {
    waiting: Vec<PgId>,
    marked: Vec<bool>,
    stopped: bool,
}

impl PgQueue {
    fn new(pg_count: usize) -> Self {
        let state =
            PgQueueState { waiting: Vec::new(), marked: vec![false; pg_count], stopped: false };
        Self { state: Mutex::new(state), ready: Condvar::new() }
    }

    fn push(&self, pg: PgId) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.marked[pg.0 as usize], true) {
            state.waiting.push(pg);
            if state.waiting.len() == 1 {
                self.ready.notify_one();
            }
        }
    }

    /// Takes all that wait, blocking until there are some; `None` once stopped.
    fn take(&self, into: &mut Vec<PgId>) -> Option<()> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            if state.stopped {
                return None;
            }
            self.ready.wait(&mut state);
        }
        std::mem::swap(&mut state.waiting, into);
        for pg in into.iter() {
            state.marked[pg.0 as usize] = false;
        }
        Some(())
    }

    /// Waits until something waits here, or until `due`, or until stopped.
    fn wait_until(&self, due: Instant) {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.stopped {
            if self.ready.wait_until(&mut state, due).timed_out() {
                return;
            }
        }
    }

    /// Takes what waits, without blocking.
    fn take_now(&self, into: &mut Vec<PgId>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.waiting, into);
        for pg in into.iter() {
            state.marked[pg.0 as usize] = false;
        }
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.ready.notify_all();
    }
}

/// The meta server.
pub struct Meta {
    pgs: Vec<Mutex<Member>>,
    index: IndexPort,
    manager: Arc<Manager>,
    data: Arc<DataServer>,
    log: Log,
    to_apply: PgQueue,
    need_lv: PgQueue,
    flush: maintain::FlushSignal,
    fatal: watch::Sender<Option<String>>,
    stopping: AtomicBool,
    /// The requests of this process's proxy: those that are finished are remembered no more.
    requests: OnceLock<Arc<Requests>>,
}

impl Meta {
    /// The PG of a key.
    #[must_use]
    pub fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        pg_of(bucket, key, self.pgs.len() as u32)
    }

    /// All PGs.
    pub fn pg_ids(&self) -> impl Iterator<Item = PgId> + use<> {
        (0..self.pgs.len() as u32).map(PgId)
    }

    /// The index, as of what is applied.
    #[must_use]
    pub fn kv(&self) -> &LsmKv {
        &self.index.kv
    }

    /// Makes a call; its ticket is settled by this thread or another.
    pub(crate) fn call(&self, pg: PgId, call: Call, ticket: &Arc<Ticket>) {
        let mut member = self.lock(pg);
        let token = member.tickets.insert(ticket.clone());
        self.step(&mut member, Event::Call { token, call });
    }

    /// Tells a PG something that has no answer.
    pub(crate) fn tell(&self, pg: PgId, call: Call) {
        let mut member = self.lock(pg);
        self.step(&mut member, Event::Call { token: NOBODY, call });
    }

    /// Whether the index alone can answer a read of this key.
    pub(crate) fn rests(&self, pg: PgId, bucket: BucketId, key: &ObjectKey) -> bool {
        self.lock(pg).pg.rests(bucket, key)
    }

    /// A data server answered a PG's request.
    pub(crate) fn data_answered(&self, pg: PgId, lv: LvId, replica: usize, answer: DataAnswer) {
        let mut member = self.lock(pg);
        self.step(&mut member, Event::Data { lv, replica, answer });
    }

    /// Whether calls must be turned away until the log has caught up.
    pub(crate) fn log_is_busy(&self) -> bool {
        self.log.is_busy()
    }

    /// Whether what is left of the log's space is kept for ops that free space.
    pub(crate) fn log_is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Whether the index shows everything that a PG has taken.
    pub(crate) fn shows_all(&self, pg: PgId) -> bool {
        self.lock(pg).pg.shows_all()
    }

    /// Numbers of one PG, for metrics.
    #[must_use]
    pub fn gauges(&self, pg: PgId) -> PgGauges {
        self.lock(pg).pg.gauges()
    }

    /// Numbers of the log, for metrics.
    #[must_use]
    pub fn log_counters(&self) -> LogCounters {
        self.log.counters()
    }

    /// Bytes that the index takes on disk.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index.kv.disk_bytes()
    }

    /// Becomes `Some` when the server cannot go on: the process must end and start again.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.fatal.subscribe()
    }

    /// Stops the server's threads, after everything that was taken is durable.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.log.stop();
        self.to_apply.stop();
        self.need_lv.stop();
        self.flush.stop();
    }

    /// Forgets requests once the proxy of this process says that they are finished.
    pub(crate) fn heed(&self, requests: Arc<Requests>) {
        let heeded = self.requests.set(requests);
        assert!(heeded.is_ok(), "a meta server in one process has one proxy");
    }

    fn lock(&self, pg: PgId) -> MutexGuard<'_, Member> {
        self.pgs[pg.0 as usize].lock()
    }

    fn fail(&self, reason: String) {
        tracing::error!(%reason, "the meta server cannot go on");
        self.fatal.send_replace(Some(reason));
    }

    /// Steps a machine and carries out what it wants.
    fn step(&self, member: &mut Member, event: Event) {
        let Member { pg, out, .. } = member;
        pg.step(now_ms(), event, &self.index, out);
        self.carry_out(member);
    }

    fn carry_out(&self, member: &mut Member) {
        let mut orphans = Vec::new();
        let mut effects = std::mem::take(&mut member.out);
        let pg = member.pg.id();
        for effect in effects.drain(..) {
            match effect {
                Effect::Append(entry) => {
                    let commit = member.pg.commit();
                    if let Err(error) = self.log.append(pg, &entry, commit, &mut member.scratch) {
                        self.fail(format!("the log cannot take an op: {error}"));
                    }
                }
                Effect::SyncSoon => self.log.nudge(),
                Effect::Reply { token, answer } => {
                    let Some(ticket) = member.tickets.get(token) else { continue };
                    let settles = !matches!(answer, larder_protocol::Answer::Granted { .. });
                    orphans.extend(ticket.answered(answer));
                    if settles {
                        member.tickets.remove(token);
                    }
                }
                Effect::Data { lv, replica, request } => {
                    self.data.request(pg, lv, replica, request);
                }
                Effect::Committed => self.to_apply.push(pg),
                Effect::NeedLv => self.need_lv.push(pg),
                Effect::ViewActive(view) => tracing::debug!(%pg, %view, "view active"),
                Effect::Halt(reason) => self.fail(reason),
                Effect::Send { to, .. }
                | Effect::CaughtUp { learner: to, .. }
                | Effect::Snapshot { to, .. }
                | Effect::SnapshotRows { to, .. }
                | Effect::SnapshotOver { to } => {
                    unreachable!("pg {pg} has one member and nothing to do with {to}")
                }
                Effect::FlushIndex(_) => unreachable!("pg {pg} takes no snapshots"),
            }
        }
        member.out = effects;
        for op in orphans {
            let call = Call::Abandon { op, disk_full: false };
            self.step(member, Event::Call { token: NOBODY, call });
        }
    }

    /// The apply thread: committed ops go into the index.
    fn apply_loop(&self) {
        let mut pgs = Vec::new();
        while self.to_apply.take(&mut pgs).is_some() {
            for pg in pgs.drain(..) {
                self.apply_all(&mut self.lock(pg));
            }
            self.flush.check(&self.index.kv);
        }
    }

    fn apply_all(&self, member: &mut Member) {
        loop {
            let Member { pg, out, .. } = member;
            let applied = pg.apply(now_ms(), &self.index, out);
            self.carry_out(member);
            if applied == 0 {
                return;
            }
        }
    }
}

/// The index and the bucket table as the machines see them.
struct IndexPort {
    kv: LsmKv,
    manager: Arc<Manager>,
}

impl Index for IndexPort {
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        self.kv.get(row).map_err(index_error)
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut larder_protocol::index::Visit<'_>,
    ) -> Result<(), IndexError> {
        self.kv.scan(from, to, visit).map_err(index_error)
    }

    fn write(&self, changes: Changes) -> Result<(), IndexError> {
        let (rows, position) = changes.into_parts();
        let mut batch = Batch::new();
        if let Some((row, value)) = position {
            batch.position(&row, &value);
        }
        for (row, value) in rows {
            match value {
                Some(value) => batch.put(&row, &value),
                None => batch.delete(&row),
            }
        }
        self.kv.apply(&batch).map_err(index_error)
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        self.manager.map().live_epoch(bucket)
    }
}

fn index_error(error: KvError) -> IndexError {
    IndexError(error.to_string())
}
