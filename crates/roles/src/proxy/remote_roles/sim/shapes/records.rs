//! Records: bytes that say their number and their length, so that a reader knows whose they are and where the next begins.

use bytes::Bytes;
use larder_env::SeededRng;

/// A record's number and length, before its content.
const HEAD_BYTES: usize = 12;
/// Bytes after which the content of a record is the same again: long ones are made and compared quickly.
const TILE_BYTES: usize = 8191;

/// A record with this number.
pub(in super::super) fn record(number: u64, len: u32) -> Bytes {
    let all = HEAD_BYTES + len as usize;
    let mut bytes = Vec::with_capacity(all + TILE_BYTES);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    let (mut rng, tile) = (SeededRng::new(number), all.min(HEAD_BYTES + TILE_BYTES));
    while bytes.len() < tile {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(tile);
    while bytes.len() < all {
        bytes.extend_from_within(HEAD_BYTES..HEAD_BYTES + TILE_BYTES);
    }
    bytes.truncate(all);
    bytes.into()
}

/// The numbers of an object's records with their offsets; `None` if it is not made of whole ones.
pub(in super::super) fn records_in(mut bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (mut found, all) = (Vec::new(), bytes.len());
    while !bytes.is_empty() {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        let (number, len) =
            (u64::from_le_bytes(*number), u32::from_le_bytes(*rest.first_chunk::<4>()?));
        if bytes.len() < HEAD_BYTES + len as usize {
            return None;
        }
        found.push((number, (all - bytes.len()) as u64));
        bytes = bytes.strip_prefix(&record(number, len)[..])?;
    }
    Some(found)
}
