//! A member as it was: rebuilt from the index's applied position and the log.
//!
//! Log records are taken in the order in which they were appended. A record at a position that was
//! there already cuts what stood from there on: so the log needs no record of a cut.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_types::{BootId, HybridClock, Op, OpId, OpSeq, Outcome, PgId, ServerId};

use super::slots::{Slot, Slots};
use super::{Pg, Role};
use crate::message::LogEntry;
use crate::planted::Planted;
use crate::sessions::Sessions;

/// A member that is being rebuilt.
#[derive(Debug)]
pub struct Recovering {
    pg: Pg,
    /// The last op that the log had, if it had any of this PG.
    logged: Option<OpSeq>,
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
    /// Begins with what the index shows: `applied` is [`OpId::default`] for a new PG.
    #[must_use]
    pub fn new(id: PgId, me: ServerId, applied: OpId, planted: Planted) -> Self {
        Self {
            pg: Pg {
                id,
                me,
                boot: BootId(0),
                planted,
                role: Role::Down,
                view: applied.view,
                members: vec![me],
                applied,
                tail: VecDeque::new(),
                durable: applied.seq,
                commit: applied.seq,
                acked: BTreeMap::new(),
                reports: BTreeMap::new(),
                levelled: false,
                heard: false,
                open: BTreeMap::new(),
                slots: Slots::default(),
                sessions: Sessions::default(),
                clock: HybridClock::default(),
                now_ms: 0,
                space: None,
                lv_asked: false,
                starved: VecDeque::new(),
                barriers: Vec::new(),
            },
            logged: None,
        }
    }

    /// Takes the next record of the log, with the commit point that it carries.
    ///
    /// # Errors
    /// [`LogGap`] if ops are missing that the index does not show.
    pub fn replay(&mut self, id: OpId, op: Op, commit: OpSeq) -> Result<(), LogGap> {
        self.logged = Some(id.seq);
        let pg = &mut self.pg;
        let entry = LogEntry { id, op: Arc::new(op) };
        pg.view = pg.view.max(id.view);
        if id.seq <= pg.applied.seq {
            replay_applied(pg, &entry);
            return Ok(());
        }
        if id.seq <= pg.last().seq {
            pg.cut(id.seq);
        } else if id.seq != pg.last().seq.next() {
            return Err(LogGap::Between { pg: pg.id, last: pg.last().seq, found: id.seq });
        }
        let mut unused = Vec::new();
        pg.take(entry, None, &mut unused);
        pg.durable = pg.last().seq;
        pg.commit = pg.commit.max(commit.min(pg.durable));
        Ok(())
    }

    /// The member, durable through the end of its log; it serves nothing before its next view.
    ///
    /// # Errors
    /// [`LogGap`] if the log ends before what the index shows.
    pub fn finish(self) -> Result<Pg, LogGap> {
        let Self { pg, logged } = self;
        if let Some(last) = logged
            && last < pg.applied.seq
        {
            return Err(LogGap::End { pg: pg.id, last, applied: pg.applied.seq });
        }
        pg.check();
        Ok(pg)
    }
}

/// An op that the index shows already still says which puts are open and which were superseded.
fn replay_applied(pg: &mut Pg, entry: &LogEntry) {
    for (seq, open) in pg.open.split_off(&entry.id.seq) {
        // A position met again: what stood there and after it was cut.
        for slot in super::slots_of(open.id, pg.id, &open.put).into_iter().flatten() {
            let _rests: bool = pg.slots.leave(&slot, seq);
        }
    }
    pg.note_open(entry);
    if super::chunk_of(&entry.op).is_some() {
        for slot in super::slots_of(entry.id, pg.id, &entry.op).into_iter().flatten() {
            pg.slots.enter(slot, entry.id.seq);
        }
    }
    if let Op::Outcome { put, outcome } = &*entry.op
        && let Some(open) = pg.open.remove(put)
    {
        if matches!(outcome, Outcome::Committed { .. }) && !open.superseded {
            pg.supersede_older(&open);
        }
        for slot in super::slots_of(open.id, pg.id, &open.put).into_iter().flatten() {
            let _rests: bool = pg.slots.leave(&slot, open.id.seq);
        }
    }
    for slot in super::slots_of(entry.id, pg.id, &entry.op).into_iter().flatten() {
        let ends = super::chunk_of(&entry.op).is_none() && matches!(slot, Slot::Version(..));
        if ends && !matches!(*entry.op, Op::SetTags { .. }) {
            pg.supersede_key(&slot, entry.id.seq);
        }
    }
}
