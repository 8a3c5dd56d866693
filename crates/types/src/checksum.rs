//! The checksums that guard stored bytes: XXH3-64 of every 64 KiB, seeded by the request.
//!
//! The seed makes the sums of one put differ from those of every other. So a slow reader that finds the next object in
//! the same place takes it for damage and looks it up again. And no client can craft an object that passes for another.
//! The request is known before the grant is, so the proxy can send the sums with the put's METAX. XXH3 is used because
//! a CRC with a salted prefix still collides for equal lengths.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::ids::Request;
use crate::limits::SUM_BYTES;

/// Checksums of one chunk, one per 64 KiB begun.
pub type BlockSums = Vec<u64>;

/// The seed of a put's sums: secret as long as its session is, and used by no other put.
#[must_use]
pub fn seed_of(request: &Request) -> u64 {
    xxh3_64_with_seed(&request.number.to_le_bytes(), request.session.0)
}

/// The checksum of `bytes`, which are the `index`-th 64 KiB (or the last, shorter piece) of a chunk.
///
/// # Panics
/// If `bytes` are more than 64 KiB.
#[must_use]
pub fn sum(seed: u64, index: u32, bytes: &[u8]) -> u64 {
    assert!(bytes.len() <= SUM_BYTES as usize, "one checksum covers at most 64 KiB");
    xxh3_64_with_seed(bytes, at(seed, index))
}

fn at(seed: u64, index: u32) -> u64 {
    seed.wrapping_add(u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The checksums of a chunk that lies in memory in pieces of any size.
#[must_use]
pub fn sum_blocks<'a>(seed: u64, pieces: impl Iterator<Item = &'a [u8]>) -> BlockSums {
    let mut sums = BlockSums::new();
    let mut partial: Option<(Xxh3, usize)> = None;
    for mut piece in pieces {
        while !piece.is_empty() {
            let index = sums.len() as u32;
            if partial.is_none() && piece.len() >= SUM_BYTES as usize {
                let (whole, rest) = piece.split_at(SUM_BYTES as usize);
                sums.push(sum(seed, index, whole));
                piece = rest;
                continue;
            }
            let (hasher, filled) =
                partial.get_or_insert_with(|| (Xxh3::with_seed(at(seed, index)), 0));
            let take = piece.len().min(SUM_BYTES as usize - *filled);
            hasher.update(&piece[..take]);
            *filled += take;
            piece = &piece[take..];
            if *filled == SUM_BYTES as usize {
                sums.push(hasher.digest());
                partial = None;
            }
        }
    }
    if let Some((hasher, _)) = partial {
        sums.push(hasher.digest());
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    #[test]
    fn pieces_do_not_change_the_sums() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 31 % 251) as u8).collect();
        let whole = sum_blocks(1, std::iter::once(&bytes[..]));
        assert_eq!(whole.len(), 4);
        for size in [1usize, 1000, 65_536, 70_000] {
            assert_eq!(whole, sum_blocks(1, bytes.chunks(size)), "{size}");
        }
        assert_eq!(whole[3], sum(1, 3, &bytes[3 * 65_536..]));
    }

    #[test]
    fn equal_bytes_of_another_put_differ() {
        let request = |number| Request { session: SessionId(7), number, floor: 0 };
        assert_ne!(seed_of(&request(1)), seed_of(&request(2)));
        assert_ne!(sum(seed_of(&request(1)), 0, b"same"), sum(seed_of(&request(2)), 0, b"same"));
        assert_ne!(sum(1, 0, b"same"), sum(1, 1, b"same"));
    }
}
