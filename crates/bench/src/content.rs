//! The bytes of objects: a function of name and size, so that they need not be kept to be checked.
//!
//! # Invariants
//! - Equal (name, size) gives equal bytes, in every run and on every machine.
//! - The bytes of two objects share no stretch a store could find. Word `i` is a mix of a 64-bit
//!   seed and `i`, so they neither compress nor deduplicate, whatever the chunking.
//! - Any position is reached directly: nothing larger than a piece is ever in memory.
//!
//! The generator is the counter-based multiply-and-fold of wyrand: about a microsecond for 8 KiB. It
//! is not meant to be secret.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most bytes of a body made at a time.
pub const PIECE_BYTES: usize = 256 * 1024;

const WORD_BYTES: usize = 8;
const STEP: u64 = 0xa076_1d64_78bd_642f;
const TWIST: u64 = 0xe703_7ed1_a0b4_28db;

const _: () = assert!(PIECE_BYTES.is_multiple_of(WORD_BYTES), "every piece begins with a word");

/// The content of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    seed: u64,
    size: u64,
}

impl Content {
    /// The content of the object `name` of `size` bytes.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        Self { seed: xxh3_64_with_seed(name.as_bytes(), size), size }
    }

    /// The first `size` bytes of the one endless object that a floor server serves under all names.
    #[must_use]
    pub fn of_floor(size: u64) -> Self {
        Self { seed: TWIST, size }
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The piece that begins at `offset`: up to [`PIECE_BYTES`], empty at the end.
    ///
    /// # Panics
    /// If `offset` is neither a multiple of [`PIECE_BYTES`] nor the size.
    #[must_use]
    pub fn piece(&self, offset: u64) -> Bytes {
        assert!(
            offset == self.size || offset.is_multiple_of(PIECE_BYTES as u64),
            "pieces begin at multiples of their size"
        );
        let len = self.size.saturating_sub(offset).min(PIECE_BYTES as u64) as usize;
        let mut piece = vec![0; len.next_multiple_of(WORD_BYTES)];
        let (words, _) = piece.as_chunks_mut::<WORD_BYTES>();
        for (word, index) in words.iter_mut().zip(offset / WORD_BYTES as u64..) {
            *word = self.word(index).to_le_bytes();
        }
        piece.truncate(len);
        Bytes::from(piece)
    }

    /// All bytes.
    #[must_use]
    pub fn all(&self) -> Bytes {
        if self.size <= PIECE_BYTES as u64 {
            return self.piece(0);
        }
        let mut all = Vec::with_capacity(self.size as usize);
        while (all.len() as u64) < self.size {
            all.extend_from_slice(&self.piece(all.len() as u64));
        }
        Bytes::from(all)
    }

    /// SHA-256 of all bytes, and the first piece, which serves the request that follows as well.
    #[must_use]
    pub fn digest(&self) -> ([u8; 32], Bytes) {
        let first = self.piece(0);
        let mut hasher = Sha256::new();
        hasher.update(&first);
        let mut offset = first.len() as u64;
        while offset < self.size {
            let piece = self.piece(offset);
            hasher.update(&piece);
            offset += piece.len() as u64;
        }
        (hasher.finalize().into(), first)
    }

    /// Word `index` of the endless sequence that the content is the beginning of.
    fn word(&self, index: u64) -> u64 {
        let position = self.seed.wrapping_add(index.wrapping_mul(STEP));
        let product = u128::from(position) * u128::from(position ^ TWIST);
        (product >> 64) as u64 ^ product as u64
    }
}

/// Compares a body that arrives in pieces of any size with what it should be.
#[derive(Debug)]
pub struct Verifier {
    content: Content,
    position: u64,
    sound: bool,
}

impl Verifier {
    /// Expects `content` from its beginning.
    #[must_use]
    pub fn new(content: Content) -> Self {
        Self { content, position: 0, sound: true }
    }

    /// Takes the next piece.
    pub fn accept(&mut self, piece: &[u8]) {
        let fits = piece.len() as u64 <= self.content.size - self.position;
        self.sound = self.sound && fits && self.matches(piece);
        if fits {
            self.position += piece.len() as u64;
        }
    }

    /// True if all bytes came, none more, and each was right.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sound && self.position == self.content.size
    }

    fn matches(&self, piece: &[u8]) -> bool {
        let inside = (self.position % WORD_BYTES as u64) as usize;
        let head = ((WORD_BYTES - inside) % WORD_BYTES).min(piece.len());
        let (head, rest) = piece.split_at(head);
        let first = self.position / WORD_BYTES as u64;
        if !head.is_empty()
            && self.content.word(first).to_le_bytes()[inside..][..head.len()] != *head
        {
            return false;
        }
        let first = (self.position + head.len() as u64) / WORD_BYTES as u64;
        let (words, tail) = rest.as_chunks::<WORD_BYTES>();
        let difference = words.iter().zip(first..).fold(0, |difference, (word, index)| {
            difference | (u64::from_le_bytes(*word) ^ self.content.word(index))
        });
        let last = self.content.word(first + words.len() as u64).to_le_bytes();
        difference == 0 && last[..tail.len()] == *tail
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn all(content: Content) -> Vec<u8> {
        content.all().into()
    }

    #[test]
    fn equal_name_and_size_give_the_bytes_of_every_release() {
        assert_eq!(all(Content::new("a", 600_001)), all(Content::new("a", 600_001)));
        let digest = xxh3_64_with_seed(&all(Content::new("name", 70_001)), 0);
        assert_eq!(digest, 0xd347_11b9_3caa_0078);
    }

    #[test]
    fn objects_share_no_bytes() {
        let mut words = HashSet::new();
        for index in 0..200 {
            let bytes = all(Content::new(&format!("object-{index}"), 8192));
            for offset in 0..=bytes.len() - 8 {
                words.insert(bytes[offset..offset + 8].to_vec());
            }
        }
        assert_eq!(words.len(), 200 * (8192 - 7));
        assert_ne!(all(Content::new("a", 64)), all(Content::new("a", 65))[..64]);
    }

    #[test]
    fn bytes_are_evenly_spread() {
        let bytes = all(Content::new("spread", 1 << 20));
        let mut counts = [0u32; 256];
        for byte in bytes {
            counts[usize::from(byte)] += 1;
        }
        assert!(counts.iter().all(|count| (3700..4500).contains(count)), "{counts:?}");
    }

    #[test]
    fn digest_covers_every_piece() {
        for size in [0, 1, 8, PIECE_BYTES as u64, PIECE_BYTES as u64 * 2 + 5] {
            let content = Content::new("digest", size);
            let (digest, first) = content.digest();
            assert_eq!(digest[..], Sha256::digest(all(content))[..]);
            assert_eq!(first, content.piece(0));
        }
    }

    #[test]
    fn a_body_is_accepted_in_pieces_of_any_size() {
        let content = Content::new("pieces", 10_001);
        let bytes = all(content);
        for size in [1, 3, 8, 9, 4096, 20_000] {
            let mut verifier = Verifier::new(content);
            bytes.chunks(size).for_each(|piece| verifier.accept(piece));
            assert!(verifier.is_complete(), "{size}");
        }
    }

    #[test]
    fn every_flipped_missing_or_extra_byte_is_noticed() {
        let content = Content::new("flipped", 101);
        let bytes = all(content);
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            let mut verifier = Verifier::new(content);
            damaged.chunks(13).for_each(|piece| verifier.accept(piece));
            assert!(!verifier.is_complete(), "{index}");
        }
        let mut short = Verifier::new(content);
        short.accept(&bytes[..100]);
        assert!(!short.is_complete());
        let mut long = Verifier::new(content);
        long.accept(&bytes);
        long.accept(b"x");
        assert!(!long.is_complete());
    }
}
