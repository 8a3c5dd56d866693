//! A member as it was: rebuilt from the index's applied position and the log.
//!
//! Log records are taken in the order in which they were appended. A record at a position that was
//! there already cuts what stood from there on: so the log needs no record of a cut. The beginning of
//! a snapshot makes void what stood before it.
//!
//! # Invariants
//!
//! 1. An op that a later record cuts has no effect, whether its position is above the applied one or not. Ops wait
//!    until a commit point at or above them is read, or the log ends, and take effect in the order of their positions.
//!    So there is nothing to undo. Only the floor of a cut request's session counts, which its proxy did say.
//! 2. No more ops wait than the member had above its commit point when it ran.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_types::{
    BootId, HighWaterRow, HybridClock, Op, OpId, OpSeq, Outcome, PgId, ServerId, SnapshotRow,
};

use super::batch::{CoalesceCounts, MoveCounts};
use super::capacity::{OpenPuts, Tail};
use super::coalesce::Planned;
use super::departed::Departed;
use super::digest::Digests;
use super::garbage::Reaper;
use super::history::History;
use super::level::EarlyReports;
use super::moves::Moves;
use super::ops::{chunk_of, clock_of, request_of_op};
use super::refill::Refills;
use super::slots::{Slot, Slots, slots_of};
use super::{Pg, Role};
use crate::high_water::HighWater;
use crate::ledger::Ledger;
use crate::message::LogEntry;
use crate::planted::Planted;
use crate::sessions::Sessions;

/// The state that a member begins with.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The PG.
    pub pg: PgId,
    /// PGs of the cluster.
    pub pg_count: u32,
    /// This server.
    pub me: ServerId,
    /// The last op that the index shows; [`OpId::default`] for a new PG.
    pub applied: OpId,
    /// The index's row of the snapshot that its rows came with, if they did.
    pub snapshot: Option<SnapshotRow>,
    /// The high-water marks that the index has, if it has any.
    pub high_water: Option<HighWaterRow>,
    /// Bugs to be found.
    pub planted: Planted,
}

/// A member that is being rebuilt.
#[derive(Debug)]
pub struct Recovering {
    pg: Pg,
    snapshot: Option<SnapshotRow>,
    /// Ops that a later record may cut, in order.
    waiting: VecDeque<LogEntry>,
    /// The highest commit point that a record carried: nothing up to it is cut any more.
    commit: OpSeq,
    /// The last op that took effect.
    settled: OpSeq,
    /// The last op that the log had, if it had any of this PG.
    logged: Option<OpSeq>,
    /// The reason for which the log from there on cannot be used; the beginning of a snapshot makes it void.
    gap: Option<LogGap>,
    /// A snapshot began and is not known to have been taken whole.
    is_torn: bool,
}

/// The log does not fit the index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogGap {
    /// Ops are missing that the index does not show.
    #[error("pg {pg}: the log goes from op {last} to op {found}: ops between them are missing")]
    Between {
        /// PG.
        pg: PgId,
        /// Last op known.
        last: OpSeq,
        /// Op found instead of the next.
        found: OpSeq,
    },
    /// An op was cut off that the log itself says was committed.
    #[error("pg {pg}: the log goes back to op {found}, but ops through {last} are committed")]
    Back {
        /// PG.
        pg: PgId,
        /// Last op known to be committed.
        last: OpSeq,
        /// Op found instead of the next.
        found: OpSeq,
    },
    /// The log has lost its end: it is freed from its beginning alone, and the index shows more.
    #[error(
        "pg {pg}: the log ends with op {last}, but the index shows op {applied}: its end is missing"
    )]
    End {
        /// PG.
        pg: PgId,
        /// Last op in the log.
        last: OpSeq,
        /// Last op that the index shows.
        applied: OpSeq,
    },
}

impl Recovering {
    /// Begins with what the index shows.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        let Origin { pg, pg_count, me, applied, snapshot, high_water, planted } = origin;
        let is_bare = applied == OpId::default() && snapshot.is_none();
        let high_water = match high_water {
            None => is_bare.then(HighWater::default),
            Some(row) => HighWater::restored(row, applied, planted.believes_marks()),
        };
        let is_torn = snapshot.is_some_and(|snapshot| !snapshot.is_whole);
        Self {
            pg: Pg {
                id: pg,
                pg_count,
                me,
                boot: BootId(0),
                planted,
                role: Role::Down,
                view: applied.view,
                members: vec![me],
                applied,
                tail: Tail::default(),
                durable: applied.seq,
                commit: applied.seq,
                primary_commit: OpSeq(0),
                unsynced: None,
                history: History::after(applied),
                is_whole: true,
                copy: None,
                flushes: 0,
                followers: BTreeMap::new(),
                reports: BTreeMap::new(),
                early: EarlyReports::default(),
                levelled: false,
                following_requested: false,
                report_due: 0,
                reported_from: OpId::default(),
                primary_answered: false,
                silent_ticks: 0,
                quiet: BTreeMap::new(),
                digests: Digests::default(),
                open: OpenPuts::default(),
                slots: Slots::default(),
                sessions: Sessions::default(),
                clock: HybridClock::default(),
                now_ms: 0,
                wall_ms: 0,
                space: None,
                is_bare,
                ledger: Ledger::default(),
                high_water,
                contradiction: None,
                early_ms: 0,
                refills: Refills::default(),
                moves: Moves::default(),
                move_counts: MoveCounts::default(),
                may_coalesce: false,
                coalesce_min: crate::limits::COALESCE_PIECES_MIN,
                coalesce_counts: CoalesceCounts::default(),
                planned: Planned::default(),
                passed_by_all: OpSeq(0),
                reaper: Reaper::new(),
                departed: Departed::new(),
                unrested: 0,
                lv_requested: false,
                pool_empty_ms: None,
                wider_due_ms: None,
                grants_on_most: 0,
                reopened_ms: 0,
                lv_failures: 0,
                starved: VecDeque::new(),
                drops: VecDeque::new(),
                barriers: Vec::new(),
                ticks: 0,
            },
            snapshot,
            waiting: VecDeque::new(),
            commit: OpSeq(0),
            settled: OpSeq(0),
            logged: None,
            gap: None,
            is_torn,
        }
    }

    /// Takes the next record of the log, with the commit point that it carries. What does not fit is
    /// told by [`Recovering::finish`].
    pub fn replay(&mut self, id: OpId, op: Op, commit: OpSeq) {
        let pg = &mut self.pg;
        pg.view = pg.view.max(id.view);
        match op {
            Op::SnapshotBegin => {
                let applied = pg.applied;
                pg.forget_all();
                (pg.applied, pg.history) = (applied, History::after(applied));
                (pg.durable, pg.commit) = (applied.seq, applied.seq);
                self.waiting.clear();
                (self.commit, self.settled) = (OpSeq(0), OpSeq(0));
                self.gap = None;
                self.is_torn = true;
                self.logged = Some(id.seq);
            }
            Op::SnapshotSession(memory) => pg.sessions.restore(&memory),
            Op::SnapshotEnd { superseded } => {
                self.settle(id.seq);
                self.pg.supersede_these(&superseded);
                let rows = self.snapshot.filter(|rows| rows.at == id && rows.is_whole);
                self.is_torn = rows.is_none();
                self.logged = Some(id.seq);
            }
            op if self.gap.is_none() => {
                self.logged = Some(id.seq);
                self.wait(LogEntry { id, op: Arc::new(op) });
                self.commit = self.commit.max(commit);
                self.settle(self.commit);
            }
            _ => {}
        }
    }

    /// Lets an op wait until it cannot be cut any more, in place of those that it cuts.
    fn wait(&mut self, entry: LogEntry) {
        if entry.id.seq <= self.settled {
            let (pg, last, found) = (self.pg.id, self.settled, entry.id.seq);
            self.gap = Some(LogGap::Back { pg, last, found });
            return;
        }
        while let Some(cut) = self.waiting.pop_back_if(|waits| waits.id.seq >= entry.id.seq) {
            if let Some(request) = request_of_op(&cut.op) {
                self.pg.sessions.raise_floor(request.session, request.floor);
            }
        }
        self.waiting.push_back(entry);
    }

    /// Ops up to here cannot be cut: they take effect.
    fn settle(&mut self, through: OpSeq) {
        while self.gap.is_none()
            && let Some(entry) = self.waiting.pop_front_if(|waits| waits.id.seq <= through)
        {
            self.settled = entry.id.seq;
            self.gap = replay_op(&mut self.pg, entry).err();
        }
        self.pg.commit = self.pg.commit.max(self.commit.min(self.pg.durable));
    }

    /// The member, durable through the end of its log; it serves nothing before its next view. One that
    /// began to take a snapshot and has not all of it has nothing ([`Pg::is_whole`]).
    ///
    /// # Errors
    /// [`LogGap`] if ops are missing that the index does not show, or if the log ends before what the
    /// index shows.
    pub fn finish(mut self) -> Result<Pg, LogGap> {
        if self.is_torn {
            self.pg.forget_all();
            self.pg.is_whole = false;
            return Ok(self.pg);
        }
        self.settle(OpSeq(u64::MAX));
        let Self { pg, logged, gap, .. } = self;
        if let Some(gap) = gap {
            return Err(gap);
        }
        if let Some(last) = logged
            && last < pg.applied.seq
        {
            return Err(LogGap::End { pg: pg.id, last, applied: pg.applied.seq });
        }
        pg.check();
        Ok(pg)
    }
}

fn replay_op(pg: &mut Pg, entry: LogEntry) -> Result<(), LogGap> {
    let id = entry.id;
    if id.seq <= pg.applied.seq {
        replay_applied(pg, &entry);
        return Ok(());
    }
    if id.seq != pg.last().seq.next() {
        return Err(LogGap::Between { pg: pg.id, last: pg.last().seq, found: id.seq });
    }
    let mut unused = Vec::new();
    pg.take(entry, None, &mut unused);
    pg.unsynced = None;
    pg.durable = pg.last().seq;
    Ok(())
}

/// An op that the index shows already still says which puts are open and which were superseded.
fn replay_applied(pg: &mut Pg, entry: &LogEntry) {
    pg.note_open(entry, super::capacity::bytes_of(&entry.op));
    pg.clock = pg.clock.max(clock_of(&entry.op));
    if let Some(request) = request_of_op(&entry.op) {
        pg.sessions.record(request, entry.id, clock_of(&entry.op));
    }
    if chunk_of(&entry.op).is_some() {
        for slot in slots_of(entry.id, pg.id, &entry.op).into_iter().flatten() {
            pg.slots.enter(slot, entry.id.seq);
        }
    }
    if let Op::Outcome { put, outcome } = &*entry.op
        && let Some(open) = pg.open.remove(put)
    {
        match outcome {
            Outcome::Committed { .. } if !open.superseded => pg.supersede_older(&open),
            Outcome::Committed { .. } => {}
            Outcome::Revoked => pg.sessions.revoke(&open.put().request),
        }
        for slot in slots_of(open.id, pg.id, &open.put).into_iter().flatten() {
            let _rests: bool = pg.slots.leave(&slot, open.id.seq);
        }
    }
    for slot in slots_of(entry.id, pg.id, &entry.op).into_iter().flatten() {
        let ends = chunk_of(&entry.op).is_none() && matches!(slot, Slot::Version(..));
        let goes_on = || {
            let keeps = matches!(*entry.op, Op::SetTags { .. } | Op::Amend(_) | Op::Renew(_));
            keeps || entry.op.append().is_some()
        };
        if ends && !goes_on() {
            pg.supersede_key(&slot, entry.id.seq);
        }
    }
}
