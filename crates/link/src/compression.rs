//! Compressed answers to fetches: each piece of the stream is an LZ4 block, or is left as it is where that is no longer.
//!
//! A piece is a length (u32, little-endian) of what follows, the length that it has once it is decompressed (u32), and its
//! bytes. Equal lengths: they are not compressed.
//!
//! # Invariants
//!
//! 1. Only a piece that has arrived as a whole takes memory for what it becomes, and no piece becomes more than
//!    [`PIECE_BYTES_MAX`].
//! 2. A stream that ends within a piece is broken, never a short one.

use bytes::{Buf, Bytes, BytesMut};
use lz4_flex::block;

use crate::limits::PIECE_BYTES_MAX;

/// The name of this coding in `accept-encoding` and `content-encoding`.
pub(crate) const CODING: &str = "larder-lz4";

/// Bytes of the two lengths.
const HEAD_BYTES: usize = 8;

/// A piece as it is sent.
///
/// # Panics
/// If it is empty, or larger than one may be.
pub(crate) fn compressed(piece: &[u8]) -> Bytes {
    assert!((1..=PIECE_BYTES_MAX).contains(&piece.len()), "a piece is within its bounds");
    let mut out = vec![0; HEAD_BYTES + block::get_maximum_output_size(piece.len())];
    let len = match block::compress_into(piece, &mut out[HEAD_BYTES..]) {
        Ok(len) if len < piece.len() => len,
        Ok(_) | Err(_) => {
            out[HEAD_BYTES..HEAD_BYTES + piece.len()].copy_from_slice(piece);
            piece.len()
        }
    };
    out.truncate(HEAD_BYTES + len);
    out[..4].copy_from_slice(&(len as u32).to_le_bytes());
    out[4..HEAD_BYTES].copy_from_slice(&(piece.len() as u32).to_le_bytes());
    // Bytes that wait to be sent take no more memory than they are.
    match 2 * out.len() < out.capacity() {
        true => Bytes::copy_from_slice(&out),
        false => out.into(),
    }
}

/// Gives pieces back as they were, whatever the parts that the stream arrives in.
#[derive(Debug, Default)]
pub(crate) struct Decompressor {
    /// Bytes that arrived, and are no whole piece yet.
    arrived: BytesMut,
}

impl Decompressor {
    /// Adds bytes that have arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// The next piece, if all of it has arrived.
    ///
    /// # Errors
    /// The fault of the stream.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, String> {
        let Some(head) = self.arrived.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = |at: usize| {
            u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
        };
        let (sent, len) = (length(0), length(4));
        if !(1..=PIECE_BYTES_MAX).contains(&len) || !(1..=len).contains(&sent) {
            return Err(format!("a piece of {sent} bytes for {len}"));
        }
        if self.arrived.len() < HEAD_BYTES + sent {
            return Ok(None);
        }
        self.arrived.advance(HEAD_BYTES);
        let sent = self.arrived.split_to(sent);
        if sent.len() == len {
            return Ok(Some(sent.freeze()));
        }
        let mut piece = vec![0; len];
        match block::decompress_into(&sent, &mut piece) {
            Ok(decompressed) if decompressed == len => Ok(Some(piece.into())),
            Ok(other) => Err(format!("a piece of {other} bytes that says {len}")),
            Err(error) => Err(format!("a piece that is not compressed as it says: {error}")),
        }
    }

    /// True where a stream may end.
    pub(crate) fn is_between(&self) -> bool {
        self.arrived.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decompressed(sent: &[u8], part: usize) -> Result<Vec<Bytes>, String> {
        let (mut decompressor, mut pieces) = (Decompressor::default(), Vec::new());
        for part in sent.chunks(part) {
            decompressor.push(part);
            while let Some(piece) = decompressor.next()? {
                pieces.push(piece);
            }
        }
        decompressor.is_between().then_some(pieces).ok_or_else(|| "it ends early".to_owned())
    }

    #[test]
    fn what_repeats_is_shorter_and_what_does_not_is_left_as_it_is() {
        let text = b"{\"user\": \"somebody\", \"state\": \"active\"}\n".repeat(1000);
        let sent = compressed(&text);
        assert!(sent.len() * 5 < text.len(), "{} of {}", sent.len(), text.len());
        assert_eq!(decompressed(&sent, 100).unwrap(), [text]);
        let noise: Vec<u8> =
            (0..1000_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
        let sent = compressed(&noise);
        assert!(sent.len() <= HEAD_BYTES + noise.len());
        assert_eq!(decompressed(&sent, 1).unwrap(), [noise]);
        let largest = vec![7; PIECE_BYTES_MAX];
        assert_eq!(decompressed(&compressed(&largest), 64).unwrap(), [largest]);
    }

    /// Bytes of a piece that any encoder of LZ4 may write; how short ours makes it may change.
    #[test]
    fn golden_bytes_are_read() {
        let letters = [97, 97, 97, 97, 97, 97];
        let sent = [&[12, 0, 0, 0, 40, 0, 0, 0, 31, 97, 1, 0, 14, 96], &letters[..]].concat();
        assert_eq!(decompressed(&sent, 100).unwrap(), [vec![b'a'; 40]]);
        assert_eq!(compressed(b"abc")[..], [3, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c']);
    }

    #[test]
    fn lengths_that_no_piece_has_take_no_memory() {
        let head = |sent: u32, len: u32| [sent.to_le_bytes(), len.to_le_bytes()].concat();
        let largest = PIECE_BYTES_MAX as u32;
        for (sent, len) in [(0, 0), (0, 1), (2, 1), (1, largest + 1), (u32::MAX, u32::MAX)] {
            let refused = decompressed(&head(sent, len), 100);
            assert!(refused.is_err(), "{sent} for {len}");
        }
        assert_eq!(decompressed(&head(1, largest), 100), Err("it ends early".to_owned()));
    }

    proptest! {
        #[test]
        fn pieces_come_as_they_were_and_others_are_refused(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(1u8), any::<u8>()], 1..300), 1..5),
            part in 1usize..400,
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let mut sent: Vec<u8> = pieces.iter().flat_map(|piece| compressed(piece)).collect();
            let whole = decompressed(&sent, part).unwrap();
            prop_assert_eq!(&whole, &pieces);
            // TLS finds this; here it must not panic, or give more than it says.
            let at = at.index(sent.len());
            sent[at] ^= flip;
            if let Ok(pieces) = decompressed(&sent, part) {
                prop_assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
            }
        }
    }
}
