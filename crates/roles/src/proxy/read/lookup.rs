//! Where the bytes of an object lie: the rows that its body names, looked up as they are needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_objects::ObjectError;
use larder_types::codec::decode;
use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Body, Chunk, PartRow, PieceRow, PiecesId, StreamId, UploadId, rows};

use super::source::{Named, Piece, PieceSlice, Place, Source};
use crate::data::ReadFailure;
use crate::limits::{COALESCES_FOLLOWED_MAX, READ_PIECE_BYTES, READ_PIECES_AHEAD};
use crate::proxy::role_access::RoleAccess;
use crate::proxy::unavailable;

/// The bytes still to be read, whose rows have not been looked up.
pub(super) enum Span {
    Inline(Bytes),
    Chunk(Arc<Place>, Range<u32>),
    /// Bytes of a stream whose chunks but the last have so many: a row may tell of very many chunks, of which those that
    /// are read are looked up.
    Chunks {
        stream: StreamId,
        chunk_bytes: u32,
        range: Range<u64>,
        within: Option<PieceSlice>,
    },
    PartRow {
        upload: UploadId,
        number: u16,
        range: Range<u64>,
        within: Option<PieceSlice>,
    },
    Pieces {
        pieces: PiecesId,
        range: Range<u64>,
    },
}

/// The rest of a read under way, to be looked up.
pub(super) struct Lookup<R> {
    pub(super) source: Arc<Source<R>>,
    pub(super) spans: VecDeque<Span>,
    /// A byte of the object, and the number of times that its pieces were looked up again.
    pub(super) again: (u64, u32),
}

impl<R> Lookup<R> {
    pub(super) fn new(source: Arc<Source<R>>) -> Self {
        Self { source, spans: VecDeque::new(), again: (0, 0) }
    }
}

impl<R: RoleAccess> Lookup<R> {
    /// Bytes of an object that was appended to.
    pub(super) fn of_pieces(source: &Arc<Source<R>>, pieces: PiecesId, range: Range<u64>) -> Self {
        let mut lookup = Self::new(source.clone());
        lookup.spans.push_front(Span::Pieces { pieces, range });
        lookup
    }

    /// Queues a range of a body that something names, before everything that is queued.
    pub(super) fn push_body(
        &mut self,
        body: &Body,
        named: Named,
        within: Option<PieceSlice>,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        if !has(body, &range) {
            tracing::error!(key = self.source.key.as_str(), "a row lacks bytes that it names");
            return Err(unavailable("the index holds a row that cannot be used: see the log"));
        }
        let mut spans = Vec::new();
        match body {
            Body::Inline(bytes) => {
                spans.push(Span::Inline(bytes.slice(range.start as usize..range.end as usize)));
            }
            Body::Chunk(chunk) => {
                let range = range.start as u32..range.end as u32;
                spans.push(Span::Chunk(Place::new(chunk.clone(), named, within), range));
            }
            Body::Stream { stream, chunk_bytes, .. } => {
                if range.start < range.end {
                    let (stream, chunk_bytes) = (*stream, *chunk_bytes);
                    spans.push(Span::Chunks { stream, chunk_bytes, range, within });
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
                            within: within.map(|within| within.behind(start)),
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
    pub(super) fn take_cached(&mut self) -> Option<Piece> {
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
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, ReadFailure> {
        loop {
            let Some(span) = self.spans.pop_front() else { return Ok(None) };
            match span {
                Span::Inline(bytes) => return Ok(Some(Piece::Inline(bytes))),
                Span::Chunk(place, range) => return Ok(Some(self.cut(place, range))),
                Span::Chunks { stream, chunk_bytes, range, within } => {
                    let size = u64::from(chunk_bytes);
                    let number = range.start / size;
                    let end = range.end.min((number + 1) * size);
                    let inside = (range.start % size) as u32;
                    let row = rows::chunk(self.source.bucket, stream, number as u32);
                    let Some(value) = self.row_of(&row, within, range.clone()).await? else {
                        continue;
                    };
                    let chunk: Chunk =
                        decode("chunk row", &value).map_err(|_error| ReadFailure::Unreadable)?;
                    if end < range.end {
                        let rest = end..range.end;
                        let rest = Span::Chunks { stream, chunk_bytes, range: rest, within };
                        self.spans.push_front(rest);
                    }
                    let inside = inside..inside + (end - range.start) as u32;
                    let within = within.map(|within| within.behind(number * size));
                    let place = Place::new(chunk, Named::ByRow(row), within);
                    self.spans.push_front(Span::Chunk(place, inside));
                }
                Span::PartRow { upload, number, range, within } => {
                    let row = rows::part(self.source.bucket, upload, number);
                    let Some(value) = self.row_of(&row, within, range.clone()).await? else {
                        continue;
                    };
                    let part: PartRow =
                        decode("part row", &value).map_err(|_error| ReadFailure::Unreadable)?;
                    if self.push_body(&part.body, Named::ByRow(row), within, range).is_err() {
                        return Err(ReadFailure::Unreadable);
                    }
                }
                Span::Pieces { pieces, range } => self.find_pieces(pieces, range).await?,
            }
        }
    }

    /// A row that a body names. `None` if it is gone and the body was part of a piece: its bytes are looked up again.
    async fn row_of(
        &mut self,
        row: &[u8],
        within: Option<PieceSlice>,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, ReadFailure> {
        match (self.source.row(row).await, within) {
            (Err(ReadFailure::Mismatch), Some(within)) => {
                let range = within.bytes(range);
                let (at, times) = self.again;
                let times = if at == range.start { times + 1 } else { 1 };
                if times > COALESCES_FOLLOWED_MAX {
                    return Err(ReadFailure::Unreadable);
                }
                self.again = (range.start, times);
                self.spans.push_front(Span::Pieces { pieces: within.pieces, range });
                Ok(None)
            }
            (found, _) => found.map(Some),
        }
    }

    /// Queues the pieces at the beginning of a range, and what is left of it behind them.
    async fn find_pieces(
        &mut self,
        pieces: PiecesId,
        range: Range<u64>,
    ) -> Result<(), ReadFailure> {
        let source = &self.source;
        let pg = source.rows_in.expect("a body that names rows was given its PG");
        let from = rows::piece(source.bucket, pieces, range.start + 1);
        let to = rows::prefix_end(&rows::pieces(source.bucket, pieces));
        let to = to.ok_or(ReadFailure::Unreadable)?;
        let found = source.access.rows_from(pg, from, &to, READ_PIECES_AHEAD).await;
        let found = found.map_err(|_error| ReadFailure::Unreadable)?;
        let (covered, at) = pieces_of(pieces, &range, found)?;
        if covered.is_empty() {
            // As with a row that is not there: the object was replaced.
            return Err(ReadFailure::Mismatch);
        }
        if at < range.end {
            self.spans.push_front(Span::Pieces { pieces, range: at..range.end });
        }
        for (piece, row, within, inside) in covered.into_iter().rev() {
            let pushed = self.push_body(&piece.body, Named::ByRow(row), Some(within), inside);
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

/// A piece that was found, with its row, and the bytes of it that are read.
type FoundPiece = (PieceRow, Vec<u8>, PieceSlice, Range<u64>);

/// The pieces that rows name at the beginning of a range, as far as they follow each other, and the byte at which they end. They
/// have at most as many bytes as a chunk, but for the first. A read is to look rows up again before it has taken more: the
/// group keeps what goes only for reads that do (ADR 76).
fn pieces_of(
    pieces: PiecesId,
    range: &Range<u64>,
    found: Vec<(Vec<u8>, Bytes)>,
) -> Result<(Vec<FoundPiece>, u64), ReadFailure> {
    let (mut at, mut covered) = (range.start, Vec::new());
    for (row, value) in found {
        let (_, _, end) = rows::parse_piece(&row).ok_or(ReadFailure::Unreadable)?;
        let piece = PieceRow::read(&value).map_err(|_error| ReadFailure::Unreadable)?;
        let until = range.end.min(end);
        let bytes = until.saturating_sub(range.start);
        let is_enough = !covered.is_empty() && bytes > u64::from(CHUNK_BYTES_MAX);
        if at >= range.end || piece.start > at || is_enough {
            break;
        }
        let (start, within) = (piece.start, PieceSlice { pieces, start: piece.start });
        covered.push((piece, row, within, at - start..until - start));
        at = until;
    }
    Ok((covered, at))
}

/// Returns true if a body has these bytes. Its row came from a meta server, and may be wrong.
fn has(body: &Body, range: &Range<u64>) -> bool {
    let bytes = match body {
        Body::Inline(bytes) => bytes.len() as u64,
        Body::Chunk(chunk) => u64::from(chunk.len),
        Body::Stream { chunks, chunk_bytes, .. } => u64::from(*chunks) * u64::from(*chunk_bytes),
        Body::Parts { parts, .. } => {
            let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len));
            sum.unwrap_or(0)
        }
        // The rows of the pieces say what they have.
        Body::Pieces { .. } => u64::MAX,
    };
    range.start <= range.end && range.end <= bytes
}

#[cfg(test)]
mod tests {
    use larder_types::codec::encode;
    use larder_types::{BucketId, ETag, OpId, OpSeq, PartRef, PgId, SessionId, View};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Ends of the pieces that a read of a range takes from pieces of so many MiB each.
    fn taken(range: Range<u64>, mib: &[u64]) -> (Vec<u64>, u64) {
        let pieces = PiecesId { pg: PgId(0), op: OpId { view: View(1), seq: OpSeq(1) } };
        let mut start = 0;
        let mut found = Vec::new();
        for mib in mib {
            let end = start + mib * MIB;
            let (body, etag) = (Body::Inline(Bytes::new()), ETag::Md5([1; 16]));
            let piece = PieceRow { op: pieces.op, start, body, etag, checksum: None };
            found.push((rows::piece(BucketId(1), pieces, end), encode(&piece).into()));
            start = end;
        }
        let found = found.into_iter().filter(|(row, _): &(Vec<u8>, Bytes)| {
            rows::parse_piece(row).expect("a piece").2 > range.start
        });
        let (covered, at) = pieces_of(pieces, &range, found.collect()).expect("rows of pieces");
        let end = |(_, row, ..): &FoundPiece| rows::parse_piece(row).expect("a piece").2 / MIB;
        (covered.iter().map(end).collect(), at / MIB)
    }

    #[test]
    fn pieces_are_looked_up_for_no_more_bytes_than_a_chunk_has() {
        let all = 0..32 * MIB;
        assert_eq!(taken(all.clone(), &[8; 4]), (vec![8], 8));
        assert_eq!(taken(all.clone(), &[5; 4]), (vec![5], 5));
        assert_eq!(taken(all.clone(), &[1; 32]), ((1..=8).collect(), 8));
        // It is one piece of several chunks, each of which is looked up by itself.
        assert_eq!(taken(all, &[20, 1]), (vec![20], 20));
        assert_eq!(taken(3 * MIB..32 * MIB, &[5, 5, 5]), (vec![5, 10], 10));
        assert_eq!(taken(0..2 * MIB, &[1; 4]), (vec![1, 2], 2));
    }

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
