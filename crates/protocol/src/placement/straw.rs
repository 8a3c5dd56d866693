//! straw2: each candidate draws a straw of length `-ln(u) / weight`, and the shortest wins. In this `u` is a hash of
//! what is placed and of the candidate, above 0 and at most 1. A candidate's straw is independent of all others, so
//! that changing one candidate moves picks only to it or away from it.
//!
//! # How it is computed
//!
//! The base of the logarithm cancels out, so `-log2(u)` is used, with 32 bits after the point. The integer part is the
//! place of the hash's highest bit. Each bit of the fraction is one squaring of the mantissa (64 bits, truncated). What
//! truncation takes away is below 2^-31. Straws are compared by cross multiplication, so that no division rounds.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Share of a candidate relative to the others of the same kind; 0 takes nothing.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Weight(pub u32);

const FRACTION_BITS: u32 = 32;

/// Hash of a sequence of numbers; fixed for ever.
pub(crate) fn hash(seed: u64, words: &[u64]) -> u64 {
    let mut hash = mix(seed ^ 0x1A2D_E25E_ED5E_ED00);
    for &word in words {
        hash = mix(hash.rotate_left(23) ^ mix(word));
    }
    hash
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A candidate's straw before it is divided by the weight: `-log2(hash / 2^64)` with 32 bits after the point;
/// at least 1.
#[must_use]
pub fn draw(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    let mut mantissa = hash << zeros;
    let mut log = u64::from(63 - zeros);
    for _ in 0..FRACTION_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carried = (square >> 64) as u64;
        log = log << 1 | carried;
        mantissa = (square >> carried) as u64;
    }
    (64 << FRACTION_BITS) - log
}

/// Orders two straws, each a [`draw`] and the weight it is divided by, shorter first. A weight of 0 makes a
/// straw that is longer than any other.
#[must_use]
pub fn shorter(a: (u64, u64), b: (u64, u64)) -> Ordering {
    match (a.1, b.1) {
        (0, 0) => Ordering::Equal,
        (0, _) => Ordering::Greater,
        (_, 0) => Ordering::Less,
        _ => (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1))),
    }
}
