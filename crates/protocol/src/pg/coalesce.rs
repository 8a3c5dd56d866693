//! Coalescing: adjacent pieces of a version that was appended to become one, so that 10 million records are a few rows (ADR 65).
//!
//! ```text
//!  proxy: Call::PlanCoalesce ──▶ a window of pieces ──▶ reads it, stores a chunk ──▶ Call::Coalesce
//!                                                                                     ▼
//!      rows of the window go, one takes their place ◀── apply ◀── log ◀── Op::Coalesce
//! ```
//!
//! # Invariants
//!
//! 1. Bytes under one name of pieces never change: what was read of a window is what its pieces have when the op is applied.
//!    If the version, or the window's bounds, are others by then, the op is void, and its stream is dropped.
//! 2. The op changes neither op, size nor tags of the version. So it stands in the order of the log alone: appends that name
//!    the version they go on stay right, and no call of the key waits for it.
//! 3. A piece stays by itself if a repeat may still ask where it began, or if another region may lack it. Only ops are
//!    touched that are older than all of these.
//! 4. One op removes fewer rows than a step of garbage.
//! 5. Blocks of pieces that were coalesced are given again only when the index shows that, and floors have passed it. So a read
//!    that finds other bytes where a piece lay finds by the index where they lie now.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use larder_types::codec::encode;
use larder_types::limits::PIECES_MAX;
use larder_types::{
    Body, BucketId, Coalesce, ETag, Noted, ObjectEntry, Op, OpId, OpSeq, PieceEntry, PieceRow,
    PiecesId, RegionId, rows,
};

use super::batch::{Batch, CoalesceCounts};
use super::mutation::{Step, current, epoch_holds};
use super::{Pg, ReplyKind};
use crate::coalesce::{Pieces as Counts, window};
use crate::index::{Index, IndexError, Row};
use crate::limits::{
    COALESCE_CHECKS_MAX, COALESCE_PIECES_MAX, COALESCE_PIECES_MIN, COALESCE_PLANNED_MS,
    COALESCES_PLANNED_MAX,
};
use crate::message::{
    Answer, CoalesceCall, CoalescePlan, CoalesceRequest, Effect, Outbox, Refusal, Token,
};

/// Pieces that follow each other.
struct Pieces {
    /// Where the first begins.
    start: u64,
    lens: Vec<u64>,
    /// There are more behind them.
    goes_on: bool,
    /// There are, and they are to stay for now.
    is_held: bool,
}

/// Windows that proxies were told of: of several that append to one object, one is to store a window.
#[derive(Debug, Default)]
pub(super) struct Planned(VecDeque<(PiecesId, Range<u64>, u64)>);

impl Planned {
    /// Notes a window; false if one was noted not long ago that has some of its pieces.
    fn plan(&mut self, pieces: PiecesId, window: &Range<u64>, now_ms: u64) -> bool {
        self.0.retain(|(.., since_ms)| since_ms + COALESCE_PLANNED_MS > now_ms);
        let meets = |it: &Range<u64>| it.start < window.end && window.start < it.end;
        if self.0.iter().any(|(of, it, _)| *of == pieces && meets(it)) {
            return false;
        }
        if self.0.len() == COALESCES_PLANNED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((pieces, window.clone(), now_ms));
        true
    }

    /// A window is stored.
    fn end(&mut self, pieces: PiecesId, window: &Range<u64>) {
        self.0.retain(|(of, it, _)| (of, it) != (&pieces, window));
    }
}

impl Pg {
    /// Lets pieces be coalesced, or not: all servers of the cluster must know of it, and always will.
    pub fn let_coalesce(&mut self, may: bool) {
        self.may_coalesce = may;
    }

    pub(super) fn count_coalesced(&mut self, CoalesceCounts { pieces, void }: CoalesceCounts) {
        self.coalesce_counts.pieces += pieces;
        self.coalesce_counts.void += void;
    }

    /// Has so few pieces coalesced, in place of [`COALESCE_PIECES_MIN`]: for simulations, whose objects are small.
    pub fn coalesce_from(&mut self, pieces: usize) {
        self.coalesce_min = pieces.clamp(2, COALESCE_PIECES_MIN);
    }

    /// Pieces that one op of this primary coalesces.
    fn coalesces_max(&self) -> usize {
        (self.reaper.step_rows as usize / 2).saturating_sub(1).clamp(2, COALESCE_PIECES_MAX)
    }

    /// Answers which pieces of a key's version are worth it.
    pub(super) fn plan_coalesce(
        &mut self,
        token: Token,
        ask: &CoalesceRequest,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let plan = if self.may_coalesce { self.coalesce_plan(ask, index)? } else { None };
        out.push(Effect::Reply { token, answer: Answer::Plan(plan.map(Box::new)) });
        Ok(())
    }

    fn coalesce_plan(
        &mut self,
        ask: &CoalesceRequest,
        index: &dyn Index,
    ) -> Result<Option<CoalescePlan>, IndexError> {
        let Some(row) = current(ask.bucket, &ask.key, index)? else { return Ok(None) };
        let Body::Pieces { pieces, rows } = row.body else { return Ok(None) };
        let from = ask.from.min(row.metax.size);
        let before = self.oldest_needed(rows, index)?;
        let found = pieces_from((ask.bucket, pieces), from..row.metax.size, before, index)?;
        let max = self.coalesces_max();
        let (at, mut settled) = window(&found.lens, Counts { min: self.coalesce_min, max });
        if at.is_none() && found.goes_on {
            // The pieces that come next may be worth it together with the last of these, and not with others.
            settled = settled.max(found.lens.len() - max);
        }
        let byte = |piece: usize| found.start + found.lens[..piece].iter().sum::<u64>();
        let window = at.map(|at| byte(at.start)..byte(at.end));
        let (settled, mut is_held) = (byte(settled), found.is_held);
        let window = window.filter(|window| {
            let is_new = self.planned.plan(pieces, window, self.now_ms);
            is_held |= !is_new;
            is_new
        });
        Ok(Some(CoalescePlan { pieces, window, settled, goes_on: found.goes_on, is_held }))
    }

    /// The oldest op of which somebody may need the piece that it appended; `None` if none is needed. Another region asks for the
    /// end of an object by the piece that ends what it has, as long as there are not so many that appends are soon refused.
    fn oldest_needed(&self, rows: u32, index: &dyn Index) -> Result<Option<OpSeq>, IndexError> {
        let may_lack = index.region() != RegionId::OWN && rows < PIECES_MAX / 2;
        let is_lacked = may_lack && self.is_told(index)?;
        let lacked = is_lacked.then(|| self.passed_by_all.next());
        let repeated = self.sessions.oldest().filter(|_| !self.planted.coalesces_too_soon());
        Ok(repeated.into_iter().chain(lacked).min())
    }

    /// Outcomes are forgotten that all regions have.
    pub(super) fn note_passed_by_all(&mut self, noted: &Noted) {
        if let Some((_, upto)) = noted.forgotten {
            self.passed_by_all = self.passed_by_all.max(upto);
        }
    }

    /// Returns true if other regions were told anything of the group.
    fn is_told(&self, index: &dyn Index) -> Result<bool, IndexError> {
        let mut is_told = false;
        index.scan_prefix(&rows::journal(self.id), &mut |_, _| {
            is_told = true;
            ControlFlow::Break(())
        })?;
        Ok(is_told)
    }

    /// Makes pieces one, whose bytes were stored again.
    pub(super) fn coalesce(
        &mut self,
        token: Token,
        call: &CoalesceCall,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        if !epoch_holds(index, call.bucket, call.epoch) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        let count = if self.may_coalesce { self.pieces_of(call, index)? } else { None };
        let Some(count) = count else { return Ok(Step::Refuse(Refusal::NoSuchKey)) };
        let body = match self.piece_of(call.bucket, &call.content, index)? {
            Ok(body) => body,
            Err(step) => return Ok(step),
        };
        self.planned.end(call.pieces, &call.window);
        let CoalesceCall { request, bucket, key, pieces, window, .. } = call.clone();
        let Range { start, end } = window;
        let op = Coalesce { request, bucket, key, pieces, start, end, count, body };
        self.append_op(Op::Coalesce(Box::new(op)), Some((token, ReplyKind::Applied)), out);
        Ok(Step::Done)
    }

    /// Counts the pieces of a window, if the index shows some that begin and end there and may be coalesced now.
    fn pieces_of(&self, call: &CoalesceCall, index: &dyn Index) -> Result<Option<u32>, IndexError> {
        let rows = match current(call.bucket, &call.key, index)?.map(|row| row.body) {
            Some(Body::Pieces { pieces, rows }) if pieces == call.pieces => rows,
            _ => return Ok(None),
        };
        let (of, before) = ((call.bucket, call.pieces), self.oldest_needed(rows, index)?);
        let found = pieces_from(of, call.window.clone(), before, index)?;
        if found.start != call.window.start {
            return Ok(None);
        }
        let mut end = found.start;
        let ends = found.lens.iter().map(|len| {
            end += len;
            end
        });
        let last = ends.take(self.coalesces_max()).position(|end| end == call.window.end);
        Ok(last.filter(|last| *last > 0).map(|last| last as u32 + 1))
    }
}

/// Pieces of an object from the one that has a byte on, up to one that ends behind another byte. They reach as far as
/// pieces may be coalesced now: those of ops before `before`.
fn pieces_from(
    (bucket, pieces): (BucketId, PiecesId),
    bytes: Range<u64>,
    before: Option<OpSeq>,
    index: &dyn Index,
) -> Result<Pieces, IndexError> {
    let mut found = Pieces { start: bytes.start, lens: Vec::new(), goes_on: false, is_held: false };
    let from = rows::piece(bucket, pieces, bytes.start.saturating_add(1));
    let to = rows::prefix_end(&rows::pieces(bucket, pieces));
    let (mut last, mut failed) = (bytes.start, None);
    index.scan(&from, to.as_deref(), &mut |row, value| {
        let read = PieceRow::read(value).map_err(IndexError::from);
        let (piece, end) = match (read, rows::parse_piece(row)) {
            (Ok(piece), Some((.., end))) if end > piece.start && end <= bytes.end => (piece, end),
            (Err(error), _) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            _ => return ControlFlow::Break(()),
        };
        if found.lens.is_empty() {
            found.start = piece.start;
            last = piece.start;
        }
        if piece.start != last {
            // Pieces follow each other, or none of these is touched.
            return ControlFlow::Break(());
        }
        last = end;
        found.is_held = before.is_some_and(|before| piece.op.seq >= before);
        found.goes_on = !found.is_held && found.lens.len() == COALESCE_CHECKS_MAX;
        if found.is_held || found.goes_on {
            return ControlFlow::Break(());
        }
        found.lens.push(end - piece.start);
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(found), Err)
}

impl Batch<'_> {
    /// Pieces of a version become one.
    pub(super) fn coalesce(&mut self, coalesce: &Coalesce, id: OpId) -> Result<(), IndexError> {
        let Coalesce { bucket, key, pieces, start, end, count, body, .. } = coalesce;
        let row = rows::version(*bucket, key, rows::UNVERSIONED);
        let version = self.changes.get(self.index, &row)?;
        let mut version = version.map(|value| ObjectEntry::read(&value)).transpose()?;
        let named = match version.as_mut().map(|version| &mut version.row.body) {
            Some(Body::Pieces { pieces: now, rows }) if now == pieces => Some((*now, rows)),
            _ => None,
        };
        let window = match &named {
            Some((pieces, rows)) if **rows >= *count && *count >= 2 => {
                self.window((*bucket, *pieces), *start..*end, *count)?
            }
            _ => None,
        };
        let (Some((pieces, rows)), Some(window)) = (named, window) else {
            self.coalesced.void += 1;
            return match body {
                Body::Stream { stream, .. } => self.drop_orphans(*bucket, *stream, id),
                _ => Ok(()),
            };
        };
        *rows -= count - 1;
        if let Body::Stream { stream, .. } = body {
            self.changes.remove(rows::open_stream(*bucket, *stream));
        }
        let value = joined(&window, *start, body)?;
        for (row, value) in window {
            self.removal.rows += 1;
            self.free_body(&row, *bucket, &PieceRow::read(&value)?.body, id)?;
            self.changes.remove(row);
        }
        self.changes.put(rows::piece(*bucket, pieces, *end), value);
        if let Some(version) = version {
            self.changes.put(row, version.write());
        }
        self.coalesced.pieces += u64::from(*count);
        Ok(())
    }

    /// The rows of pieces from one byte to another, if so many begin and end there.
    fn window(
        &self,
        (bucket, pieces): (BucketId, PiecesId),
        bytes: Range<u64>,
        count: u32,
    ) -> Result<Option<Vec<Row>>, IndexError> {
        let from = rows::piece(bucket, pieces, bytes.start.saturating_add(1));
        let of = rows::pieces(bucket, pieces);
        let (window, _) = self.changes.scan_some(self.index, (&of, &from), count as usize)?;
        let mut at = bytes.start;
        for (row, value) in &window {
            let end = rows::parse_piece(row).map(|(.., end)| end);
            let follows = PieceRow::read(value)?.start == at;
            let Some(end) = end.filter(|_| follows) else { return Ok(None) };
            at = end;
        }
        Ok((at == bytes.end && window.len() == count as usize).then_some(window))
    }
}

/// The value of the row that takes the place of these: it ends the object as the last of them did.
fn joined(window: &[Row], start: u64, body: &Body) -> Result<Vec<u8>, IndexError> {
    let (_, last) = window.last().expect("a window has pieces");
    let Ok(entry) = PieceEntry::decode(last) else {
        let last = PieceRow::read(last)?;
        return Ok(encode(&PieceRow { start, body: body.clone(), ..last }));
    };
    let mut etag = None::<ETag>;
    for (_, value) in window {
        let next = match PieceEntry::decode(value) {
            Ok(entry) => entry.etag,
            // From before the store was a region: it says only what the object was with it.
            Err(_) => PieceRow::read(value)?.etag,
        };
        etag = Some(etag.map_or_else(|| next.clone(), |etag| etag.followed_by(&next)));
    }
    let row = PieceRow { start, body: body.clone(), ..entry.row };
    let etag = etag.unwrap_or(entry.etag);
    Ok(PieceEntry { row, etag, checksum: None, ..entry }.encode())
}
