//! The meta server: members of PGs, with the log and the index that they share.
//!
//! ```text
//!  caller's thread: lock PG ─ step ─ append to log buffer, submit to disks, reply inline
//!  log thread:      write + sync a group ─ step(Durable) of each PG in it
//!  disk thread:     write + sync a group ─ ticket, or step(Data)
//!  apply thread:    lock PG ─ apply committed ops to the index
//!  tick thread:     every 100 ms: lazy outcomes, ticks, new LVs
//!  flush thread:    flush the index, free the log behind it, compact
//!  space thread:    after a start, read the index for free space
//! ```
//!
//! On a single node all roles are in one process and call each other. In a cluster ([`MetaServer`]) the other roles are in
//! other servers. There is no disk thread and no space thread, and besides the others there are:
//!
//! ```text
//!  connections:     proxies' calls, messages of other members and of managers ─ lock PG ─ step
//!  blocking pool:   read the index for proxies, walk over it for followers
//!  adopt thread:    derive the space of PGs that this server begins to lead; end sessions
//!  rows thread:     after a start, and again when needed, read the index for the ledgers of PGs
//! ```
//!
//! | file | what |
//! |---|---|
//! | `damage.rs`, `spare.rs`, `set_aside.rs` | what a single node does when its index cannot be read in part, and what a member of a cluster does |
//! | `recover.rs`, `space.rs`, `error.rs` | opening: index, log, and on a single node views and space; reading the rows for their blocks |
//! | `log.rs`, `index.rs`, `maintain.rs`, `tick.rs` | log, index, ticks and flushes |
//! | `callers.rs`, `queue.rs`, `op_quota.rs` | calls in flight, PGs that wait for a thread, ops that are taken while the log is behind |
//! | `server.rs`, `cluster.rs`, `pg_view.rs` | a server of a cluster: its connections to others, and its state for each group |
//! | `effects.rs`, `batch.rs` | effects of machines that concern other servers; messages of several groups in one frame |
//! | `answering.rs`, `scan.rs` | answers to proxies |
//! | `journals.rs`, `kept.rs` | answers to the gateway to other regions |
//! | `positions.rs` | positions of other regions in journals, as the gateway reports them |
//! | `snapshots/` | snapshots of groups for followers |
//! | `orders.rs`, `beat.rs` | orders of the leading manager, and reports that are repeated to it |
//! | `adoption.rs`, `adopt.rs` | how it begins to serve a PG |
//! | `background.rs` | the budget of background work: `rebuild.rs`, `copy.rs`, `copy_backoff.rs` make copies, `compact.rs` moves chunks, `scrub/` verifies copies, `digest.rs` compares indexes |
//! | `progress.rs`, `rate.rs` | the progress of all that |
//! | `usage.rs` | objects and bytes of buckets in the groups that it leads |
//! | `kinds.rs` | counts of its requests by kind |
//!
//! # Invariants
//!
//! 1. A PG's machine is stepped under its lock, and its effects are carried out before the lock is
//!    released: log order equals op order.
//! 2. Locks are taken in the order PG, then log or disk queue or ticket; never two PGs. Functions that are called under
//!    a PG's lock (`Managers::say`, `Peer::send`) only queue.
//! 3. Rows are written only by [`Pg::apply`], up to the commit point, by a snapshot that a follower takes, and by a fill
//!    (`fill/`).
//! 4. In a cluster, an answer to a proxy about a key's present state leaves only under a lease of the PG's
//!    present view. The lease is checked after the index was read.

mod adopt;
mod adoption;
mod answering;
mod background;
mod batch;
mod beat;
mod callers;
mod cluster;
mod compact;
mod copy;
mod copy_backoff;
mod damage;
mod digest;
mod effects;
mod error;
mod index;
mod journals;
mod kept;
mod kinds;
mod log;
mod maintain;
mod op_quota;
mod orders;
mod pg_view;
mod positions;
mod progress;
mod queue;
mod rate;
mod reading;
mod rebuild;
mod recover;
mod scan;
mod scrub;
mod server;
mod set_aside;
mod snapshots;
mod space;
mod spare;
mod summed;
mod tick;
mod usage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use larder_env::Disk;
use larder_env::threads::switch_point;
use larder_kv::{Kv, LsmKv};
use larder_protocol::pg::PgGauges;
use larder_protocol::placement::pg_of;
use larder_protocol::space::NoSpace;
use larder_protocol::{
    Answer, Call, DataAnswer, Effect, Event, EventTime, IndexError, Outbox, Pg, RowSpan, Token,
};
use larder_types::{BucketId, Extent, LvId, ObjectKey, OpId, PgId, RegionId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::clock::StoreClock;
use crate::data::DataServer;
use crate::manager::LocalManager;
use crate::notifier::{Notifier, NotifierWatch};
use crate::requests::Requests;
use crate::ticket::Ticket;
pub use adoption::AdoptionCounters;
pub use answering::MetaHandler;
use background::Background;
pub use background::BackgroundConfig;
use callers::{Caller, Callers, NOBODY};
use cluster::Cluster;
use compact::Compaction;
use damage::Damage;
pub use damage::{INDEX_DAMAGE_FILE, IndexDamage};
use digest::Digests;
pub use error::{NotSetAside, OpenError};
use index::IndexPort;
pub(crate) use journals::JournalCall;
use journals::Journals;
pub(crate) use kinds::MetaKind;
pub use kinds::MetaRequests;
use log::Log;
pub use log::LogCounters;
use pg_view::PgViewState;
pub(crate) use positions::Awaited;
use positions::Positions;
use queue::PgQueue;
pub use rebuild::RebuildCounters;
pub(crate) use recover::Replay;
pub use recover::{KV_DIR, LOG_DIR, MetaConfig, Threads};
pub use scrub::SCRUB_FILE;
use scrub::Scrubbing;
pub(crate) use scrub::load as load_scrub;
pub use server::{MetaServer, ServerConfig};
pub use set_aside::{SET_ASIDE_FILE, SetAside, set_index_aside};
pub use snapshots::SnapshotCounters;
use snapshots::Snapshots;
use space::SpaceReadiness;
pub use usage::BucketUse;

/// A PG's machine with its driver's state.
struct Member {
    pg: Pg,
    out: Outbox,
    callers: Callers,
    scratch: Vec<u8>,
    view_state: PgViewState,
    /// Gathers its messages to other members, while it is stepped together with other groups.
    sent: Option<batch::SentMessages>,
    /// The time of its last step on the steady clock. A call's time is that between the steps that took and answered it.
    stepped_ms: u64,
}

/// The other roles that this server depends on.
enum OtherRoles {
    /// The roles of this process.
    Here(Here),
    /// Other processes.
    Apart(Box<Cluster>),
}

/// The other roles of a store.
struct Here {
    manager: Arc<LocalManager>,
    data: Arc<DataServer>,
    /// The disk of the store's directory.
    disk: Arc<dyn Disk>,
}

/// The meta server.
pub struct Meta {
    pgs: Vec<Mutex<Member>>,
    index: IndexPort,
    other_roles: OtherRoles,
    log: Log,
    to_apply: PgQueue,
    need_lv: PgQueue,
    flush: maintain::FlushSignal,
    /// News that the index shows more, in a store among regions.
    rounds: Notifier,
    fatal: watch::Sender<Option<String>>,
    /// The time by which groups date changes.
    clock: Arc<StoreClock>,
    space_readiness: SpaceReadiness,
    damage: Damage,
    stopping: AtomicBool,
    /// The requests of this process's proxy: PGs forget those that are finished.
    requests: OnceLock<Arc<Requests>>,
    background: Arc<Background>,
    rebuild: RebuildCounters,
    compaction: Compaction,
    scrub: Scrubbing,
    digests: Digests,
    snapshots: Snapshots,
    journals: Journals,
    positions: Positions,
    requests_by_kind: MetaRequests,
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

    /// This store's number among regions; [`RegionId::OWN`] if it is alone.
    #[must_use]
    pub fn region(&self) -> RegionId {
        larder_protocol::Index::region(&self.index)
    }

    /// The time by which changes are dated.
    pub(crate) fn clock(&self) -> &Arc<StoreClock> {
        &self.clock
    }

    /// News when the index of a store among regions shows more.
    pub(crate) fn shows_more(&self) -> NotifierWatch {
        self.rounds.subscribe()
    }

    /// The index, as of what is applied.
    #[must_use]
    pub fn kv(&self) -> &LsmKv {
        &self.index.kv
    }

    /// Makes a call of this process's proxy; its ticket is settled by this thread or another.
    pub(crate) fn call(&self, pg: PgId, call: Call, ticket: &Arc<Ticket>) {
        self.requests_by_kind.note_call(&call);
        let mut member = self.lock(pg);
        let token = member.callers.insert(Caller::Here(ticket.clone()));
        self.step(&mut member, Event::Call { token, call });
    }

    /// Passes a PG a call of this process's proxy that has no answer.
    pub(crate) fn notify(&self, pg: PgId, call: Call) {
        self.requests_by_kind.note_call(&call);
        let mut member = self.lock(pg);
        self.step(&mut member, Event::Call { token: NOBODY, call });
    }

    /// The last op of a PG that the index shows.
    pub(crate) fn applied(&self, pg: PgId) -> OpId {
        self.lock(pg).pg.applied()
    }

    /// Takes space of a PG for data that a fill writes and a row of the index will name, once the PG's marks are written.
    pub(crate) fn reserve(&self, pg: PgId, bytes: u32) -> Result<(LvId, Vec<Extent>), NoSpace> {
        self.lock(pg).pg.reserve(bytes)
    }

    /// Writes a PG's high-water marks, which are above its reserved space, into the index.
    pub(crate) fn write_marks(&self, pg: PgId) -> Result<(), IndexError> {
        // Under the lock, so that marks are written in order and never fall.
        self.lock(pg).pg.write_marks(&self.index)
    }

    /// Returns true if the index alone can answer a read of this key.
    pub(crate) fn is_quiescent(&self, pg: PgId, bucket: BucketId, key: &ObjectKey) -> bool {
        let Member { pg, .. } = &*self.lock(pg);
        pg.is_quiescent(bucket, key) || self.is_read_only() && pg.is_quiescent_halted(bucket, key)
    }

    /// Steps a PG with a data server's answer to its request.
    pub(crate) fn data_answered(&self, pg: PgId, lv: LvId, replica: usize, answer: DataAnswer) {
        let mut member = self.lock(pg);
        self.step(&mut member, Event::Data { lv, replica, answer });
    }

    /// Returns true if calls must be turned away until the log has caught up.
    pub(crate) fn log_is_busy(&self) -> bool {
        self.log.is_busy()
    }

    /// Returns true if the space that the log has left is reserved for ops that free space.
    #[must_use]
    pub fn log_is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Returns true if the index shows all changes of these rows that a PG has taken.
    pub(crate) fn shows_all(&self, pg: PgId, span: &RowSpan) -> bool {
        let Member { pg, .. } = &*self.lock(pg);
        pg.shows_all(span) || self.is_read_only() && pg.shows_all_halted(span)
    }

    /// The thing that a group waits for here, or others for it, for tests.
    #[cfg(test)]
    pub(crate) fn waits(&self, pg: PgId) -> Option<String> {
        let member = self.lock(pg);
        let gauges = member.pg.gauges();
        let counts = [
            gauges.open_puts,
            gauges.waiting_calls,
            gauges.moves,
            member.callers.in_flight(),
            member.view_state.awaited(),
            member.view_state.snapshots.len(),
            usize::from(member.pg.is_unread()),
            usize::from(member.pg.wants_count()),
        ];
        let (role, view) = (member.pg.role(), member.pg.view());
        (counts != [0; 8]).then(|| {
            format!("{role:?} in view {view}: puts, calls, moves, callers, awaited, snapshots, unread, uncounted {counts:?}")
        })
    }

    /// The view in which this server leads a group and answers reads alone, for tests.
    #[cfg(test)]
    pub(crate) fn answers_alone(&self, pg: PgId) -> Option<larder_types::View> {
        let member = self.lock(pg);
        let view = member.pg.view();
        member.accepts_reads(view).then_some(view)
    }

    /// Has the index flushed, as when enough has piled up, for tests.
    #[cfg(test)]
    pub(crate) fn flush_soon(&self) {
        self.flush.ask();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The counts of the rebuild of copies.
    #[must_use]
    pub fn rebuild(&self) -> &RebuildCounters {
        &self.rebuild
    }

    /// The counts of how PGs began to be served; a single node serves its own from the start, and counts
    /// nothing.
    #[must_use]
    pub fn adoptions(&self) -> AdoptionCounters {
        self.cluster().map(|cluster| cluster.adoption.counters()).unwrap_or_default()
    }

    /// Its requests by kind.
    #[must_use]
    pub fn requests_by_kind(&self) -> &MetaRequests {
        &self.requests_by_kind
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

    /// Stops the server's threads, once everything that was accepted is durable.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.log.stop();
        self.to_apply.stop();
        self.need_lv.stop();
        self.flush.stop();
        if let Some(cluster) = self.cluster() {
            cluster.stop();
            self.snapshots.stop();
        }
    }

    /// Has PGs forget requests that this process's proxy has finished.
    pub(crate) fn attach_requests(&self, requests: Arc<Requests>) {
        let handled = self.requests.set(requests);
        assert!(handled.is_ok(), "a meta server in one process has one proxy");
    }

    fn lock(&self, pg: PgId) -> MutexGuard<'_, Member> {
        switch_point();
        self.pgs[pg.0 as usize].lock()
    }

    /// As [`lock`](Self::lock); `None` if another thread has the lock.
    fn lock_at_once(&self, pg: PgId) -> Option<MutexGuard<'_, Member>> {
        switch_point();
        self.pgs[pg.0 as usize].try_lock()
    }

    fn fail(&self, reason: String) {
        if let Some(cluster) = self.cluster() {
            self.keep_member_damage(cluster);
        }
        tracing::error!(%reason, "the meta server failed");
        self.fatal.send_replace(Some(reason));
    }

    /// Steps a machine and carries out its effects.
    fn step(&self, member: &mut Member, event: Event) {
        self.step_at(self.clock.now(), member, event);
    }

    /// The same for a caller that has read the clock.
    fn step_at(&self, now: EventTime, member: &mut Member, event: Event) {
        member.stepped_ms = now.steady_ms;
        if let Event::Call { token, call } = &event
            && let Some(kind) = MetaKind::of(call)
        {
            member.callers.begun(*token, kind, now.steady_ms);
        }
        let Member { pg, out, .. } = member;
        pg.step(now, event, &self.index, out);
        self.perform(member);
    }

    fn perform(&self, member: &mut Member) {
        let (mut orphans, mut halts) = (Vec::new(), Vec::new());
        let mut effects = std::mem::take(&mut member.out);
        let pg = member.pg.id();
        for effect in effects.drain(..) {
            match effect {
                Effect::Append(entry) => {
                    let commit = member.pg.commit();
                    self.log.append(pg, &entry, commit, &mut member.scratch);
                }
                Effect::SyncSoon => self.log.nudge(),
                Effect::Reply { token, answer } => {
                    orphans.extend(self.reply(member, token, answer));
                }
                Effect::Committed => self.to_apply.push(pg),
                Effect::Halt(reason) => halts.push(reason),
                effect => match &self.other_roles {
                    OtherRoles::Here(here) => self.run_locally(here, pg, effect),
                    OtherRoles::Apart(cluster) => self.send_apart(cluster, member, effect),
                },
            }
        }
        member.out = effects;
        if !halts.is_empty() {
            halts.into_iter().for_each(|reason| self.halted(member, reason));
            self.perform(member);
        }
        for op in orphans {
            let call = Call::Withdraw { op, disk_full: false };
            self.step(member, Event::Call { token: NOBODY, call });
        }
        member.answer_awaited();
    }

    /// Hands an answer to the caller. Returns the op to take back if it is a grant that no caller waits for.
    fn reply(&self, member: &mut Member, token: Token, answer: Answer) -> Option<OpId> {
        if let Some((kind, since_ms)) = member.callers.first_answer(token) {
            self.requests_by_kind.note_time(kind, member.stepped_ms.saturating_sub(since_ms));
        }
        match member.callers.get(token)? {
            Caller::Here(ticket) => {
                let settles = !matches!(answer, Answer::Granted { .. });
                let orphan = ticket.answered(answer);
                if settles {
                    member.callers.take(token);
                }
                orphan
            }
            // One answer for each call: a caller asks for the outcome of a grant with another call.
            Caller::Apart(_) => {
                if let Some(Caller::Apart(requester)) = member.callers.take(token) {
                    self.reply_apart(member, *requester, answer);
                }
                None
            }
        }
    }

    fn run_locally(&self, here: &Here, pg: PgId, effect: Effect) {
        match effect {
            Effect::Data { lv, replica, request } => here.data.request(pg, lv, replica, request),
            Effect::NeedLv => self.need_lv.push(pg),
            Effect::ViewActive(view) => tracing::debug!(%pg, %view, "a view became active"),
            effect => unreachable!("pg {pg} has one member and nothing to do with {effect:?}"),
        }
    }

    /// The apply thread: committed ops go into the index.
    fn apply_loop(&self) {
        let mut pgs = Vec::new();
        while self.to_apply.take(&mut pgs).is_some() {
            for pg in pgs.drain(..) {
                self.apply_all(&mut self.lock(pg));
            }
            if self.region() != RegionId::OWN {
                self.rounds.notify();
            }
            self.flush.check(&self.index.kv);
        }
    }

    fn apply_all(&self, member: &mut Member) {
        loop {
            let now = self.clock.now();
            member.stepped_ms = now.steady_ms;
            let Member { pg, out, .. } = member;
            let applied = pg.apply(now, &self.index, out);
            self.perform(member);
            if applied == 0 {
                return;
            }
        }
    }
}
