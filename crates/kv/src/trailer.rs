//! The checksum that every value carries: 8 bytes, little-endian, after the value.
//!
//! XXH3-64 of the value, seeded by XXH3-64 of the key, so that a right value under a wrong key is
//! found too. Format: `docs/formats/kv.md`.

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::KvError;

/// Bytes that a value grows by.
pub(crate) const TRAILER_BYTES: usize = 8;

/// The bytes to append to a value.
pub(crate) fn trailer(key: &[u8], value: &[u8]) -> [u8; TRAILER_BYTES] {
    xxh3_64_with_seed(value, xxh3_64(key)).to_le_bytes()
}

/// The value without its trailer, if that is right.
pub(crate) fn verified<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], KvError> {
    match stored.split_last_chunk::<TRAILER_BYTES>() {
        Some((value, found)) if *found == trailer(key, value) => Ok(value),
        _ => Err(KvError::Damaged {
            key: Some(Bytes::copy_from_slice(key)),
            reason: "the value does not match its checksum".into(),
        }),
    }
}

/// As [`verified`], keeping the allocation.
pub(crate) fn verified_bytes(key: &[u8], mut stored: Bytes) -> Result<Bytes, KvError> {
    let len = verified(key, &stored)?.len();
    stored.truncate(len);
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(key: &[u8], value: &[u8]) -> Vec<u8> {
        [value, &trailer(key, value)].concat()
    }

    #[test]
    fn stored_values_keep_their_golden_bytes() {
        let bytes: String =
            stored(b"bucket/key", b"value").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, "76616c75654775122e8ce1c315");
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let good = stored(b"key", b"some value");
        assert_eq!(verified(b"key", &good), Ok(&b"some value"[..]));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(verified(b"key", &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_value_under_another_key_or_cut_short_is_found() {
        let good = stored(b"key", b"");
        assert_eq!(verified(b"key", &good), Ok(&b""[..]));
        assert!(verified(b"kez", &good).is_err());
        assert!(verified(b"key", &good[1..]).is_err());
        assert!(verified(b"key", &[]).is_err());
    }
}
