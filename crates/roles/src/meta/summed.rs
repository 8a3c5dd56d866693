//! Small files of a value in its encoding with an XXH3-64 behind it.

use larder_types::codec::{CodecError, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the sum at the file's end.
pub(super) const SUM_BYTES: usize = size_of::<u64>();

/// Encodes the file.
pub(super) fn encode_file<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = encode(value);
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// Decodes the file; `what` names the kind of value in it.
pub(super) fn decode_file<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, CodecError> {
    let damaged = |reason: &str| CodecError::Damaged { what, reason: reason.to_owned() };
    let Some((value, sum)) = bytes.split_last_chunk::<SUM_BYTES>() else {
        return Err(damaged("it is too short"));
    };
    if xxh3_64(value) != u64::from_le_bytes(*sum) {
        return Err(damaged("its sum is wrong"));
    }
    decode(what, value)
}
