//! Appends: the key's version grows by a piece, or begins with one (ADR 15).
//!
//! ```text
//!  chunks of the piece: puts of a stream, each with a grant ──outcomes──┐
//!                                                                       ▼ in the log before
//!  Call::Append ──▶ append_to ──Op::Append: onto, offset──▶ log ──▶ commit point ──▶ apply: a row, the version's row
//!                                                                                      └──▶ Appended
//! ```
//!
//! # Invariants
//!
//! 1. The offset is that of the op's place in the log: the size that the version has once every op before is applied.
//!    What is cut off the log is cut with all that stands behind it, so nothing that stays has a hole before it.
//! 2. An append never stands behind a put whose outcome the index does not show yet: a later outcome would decide
//!    which version it goes on.
//! 3. The data of an append is committed by ops before its own.
//! 4. Nobody is answered before the index shows the append, so that reads need not wait for it.
//! 5. In a store of several regions each append makes a new version, with a stamp of its own (ADR 53). A region that has the version
//!    which a piece ends, by its stamp, has all bytes up to there.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use larder_types::codec::encode;
use larder_types::limits::{
    INLINE_BYTES_MAX, OBJECT_BYTES_MAX, PIECES_MAX, PIECES_UNCOALESCED_MAX,
};
use larder_types::{
    Append, Appended, Body, BucketId, ETag, Grow, Metax, ObjectChecksum, ObjectEntry, Op, OpId,
    Outcome, PieceEntry, PieceRow, PiecesId, RegionId, Remembered, StreamId, Target, VersionRow,
    rows,
};

use super::batch::Batch;
use super::garbage::is_garbage;
use super::mutation::{Step, current, epoch_holds};
use super::slots::Slot;
use super::{Pg, ReplyKind};
use crate::index::{Index, IndexError};
use crate::ledger::Resized;
use crate::message::{
    Answer, AppendCall, AppendDone, AppendRefusal, Content, Description, Outbox, Refusal,
    RemoteAppend, Token,
};

/// The version that an append goes on, as it will be when every op so far is applied.
struct Head {
    op: OpId,
    size: u64,
    etag: ETag,
    checksum: Option<ObjectChecksum>,
}

impl Head {
    fn of_row(row: VersionRow) -> Self {
        let VersionRow { op, metax: Metax { size, etag, checksum, .. }, .. } = row;
        Self { op, size, etag, checksum }
    }

    fn of_append(op: OpId, append: &Append) -> Self {
        let Appended { size, etag, checksum, .. } = append.made.clone();
        Self { op, size, etag, checksum }
    }
}

impl Pg {
    pub(super) fn append_to(
        &mut self,
        token: Token,
        call: &AppendCall,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        if !epoch_holds(index, call.bucket, call.epoch) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        if let Some(step) = self.unmet(call.bucket, &call.key, &call.condition, index)? {
            return Ok(step);
        }
        let body = match self.piece_of(call.bucket, &call.content, index)? {
            Ok(body) => body,
            Err(step) => return Ok(step),
        };
        let slot = Slot::Version(call.bucket, call.key.clone());
        let head = match self.head(slot.clone(), call, index)? {
            Ok(head) => head,
            Err(step) => return Ok(step),
        };
        let is_full = self.is_full(head.as_ref(), &slot, call, index)?;
        let made = match made(head.as_ref(), call, is_full) {
            Ok(made) => made,
            // A refusal tells of the appends that it goes by: it leaves when the index shows them.
            Err(_) if !self.slots.at_rest(&slot) => return Ok(Step::Wait(slot)),
            Err(refusal) => return Ok(Step::Refuse(Refusal::Append(refusal))),
        };
        let attributes = head.is_none().then(|| Box::new(call.description.attributes.clone()));
        let at = self.stamp_of(call.bucket, &call.key, index)?;
        let append = Append {
            request: call.request,
            bucket: call.bucket,
            key: call.key.clone(),
            onto: head.map(|head| head.op),
            made,
            clock: at.clock,
            body,
            attributes,
        };
        let op = if at.region == RegionId::OWN {
            Op::Append(Box::new(append))
        } else {
            let Description { etag, checksum, .. } = call.description.clone();
            Op::Grow(Box::new(Grow { append, at, origin: None, etag, checksum }))
        };
        self.append_op(op, Some((token, ReplyKind::Applied)), out);
        Ok(Step::Done)
    }

    /// Appends what another region has of a version behind what is here. The key is at rest, and has this version.
    pub(super) fn append_remote(
        &mut self,
        token: Token,
        remote: &RemoteAppend,
        here: Option<&ObjectEntry>,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let onto = |here: &&ObjectEntry| here.put_at.qualified_by(index.region()) == remote.onto;
        let base = here.filter(onto).map(|here| (here.row.op, here.row.metax.size));
        let Some((op, _)) = base.filter(|(_, size)| *size == remote.made.offset) else {
            let size = here.map_or(0, |here| here.row.metax.size);
            return Ok(Step::Refuse(Refusal::Append(AppendRefusal::Offset { size })));
        };
        // Several appends come as one piece, and pieces are coalesced here as well.
        let is_full = |here: &ObjectEntry| matches!(here.row.body, Body::Pieces { rows, .. } if rows >= self.pieces_max(rows));
        if here.is_some_and(is_full) {
            return Ok(Step::Refuse(Refusal::Append(AppendRefusal::TooManyPieces)));
        }
        let body = match self.piece_of(remote.bucket, &remote.content, index)? {
            Ok(body) => body,
            Err(step) => return Ok(step),
        };
        let RemoteAppend { request, bucket, key, made, attributes, etag, at, origin, .. } =
            remote.clone();
        let attributes = Some(Box::new(attributes));
        let (onto, clock) = (Some(op), at.clock);
        let append = Append { request, bucket, key, onto, made, clock, body, attributes };
        let grow = Grow { append, at, origin: Some(origin), etag, checksum: None };
        self.append_op(Op::Grow(Box::new(grow)), Some((token, ReplyKind::Applied)), out);
        Ok(Step::Done)
    }

    /// The body of a piece that has this content; the inner `Err` if it cannot be appended now.
    pub(super) fn piece_of(
        &self,
        bucket: BucketId,
        content: &Content,
        index: &dyn Index,
    ) -> Result<Result<Body, Step>, IndexError> {
        Ok(match content {
            Content::Inline(bytes) => {
                assert!(bytes.len() <= INLINE_BYTES_MAX as usize, "larger pieces are chunks");
                Ok(Body::Inline(bytes.clone()))
            }
            &Content::Stream { stream, chunks, chunk_bytes } => {
                match self.stream_unready(bucket, stream, chunks, index)? {
                    Some(step) => Err(step),
                    None => Ok(Body::Stream { stream, chunks, chunk_bytes }),
                }
            }
            Content::Data { .. } => unreachable!("the chunks of an append are put before it"),
        })
    }

    /// The version that the next append goes on. Appends that the index does not show yet say what it will be; for
    /// any other op on the key the call waits.
    fn head(
        &self,
        slot: Slot,
        call: &AppendCall,
        index: &dyn Index,
    ) -> Result<Result<Option<Head>, Step>, IndexError> {
        for &seq in self.slots.entries(&slot).iter().rev() {
            if self.planted.appends_past_pending() && self.open.contains_key(&seq) {
                continue;
            }
            let last = self.tail_at(seq).map(|tail| &tail.entry);
            return Ok(match last.and_then(|entry| Some((entry.id, entry.op.append()?))) {
                Some((op, append)) => Ok(Some(Head::of_append(op, append))),
                None => Err(Step::Wait(slot)),
            });
        }
        Ok(Ok(current(call.bucket, &call.key, index)?.map(Head::of_row)))
    }

    /// Most pieces of an object that has so many. One that has more than members of an earlier release read tells that there
    /// are none, before anybody says so after a start.
    fn pieces_max(&self, rows: u32) -> u32 {
        let all_support = self.may_coalesce || rows > PIECES_UNCOALESCED_MAX;
        if all_support { PIECES_MAX } else { PIECES_UNCOALESCED_MAX }
    }

    /// Returns true if a version has as many pieces as it may once every op so far is applied. Its entity tag counts
    /// all appends that there were, so that rows are looked up for very long logs alone.
    fn is_full(
        &self,
        head: Option<&Head>,
        slot: &Slot,
        call: &AppendCall,
        index: &dyn Index,
    ) -> Result<bool, IndexError> {
        if head.is_none_or(|head| head.etag.parts() < self.pieces_max(0)) {
            return Ok(false);
        }
        let rows = match current(call.bucket, &call.key, index)?.map(|row| row.body) {
            Some(Body::Pieces { rows, .. }) => rows,
            _ => 1,
        };
        let pending = self.slots.entries(slot).len();
        Ok(rows as usize + pending >= self.pieces_max(rows) as usize)
    }

    /// Checks that all chunks of a stream are committed, by rows or by outcomes that are in the log; `Some` if not.
    fn stream_unready(
        &self,
        bucket: BucketId,
        stream: StreamId,
        chunks: u32,
        index: &dyn Index,
    ) -> Result<Option<Step>, IndexError> {
        let slot = Slot::Stream(stream);
        let mut there = BTreeSet::new();
        for seq in self.slots.entries(&slot) {
            let open = self.open.get(seq);
            match open.and_then(|open| Some((open.outcome?, &open.put().target))) {
                Some((Outcome::Committed { .. }, Target::Chunk { number, .. })) => {
                    there.insert(*number);
                }
                Some((Outcome::Revoked, _)) => {}
                _ => return Ok(Some(Step::Wait(slot))),
            }
        }
        let is_applied = there.is_empty();
        index.scan_prefix(&rows::stream(bucket, stream), &mut |row, _| {
            there.extend(rows::chunk_number(row));
            ControlFlow::Continue(())
        })?;
        let is_whole = there.iter().copied().eq(0..chunks);
        // A stream without this row has a parent already, or never will.
        let is_open = !is_applied || index.get(&rows::open_stream(bucket, stream))?.is_some();
        let is_free = is_open && !is_garbage(index, self.id, (bucket, stream))?;
        let incomplete = Step::Refuse(Refusal::StreamIncomplete);
        Ok((!is_whole || !is_free).then_some(incomplete))
    }
}

/// Returns the version that an append makes of a version, or of nothing.
fn made(head: Option<&Head>, call: &AppendCall, is_full: bool) -> Result<Appended, AppendRefusal> {
    let piece = &call.description;
    assert!(piece.size > 0, "an append has at least a byte");
    let offset = head.map_or(0, |head| head.size);
    if call.offset.is_some_and(|wanted| wanted != offset) {
        return Err(AppendRefusal::Offset { size: offset });
    }
    let size = offset.saturating_add(piece.size);
    if size > OBJECT_BYTES_MAX {
        return Err(AppendRefusal::TooLarge);
    }
    let Some(head) = head else {
        let (etag, checksum) = (piece.etag.clone(), piece.checksum.clone());
        return Ok(Appended { offset, size, etag, checksum });
    };
    let says_more = !piece.attributes.user.is_empty() || !piece.attributes.tags.is_empty();
    if call.offset.is_some() && says_more {
        return Err(AppendRefusal::Attributes);
    }
    if is_full {
        return Err(AppendRefusal::TooManyPieces);
    }
    let both = head.checksum.as_ref().zip(piece.checksum.as_ref());
    let checksum = both.and_then(|(head, next)| head.followed_by(next, piece.size));
    Ok(Appended { offset, size, etag: head.etag.followed_by(&piece.etag), checksum })
}

/// The answer to a repeat of an append that the index shows, or has shown.
pub(super) fn appended_before(
    call: &AppendCall,
    known: Remembered,
    index: &dyn Index,
) -> Result<Answer, IndexError> {
    let forgotten = Answer::Refused(Refusal::Append(AppendRefusal::PlaceForgotten));
    let Some(row) = current(call.bucket, &call.key, index)? else { return Ok(forgotten) };
    let made = match row.body {
        Body::Pieces { pieces, .. } => {
            find_piece(call.bucket, pieces, row.metax.size, known.op, index)?
        }
        _ if row.op == known.op => {
            let size = row.metax.size;
            Some(PieceRow::first(row).made(size))
        }
        _ => None,
    };
    let (op, clock) = (known.op, known.clock);
    let done = |made| Answer::Appended(Box::new(AppendDone { op, clock, made }));
    Ok(made.map_or(forgotten, done))
}

/// Returns the version that the append `op` has made, if one of the pieces is its: they are in the order of their ops.
fn find_piece(
    bucket: BucketId,
    pieces: PiecesId,
    size: u64,
    op: OpId,
    index: &dyn Index,
) -> Result<Option<Appended>, IndexError> {
    let (mut low, mut high) = (0, size);
    while low < high {
        let (end, piece) = piece_at(bucket, pieces, low + (high - low) / 2, index)?;
        match piece.op.cmp(&op) {
            std::cmp::Ordering::Equal => return Ok(Some(piece.made(end))),
            std::cmp::Ordering::Less => low = end,
            std::cmp::Ordering::Greater => high = piece.start,
        }
    }
    Ok(None)
}

/// The piece that has a byte, and where it ends.
fn piece_at(
    bucket: BucketId,
    pieces: PiecesId,
    at: u64,
    index: &dyn Index,
) -> Result<(u64, PieceRow), IndexError> {
    let from = rows::piece(bucket, pieces, at + 1);
    let to = rows::prefix_end(&rows::pieces(bucket, pieces));
    let mut found = None;
    index.scan(&from, to.as_deref(), &mut |row, value| {
        found = Some((rows::parse_piece(row), PieceRow::read(value)));
        ControlFlow::Break(())
    })?;
    let missing = || IndexError(format!("pieces {pieces} lack byte {at}"));
    let (row, piece) = found.ok_or_else(missing)?;
    let ((_, _, end), piece) = (row.ok_or_else(missing)?, piece?);
    if piece.start > at {
        // The search would come to no end.
        return Err(missing());
    }
    Ok((end, piece))
}

impl Batch<'_> {
    /// An append takes effect, in a store of several regions as a [`Grow`] says.
    pub(super) fn append(
        &mut self,
        append: &Append,
        grow: Option<&Grow>,
        id: OpId,
    ) -> Result<(), IndexError> {
        let row = rows::version(append.bucket, &append.key, rows::UNVERSIONED);
        let old = self.changes.get(self.index, &row)?;
        let old = old.map(|old| ObjectEntry::read(&old)).transpose()?;
        let found = old.as_ref().map(|old| (old.row.op, old.row.metax.size));
        if found != append.onto.map(|op| (op, append.made.offset)) {
            return Err(IndexError(format!(
                "op {id:?} appends to {:?} at {}, and there is {found:?}",
                append.onto, append.made.offset
            )));
        }
        if let Body::Stream { stream, .. } = &append.body {
            self.changes.remove(rows::open_stream(append.bucket, *stream));
        }
        let before = found.map(|(_, size)| size);
        let after = Some(append.made.size);
        self.resize(&row, Resized { bucket: append.bucket, before, after }, id);
        self.note_size(&append.body);
        let mut version = match old {
            None => ObjectEntry::of_row(begun(append, id)),
            Some(old) => self.grown(old, append, grow, id)?,
        };
        if let Some(grow) = grow {
            renew(&mut version, grow);
        }
        self.set_version((append.bucket, &append.key), version, id);
        Ok(())
    }

    /// A version that grows by a piece.
    fn grown(
        &mut self,
        old: ObjectEntry,
        append: &Append,
        grow: Option<&Grow>,
        id: OpId,
    ) -> Result<ObjectEntry, IndexError> {
        let bucket = append.bucket;
        let Appended { offset, size, etag, checksum } = append.made.clone();
        let mut version = old.clone();
        let metax = &mut version.row.metax;
        (metax.size, metax.clock) = (size, append.clock);
        (metax.etag, metax.checksum) = (etag.clone(), checksum.clone());
        version.put_at = metax.stamp();
        let (pieces, rows) = match old.row.body {
            Body::Pieces { pieces, rows } => (pieces, rows),
            _ => {
                let pieces = PiecesId { pg: self.pg, op: id };
                let row = rows::version(bucket, &append.key, rows::UNVERSIONED);
                (pieces, self.begin_pieces(&row, (bucket, pieces), old, grow.is_some(), id)?)
            }
        };
        let piece = PieceRow { op: id, start: offset, body: append.body.clone(), etag, checksum };
        let value = match grow {
            None => encode(&piece),
            Some(Grow { at, origin, etag, checksum, .. }) => {
                let (etag, checksum) = (etag.clone(), checksum.clone());
                PieceEntry { row: piece, at: *at, etag, checksum, origin: *origin }.encode()
            }
        };
        self.changes.put(rows::piece(bucket, pieces, size), value);
        (version.row.op, version.row.body) = (id, Body::Pieces { pieces, rows: rows + 1 });
        Ok(version)
    }

    /// The former version becomes its first piece, unless it had no bytes. Returns the number of pieces.
    fn begin_pieces(
        &mut self,
        row: &[u8],
        (bucket, pieces): (BucketId, PiecesId),
        old: ObjectEntry,
        is_stamped: bool,
        now: OpId,
    ) -> Result<u32, IndexError> {
        let size = old.row.metax.size;
        if size == 0 {
            self.free_body(row, bucket, &old.row.body, now)?;
            return Ok(0);
        }
        let piece = rows::piece(bucket, pieces, size);
        if let Body::Chunk(chunk) = &old.row.body {
            self.hand_on(row, &piece, chunk, now);
        }
        let value = if is_stamped {
            PieceEntry::first(old).encode()
        } else {
            encode(&PieceRow::first(old.row))
        };
        self.changes.put(piece, value);
        Ok(1)
    }
}

/// A version that is appended to is a new one in a store of several regions: they know it by its stamp. It shows no parts.
fn renew(version: &mut ObjectEntry, grow: &Grow) {
    let metax = &mut version.row.metax;
    (metax.clock, metax.region) = (grow.at.clock, grow.at.region);
    if let Some(attributes) = &grow.append.attributes {
        metax.attributes = (**attributes).clone();
    }
    (version.put_at, version.origin) = (grow.at, grow.origin);
    version.parts.clear();
    // Its tags are those of the put now.
    version.amended.tags_at = None;
}

/// A version that an append makes.
fn begun(append: &Append, id: OpId) -> VersionRow {
    let Appended { size, etag, checksum, .. } = append.made.clone();
    let metax = Metax {
        checksum,
        attributes: append.attributes.as_deref().cloned().unwrap_or_default(),
        ..Metax::new(size, append.clock, etag)
    };
    VersionRow { op: id, metax, body: append.body.clone() }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use larder_types::codec::encode;
    use larder_types::{Epoch, OpSeq, PgId, View};

    use super::*;
    use crate::index::{Changes, Visit};

    /// One piece, and no patience.
    struct OnePiece {
        row: Vec<u8>,
        piece: PieceRow,
        looks: Cell<u32>,
    }

    impl Index for OnePiece {
        fn get(&self, _row: &[u8]) -> Result<Option<Bytes>, IndexError> {
            unreachable!("only pieces are looked for")
        }

        fn scan(
            &self,
            from: &[u8],
            to: Option<&[u8]>,
            visit: &mut Visit<'_>,
        ) -> Result<(), IndexError> {
            self.looks.set(self.looks.get() + 1);
            assert!(self.looks.get() < 100, "the search comes to no end");
            let is_in = &self.row[..] >= from && to.is_none_or(|to| &self.row[..] < to);
            if is_in {
                let _ends: ControlFlow<()> = visit(&self.row, &encode(&self.piece));
            }
            Ok(())
        }

        fn write(&self, _changes: Changes) -> Result<(), IndexError> {
            unreachable!("nothing is changed")
        }

        fn bucket_epoch(&self, _bucket: BucketId) -> Option<Epoch> {
            None
        }
    }

    /// Another member's snapshot may lack pieces.
    #[test]
    fn a_search_for_a_piece_ends_also_where_pieces_are_missing() {
        let op = |seq| OpId { view: View(1), seq: OpSeq(seq) };
        let (bucket, pieces) = (BucketId(1), PiecesId { pg: PgId(0), op: op(3) });
        let body = Body::Inline(Bytes::from_static(b"0123456789"));
        let piece =
            PieceRow { op: op(9), start: 90, body, etag: ETag::Md5([1; 16]), checksum: None };
        let row = rows::piece(bucket, pieces, 100);
        let index = OnePiece { row, piece, looks: Cell::new(0) };
        let found = |seq| find_piece(bucket, pieces, 100, op(seq), &index);
        assert!(found(5).is_err(), "bytes before 90 are missing");
    }
}
