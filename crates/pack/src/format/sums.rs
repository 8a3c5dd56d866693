//! The sums that guard bodies: XXH3-64 of every piece, seeded by the body and the piece's number.
//! So bytes of another body, or of another place of this one, do not pass.

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::format::entry::Place;

fn at(seed: u64, index: u64) -> u64 {
    seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Returns true if `bytes` are the `index`-th piece of the body at `place`.
pub(crate) fn verifies(place: &Place, index: u64, bytes: &[u8]) -> bool {
    let from = index * u64::from(place.sum_bytes);
    let expected = place.len.saturating_sub(from).min(u64::from(place.sum_bytes));
    let sum = usize::try_from(index).ok().and_then(|index| place.sums.get(index));
    bytes.len() as u64 == expected
        && sum.is_some_and(|sum| *sum == xxh3_64_with_seed(bytes, at(place.seed, index)))
}

/// Takes a body piece by piece.
pub(crate) struct Summing {
    seed: u64,
    sum_bytes: u32,
    sums: Vec<u64>,
    len: u64,
    open: Option<(Box<Xxh3>, u32)>,
}

impl Summing {
    pub(crate) fn new(seed: u64, sum_bytes: u32) -> Self {
        assert!(sum_bytes > 0, "a sum covers something");
        Self { seed, sum_bytes, sums: Vec::new(), len: 0, open: None }
    }

    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let index = at(self.seed, self.sums.len() as u64);
            if self.open.is_none() && bytes.len() >= self.sum_bytes as usize {
                let (whole, rest) = bytes.split_at(self.sum_bytes as usize);
                self.sums.push(xxh3_64_with_seed(whole, index));
                bytes = rest;
                continue;
            }
            let (hasher, filled) =
                self.open.get_or_insert_with(|| (Box::new(Xxh3::with_seed(index)), 0));
            let take = bytes.len().min((self.sum_bytes - *filled) as usize);
            hasher.update(&bytes[..take]);
            *filled += take as u32;
            bytes = &bytes[take..];
            if *filled == self.sum_bytes {
                self.sums.push(hasher.digest());
                self.open = None;
            }
        }
    }

    /// Bytes taken.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn finish(mut self) -> BodySums {
        if let Some((hasher, _)) = self.open.take() {
            self.sums.push(hasher.digest());
        }
        BodySums { len: self.len, seed: self.seed, sum_bytes: self.sum_bytes, sums: self.sums }
    }
}

/// The sums that verify a body, before it is known where it goes.
#[derive(Debug, Clone)]
pub(crate) struct BodySums {
    pub(crate) len: u64,
    pub(crate) seed: u64,
    pub(crate) sum_bytes: u32,
    pub(crate) sums: Vec<u64>,
}

impl BodySums {
    pub(crate) fn of(seed: u64, sum_bytes: u32, pieces: &[Bytes]) -> Self {
        // A small body comes in one piece as a rule: its sums need no state.
        if let [piece] = pieces {
            let sum = |(index, bytes)| xxh3_64_with_seed(bytes, at(seed, index));
            let sums = (0..).zip(piece.chunks(sum_bytes as usize)).map(sum).collect();
            return Self { len: piece.len() as u64, seed, sum_bytes, sums };
        }
        let mut summing = Summing::new(seed, sum_bytes);
        for piece in pieces {
            summing.add(piece);
        }
        summing.finish()
    }

    pub(crate) fn placed(self, container: crate::format::entry::Container, offset: u64) -> Place {
        let Self { len, seed, sum_bytes, sums } = self;
        Place { container, offset, len, seed, sum_bytes, sums }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::Container;
    use crate::ids::BlobId;

    fn placed(seed: u64, bytes: &[u8], cut: usize) -> Place {
        let pieces: Vec<_> = bytes.chunks(cut).map(Bytes::copy_from_slice).collect();
        BodySums::of(seed, 1000, &pieces).placed(Container::Blob(BlobId::default()), 0)
    }

    #[test]
    fn pieces_verify_however_the_body_was_cut() {
        let bytes: Vec<u8> = (0..4500u32).map(|i| (i * 31 % 251) as u8).collect();
        let whole = placed(7, &bytes, 4500);
        assert_eq!(whole.sums.len(), 5);
        for cut in [1, 999, 1000, 1001] {
            assert_eq!(placed(7, &bytes, cut), whole, "{cut}");
        }
        for (index, piece) in bytes.chunks(1000).enumerate() {
            assert!(verifies(&whole, index as u64, piece));
        }
    }

    #[test]
    fn other_bytes_places_and_bodies_do_not_verify() {
        let bytes = vec![9u8; 2000];
        let place = placed(7, &bytes, 2000);
        assert!(!verifies(&place, 0, &bytes[..999]), "too short");
        assert!(!verifies(&place, 2, &[]), "behind the end");
        assert_ne!(place.sums[0], place.sums[1], "equal pieces at other places");
        assert_ne!(place.sums, placed(8, &bytes, 2000).sums, "equal bytes of another body");
        let mut turned = bytes[..1000].to_vec();
        turned[500] ^= 1;
        assert!(!verifies(&place, 0, &turned));
    }
}
