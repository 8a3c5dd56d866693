//! The chunks of an object as they lie now: they move while it is read.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::pg::chunk_in;
use larder_protocol::validation::check_chunk;
use larder_types::{Body, BucketId, Chunk, ObjectKey, OpId, PgId, PiecesId, VersionRow, rows};
use parking_lot::Mutex;

use crate::data::ReadFailure;
use crate::limits::MOVES_FOLLOWED_MAX;
use crate::proxy::role_access::RoleAccess;

/// The row that names a chunk. A read looks up the chunk's place in it again, as chunks move.
pub(super) enum Named {
    /// The version that is read.
    ByVersion,
    /// This row.
    ByRow(Vec<u8>),
}

/// A body that is, or is part of, a piece of an object that was appended to. When the piece is coalesced with others what the
/// body names is gone, and the same bytes lie elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceSlice {
    pub(super) pieces: PiecesId,
    /// Where the body begins in the object.
    pub(super) start: u64,
}

impl PieceSlice {
    /// The body that begins so many bytes behind this one.
    pub(super) fn behind(self, bytes: u64) -> Self {
        Self { start: self.start + bytes, ..self }
    }

    /// Bytes of the body, as bytes of the object.
    pub(super) fn bytes(self, range: Range<u64>) -> Range<u64> {
        self.start + range.start..self.start + range.end
    }
}

/// A chunk that several pieces are read of: what one finds moved, the others find there.
pub(super) struct Place {
    pub(super) named: Named,
    pub(super) within: Option<PieceSlice>,
    pub(super) chunk: Mutex<Arc<Chunk>>,
}

impl Place {
    pub(super) fn new(chunk: Chunk, named: Named, within: Option<PieceSlice>) -> Arc<Self> {
        Arc::new(Self { named, within, chunk: Mutex::new(Arc::new(chunk)) })
    }
}

/// Bytes that are looked up, and still to be read: at most [`READ_PIECE_BYTES`].
pub(super) enum Piece {
    Inline(Bytes),
    Chunk(Arc<Place>, Range<u32>),
}

/// The version that is read, and where.
pub(super) struct Source<R> {
    pub(super) access: Arc<R>,
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) op: OpId,
    /// Where the rows lie that the body names, if it names any.
    pub(super) rows_in: Option<PgId>,
}

impl<R: RoleAccess> Source<R> {
    /// A row that the object names; without it the object was replaced.
    pub(super) async fn row(&self, row: &[u8]) -> Result<Bytes, ReadFailure> {
        let pg = self.rows_in.expect("a body that names rows was given its PG");
        match self.access.row(pg, row).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(ReadFailure::Mismatch),
            Err(_) => Err(ReadFailure::Unreadable),
        }
    }

    /// The verified bytes of a chunk, where it lies now.
    pub(super) async fn read_chunk(
        &self,
        place: &Place,
        range: Range<u32>,
    ) -> Result<Bytes, ReadFailure> {
        for _ in 0..=MOVES_FOLLOWED_MAX {
            let chunk = place.chunk.lock().clone();
            if range.end > chunk.len || check_chunk(&chunk).is_err() {
                return Err(ReadFailure::Unreadable);
            }
            match self.access.read(&chunk, range.clone()).await {
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
                let pg = self.access.pg_of(self.bucket, &self.key);
                let row = rows::version(self.bucket, &self.key, rows::UNVERSIONED);
                let found = self.access.row(pg, &row).await;
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
