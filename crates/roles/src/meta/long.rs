//! Messages between members that are too long for one frame: they go in pieces, which follow each other on one connection.
//! A piece that is lost costs the message, which its sender says again, as any that is lost.
//!
//! # Invariants
//!
//! 1. A message is taken whole or not at all: its pieces are those of one message, in order, without a gap.
//! 2. What waits for its other pieces is bounded: one message of a sender and group, and so many bytes in all. One that
//!    is never completed makes room for others.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_protocol::limits::PEER_WHOLE_BYTES_MAX;
use larder_types::{PgId, ServerId};

use crate::limits::{PEER_BYTES_MAX, PEER_FRAME_BYTES, PEER_PIECES_BYTES_MAX};
use crate::wire::MetaMessage;

/// A message to another member, encoded, as it is sent. `number` is of no other message of the group that is long.
pub(super) fn in_frames(
    pg: PgId,
    message: Vec<u8>,
    number: u64,
) -> impl Iterator<Item = (MetaMessage, Bytes)> {
    let (total, bytes) = (message.len(), Bytes::from(message));
    let is_long = total > PEER_FRAME_BYTES;
    let step = if is_long { PEER_BYTES_MAX } else { total.max(1) };
    (0..total).step_by(step).map(move |offset| {
        let piece = bytes.slice(offset..total.min(offset + step));
        let (offset, total) = (offset as u64, total as u64);
        let said = match is_long {
            true => MetaMessage::PeerPiece { pg, message: number, offset, total },
            false => MetaMessage::Peer(pg),
        };
        (said, piece)
    })
}

/// Which piece of which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) message: u64,
    pub(super) offset: u64,
    pub(super) total: u64,
}

/// A message of which pieces are missing.
#[derive(Debug)]
struct Begun {
    message: u64,
    total: u64,
    bytes: Vec<u8>,
    /// Grows with each message that begins.
    order: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    begun: BTreeMap<(ServerId, PgId), Begun>,
    order: u64,
}

impl Pieces {
    /// Takes a piece; gives the message if that was its last.
    pub(super) fn take(
        &mut self,
        from: (ServerId, PgId),
        piece: Piece,
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let Piece { message, offset, total } = piece;
        if offset == 0 {
            self.begun.remove(&from);
            // A short one has no pieces: few that are long fill what there is.
            if !(PEER_FRAME_BYTES as u64 + 1..=PEER_WHOLE_BYTES_MAX as u64).contains(&total) {
                tracing::error!(?from, total, "a message that no member sends: use one release");
                return None;
            }
            self.make_room(total);
            self.order += 1;
            let order = self.order;
            self.begun.insert(from, Begun { message, total, bytes: Vec::new(), order });
        }
        let begun = self.begun.get_mut(&from)?;
        let goes_on = begun.message == message
            && begun.total == total
            && begun.bytes.len() as u64 == offset
            && !bytes.is_empty()
            && bytes.len() as u64 <= total - offset.min(total);
        if !goes_on {
            self.begun.remove(&from);
            return None;
        }
        begun.bytes.extend_from_slice(bytes);
        let is_whole = begun.bytes.len() as u64 == total;
        let whole = is_whole.then(|| self.begun.remove(&from)).flatten();
        whole.map(|begun| begun.bytes)
    }

    /// Forgets those that began first, until there is room for another.
    fn make_room(&mut self, total: u64) {
        loop {
            let held: u64 = self.begun.values().map(|begun| begun.total).sum();
            if held + total <= PEER_PIECES_BYTES_MAX as u64 {
                return;
            }
            let first = self.begun.iter().min_by_key(|(_, begun)| begun.order);
            let Some(first) = first.map(|(from, _)| *from) else { return };
            tracing::debug!(?first, "a member's message is forgotten before it is whole");
            self.begun.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: (ServerId, PgId) = (ServerId(1), PgId(2));

    fn message(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn pieces(bytes: usize, number: u64) -> Vec<(Piece, Bytes)> {
        let frames = in_frames(FROM.1, message(bytes), number);
        let piece = |(said, bytes): (MetaMessage, Bytes)| match said {
            MetaMessage::PeerPiece { message, offset, total, .. } => {
                (Piece { message, offset, total }, bytes)
            }
            other => panic!("it is no piece: {other:?}"),
        };
        frames.map(piece).collect()
    }

    #[test]
    fn what_fits_a_frame_is_one_and_a_byte_more_comes_in_pieces() {
        let frames: Vec<_> = in_frames(FROM.1, message(PEER_FRAME_BYTES), 1).collect();
        assert!(matches!(frames[..], [(MetaMessage::Peer(PgId(2)), _)]));
        assert_eq!(frames[0].1.len(), larder_net::limits::PAYLOAD_BYTES_MAX);
        for bytes in [PEER_FRAME_BYTES + 1, 3 * PEER_BYTES_MAX, PEER_WHOLE_BYTES_MAX] {
            let (mut taken, mut whole) = (Pieces::default(), None);
            let pieces = pieces(bytes, 1);
            assert!(pieces.len() > 1 && pieces.iter().all(|(_, it)| it.len() <= PEER_BYTES_MAX));
            for (piece, bytes) in pieces {
                assert!(whole.is_none());
                whole = taken.take(FROM, piece, &bytes);
            }
            assert!(whole.unwrap() == message(bytes), "{bytes} bytes");
            assert!(taken.begun.is_empty());
        }
    }

    #[test]
    fn a_message_that_lacks_a_piece_is_not_taken_and_said_again_it_is() {
        let mut taken = Pieces::default();
        let said = pieces(3 * PEER_BYTES_MAX, 1);
        for lost in 0..said.len() {
            let come = said.iter().enumerate().filter(|(at, _)| *at != lost);
            for (_, (piece, bytes)) in come {
                assert!(taken.take(FROM, *piece, bytes).is_none());
            }
            // The rest is of another message, though it is as long.
            let (piece, bytes) = &pieces(3 * PEER_BYTES_MAX, 2)[2];
            assert!(taken.take(FROM, *piece, bytes).is_none());
            let again = pieces(3 * PEER_BYTES_MAX, 3);
            let whole = again.iter().filter_map(|(piece, bytes)| taken.take(FROM, *piece, bytes));
            assert_eq!(whole.count(), 1, "without piece {lost}");
        }
    }

    #[test]
    fn what_is_never_completed_makes_room_for_others() {
        let mut taken = Pieces::default();
        let total = PEER_WHOLE_BYTES_MAX as u64;
        for sender in 0..100 {
            let begun = Piece { message: 1, offset: 0, total };
            assert!(taken.take((ServerId(sender), PgId(0)), begun, &[1]).is_none());
        }
        let held: u64 = taken.begun.values().map(|begun| begun.total).sum();
        assert!(held <= PEER_PIECES_BYTES_MAX as u64 && held > 0);
        let last = (ServerId(100), PgId(0));
        let said = pieces(PEER_WHOLE_BYTES_MAX, 1);
        let whole = said.iter().filter_map(|(piece, bytes)| taken.take(last, *piece, bytes));
        assert_eq!(whole.count(), 1);
    }

    #[test]
    fn pieces_that_are_none_are_not_taken() {
        let mut taken = Pieces::default();
        let piece = |offset, total| Piece { message: 1, offset, total };
        let least = PEER_FRAME_BYTES as u64 + 1;
        let long = message(PEER_FRAME_BYTES + 2);
        for (piece, bytes) in [
            (piece(0, PEER_WHOLE_BYTES_MAX as u64 + 1), &b"a"[..]),
            (piece(0, least - 1), b"a"),
            (piece(0, 0), b""),
            (piece(0, least), b""),
            (piece(0, least), &long[..]),
            (piece(1, least), b"a"),
            (piece(u64::MAX, u64::MAX), b"a"),
        ] {
            assert!(taken.take(FROM, piece, bytes).is_none());
            assert!(taken.begun.is_empty(), "{piece:?}");
        }
        assert!(taken.take(FROM, piece(0, least), b"ab").is_none());
        assert!(taken.take(FROM, piece(u64::MAX, least), b"c").is_none());
        assert!(taken.take(FROM, piece(2, least), &long[2..]).is_none(), "it was forgotten");
    }
}
