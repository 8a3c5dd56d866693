//! Garbage: rows of chunks, parts and pieces that no object references any more. An object of 5 TiB has some 650,000 of
//! these. An op that ends it removes a bounded number; the rest go by ops of their own, one at a time (ADR 55).
//!
//! ```text
//!  op that ends an object ──▶ apply: rows_max rows go, what is left is a row of garbage
//!  Event::Reap, serving ──▶ any garbage? ──Op::Reap──▶ log ──▶ apply: rows_max rows of it go, and so on
//! ```
//! While objects of the group are read chunk by chunk, garbage waits: rows of it may be read (`departed.rs`).
//!
//! The first `Reap` of a group, which sets its steps, comes when the group has a large object. Releases that do not know it
//! read a log without one. The driver says when it may: by the cluster's version.
//!
//! # Invariants
//!
//! 1. Rows that begin as a row of garbage says are named by no other row, and no call can name them again. An upload and the
//!    pieces of a version have the op that began them for a name, and a stream that is garbage is not open.
//! 2. Each op removes at most as many rows of chunks and pieces as the row [`Reaping`] says. Where there is no such row, all
//!    go at once. A release that does not know garbage does so too, and all members of a group are to have the same rows.
//! 3. A parent's row goes before the rows that it names: none is left that names rows which are gone.

use larder_types::codec::{decode, encode};
use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{
    Body, BucketId, Chunk, Garbage, Op, OpId, OpSeq, PartRef, PartRow, PgId, PieceRow, Reaping,
    StreamId, UploadId, rows,
};

use super::Pg;
use super::batch::{Batch, RowsDone};
use crate::index::{Changes, Index, IndexError};
use crate::limits::{REAP_CHECKS_MAX, REAP_ROWS_MAX};
use crate::message::Outbox;

/// A primary's view of its group's garbage.
#[derive(Debug)]
pub(super) struct Reaper {
    /// Rows that an op removes, by this primary.
    pub(super) step_rows: u32,
    /// The group has, or had, an object of more rows than a step.
    has_large: bool,
    found: Found,
    /// The time since when this primary has known of garbage in the group; `None` without garbage.
    since_ms: Option<u64>,
    /// Rows removed by [`Op::Reap`], since this member began.
    pub(super) reaped_rows: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It is to be looked for.
    Unknown,
    /// The group is to have steps, and may not yet.
    Waits,
    /// There is none, and the group's steps are those of this primary, or it needs none.
    Nothing,
    /// This op removes some.
    Going(OpSeq),
}

impl Reaper {
    pub(super) fn new() -> Self {
        Self {
            step_rows: REAP_ROWS_MAX,
            has_large: false,
            found: Found::Unknown,
            since_ms: None,
            reaped_rows: 0,
        }
    }

    /// Takes note of a batch of ops.
    pub(super) fn note(&mut self, done: &RowsDone, now_ms: u64) {
        self.reaped_rows += done.reaped;
        if done.leaves_garbage {
            self.since_ms.get_or_insert(now_ms);
        }
        let is_news = done.leaves_garbage || done.has_large && !self.has_large;
        self.has_large |= done.has_large;
        if is_news && self.found == Found::Nothing {
            self.found = Found::Unknown;
        }
    }

    /// Another primary may have left some, and other servers follow.
    pub(super) fn begin_view(&mut self) {
        self.found = Found::Unknown;
        self.since_ms = None;
    }

    /// Returns true if blocks are freed by ops of its own.
    pub(super) fn has_garbage(&self) -> bool {
        self.since_ms.is_some() && self.found != Found::Waits || self.is_reaping()
    }

    pub(super) fn is_reaping(&self) -> bool {
        matches!(self.found, Found::Going(_))
    }
}

impl Pg {
    /// Returns true while this primary has some garbage removed.
    #[must_use]
    pub fn is_reaping(&self) -> bool {
        self.reaper.is_reaping()
    }

    /// Has the ops of this primary remove so many rows each, in place of [`REAP_ROWS_MAX`]: for simulations, whose objects are
    /// small.
    pub fn reap_in_steps_of(&mut self, rows: u32) {
        self.reaper.step_rows = rows.max(1);
    }

    /// Rows of a large object were found, though no op made it since this member began.
    pub(super) fn note_large(&mut self) {
        let done = RowsDone { has_large: true, ..RowsDone::default() };
        self.reaper.note(&done, self.now_ms);
    }

    /// Returns true if there is garbage that waits for reads under way.
    pub(super) fn is_garbage_spared(&self) -> bool {
        self.reaper.since_ms.is_some_and(|since_ms| self.spares_garbage(since_ms))
    }

    /// Returns true if [`crate::Event::Reap`] has anything to do.
    #[must_use]
    pub fn wants_to_reap(&self, may_begin: bool) -> bool {
        self.serves()
            && !self.is_garbage_spared()
            && match self.reaper.found {
                Found::Unknown => true,
                Found::Nothing => false,
                Found::Waits => may_begin,
                Found::Going(op) => op <= self.applied.seq,
            }
    }

    /// Has some garbage removed, if there is any.
    pub(super) fn reap(
        &mut self,
        index: &dyn Index,
        may_begin: bool,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        if !self.wants_to_reap(may_begin) || !self.has_capacity_for_own() {
            return Ok(());
        }
        let (garbage, rows_max) = (rows::garbage(self.id), self.reaper.step_rows);
        let rows = Changes::default().scan_some(index, (&garbage, &garbage), 2)?.0;
        let steps = rows.first().map(|(_, value)| decode::<Reaping>("steps of garbage", value));
        self.reaper.found = match steps.transpose()? {
            Some(steps) if steps.rows_max == rows_max && rows.len() < 2 => Found::Nothing,
            None if !self.reaper.has_large => Found::Nothing,
            None if !may_begin => Found::Waits,
            _ => Found::Going(self.append_op(Op::Reap { rows_max }, None, out).seq),
        };
        if self.reaper.found == Found::Nothing {
            self.reaper.since_ms = None;
            // No more comes than there is now.
            self.feed_starved(index, out)?;
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// A row has this body from now on.
    pub(super) fn note_size(&mut self, body: &Body) {
        self.rows_done.has_large |= rows_of(body) > u64::from(self.step_rows);
    }

    /// A part of an upload has this body from now on.
    pub(super) fn note_part(&mut self, number: u16, body: &Body) {
        self.note_size(body);
        self.rows_done.has_large |= u32::from(number) > self.step_rows;
    }

    /// Some of the group's garbage goes, in the steps that the op says, which are those of later ops too.
    pub(super) fn reap(&mut self, rows_max: u32, now: OpId) -> Result<(), IndexError> {
        let steps = rows::garbage(self.pg);
        let known = self.changes.get(self.index, &steps)?;
        let known = known.map(|value| decode::<Reaping>("steps of garbage", &value)).transpose()?;
        if known.is_none_or(|known| known.rows_max != rows_max) {
            self.changes.put(steps.clone(), encode(&Reaping { op: now, rows_max }));
        }
        self.removal.rows_max = Some(rows_max);
        // One more than these rows: the first says the steps.
        let count_max = rows_max as usize + 1;
        let garbage = self.changes.scan_some(self.index, (&steps, &steps), count_max)?.0;
        for (row, value) in garbage {
            let of = rows::parse_garbage(&row).filter(|(pg, _)| *pg == self.pg);
            let (_, beginning) = of.ok_or_else(|| unreadable(&row))?;
            if !beginning.is_empty() && self.removal.rows < rows_max {
                let through = decode::<Garbage>("garbage", &value)?.through;
                self.drop_rows_after(beginning, &through, now)?;
            }
        }
        self.rows_done.reaped += u64::from(self.removal.rows);
        Ok(())
    }

    /// Frees what a row has for a body.
    pub(super) fn free_body(
        &mut self,
        row: &[u8],
        bucket: BucketId,
        body: &Body,
        now: OpId,
    ) -> Result<(), IndexError> {
        match body {
            Body::Inline(_) => Ok(()),
            Body::Chunk(chunk) => {
                self.free_chunk(row, chunk, now);
                Ok(())
            }
            Body::Stream { stream, .. } => self.drop_stream(bucket, *stream, now),
            Body::Parts { upload, .. } => self.drop_rows(&rows::parts(bucket, *upload), now),
            Body::Pieces { pieces, .. } => self.drop_rows(&rows::pieces(bucket, *pieces), now),
        }
    }

    /// Removes rows that no version names: no read asks for them, and they are to push out none that reads ask for.
    pub(super) fn unnamed(
        &mut self,
        remove: impl FnOnce(&mut Self) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let kept = std::mem::take(&mut self.departed);
        let removed = remove(self);
        self.departed = kept;
        removed
    }

    /// Removes the chunks of a stream that no parent has claimed.
    pub(super) fn drop_orphans(
        &mut self,
        bucket: BucketId,
        stream: StreamId,
        now: OpId,
    ) -> Result<(), IndexError> {
        let open = self.changes.get(self.index, &rows::open_stream(bucket, stream))?;
        if open.is_some() { self.drop_stream(bucket, stream, now) } else { Ok(()) }
    }

    /// Removes a stream's chunks, or leaves some as garbage.
    pub(super) fn drop_stream(
        &mut self,
        bucket: BucketId,
        stream: StreamId,
        now: OpId,
    ) -> Result<(), IndexError> {
        self.changes.remove(rows::open_stream(bucket, stream));
        self.drop_rows(&rows::stream(bucket, stream), now)
    }

    /// Removes an upload's parts, except those kept: at most as many as an upload has.
    pub(super) fn drop_parts_but(
        &mut self,
        (bucket, upload): (BucketId, UploadId),
        kept: &[PartRef],
        now: OpId,
    ) -> Result<(), IndexError> {
        for (row, value) in self.changes.scan(self.index, &rows::parts(bucket, upload))? {
            let number = rows::part_number(&row).ok_or_else(|| unreadable(&row))?;
            if kept.binary_search_by_key(&number, |part| part.number).is_err() {
                self.drop_row(row, &value, bucket, now)?;
            }
        }
        Ok(())
    }

    /// Removes the rows with this beginning, which nothing names any more: as many as the op may still remove. If some are
    /// left, they are garbage.
    pub(super) fn drop_rows(&mut self, beginning: &[u8], now: OpId) -> Result<(), IndexError> {
        self.drop_rows_after(beginning, &[], now)
    }

    /// The same, of the rows behind one of them.
    fn drop_rows_after(
        &mut self,
        beginning: &[u8],
        through: &[u8],
        now: OpId,
    ) -> Result<(), IndexError> {
        let mut last = through.to_vec();
        let is_all = self.drop_some(beginning, &mut last, now)?;
        self.rows_done.has_large |= self.removal.rows > self.step_rows;
        let garbage = rows::garbage_of(self.pg, beginning);
        let noted = self.changes.get(self.index, &garbage)?;
        let noted = noted.map(|value| decode::<Garbage>("garbage", &value)).transpose()?;
        if !is_all {
            self.rows_done.leaves_garbage = true;
            let op = noted.map_or(now, |noted| noted.op);
            self.changes.put(garbage, encode(&Garbage { op, through: last }));
        } else if noted.is_some() {
            self.changes.remove(garbage);
        }
        Ok(())
    }

    /// Removes rows behind `last`, which then names the last of them; true if these were all. What a row of parts or pieces
    /// names goes before the next such row, so that an op leaves no more garbage than one beginning of each kind.
    fn drop_some(
        &mut self,
        beginning: &[u8],
        last: &mut Vec<u8>,
        now: OpId,
    ) -> Result<bool, IndexError> {
        let bucket = rows::bucket_of_garbage(beginning).ok_or_else(|| unreadable(beginning))?;
        loop {
            let left = self.rows_left()? as usize;
            if left == 0 {
                // Not looked at: whatever is named has rows, and if it has none, the next step finds out.
                return Ok(false);
            }
            let are_chunks = beginning.first() == Some(&b'K');
            let count = if are_chunks { left } else { left.min(REAP_CHECKS_MAX) };
            let mut from = [beginning, last].concat();
            if !last.is_empty() {
                from.push(0);
            }
            let (found, is_all) = self.changes.scan_some(self.index, (beginning, &from), count)?;
            for (row, value) in found {
                if self.rows_left()? == 0 {
                    return Ok(false);
                }
                self.removal.rows += 1;
                last.clear();
                last.extend(&row[beginning.len()..]);
                self.drop_row(row, &value, bucket, now)?;
            }
            if is_all {
                return Ok(true);
            }
        }
    }

    fn drop_row(
        &mut self,
        row: Vec<u8>,
        value: &[u8],
        bucket: BucketId,
        now: OpId,
    ) -> Result<(), IndexError> {
        match row.first() {
            Some(b'K') => self.free_chunk(&row, &decode::<Chunk>("chunk row", value)?, now),
            Some(b'P') => {
                let part: PartRow = decode("part row", value)?;
                self.free_body(&row, bucket, &part.body, now)?;
            }
            Some(b'W') => self.free_body(&row, bucket, &PieceRow::read(value)?.body, now)?,
            _ => return Err(unreadable(&row)),
        }
        self.departed.push(&row, value);
        self.changes.remove(row);
        Ok(())
    }

    /// Rows that the op may still remove.
    fn rows_left(&mut self) -> Result<u32, IndexError> {
        let rows_max = match self.removal.rows_max {
            Some(rows_max) => rows_max,
            None => {
                let steps = self.changes.get(self.index, &rows::garbage(self.pg))?;
                let read = |value| decode::<Reaping>("steps of garbage", value);
                let steps = steps.as_deref().map(read).transpose()?;
                steps.map_or(u32::MAX, |steps| steps.rows_max)
            }
        };
        self.removal.rows_max = Some(rows_max);
        Ok(rows_max.saturating_sub(self.removal.rows))
    }
}

/// Rows that a body has, or more.
pub(super) fn rows_of(body: &Body) -> u64 {
    match body {
        Body::Inline(_) | Body::Chunk(_) => 0,
        Body::Stream { chunks, .. } => u64::from(*chunks),
        Body::Parts { parts, .. } => {
            parts.iter().map(|part| 1 + part.len.div_ceil(u64::from(CHUNK_BYTES_MAX))).sum()
        }
        Body::Pieces { rows, .. } => u64::from(*rows),
    }
}

/// Returns true if rows of this stream are garbage.
pub(super) fn is_garbage(
    index: &dyn Index,
    pg: PgId,
    (bucket, stream): (BucketId, StreamId),
) -> Result<bool, IndexError> {
    let row = rows::garbage_of(pg, &rows::stream(bucket, stream));
    Ok(index.get(&row)?.is_some())
}

fn unreadable(row: &[u8]) -> IndexError {
    IndexError(format!("row {} has no such form", row.escape_ascii()))
}
