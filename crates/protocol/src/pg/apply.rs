//! The effect of a committed op on the index and on space.
//!
//! # Invariants
//!
//! 1. Ops are applied in order, each once, only below the commit point, in batches that carry the applied position.
//!    After a crash the index holds the state after some op, and says which.
//! 2. A version row is replaced only by a later op's, whatever the order of the outcomes (`versions.rs`).
//! 3. The space that a row names is freed by the op that removes or replaces the row, and by no other. The space that rows
//!    of these rows name is freed by that op or as garbage (`garbage.rs`). An append frees nothing: what its version named
//!    is named by a piece from then on (`pieces.rs`). Coalescing frees what the pieces named (`coalesce.rs`).
//! 4. A put stays open until the index was written with its outcome, also if the batch fails: its log is still needed then.

use larder_types::codec::{decode, encode};
use larder_types::{
    Body, Grant, HoldersChange, ObjectEntry, Op, OpId, OpSeq, Outcome, PartRow, Put, RemotePut,
    Target, VersionRow, rows,
};

use super::batch::{Batch, Removal};
use super::departed::BatchDeparted;
use super::ops::{answer_of, chunk_of};
use super::remote_change::version_of;
use super::slots::{Slot, slot_of_call, slots_of};
use super::{OpenPut, Pg, TailEntry};
use crate::index::{Index, IndexError};
use crate::ledger::{Change, Changed};
use crate::limits::{APPLY_BYTES_MAX, APPLY_OPS_MAX};
use crate::message::{Call, Effect, LogEntry, Outbox};
use crate::row::with_chunk;

impl Pg {
    pub(super) fn apply_batch(
        &mut self,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<usize, IndexError> {
        let mut closed = Vec::new();
        let written = match self.write_batch(index, &mut closed) {
            Ok(written) => written,
            Err(error) => {
                // The index shows none of the batch: the log of these puts is still needed.
                closed.into_iter().for_each(|open| self.open.insert(open));
                return Err(error);
            }
        };
        let Some((count, digest)) = written else { return Ok(0) };
        self.leave_slots(count, closed, index, out)?;
        self.pass_barriers(out);
        if let Some(at) = digest {
            self.begin_sum(at, out);
        }
        Ok(count)
    }

    /// Writes the next ops to the index. Returns their number and the op of a digest among them; `None` if there are none.
    /// Puts that they close go to `closed`, also if it fails.
    fn write_batch(
        &mut self,
        index: &dyn Index,
        closed: &mut Vec<OpenPut>,
    ) -> Result<Option<(usize, Option<OpId>)>, IndexError> {
        let ready = (self.commit.0 - self.applied.seq.0) as usize;
        let count = self.until_digest(ready.min(APPLY_OPS_MAX));
        if count == 0 {
            return Ok(None);
        }
        let mut batch = Batch::new(self.id, index, &self.ledger, self.reaper.step_rows);
        batch.departed = BatchDeparted::new(self.keeps_departed());
        let mut taken = 0;
        while taken < count && (taken == 0 || batch.changes.bytes() < APPLY_BYTES_MAX) {
            let entry = self.tail[taken].entry.clone();
            batch.removal = Removal::default();
            self.apply_op(&entry, &mut batch, closed)?;
            batch.bound_journal(entry.id)?;
            taken += 1;
        }
        let count = taken;
        let digest = self.digest_within(count);
        let last = self.tail[count - 1].entry.id;
        batch.changes.set_position(rows::applied(self.id), encode(&last));
        self.raise_marks(&mut batch, last);
        self.is_bare = false;
        index.write(batch.changes)?;
        self.applied = last;
        self.depart(batch.departed);
        if let Some(space) = &mut self.space {
            space.set_now(self.now_ms);
        }
        let early = self.reused_at_once(count);
        for changed in batch.blocks {
            if let (Change::Freed(blocks), Some(space)) = (&changed.change, self.space.as_mut()) {
                let at_once = self.planted.reuses_at_once() || early.contains(&changed.op);
                space.free(blocks.lv, &blocks.extents, changed.op, at_once);
            }
            self.ledger.take(changed);
        }
        let recount = batch.recount.map(|change| Changed { op: last, row: Vec::new(), change });
        // The sum first, of the first bucket: one that it leaves empty has no entry any more when another gets its first.
        recount.into_iter().chain(batch.resized).for_each(|changed| self.ledger.count(changed));
        self.count_moves(batch.moves);
        self.count_coalesced(batch.coalesced);
        self.reaper.note(&batch.rows_done, self.now_ms);
        Ok(Some((count, digest)))
    }

    /// Blocks that ops of the batch name lie below marks that are written with it.
    fn raise_marks(&mut self, batch: &mut Batch<'_>, last: OpId) {
        let Some(marks) = &mut self.high_water else { return };
        batch.ends.iter().for_each(|(lv, end)| marks.raise(*lv, *end));
        batch.changes.set_position(rows::high_water(self.id), encode(&marks.row(last)));
    }

    fn apply_op(
        &mut self,
        entry: &LogEntry,
        batch: &mut Batch<'_>,
        closed: &mut Vec<OpenPut>,
    ) -> Result<(), IndexError> {
        let id = entry.id;
        match &*entry.op {
            Op::ViewStart { .. } | Op::Digest => {}
            Op::Put(put) | Op::PutEnough { put, .. } => {
                if !matches!(put.body, Body::Chunk(_)) {
                    self.supersede(entry);
                    batch.commit_put(put, put.body.clone(), (id, None), id)?;
                }
            }
            Op::RemoteChange(remote) => {
                if !matches!(remote.put.body, Body::Chunk(_)) {
                    self.supersede(entry);
                    batch.commit_put(
                        &remote.put,
                        remote.put.body.clone(),
                        (id, Some(remote)),
                        id,
                    )?;
                }
            }
            Op::Purge(purge) => {
                self.supersede(entry);
                batch.purge(purge, id)?;
            }
            Op::Amend(amend) => batch.amend(amend, id)?,
            Op::Renew(renew) => batch.renew(renew, id)?,
            Op::Noted(noted) => {
                self.note_passed_by_all(noted);
                batch.note(noted, id)?;
            }
            Op::Freed(freed) => batch.free_tombstones(self.id, freed, id)?,
            Op::Regrant { .. } => {
                // The void of the earlier attempt came first; its extents are not in any row.
            }
            Op::Outcome { put, outcome } => {
                if let Some(open) = self.open.remove(put) {
                    let done = self.close_put(&open, *outcome, id, batch);
                    closed.push(open);
                    done?;
                }
            }
            Op::Delete { bucket, key, .. } => {
                self.supersede(entry);
                batch.remove_version(*bucket, key, id)?;
            }
            Op::SetTags { bucket, key, tags, .. } => {
                let row = rows::version(*bucket, key, rows::UNVERSIONED);
                if let Some(value) = batch.changes.get(batch.index, &row)? {
                    let mut version = ObjectEntry::read(&value)?;
                    version.row.metax.attributes.tags.clone_from(tags);
                    batch.changes.put(row, version.write());
                }
            }
            Op::CreateUpload { bucket, row, .. } => {
                batch.changes.put(rows::upload(*bucket, &row.key, row.upload), encode(row));
            }
            Op::CompleteUpload { bucket, key, upload, metax, parts, .. } => {
                self.supersede(entry);
                batch.unnamed(|batch| batch.drop_parts_but((*bucket, *upload), parts, id))?;
                batch.changes.remove(rows::upload(*bucket, key, *upload));
                let body = Body::Parts { upload: *upload, parts: parts.clone() };
                let row = VersionRow { op: id, metax: (**metax).clone(), body };
                batch.put_version((*bucket, key), ObjectEntry::of_row(row), id)?;
            }
            Op::AbortUpload { bucket, key, upload, .. } => {
                batch.unnamed(|batch| batch.drop_rows(&rows::parts(*bucket, *upload), id))?;
                batch.changes.remove(rows::upload(*bucket, key, *upload));
            }
            Op::Append(append) => batch.append(append, None, id)?,
            Op::Grow(grow) => batch.append(&grow.append, Some(grow), id)?,
            Op::Coalesce(coalesce) => batch.coalesce(coalesce, id)?,
            Op::Holders { changes } => {
                for change in changes {
                    batch.change_holders(change, id)?;
                }
            }
            Op::Moved { moves } => {
                let is_unchecked = self.planted.moves_unchecked();
                for (to, attempt) in moves.iter().zip(0..) {
                    let grant = Grant { pg: self.id, op: id, attempt };
                    batch.move_chunk(to, grant, is_unchecked)?;
                }
            }
            Op::DropStream { bucket, stream } => {
                batch.unnamed(|batch| batch.drop_orphans(*bucket, *stream, id))?;
            }
            Op::Reap { rows_max } => batch.reap(*rows_max, id)?,
            Op::SnapshotBegin | Op::SnapshotSession(_) | Op::SnapshotEnd { .. } => {
                return Err(IndexError(format!("op {id:?} belongs to no log's tail")));
            }
        }
        Ok(())
    }

    fn close_put(
        &mut self,
        open: &OpenPut,
        outcome: Outcome,
        outcome_op: OpId,
        batch: &mut Batch<'_>,
    ) -> Result<(), IndexError> {
        let mut chunk = open.chunk.clone();
        if let Outcome::Committed { holders, .. } = outcome {
            chunk.holders = holders;
        }
        let row = batch.row_of(open);
        batch.name(&row, (&chunk).into(), outcome_op);
        match outcome {
            Outcome::Committed { attempt, .. } if !open.superseded => {
                assert_eq!(
                    attempt, chunk.grant.attempt,
                    "pg {}: op {}: attempts mixed",
                    self.id, open.id.seq
                );
                self.note_holders(&chunk);
                self.supersede_older(open);
                let by = (open.id, open.put.remote_put());
                batch.commit_put(open.put(), Body::Chunk(chunk), by, outcome_op)
            }
            Outcome::Committed { .. } => {
                batch.free_chunk(&row, &chunk, outcome_op);
                Ok(())
            }
            Outcome::Revoked => {
                self.sessions.revoke(&open.put().request);
                batch.free_chunk(&row, &chunk, outcome_op);
                Ok(())
            }
        }
    }

    /// Older puts of this op's key that are still open will make nothing when they are committed.
    pub(super) fn supersede(&mut self, entry: &LogEntry) {
        if matches!(*entry.op, Op::Delete { .. }) && self.planted.leaves_no_tombstone() {
            return;
        }
        let slots = slots_of(entry.id, self.id, &entry.op);
        let Some(slot @ Slot::Version(..)) = slots.into_iter().flatten().next() else { return };
        self.supersede_key(&slot, entry.id.seq);
    }

    /// A put with data is committed: older puts of its key that are still open will make nothing.
    pub(super) fn supersede_older(&mut self, committed: &OpenPut) {
        let slots = slots_of(committed.id, self.id, &committed.put);
        if let Some(slot @ Slot::Version(..)) = slots.into_iter().flatten().next() {
            self.supersede_key(&slot, committed.id.seq);
        }
    }

    /// Open puts of a key before an op will make nothing when they are committed.
    pub(super) fn supersede_key(&mut self, slot: &Slot, before: OpSeq) {
        for seq in self.slots.entries(slot) {
            if *seq < before
                && let Some(open) = self.open.get_mut(seq)
            {
                open.superseded = true;
            }
        }
    }

    /// The first `count` ops of the tail are in the index: their keys may have come to rest.
    fn leave_slots(
        &mut self,
        count: usize,
        closed: Vec<OpenPut>,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let mut rested = Vec::new();
        for _ in 0..count {
            let Some(TailEntry { entry, reply, .. }) = self.tail.pop_front() else { break };
            if let Some((token, _)) = reply
                && !self.planted.answers_before_commit()
            {
                out.push(Effect::Reply { token, answer: answer_of(&entry) });
            }
            if chunk_of(&entry.op).is_none() {
                for slot in slots_of(entry.id, self.id, &entry.op).into_iter().flatten() {
                    if self.slots.leave(&slot, entry.id.seq) {
                        rested.push(slot);
                    }
                }
            }
            self.remember(entry);
        }
        let mut readers = Vec::new();
        for open in closed {
            for slot in slots_of(open.id, self.id, &open.put).into_iter().flatten() {
                readers.extend(self.slots.take_readers(&slot));
                if self.slots.leave(&slot, open.id.seq) {
                    rested.push(slot);
                }
            }
        }
        self.resume(readers, out);
        for slot in rested {
            self.run_queue(&slot, index, out)?;
        }
        Ok(())
    }

    fn run_queue(
        &mut self,
        slot: &Slot,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        while let Some((token, call)) = self.slots.next_queued(slot) {
            match call {
                Call::Read { bucket, key } => self.read(token, bucket, key, out),
                call => {
                    // One that waited for its chunks has not had its turn on the key yet.
                    let has_turn = slot_of_call(&call).as_ref() == Some(slot);
                    self.mutate(token, call, has_turn, index, out)?;
                }
            }
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// Writes the version of a put, from a client or another region. `put_op` decides which version wins, `now` frees
    /// what loses.
    fn commit_put(
        &mut self,
        put: &Put,
        body: Body,
        (put_op, remote): (OpId, Option<&RemotePut>),
        now: OpId,
    ) -> Result<(), IndexError> {
        if let (Body::Stream { stream, .. }, false) =
            (&body, matches!(put.target, Target::Chunk { .. }))
        {
            self.changes.remove(rows::open_stream(put.bucket, *stream));
        }
        match &put.target {
            Target::Version => {
                let row = VersionRow { op: put_op, metax: put.metax.clone(), body };
                self.put_version((put.bucket, &put.key), version_of(row, remote), now)
            }
            Target::Chunk { stream, number } => {
                let Body::Chunk(chunk) = body else {
                    return Err(IndexError(format!("op {put_op:?}: a stream's chunk has no data")));
                };
                let row = rows::chunk(put.bucket, *stream, *number);
                if let Some(old) = self.changes.get(self.index, &row)? {
                    // Both puts were of the same bytes: the row names one, and the other's blocks are freed.
                    self.free_chunk(&row, &decode("chunk row", &old)?, now);
                }
                self.changes.put(row, encode(&chunk));
                self.changes.put(rows::open_stream(put.bucket, *stream), encode(&chunk.grant.pg));
                Ok(())
            }
            Target::Part { upload, number } => {
                self.note_part(*number, &body);
                let row = rows::part(put.bucket, *upload, *number);
                if let Some(old) = self.changes.get(self.index, &row)? {
                    let old: PartRow = decode("part row", &old)?;
                    if old.op > put_op {
                        return self.unnamed(|it| it.free_body(&row, put.bucket, &body, now));
                    }
                    self.unnamed(|it| it.free_body(&row, put.bucket, &old.body, now))?;
                }
                let part = PartRow { op: put_op, metax: put.metax.clone(), body };
                self.changes.put(row, encode(&part));
                Ok(())
            }
        }
    }

    /// Copies of a chunk were made or given up, if the row still has it.
    fn change_holders(&mut self, change: &HoldersChange, now: OpId) -> Result<(), IndexError> {
        let Some(value) = self.changes.get(self.index, &change.row)? else { return Ok(()) };
        let mut held = None;
        let new = with_chunk(&change.row, &value, &mut |chunk| {
            if chunk.grant == change.grant {
                let before = chunk.holders;
                chunk.holders = before.union(change.gained).without(change.lost);
                held = Some(Change::Held { lv: chunk.lv, before, after: chunk.holders });
            }
        })?;
        if let Some(held) = held {
            self.changed(&change.row, held, now);
        }
        if let Some(new) = new.filter(|new| *new != *value) {
            self.changes.put(change.row.to_vec(), new);
        }
        Ok(())
    }

    /// The row of an open put's chunk, if anybody asks for it: the blocks are the index's from the put's outcome on, if only
    /// for a moment.
    fn row_of(&self, open: &OpenPut) -> Vec<u8> {
        let put = open.put();
        match &put.target {
            _ if !self.wants_rows => Vec::new(),
            Target::Version => rows::version(put.bucket, &put.key, rows::UNVERSIONED),
            Target::Chunk { stream, number } => rows::chunk(put.bucket, *stream, *number),
            Target::Part { upload, number } => rows::part(put.bucket, *upload, *number),
        }
    }
}
