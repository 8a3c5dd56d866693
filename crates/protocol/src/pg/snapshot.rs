//! A snapshot gives the PG's rows to a member whose log does not reach back to what its primary remembers. A joiner
//! truncates to the last common pair or takes a snapshot.
//!
//! ```text
//!  learner                                   primary
//!  Report (no op in common)      ──▶         Effect::Snapshot: keep a reader of the index as it is now
//!  log: SnapshotBegin, synced    ◀──         Snapshot: op, open puts, sessions
//!  SnapshotNext { after }        ──▶         Effect::SnapshotRows: a piece of rows from the reader
//!  index: piece                  ◀──         SnapshotRows
//!  …, index flushed
//!  log: sessions, open puts, SnapshotEnd, synced
//!  Acked                         ──▶         goes on from the snapshot's op
//! ```
//!
//! # Invariants
//!
//! 1. Rows are replaced only after `SnapshotBegin` is durable: from then on what the log says before
//!    it is void, and without a `SnapshotEnd` after it this member has nothing.
//! 2. `SnapshotEnd` is appended only after the rows are durable; nothing is acknowledged before it is
//!    durable too.
//! 3. A piece replaces every row of the PG from the end of the piece before it to its own end. Only where the index
//!    never had a row of the PG there are none to look for.

use std::ops::ControlFlow;
use std::sync::Arc;

use larder_types::codec::encode;
use larder_types::{Body, Op, OpId, OpSeq, PgId, SnapshotRow, rows};

use super::capacity::bytes_of;
use super::history::History;
use super::slots::{Slots, slots_of};
use super::{Pg, Role};
use crate::high_water::HighWater;
use crate::index::{Changes, Index, IndexError, ScanFrom};
use crate::limits::{SNAPSHOT_PIECE_BYTES, SNAPSHOT_REMOVALS_MAX};
use crate::message::{Effect, LogEntry, OpenEntry, Outbox, PeerMessage, Piece, SnapshotHeader};
use crate::row::owner;
use crate::sessions::{Sessions, in_records};

/// The progress of taking a snapshot.
#[derive(Debug)]
pub(super) struct Copy {
    header: Arc<SnapshotHeader>,
    phase: Phase,
    /// Last row taken.
    after: Option<Vec<u8>>,
    /// The index had no row of the PG when this began: there is nothing to replace.
    is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// `SnapshotBegin` is being synced.
    Begin,
    /// Rows are on their way.
    Rows,
    /// The index is being made durable; the flush has this number.
    Flush(u64),
    /// `SnapshotEnd` is being synced.
    End,
}

/// Reads the next piece of a PG's rows.
///
/// # Errors
/// [`IndexError`].
pub fn read_piece(
    scan: &ScanFrom<'_>,
    (pg, pg_count): (PgId, u32),
    after: Option<&[u8]>,
) -> Result<Piece, IndexError> {
    let mut piece = Piece { rows: Vec::new(), is_last: true };
    let mut bytes = 0;
    let mut failed = None;
    scan(&first_after(after), &mut |row, value| {
        match owner(row, value, pg_count) {
            Ok(Some(of)) if of == pg => {}
            Ok(_) => return ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
        }
        if bytes >= SNAPSHOT_PIECE_BYTES {
            piece.is_last = false;
            return ControlFlow::Break(());
        }
        bytes += row.len() + value.len();
        piece.rows.push((row.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(piece), Err)
}

fn first_after(after: Option<&[u8]>) -> Vec<u8> {
    let mut from = after.unwrap_or_default().to_vec();
    if after.is_some() {
        from.push(0);
    }
    from
}

impl Pg {
    /// Returns true if this member's rows are all there; if not, it leads nothing until it was sent a snapshot.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the content of a snapshot of this member now, besides rows.
    pub(super) fn snapshot_header(&self) -> SnapshotHeader {
        let at = self.applied;
        let without_open = self.planted.leaves_out_open();
        let open = self.open.range(..=at.seq).filter(|_| !without_open).map(|(_, open)| {
            let mut put = open.put().clone();
            put.body = Body::Chunk(open.place_at(at.seq).clone());
            let entry = LogEntry { id: open.id, op: open.put.with_put(put).into() };
            OpenEntry { entry, superseded: open.superseded }
        });
        SnapshotHeader {
            at,
            clock: self.clock,
            open: open.collect(),
            sessions: self.sessions.remembered(at.seq),
        }
    }

    pub(super) fn begin_copy(&mut self, header: Arc<SnapshotHeader>, out: &mut Outbox) {
        if self.has_all_of(&header) {
            // A report that was late on its way asked for it. The primary may count on what would be forgotten.
            return self.report(out);
        }
        // A sync under way could be taken for that of the record appended here.
        if self.copy.is_some() || self.unsynced.is_some() {
            return;
        }
        self.forget_all();
        self.is_whole = false;
        self.ledger.begin_empty();
        self.append_own(header.at, Op::SnapshotBegin, out);
        let (phase, is_first) = (Phase::Begin, self.is_bare);
        self.copy = Some(Copy { header, phase, after: None, is_first });
    }

    /// True if this member already has every op that a snapshot shows.
    fn has_all_of(&self, header: &SnapshotHeader) -> bool {
        let at = header.at;
        self.is_whole && (at.seq <= self.applied.seq || self.id_at(at.seq) == Some(at))
    }

    /// Forgets rows, log and sessions.
    pub(super) fn forget_all(&mut self) {
        self.tail.clear();
        self.open.clear();
        self.slots = Slots::default();
        self.sessions = Sessions::default();
        self.history = History::default();
        self.high_water = None;
        self.applied = OpId::default();
        (self.durable, self.commit, self.primary_commit) = (OpSeq(0), OpSeq(0), OpSeq(0));
    }

    /// Appends a record that is this member's alone.
    fn append_own(&mut self, id: OpId, op: Op, out: &mut Outbox) {
        self.unsynced = Some(id);
        out.push(Effect::Append(LogEntry { id, op: op.into() }));
    }

    /// True if a message shows a follower that its primary goes on with what it waits for: with rows, where those are
    /// missing. A primary that sends ops may have forgotten the snapshot.
    pub(super) fn is_awaited(&self, message: &PeerMessage) -> bool {
        let wants_rows = self.copy.as_ref().is_some_and(|copy| copy.phase == Phase::Rows);
        let is_of_snapshot =
            matches!(message, PeerMessage::Snapshot { .. } | PeerMessage::SnapshotRows { .. });
        !wants_rows || is_of_snapshot
    }

    /// The rows do not come: ask for another snapshot.
    pub(super) fn abandon_copy(&mut self) {
        if self.copy.as_ref().is_some_and(|copy| copy.phase == Phase::Rows) {
            self.copy = None;
        }
    }

    pub(super) fn request_rows(&self, out: &mut Outbox) {
        if let Some(copy) = &self.copy
            && copy.phase == Phase::Rows
        {
            let (at, after) = (copy.header.at, copy.after.clone());
            let message = PeerMessage::SnapshotNext { view: self.view, at, after };
            self.message(self.members[0], message, out);
        }
    }

    pub(super) fn copy_synced(&mut self, id: OpId, out: &mut Outbox) {
        let Some(copy) = &mut self.copy else { return };
        if self.unsynced.is_some() || copy.header.at != id {
            return;
        }
        match copy.phase {
            Phase::Begin => {
                copy.phase = Phase::Rows;
                self.request_rows(out);
            }
            Phase::End => {
                self.copy = None;
                self.durable = id.seq;
                let message = PeerMessage::Acked { view: self.view, through: id };
                self.message(self.members[0], message, out);
            }
            Phase::Rows | Phase::Flush(_) => {}
        }
    }

    pub(super) fn take_rows(
        &mut self,
        at: OpId,
        after: Option<&[u8]>,
        piece: &Piece,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let Some(copy) = &mut self.copy else { return Ok(()) };
        if copy.phase != Phase::Rows || copy.header.at != at || copy.after.as_deref() != after {
            return Ok(());
        }
        let last = piece.rows.last().map(|(row, _)| row.clone());
        if last.is_none() && !piece.is_last {
            // It would be asked for again and again.
            return Err(IndexError(format!("a piece of the snapshot at {at:?} is empty")));
        }
        let end = (!piece.is_last).then(|| first_after(last.as_deref()));
        let own = (self.id, self.pg_count);
        if !copy.is_first && !self.planted.keeps_old_rows() {
            remove_rows(index, own, (&first_after(after), end.as_deref()), at)?;
        }
        let mut changes = Changes::default();
        changes.put(rows::snapshot(self.id), encode(&SnapshotRow { at, is_whole: piece.is_last }));
        for (row, value) in &piece.rows {
            self.ledger.note(row, value)?;
            changes.put(row.clone(), value.clone());
        }
        if piece.is_last {
            changes.set_position(rows::applied(self.id), encode(&at));
            // Those that are there are of rows that were replaced.
            changes.set_position(rows::high_water(self.id), encode(&HighWater::void()));
        }
        self.is_bare = false;
        index.write(changes)?;
        if piece.is_last {
            self.flushes += 1;
            copy.phase = Phase::Flush(self.flushes);
            out.push(Effect::FlushIndex(self.flushes));
        } else {
            copy.after = last;
            self.request_rows(out);
        }
        Ok(())
    }

    /// The rows are durable: what else the snapshot is goes into the log.
    pub(super) fn index_flushed(&mut self, flush: u64, out: &mut Outbox) {
        let Some(copy) = &mut self.copy else { return };
        if copy.phase != Phase::Flush(flush) {
            return;
        }
        copy.phase = Phase::End;
        let header = copy.header.clone();
        let at = header.at;
        assert!(
            matches!(self.role, Role::Backup | Role::Learner) && self.tail.is_empty(),
            "pg {}: only a follower without a log takes a snapshot",
            self.id
        );
        self.is_whole = true;
        self.seed_high_water();
        self.applied = at;
        self.history = History::after(at);
        self.commit = at.seq;
        self.durable = OpSeq(at.seq.0.saturating_sub(1));
        self.clock = self.clock.max(header.clock);
        for memory in &header.sessions {
            self.sessions.restore(memory);
            // An earlier release tells each in one part.
            for part in in_records(memory) {
                self.append_own(at, Op::SnapshotSession(part), out);
            }
        }
        let mut superseded = Vec::new();
        for OpenEntry { entry, superseded: is_superseded } in &header.open {
            for slot in slots_of(entry.id, self.id, &entry.op).into_iter().flatten() {
                self.slots.enter(slot, entry.id.seq);
            }
            self.note_open(entry, bytes_of(&entry.op));
            if *is_superseded {
                superseded.push(entry.id.seq);
            }
            out.push(Effect::Append(entry.clone()));
        }
        self.supersede_these(&superseded);
        self.append_own(at, Op::SnapshotEnd { superseded }, out);
    }

    pub(super) fn supersede_these(&mut self, puts: &[OpSeq]) {
        for put in puts {
            if let Some(open) = self.open.get_mut(put) {
                open.superseded = true;
            }
        }
    }
}

/// Removes a PG's rows between two places; the PG's rows are said to have no meaning first.
fn remove_rows(
    index: &dyn Index,
    (pg, pg_count): (PgId, u32),
    (from, to): (&[u8], Option<&[u8]>),
    at: OpId,
) -> Result<(), IndexError> {
    let mut from = from.to_vec();
    loop {
        let (mut found, mut failed) = (Vec::new(), None);
        index.scan(&from, to, &mut |row, value| {
            match owner(row, value, pg_count) {
                Ok(Some(of)) if of == pg => found.push(row.to_vec()),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
            if found.len() == SNAPSHOT_REMOVALS_MAX || failed.is_some() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let Some(last) = found.last() else { return Ok(()) };
        from = first_after(Some(last));
        let mut changes = Changes::default();
        changes.put(rows::snapshot(pg), encode(&SnapshotRow { at, is_whole: false }));
        found.into_iter().for_each(|row| changes.remove(row));
        index.write(changes)?;
    }
}
