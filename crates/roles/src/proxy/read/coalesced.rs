//! The pieces of an object as they are now: those that appends made are coalesced while it is read, and looked up anew then.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use larder_types::PiecesId;

use super::lookup::Lookup;
use super::source::{Piece, Source};
use crate::data::ReadFailure;
use crate::limits::COALESCES_FOLLOWED_MAX;
use crate::proxy::role_access::RoleAccess;

impl<R: RoleAccess> Source<R> {
    /// The verified bytes of a piece.
    pub(super) async fn read(self: &Arc<Self>, piece: Piece) -> Result<Bytes, ReadFailure> {
        let (place, range) = match piece {
            Piece::Inline(bytes) => return Ok(bytes),
            Piece::Chunk(place, range) => (place, range),
        };
        let seed = place.chunk.lock().seed;
        match (self.read_chunk(&place, range.clone()).await, place.within) {
            (Err(ReadFailure::Mismatch), Some(within)) => {
                let range = within.bytes(u64::from(range.start)..u64::from(range.end));
                self.read_coalesced(within.pieces, range, seed).await
            }
            (read, _) => read,
        }
    }

    /// Bytes of pieces of which one was coalesced since it was looked up; its chunk had the seed `failed`.
    async fn read_coalesced(
        self: &Arc<Self>,
        pieces: PiecesId,
        range: Range<u64>,
        mut failed: u64,
    ) -> Result<Bytes, ReadFailure> {
        let mut read = BytesMut::new();
        for _ in 0..COALESCES_FOLLOWED_MAX {
            // All pieces are looked up again, as the others may have been replaced too.
            let left = range.start + read.len() as u64..range.end;
            let mut lookup = Lookup::of_pieces(self, pieces, left);
            loop {
                let (place, range) = match lookup.next().await? {
                    None => return Ok(read.freeze()),
                    Some(Piece::Inline(bytes)) => {
                        read.extend_from_slice(&bytes);
                        continue;
                    }
                    Some(Piece::Chunk(place, range)) => (place, range),
                };
                let seed = place.chunk.lock().seed;
                if seed == failed {
                    // It was looked up after that, and is still in the same place: its copies are bad.
                    return Err(ReadFailure::Mismatch);
                }
                match self.read_chunk(&place, range).await {
                    Ok(bytes) => read.extend_from_slice(&bytes),
                    Err(ReadFailure::Mismatch) => {
                        failed = seed;
                        break;
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        // They became others each time: that says nothing about their copies.
        Err(ReadFailure::Unreadable)
    }
}
