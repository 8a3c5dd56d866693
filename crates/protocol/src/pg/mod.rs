//! One member of a placement group: its log's tail, its open puts, and what clients wait for.
//!
//! ```text
//!  Call ──▶ calls ──append──▶ tail ──Effect::Append──▶ log ──Durable──▶ commit point
//!             │                 │                                          │
//!             └── slots ◀───────┴──── apply (below the commit point) ◀─────┘──▶ index
//! ```
//!
//! # Invariants
//!
//! 1. `applied ≤ commit ≤ durable`; the tail holds exactly the ops above `applied`, without a gap.
//! 2. An answer about an op leaves only when the op is below the commit point; a grant alone leaves
//!    earlier.
//! 3. A put with data is in `open` from its append until its outcome is applied, also across restarts:
//!    the log is kept back to the oldest open put ([`Pg::retain_from`]).
//! 4. A slot's entries are the ops of its key that the index does not show yet, in order.
//! 5. (view, seq) is never issued twice: a primary appends only in an active view, and a view begins at
//!    each of its restarts.

mod append;
mod apply;
mod barrier;
mod batch;
mod calls;
mod capacity;
mod coalesce;
mod commit;
mod departed;
mod digest;
mod doubt;
mod early;
mod garbage;
mod gauges;
mod grant;
mod halted;
mod history;
mod ledger;
mod level;
mod moves;
mod mutation;
mod ops;
mod pieces;
mod read;
mod refill;
mod remote_change;
mod replicate;
mod resolve;
mod scrub;
mod slots;
mod snapshot;
mod space_waiters;
mod state;
mod unresponsive;
mod validation;
mod versions;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use larder_types::{
    BootId, BucketId, Chunk, HybridClock, Op, OpId, OpSeq, PgId, Put, ServerId, SessionId,
    StreamId, Target, View,
};

pub use crate::copy_pacing::CopyPriority;
use crate::high_water::HighWater;
use crate::index::{Index, IndexError};
use crate::ledger::Ledger;
use crate::message::{Call, Effect, Event, LogEntry, Outbox, PeerMessage, Token};
pub use crate::message::{OpenEntry, Piece, Report, SnapshotHeader};
use crate::now::EventTime;
use crate::planted::Planted;
pub use crate::row::{chunk_in, owner};
use crate::sessions::Sessions;
use crate::space::{SpaceFault, VolumeGroup};
use barrier::Barrier;
pub use batch::{CoalesceCounts, MoveCounts};
use capacity::{OpenPuts, Tail};
use coalesce::Planned;
use departed::Departed;
use digest::Digests;
pub use doubt::Doubt;
use garbage::Reaper;
pub use gauges::PgGauges;
use history::History;
pub use ledger::LedgerWalk;
use level::EarlyReports;
use moves::Moves;
pub use moves::{Move, StartedCompaction};
use refill::Refills;
pub use refill::{Considered, Refill};
use replicate::Follower;
use resolve::{Resolution, Retry};
use slots::Slots;
pub use snapshot::read_piece;
use space_waiters::SpaceWaiter;
pub use state::{LogGap, Origin, Recovering};
pub use walk::{Walk, WalkSchedule, chunk_at};

/// The role of this member in its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// No view since the restart.
    Down,
    /// Follows a primary without being a member of its view.
    Learner,
    /// Follows the primary.
    Backup,
    /// Primary: levels the members to the longest log.
    Levelling,
    /// Primary: the view is active but the space is not known yet; serves nothing.
    Active,
    /// Primary: serves.
    Serving,
    /// The index or the log contradicts itself.
    Halted,
}

/// An op above the applied position.
#[derive(Debug)]
struct TailEntry {
    entry: LogEntry,
    /// Whom to answer at the commit point or when it is applied, and how.
    reply: Option<(Token, ReplyKind)>,
    /// Bytes that it takes of a report.
    bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyKind {
    Persisted,
    Done,
    /// Done once the index shows the op, and not before: an append (ADR 15).
    Applied,
}

/// A put whose outcome is not applied yet.
#[derive(Debug)]
struct OpenPut {
    id: OpId,
    put: std::sync::Arc<Op>,
    /// Encoded bytes that it adds to a snapshot's header.
    bytes: usize,
    /// Its place: that of the latest attempt.
    chunk: Chunk,
    /// Places of earlier attempts, each with the op that gave it another.
    earlier: Vec<(OpSeq, Chunk)>,
    since_ms: u64,
    outcome: Option<larder_types::Outcome>,
    /// The outcome was told by the proxy, and not found out by looking at the copies.
    is_told: bool,
    /// A later op has already replaced or ended what this put would make.
    superseded: bool,
    /// The tick at which its proxy had said all that it ever will of it.
    abandoned_since: Option<u64>,
    resolution: Option<Resolution>,
    /// The time at which its resolution begins again if it fails.
    retry: Retry,
}

impl OpenPut {
    fn put(&self) -> &Put {
        match self.put.put() {
            Some(put) => put,
            None => unreachable!("only puts are open, not {:?}", self.put),
        }
    }

    /// Its place as of an op.
    fn place_at(&self, at: OpSeq) -> &Chunk {
        let later = self.earlier.iter().find(|(replaced_by, _)| *replaced_by > at);
        later.map_or(&self.chunk, |(_, chunk)| chunk)
    }

    /// The op that is cut off the log gave it another place, or an outcome.
    fn undo(&mut self, cut: &LogEntry) {
        match &*cut.op {
            Op::Outcome { .. } => (self.outcome, self.is_told) = (None, false),
            Op::Regrant { .. } => {
                if let Some((_, chunk)) = self.earlier.pop_if(|(by, _)| *by == cut.id.seq) {
                    self.chunk = chunk;
                }
            }
            _ => {}
        }
    }

    /// Returns the number of replicas that must have its data before its client is answered.
    fn required_copies(&self, given: usize) -> usize {
        match self.put.required_copies() {
            0 => given,
            required_copies => usize::from(required_copies),
        }
    }
}

/// The reason for which the log keeps an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retained {
    /// It is a put without an outcome.
    OpenPut,
    /// It is a request that may be repeated.
    Request,
    /// It is the next that the index is to show.
    NotApplied,
}

/// One member of a PG.
#[derive(Debug)]
pub struct Pg {
    id: PgId,
    /// PGs of the cluster: says which rows are this one's.
    pg_count: u32,
    me: ServerId,
    boot: BootId,
    planted: Planted,
    role: Role,
    view: View,
    /// Primary first.
    members: Vec<ServerId>,

    applied: OpId,
    tail: Tail,
    durable: OpSeq,
    commit: OpSeq,
    /// The highest commit point that a primary told, as far as this log is known to be its own: what is not durable here
    /// yet may be committed already.
    primary_commit: OpSeq,
    /// The last op appended, until it is known to be synced.
    unsynced: Option<OpId>,
    /// Ops applied last, for followers that are behind.
    history: History,
    /// True if the index has all rows of the PG up to `applied`.
    is_whole: bool,
    /// The snapshot that is being taken.
    copy: Option<snapshot::Copy>,
    /// Flushes of the index asked for.
    flushes: u64,
    /// Those who follow this primary.
    followers: BTreeMap<ServerId, Follower>,
    /// The report of each other member at the view's start.
    reports: BTreeMap<ServerId, Report>,
    early: EarlyReports,
    /// True if every member has reported and this primary has the longest log of them.
    levelled: bool,
    /// True if this primary has asked for the end of a longer log than a report holds.
    following_requested: bool,
    /// The tick from which on this follower reports again.
    report_due: u64,
    /// The op after which it reported last.
    reported_from: OpId,
    /// True if this view's primary has spoken to this follower lately, and ticks since.
    primary_answered: bool,
    silent_ticks: u32,
    /// Ticks since each other member said something, at a primary.
    quiet: BTreeMap<ServerId, u32>,
    /// The comparison of the members' indexes in this view.
    digests: Digests,

    open: OpenPuts,
    slots: Slots,
    sessions: Sessions,
    clock: HybridClock,
    /// By the steady clock.
    now_ms: u64,
    /// By the wall clock: for `clock` alone.
    wall_ms: u64,

    space: Option<VolumeGroup>,
    /// The index never had a row of this PG.
    is_bare: bool,
    /// Blocks that the index names, at every member.
    ledger: Ledger,
    /// Above what the index names; `None` if that is not known.
    high_water: Option<HighWater>,
    /// The reason for which it was halted after it had begun to serve.
    contradiction: Option<SpaceFault>,
    /// The time at which it began to serve above the marks.
    early_ms: u64,
    /// Copies that are being made or given up.
    refills: Refills,
    /// Chunks that are being moved.
    moves: Moves,
    move_counts: MoveCounts,
    /// All servers of the cluster know of coalescing.
    may_coalesce: bool,
    /// Fewer pieces are not coalesced, unless they make a large one.
    coalesce_min: usize,
    coalesce_counts: CoalesceCounts,
    planned: Planned,
    /// All regions have passed the journal up to there, as far as this member has seen since it began.
    passed_by_all: OpSeq,
    /// Rows that are to go in steps.
    reaper: Reaper,
    /// Rows that went while they were read.
    departed: Departed,
    /// Blocks that became free in earlier views before they had rested.
    unrested: u64,
    lv_requested: bool,
    /// The time of the last report that there is none; `None` if one has arrived since.
    pool_empty_ms: Option<u64>,
    /// The time at which an LV with all replicas within reach is asked for, while space is given on most replicas of
    /// one.
    wider_due_ms: Option<u64>,
    /// Grants on most replicas of an LV, since this member began.
    grants_on_most: u64,
    /// Replicas that failed since the last tick.
    lv_failures: u32,
    /// The time at which replicas out of reach were asked last to open again.
    reopened_ms: u64,
    /// Calls that wait for space.
    starved: VecDeque<SpaceWaiter>,
    /// Calls that drop streams and wait for room in the log.
    drops: VecDeque<(Token, Call)>,
    /// Callers that wait until the index shows what was taken before.
    barriers: Vec<Barrier>,
    /// Ticks so far, of those that it wanted.
    ticks: u64,
}

impl Pg {
    /// The group's id.
    #[must_use]
    pub fn id(&self) -> PgId {
        self.id
    }

    /// Returns the role of this member.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its view.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// Last op that the index shows.
    #[must_use]
    pub fn applied(&self) -> OpId {
        self.applied
    }

    /// The commit point as far as this member knows it.
    #[must_use]
    pub fn commit(&self) -> OpSeq {
        self.commit
    }

    /// The oldest op whose log record is still needed; everything below may be trimmed once the index is durable
    /// through [`Pg::applied`].
    #[must_use]
    pub fn retain_from(&self) -> OpSeq {
        self.retained().0
    }

    /// The oldest op whose log record is still needed, and what for.
    #[must_use]
    pub fn retained(&self) -> (OpSeq, Retained) {
        let open = self.open.keys().next().map(|seq| (*seq, Retained::OpenPut));
        let asked = self.sessions.oldest().map(|seq| (seq, Retained::Request));
        let not_applied = (self.applied.seq.next(), Retained::NotApplied);
        let all = std::iter::once(not_applied).chain(open).chain(asked);
        all.min().unwrap_or(not_applied)
    }

    /// Chunks of open puts: used space that the index does not show.
    pub fn open_chunks(&self) -> impl Iterator<Item = &Chunk> {
        let forgets = self.planted.forgets_open_extents();
        self.open.values().filter(move |_| !forgets).map(|open| &open.chunk)
    }

    /// Streams with chunks whose outcome is not applied yet: those of dead sessions are to be dropped
    /// like the ones that the index shows to be open.
    pub fn pending_streams(&self) -> impl Iterator<Item = (BucketId, StreamId)> {
        self.open.values().filter_map(|open| match open.put() {
            Put { bucket, target: Target::Chunk { stream, .. }, .. } => Some((*bucket, *stream)),
            _ => None,
        })
    }

    /// Sessions of which this group remembers something and does not know that they are over.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.not_over()
    }

    /// Declares every proxy known so far dead: its requests will not be repeated.
    pub fn end_sessions(&mut self) {
        self.sessions.end_all();
    }

    /// Returns true if [`Event::Tick`] has anything to do.
    #[must_use]
    pub fn wants_tick(&self) -> bool {
        self.members.len() > 1
            || self.role == Role::Learner
            || !self.followers.is_empty()
            || !self.open.is_empty()
            || !self.starved.is_empty()
            || self.space.as_ref().is_some_and(VolumeGroup::wants_tick)
            || !self.departed.is_empty()
            || self.reaper.has_garbage()
            || self.refills.has_changes()
            || self.moves.has_copied()
            || !self.drops.is_empty()
    }

    /// Counts a tick at which it has nothing to do. So all groups of a server count the same ticks, and those that are idle
    /// speak at the same ones.
    pub fn pass_tick(&mut self) {
        self.ticks += 1;
    }

    /// Returns true while it remembers requests that became ops.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.sessions.remembered_count() > 0
    }

    /// Returns true if it has space on most replicas of an LV of which others are out of reach.
    #[must_use]
    pub fn has_most(&self) -> bool {
        self.space.as_ref().is_some_and(VolumeGroup::has_most)
    }

    fn set_now(&mut self, now: EventTime) {
        self.now_ms = self.now_ms.max(now.steady_ms);
        self.wall_ms = now.wall_ms;
    }

    /// Takes one event.
    pub fn step(&mut self, now: EventTime, event: Event, index: &dyn Index, out: &mut Outbox) {
        self.set_now(now);
        if self.role == Role::Halted {
            if let Event::Call { token, .. } = event {
                self.refuse(token, crate::Refusal::IndexDamaged, out);
            }
            return;
        }
        let result = match event {
            Event::Call { token, call } => self.call(token, call, index, out),
            Event::Durable(id) => {
                self.made_durable(id, out);
                Ok(())
            }
            Event::Peer { from, message } => self.peer(from, message, index, out),
            Event::Data { lv, replica, answer } => {
                self.data_answered(lv, replica, answer, index, out)
            }
            Event::NewView { view, members, boot } => {
                self.begin_view(view, members, boot, out);
                Ok(())
            }
            Event::Learn { view, primary } => {
                self.learn(view, primary, out);
                Ok(())
            }
            Event::IndexFlushed(flush) => {
                self.index_flushed(flush, out);
                Ok(())
            }
            Event::Floor { session, floor } => {
                self.sessions.raise_floor(session, floor);
                self.forsake(session, floor, &[]);
                Ok(())
            }
            Event::Finished { session, below, open } => {
                self.forsake(session, below, &open);
                Ok(())
            }
            Event::Lv(info) => self.take_lv(info, index, out),
            Event::Vacate { lv, replica, order, is_lost, away } => {
                self.vacate((lv, replica), order, (is_lost, away));
                Ok(())
            }
            Event::Away { lv, away } => {
                if let Some(space) = self.space.as_mut() {
                    space.set_away(lv, away);
                }
                Ok(())
            }
            Event::Refilled { row, grant, is_copied } => {
                self.refilled(row, grant, is_copied, out);
                Ok(())
            }
            Event::Moved { row, grant, is_copied } => {
                self.moved(row, grant, is_copied, out);
                Ok(())
            }
            Event::Walked { walk, unmet } => {
                self.walked(walk, &unmet, out);
                Ok(())
            }
            Event::Compare => {
                self.compare(out);
                Ok(())
            }
            Event::Digested { at, sum } => {
                self.digested(at, sum, out);
                Ok(())
            }
            Event::PoolEmpty => {
                self.pool_empty(out);
                Ok(())
            }
            Event::TooFewServers => {
                self.too_few_servers(out);
                Ok(())
            }
            Event::Reap { may_begin } => self.reap(index, may_begin, out),
            Event::Tick => self.tick(index, out),
        };
        if let Err(error) = result {
            self.halt(&error, out);
        }
        self.check();
    }

    /// Applies ops below the commit point to the index, a batch of them; returns how many.
    pub fn apply(&mut self, now: EventTime, index: &dyn Index, out: &mut Outbox) -> usize {
        self.set_now(now);
        if self.role == Role::Halted {
            return 0;
        }
        let applied = self.apply_batch(index, out).unwrap_or_else(|error| {
            self.halt(&error, out);
            0
        });
        self.check();
        applied
    }

    fn halt(&mut self, error: &IndexError, out: &mut Outbox) {
        self.role = Role::Halted;
        for (token, _) in self.drain_waiting() {
            self.refuse(token, crate::Refusal::IndexDamaged, out);
        }
        out.push(Effect::Halt(format!("pg {}: {error}", self.id)));
    }

    /// The last op of its log.
    #[must_use]
    pub fn last(&self) -> OpId {
        self.tail.back().map_or(self.applied, |tail| tail.entry.id)
    }

    fn tail_at(&self, seq: OpSeq) -> Option<&TailEntry> {
        let index = seq.0.checked_sub(self.applied.seq.0 + 1)?;
        self.tail.get(usize::try_from(index).ok()?)
    }

    fn tail_at_mut(&mut self, seq: OpSeq) -> Option<&mut TailEntry> {
        let index = seq.0.checked_sub(self.applied.seq.0 + 1)?;
        self.tail.get_mut(usize::try_from(index).ok()?)
    }

    fn serves(&self) -> bool {
        self.role == Role::Serving
    }

    fn check(&self) {
        assert!(self.applied.seq <= self.commit, "pg {}: applied above the commit point", self.id);
        assert!(
            self.commit <= self.last().seq,
            "pg {}: the commit point {} is above the log's end {}",
            self.id,
            self.commit,
            self.last().seq
        );
        debug_assert!(
            self.tail
                .iter()
                .zip(self.applied.seq.0 + 1..)
                .all(|(tail, n)| tail.entry.id.seq.0 == n),
            "pg {}: the tail has a gap",
            self.id
        );
        #[cfg(debug_assertions)]
        self.check_sums();
    }

    fn message(&self, to: ServerId, message: PeerMessage, out: &mut Outbox) {
        out.push(Effect::Send { to, message });
    }
}
