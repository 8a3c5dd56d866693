//! Secrets as lines of text that an operator carries: Crockford's base 32, with a checksum.

use xxhash_rust::xxh3::xxh3_64;

/// Longest text that is read: a join token has 124 digits.
const DIGITS_MAX: usize = 616;
/// Crockford's digits: none is easily taken for another. Either case is read.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Checksum at the end of a text, which finds typing errors: the lower half of XXH3, little-endian.
#[must_use]
pub fn sum(bytes: &[u8]) -> [u8; 4] {
    (xxh3_64(bytes) as u32).to_le_bytes()
}

/// Encodes five bits a digit, most significant first; the last digit is filled with zeros.
pub(crate) fn to_base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digit = |n: usize| (0..5).fold(0, |digit, b| digit << 1 | bit(n * 5 + b));
    (0..(bytes.len() * 8).div_ceil(5)).map(|n| char::from(DIGITS[usize::from(digit(n))])).collect()
}

pub(crate) fn from_base32(text: &str) -> Option<Vec<u8>> {
    if text.len() > DIGITS_MAX {
        return None;
    }
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let digit = DIGITS.iter().position(|d| *d == letter.to_ascii_lowercase())?;
        held = held << 5 | digit as u32;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    (bits < 5 && held == 0).then_some(bytes)
}
