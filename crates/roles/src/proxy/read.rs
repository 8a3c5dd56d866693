//! Reads: find the version, then its bytes, piece by piece, each verified before it leaves.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use larder_objects::{ListedPart, ObjectError, Opened, ReadBody};
use larder_protocol::pg::chunk_in;
use larder_protocol::sound::check_chunk;
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, BucketName, Chunk, ETag, ObjectEntry, ObjectKey, OpId, PartRow, PgId, PieceRow,
    PiecesId, RegionId, StreamId, UploadId, VersionRow, rows,
};
use tokio::time::Instant;

use super::reach::Reach;
use super::{Proxy, decoded, unavailable, undecodable};
use crate::data::ReadFailure;
use crate::limits::{BUCKET_NEWS_MAX, MOVES_FOLLOWED_MAX, READ_PIECE_BYTES, READ_PIECES_AHEAD};

/// Bytes still to be given out, not yet looked up.
enum Span {
    Inline(Bytes),
    Chunk(Box<Chunk>, Named, Range<u32>),
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

/// A read under way.
struct Reading<R> {
    reach: Arc<R>,
    bucket: BucketId,
    /// The version that is read.
    key: ObjectKey,
    op: OpId,
    /// Where the rows lie that the body names, if it names any.
    rows_in: Option<PgId>,
    spans: VecDeque<Span>,
}

impl<R: Reach> Proxy<R> {
    pub(super) async fn find(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Opened, ObjectError> {
        let deadline = Instant::now() + BUCKET_NEWS_MAX;
        loop {
            let known = self.known(bucket)?;
            let pg = self.reach.pg_of(known.id, key);
            match self.reach.find(pg, known.id, key).await {
                Ok(row) => {
                    let mut opened = opened(known.id, key, row.ok_or(ObjectError::NoSuchKey)?);
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
        let names_rows =
            matches!(object.body, Body::Stream { .. } | Body::Parts { .. } | Body::Pieces { .. });
        let mut reading = Reading {
            reach: self.reach.clone(),
            bucket: object.bucket,
            key: object.key.clone(),
            op: object.op,
            rows_in: names_rows.then(|| self.reach.pg_of(object.bucket, &object.key)),
            spans: VecDeque::new(),
        };
        reading.push_body(&object.body, Named::ByVersion, range)?;
        // The first piece is read before anything is answered: if the object was replaced since it was
        // found, the caller can still start again.
        let first = match reading.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => Bytes::new(),
            Err(failure) => return Err(self.explain(object, failure).await),
        };
        if reading.spans.is_empty() {
            return Ok(ReadBody::Whole(first));
        }
        let rest = futures::stream::unfold(Some(reading), async |reading| {
            let mut reading = reading?;
            match reading.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(reading))),
                Ok(None) => None,
                Err(failure) => {
                    tracing::warn!(?failure, "a read under way breaks off");
                    Some((Err(ObjectError::Changed), None))
                }
            }
        });
        let first = futures::stream::once(async move { Ok(first) });
        Ok(ReadBody::Stream(Box::pin(futures::StreamExt::chain(first, rest))))
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

impl<R: Reach> Reading<R> {
    /// Queues a range of a body that something names, before everything that is queued.
    fn push_body(
        &mut self,
        body: &Body,
        named: Named,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        if !has(body, &range) {
            tracing::error!(key = self.key.as_str(), "a row names bytes that it does not have");
            return Err(unavailable("the index holds a row that cannot be used: see the log"));
        }
        let mut spans = Vec::new();
        match body {
            Body::Inline(bytes) => {
                spans.push(Span::Inline(bytes.slice(range.start as usize..range.end as usize)));
            }
            Body::Chunk(chunk) => {
                let range = range.start as u32..range.end as u32;
                spans.push(Span::Chunk(Box::new(chunk.clone()), named, range));
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

    /// The next verified piece.
    async fn next(&mut self) -> Result<Option<Bytes>, ReadFailure> {
        loop {
            let Some(span) = self.spans.pop_front() else { return Ok(None) };
            match span {
                Span::Inline(bytes) => return Ok(Some(bytes)),
                Span::Chunk(chunk, named, range) => {
                    return self.read_piece(chunk, named, range).await.map(Some);
                }
                Span::Chunks { stream, chunk_bytes, range } => {
                    let size = u64::from(chunk_bytes);
                    let number = range.start / size;
                    let end = range.end.min((number + 1) * size);
                    let inside = (range.start % size) as u32;
                    let row = rows::chunk(self.bucket, stream, number as u32);
                    let value = self.row(&row).await?;
                    let chunk: Chunk =
                        decode("chunk row", &value).map_err(|_error| ReadFailure::Unreadable)?;
                    if end < range.end {
                        let rest = end..range.end;
                        self.spans.push_front(Span::Chunks { stream, chunk_bytes, range: rest });
                    }
                    let inside = inside..inside + (end - range.start) as u32;
                    self.spans.push_front(Span::Chunk(Box::new(chunk), Named::ByRow(row), inside));
                }
                Span::PartRow { upload, number, range } => {
                    let row = rows::part(self.bucket, upload, number);
                    let value = self.row(&row).await?;
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
        let pg = self.rows_in.expect("a body that names rows was given its PG");
        let from = rows::piece(self.bucket, pieces, range.start + 1);
        let to = rows::prefix_end(&rows::pieces(self.bucket, pieces));
        let to = to.ok_or(ReadFailure::Unreadable)?;
        let found = self.reach.rows_from(pg, from, &to, READ_PIECES_AHEAD).await;
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

    /// A row that the object names; without it the object was replaced.
    async fn row(&self, row: &[u8]) -> Result<Bytes, ReadFailure> {
        let pg = self.rows_in.expect("a body that names rows was given its PG");
        match self.reach.row(pg, row).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(ReadFailure::Mismatch),
            Err(_) => Err(ReadFailure::Unreadable),
        }
    }

    async fn read_piece(
        &mut self,
        mut chunk: Box<Chunk>,
        named: Named,
        range: Range<u32>,
    ) -> Result<Bytes, ReadFailure> {
        // Pieces end at multiples of their size, so that no checksummed block is read twice.
        let piece_bytes = READ_PIECE_BYTES as u32;
        let end = range.end.min((range.start / piece_bytes + 1) * piece_bytes);
        let rest = end..range.end;
        for _ in 0..=MOVES_FOLLOWED_MAX {
            if range.end > chunk.len || check_chunk(&chunk).is_err() {
                return Err(ReadFailure::Unreadable);
            }
            let (grant, seed) = (chunk.grant, chunk.seed);
            match self.reach.read(chunk, range.start..end).await {
                Ok((chunk, bytes)) => {
                    if !rest.is_empty() {
                        self.spans.push_front(Span::Chunk(chunk, named, rest));
                    }
                    return Ok(bytes);
                }
                Err(ReadFailure::Mismatch) => {
                    let now = self.chunk_now(&named).await?;
                    let moved = now.filter(|now| now.seed == seed && now.grant != grant);
                    chunk = Box::new(moved.ok_or(ReadFailure::Mismatch)?);
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
    Opened { bucket, key: key.clone(), op, metax, body, told_parts: Vec::new(), remote: None }
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
