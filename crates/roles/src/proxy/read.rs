//! Reads: find the version, then its bytes, in pieces, each verified before it leaves. `ahead.rs` says how many at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future;
use futures::stream::{self, StreamExt, TryStreamExt};
use larder_objects::{ListedPart, ObjectError, Opened, ReadBody};
use larder_protocol::pg::chunk_in;
use larder_protocol::sound::check_chunk;
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, BucketName, Chunk, ETag, ObjectEntry, ObjectKey, OpId, PartRow, PgId, PieceRow,
    PiecesId, RegionId, StreamId, UploadId, VersionRow, rows,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ahead::{Ahead, PieceRead, PieceReads};
use super::reach::Reach;
use super::task::Task;
use super::{Proxy, decoded, unavailable, undecodable};
use crate::data::ReadFailure;
use crate::limits::{BUCKET_NEWS_MAX, MOVES_FOLLOWED_MAX, READ_PIECE_BYTES, READ_PIECES_AHEAD};

/// Bytes still to be given out, not yet looked up.
enum Span {
    Inline(Bytes),
    Chunk(Arc<Place>, Range<u32>),
    /// Bytes of a stream whose chunks but the last have so many: a row may tell of very many chunks, of which those that
    /// are read are looked up.
    Chunks {
        stream: StreamId,
        chunk_bytes: u32,
        range: Range<u64>,
    },
    PartRow {
        upload: UploadId,
        number: u16,
        range: Range<u64>,
    },
    Pieces {
        pieces: PiecesId,
        range: Range<u64>,
    },
}

/// What names a chunk: it is asked again where the chunk lies, as chunks move.
enum Named {
    /// The version that is read.
    ByVersion,
    /// This row.
    ByRow(Vec<u8>),
}

/// The purpose for which an object is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// To know its METAX.
    Metax,
    /// To read all its bytes as well.
    Whole,
}

/// A chunk that several pieces are read of: what one finds moved, the others find there.
struct Place {
    named: Named,
    chunk: Mutex<Arc<Chunk>>,
}

impl Place {
    fn new(chunk: Chunk, named: Named) -> Arc<Self> {
        Arc::new(Self { named, chunk: Mutex::new(Arc::new(chunk)) })
    }
}

/// Bytes that are looked up, and still to be read: at most [`READ_PIECE_BYTES`].
enum Piece {
    Inline(Bytes),
    Chunk(Arc<Place>, Range<u32>),
}

/// The version that is read, and where.
struct Source<R> {
    reach: Arc<R>,
    bucket: BucketId,
    key: ObjectKey,
    op: OpId,
    /// Where the rows lie that the body names, if it names any.
    rows_in: Option<PgId>,
}

/// The rest of a read under way, to be looked up.
struct Lookup<R> {
    source: Arc<Source<R>>,
    spans: VecDeque<Span>,
}

impl<R: Reach> Proxy<R> {
    /// Finds a key's version; if it is to be read whole, with its bytes where they come along.
    pub(super) async fn find(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        wanted: Wanted,
    ) -> Result<Opened, ObjectError> {
        let deadline = Instant::now() + BUCKET_NEWS_MAX;
        loop {
            let known = self.known(bucket)?;
            let pg = self.reach.pg_of(known.id, key);
            let found = match wanted {
                Wanted::Metax => self.reach.find(pg, known.id, key).await.map(|row| (row, None)),
                Wanted::Whole => self.reach.find_and_read(pg, known.id, key).await,
            };
            match found {
                Ok((row, bytes)) => {
                    let mut opened = opened(known.id, key, row.ok_or(ObjectError::NoSuchKey)?);
                    opened.bytes = bytes;
                    self.find_told_parts(pg, &mut opened).await?;
                    return Ok(opened);
                }
                Err(ObjectError::NoSuchBucket) => self.await_news(bucket, known, deadline).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Of a version that another region took in parts, what only its row in the index says. Nothing of others.
    async fn find_told_parts(&self, pg: PgId, opened: &mut Opened) -> Result<(), ObjectError> {
        let is_told = self.reach.region() != RegionId::OWN
            && matches!(opened.metax.etag, ETag::Parts(..))
            && !matches!(opened.body, Body::Parts { .. } | Body::Pieces { .. });
        if !is_told {
            return Ok(());
        }
        let row = rows::version(opened.bucket, &opened.key, rows::UNVERSIONED);
        let Some(value) = self.reach.settled_row(pg, &row).await? else { return Ok(()) };
        let entry = ObjectEntry::read(&value).map_err(undecodable)?;
        // Of one that has taken its place meanwhile, nothing.
        if entry.row.op == opened.op {
            opened.told_parts = entry.parts;
        }
        Ok(())
    }

    /// The op of the key's version now, to tell a replaced object from a damaged one.
    async fn op_now(&self, object: &Opened) -> Option<OpId> {
        let pg = self.reach.pg_of(object.bucket, &object.key);
        let row = self.reach.find(pg, object.bucket, &object.key).await.ok()?;
        row.map(|row| row.op)
    }

    pub(super) async fn read_range(
        &self,
        object: &Opened,
        range: Range<u64>,
    ) -> Result<ReadBody, ObjectError> {
        if range.start >= range.end {
            return Ok(ReadBody::Whole(Bytes::new()));
        }
        if let Some(bytes) = &object.bytes
            && range.end <= bytes.len() as u64
        {
            return Ok(ReadBody::Whole(bytes.slice(range.start as usize..range.end as usize)));
        }
        let names_rows =
            matches!(object.body, Body::Stream { .. } | Body::Parts { .. } | Body::Pieces { .. });
        let source = Arc::new(Source {
            reach: self.reach.clone(),
            bucket: object.bucket,
            key: object.key.clone(),
            op: object.op,
            rows_in: names_rows.then(|| self.reach.pg_of(object.bucket, &object.key)),
        });
        let mut lookup = Lookup { source: source.clone(), spans: VecDeque::new() };
        lookup.push_body(&object.body, Named::ByVersion, range)?;
        // The first piece is read before anything is answered: if the object was replaced since it was
        // found, the caller can still start again.
        let first = match lookup.next().await {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(ReadBody::Whole(Bytes::new())),
            Err(failure) => return Err(self.explain(object, failure).await),
        };
        if lookup.spans.is_empty() {
            return match source.read(first).await {
                Ok(bytes) => Ok(ReadBody::Whole(bytes)),
                Err(failure) => Err(self.explain(object, failure).await),
            };
        }
        let mut pieces = Ahead::new(reads(first, lookup), &self.ahead);
        let first = match pieces.next().await {
            Some(Ok(first)) => first,
            Some(Err(failure)) => return Err(self.explain(object, failure).await),
            None => Bytes::new(),
        };
        let rest = pieces.map_err(|failure| {
            tracing::warn!(?failure, "a read under way breaks off");
            ObjectError::Changed
        });
        let first = stream::once(future::ready(Ok(first)));
        Ok(ReadBody::Stream(Box::pin(first.chain(rest))))
    }

    /// Why a read failed: the object was replaced meanwhile, or every copy of it is bad.
    async fn explain(&self, object: &Opened, failure: ReadFailure) -> ObjectError {
        if self.op_now(object).await != Some(object.op) {
            return ObjectError::Changed;
        }
        match failure {
            ReadFailure::Mismatch => {
                self.alarms.bad_copies.fetch_add(1, Ordering::Relaxed);
                self.alarms.lost_reads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    bucket = %object.bucket,
                    key = object.key.as_str(),
                    "every copy of an object is damaged: restore it from a backup"
                );
                ObjectError::Damaged
            }
            ReadFailure::Unreadable => unavailable("the disk does not give the data"),
        }
    }

    pub(super) async fn part_of(
        &self,
        object: &Opened,
        number: u16,
    ) -> Result<ListedPart, ObjectError> {
        let Body::Parts { upload, .. } = &object.body else {
            return Err(ObjectError::InvalidPart { number });
        };
        let row = self.reach.row(upload.pg, &rows::part(object.bucket, *upload, number)).await?;
        let row = row.ok_or(ObjectError::InvalidPart { number })?;
        Ok(ListedPart { number, metax: decoded::<PartRow>("part row", &row)?.metax })
    }
}

/// Looks up and reads the pieces, each in a task of its own: how long a replica takes is measured, others join the read, and
/// a primary that is away is asked again, also while the client takes nothing.
fn reads<R: Reach>(first: Piece, lookup: Lookup<R>) -> PieceReads<ReadFailure> {
    let source = lookup.source.clone();
    let rest = stream::try_unfold(lookup, async |mut lookup| {
        if let Some(piece) = lookup.take_known() {
            return Ok(Some((piece, lookup)));
        }
        if lookup.spans.is_empty() {
            return Ok(None);
        }
        let looked = Task::spawn(async move { (lookup.next().await, lookup) });
        let (piece, lookup) = looked.outcome().await?;
        Ok(piece?.map(|piece| (piece, lookup)))
    });
    let pieces = stream::once(future::ready(Ok(first))).chain(rest);
    Box::pin(pieces.map_ok(move |piece| -> PieceRead<ReadFailure> {
        if let Piece::Inline(bytes) = piece {
            return Box::pin(future::ready(Ok(bytes)));
        }
        let source = source.clone();
        let task = Task::spawn(async move { source.read(piece).await });
        Box::pin(async move { task.outcome().await? })
    }))
}

impl<R: Reach> Lookup<R> {
    /// Queues a range of a body that something names, before everything that is queued.
    fn push_body(
        &mut self,
        body: &Body,
        named: Named,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        if !has(body, &range) {
            tracing::error!(
                key = self.source.key.as_str(),
                "a row names bytes that it does not have"
            );
            return Err(unavailable("the index holds a row that cannot be used: see the log"));
        }
        let mut spans = Vec::new();
        match body {
            Body::Inline(bytes) => {
                spans.push(Span::Inline(bytes.slice(range.start as usize..range.end as usize)));
            }
            Body::Chunk(chunk) => {
                let range = range.start as u32..range.end as u32;
                spans.push(Span::Chunk(Place::new(chunk.clone(), named), range));
            }
            Body::Stream { stream, chunk_bytes, .. } => {
                if range.start < range.end {
                    spans.push(Span::Chunks { stream: *stream, chunk_bytes: *chunk_bytes, range });
                }
            }
            Body::Parts { upload, parts } => {
                let mut start = 0;
                for part in parts {
                    let end = start + part.len;
                    let (from, to) = (range.start.max(start), range.end.min(end));
                    if from < to {
                        let (upload, number) = (*upload, part.number);
                        spans.push(Span::PartRow {
                            upload,
                            number,
                            range: from - start..to - start,
                        });
                    }
                    start = end;
                }
            }
            Body::Pieces { pieces, .. } => spans.push(Span::Pieces { pieces: *pieces, range }),
        }
        for span in spans.into_iter().rev() {
            self.spans.push_front(span);
        }
        Ok(())
    }

    /// The next piece, if nothing has to be asked for it.
    fn take_known(&mut self) -> Option<Piece> {
        match self.spans.pop_front()? {
            Span::Inline(bytes) => Some(Piece::Inline(bytes)),
            Span::Chunk(place, range) => Some(self.cut(place, range)),
            unknown => {
                self.spans.push_front(unknown);
                None
            }
        }
    }

    /// The next piece.
    async fn next(&mut self) -> Result<Option<Piece>, ReadFailure> {
        loop {
            let Some(span) = self.spans.pop_front() else { return Ok(None) };
            match span {
                Span::Inline(bytes) => return Ok(Some(Piece::Inline(bytes))),
                Span::Chunk(place, range) => return Ok(Some(self.cut(place, range))),
                Span::Chunks { stream, chunk_bytes, range } => {
                    let size = u64::from(chunk_bytes);
                    let number = range.start / size;
                    let end = range.end.min((number + 1) * size);
                    let inside = (range.start % size) as u32;
                    let row = rows::chunk(self.source.bucket, stream, number as u32);
                    let value = self.source.row(&row).await?;
                    let chunk: Chunk =
                        decode("chunk row", &value).map_err(|_error| ReadFailure::Unreadable)?;
                    if end < range.end {
                        let rest = end..range.end;
                        self.spans.push_front(Span::Chunks { stream, chunk_bytes, range: rest });
                    }
                    let inside = inside..inside + (end - range.start) as u32;
                    let place = Place::new(chunk, Named::ByRow(row));
                    self.spans.push_front(Span::Chunk(place, inside));
                }
                Span::PartRow { upload, number, range } => {
                    let row = rows::part(self.source.bucket, upload, number);
                    let value = self.source.row(&row).await?;
                    let part: PartRow =
                        decode("part row", &value).map_err(|_error| ReadFailure::Unreadable)?;
                    if self.push_body(&part.body, Named::ByRow(row), range).is_err() {
                        return Err(ReadFailure::Unreadable);
                    }
                }
                Span::Pieces { pieces, range } => self.look_up_pieces(pieces, range).await?,
            }
        }
    }

    /// Queues the pieces at the beginning of a range, and what is left of it behind them.
    async fn look_up_pieces(
        &mut self,
        pieces: PiecesId,
        range: Range<u64>,
    ) -> Result<(), ReadFailure> {
        let source = &self.source;
        let pg = source.rows_in.expect("a body that names rows was given its PG");
        let from = rows::piece(source.bucket, pieces, range.start + 1);
        let to = rows::prefix_end(&rows::pieces(source.bucket, pieces));
        let to = to.ok_or(ReadFailure::Unreadable)?;
        let found = source.reach.rows_from(pg, from, &to, READ_PIECES_AHEAD).await;
        let mut at = range.start;
        let mut covered = Vec::new();
        for (row, value) in found.map_err(|_error| ReadFailure::Unreadable)? {
            let (_, _, end) = rows::parse_piece(&row).ok_or(ReadFailure::Unreadable)?;
            let piece: PieceRow =
                PieceRow::read(&value).map_err(|_error| ReadFailure::Unreadable)?;
            if at >= range.end || piece.start > at {
                break;
            }
            let until = range.end.min(end);
            covered.push((piece.body, row, at - piece.start..until - piece.start));
            at = until;
        }
        if covered.is_empty() {
            // As with a row that is not there: the object was replaced.
            return Err(ReadFailure::Mismatch);
        }
        if at < range.end {
            self.spans.push_front(Span::Pieces { pieces, range: at..range.end });
        }
        for (body, row, inside) in covered.into_iter().rev() {
            let pushed = self.push_body(&body, Named::ByRow(row), inside);
            pushed.map_err(|_error| ReadFailure::Unreadable)?;
        }
        Ok(())
    }

    /// The first piece of a chunk's range; the rest is queued.
    fn cut(&mut self, place: Arc<Place>, range: Range<u32>) -> Piece {
        // Pieces end at multiples of their size, so that no checksummed block is read twice.
        let piece_bytes = READ_PIECE_BYTES as u32;
        let end = range.end.min((range.start / piece_bytes + 1) * piece_bytes);
        if end < range.end {
            self.spans.push_front(Span::Chunk(place.clone(), end..range.end));
        }
        Piece::Chunk(place, range.start..end)
    }
}

impl<R: Reach> Source<R> {
    /// A row that the object names; without it the object was replaced.
    async fn row(&self, row: &[u8]) -> Result<Bytes, ReadFailure> {
        let pg = self.rows_in.expect("a body that names rows was given its PG");
        match self.reach.row(pg, row).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(ReadFailure::Mismatch),
            Err(_) => Err(ReadFailure::Unreadable),
        }
    }

    /// The verified bytes of a piece.
    async fn read(&self, piece: Piece) -> Result<Bytes, ReadFailure> {
        let (place, range) = match piece {
            Piece::Inline(bytes) => return Ok(bytes),
            Piece::Chunk(place, range) => (place, range),
        };
        for _ in 0..=MOVES_FOLLOWED_MAX {
            let chunk = place.chunk.lock().clone();
            if range.end > chunk.len || check_chunk(&chunk).is_err() {
                return Err(ReadFailure::Unreadable);
            }
            match self.reach.read(&chunk, range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(ReadFailure::Mismatch) => {
                    if !Arc::ptr_eq(&chunk, &place.chunk.lock()) {
                        continue;
                    }
                    let now = self.chunk_now(&place.named).await?;
                    // Or has other copies by now, under the same grant.
                    let is_moved = |now: &Chunk| now.seed == chunk.seed && *now != *chunk;
                    let moved = now.filter(is_moved).ok_or(ReadFailure::Mismatch)?;
                    *place.chunk.lock() = Arc::new(moved);
                }
                Err(failure) => return Err(failure),
            }
        }
        // It lay elsewhere each time: that says nothing about its copies.
        Err(ReadFailure::Unreadable)
    }

    /// Where a chunk lies now; `None` if nothing names it any more.
    async fn chunk_now(&self, named: &Named) -> Result<Option<Chunk>, ReadFailure> {
        match named {
            Named::ByVersion => {
                let pg = self.reach.pg_of(self.bucket, &self.key);
                let row = rows::version(self.bucket, &self.key, rows::UNVERSIONED);
                let found = self.reach.row(pg, &row).await;
                let Some(value) = found.map_err(|_error| ReadFailure::Unreadable)? else {
                    return Ok(None);
                };
                let version = VersionRow::read(&value).map_err(|_error| ReadFailure::Unreadable)?;
                Ok(match version.body {
                    Body::Chunk(chunk) if version.op == self.op => Some(chunk),
                    _ => None,
                })
            }
            Named::ByRow(row) => {
                let value = self.row(row).await?;
                chunk_in(row, &value).map_err(|_error| ReadFailure::Unreadable)
            }
        }
    }
}

/// Whether a body has these bytes: its row came from a meta server, which may say of it what it likes.
fn has(body: &Body, range: &Range<u64>) -> bool {
    let bytes = match body {
        Body::Inline(bytes) => bytes.len() as u64,
        Body::Chunk(chunk) => u64::from(chunk.len),
        Body::Stream { chunks, chunk_bytes, .. } => u64::from(*chunks) * u64::from(*chunk_bytes),
        Body::Parts { parts, .. } => {
            let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len));
            sum.unwrap_or(0)
        }
        // What they have, their rows say.
        Body::Pieces { .. } => u64::MAX,
    };
    range.start <= range.end && range.end <= bytes
}

fn opened(bucket: BucketId, key: &ObjectKey, row: VersionRow) -> Opened {
    let VersionRow { op, metax, body } = row;
    let (key, told_parts) = (key.clone(), Vec::new());
    Opened { bucket, key, op, metax, body, bytes: None, told_parts, remote: None }
}

#[cfg(test)]
mod tests {
    use larder_types::{OpSeq, PartRef, SessionId, View};

    use super::*;

    #[test]
    fn bytes_that_a_row_does_not_have_are_not_looked_for() {
        let stream = StreamId { session: SessionId(1), number: 1 };
        let op = OpId { view: View(1), seq: OpSeq(1) };
        let upload = UploadId { pg: PgId(0), op };
        let part = |number, len| PartRef { number, len };
        let inline = Body::Inline(Bytes::from_static(b"abc"));
        let streamed = |chunks, chunk_bytes| Body::Stream { stream, chunks, chunk_bytes };
        let parts = |parts| Body::Parts { upload, parts };
        assert!(has(&inline, &(1..3)) && has(&streamed(2, 8), &(0..9)));
        assert!(has(&parts(vec![part(1, 5), part(2, 5)]), &(0..10)));
        for (body, range) in [
            (inline, 0..4),
            (streamed(1, 0), 0..1),
            (streamed(0, 8), 0..1),
            (streamed(u32::MAX, u32::MAX), 0..u64::MAX),
            (parts(vec![part(1, u64::MAX), part(2, 5)]), 0..4),
        ] {
            assert!(!has(&body, &range), "{body:?}");
        }
    }
}
