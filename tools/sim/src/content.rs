//! Bytes that a value is made of, so that a reader knows whose they are, and where one ends and the next begins.

use bytes::Bytes;
use larder_env::SeededRng;
use larder_types::ETag;

/// Least bytes of a value: those that say which it is and how long.
pub(crate) const HEAD_BYTES: usize = 16;
/// Bits of a value that say how many bytes it has.
const LEN_BITS: u32 = 20;

/// The value of a number: of so many bytes.
pub(crate) fn value(number: u64, len: usize) -> u64 {
    assert!((HEAD_BYTES..1 << LEN_BITS).contains(&len), "a value of {len} bytes");
    number << LEN_BITS | len as u64
}

/// The bytes that a value has.
pub(crate) fn len_of(value: u64) -> u64 {
    value & ((1 << LEN_BITS) - 1)
}

/// The bytes of a value.
pub(crate) fn content(value: u64, len: usize) -> Bytes {
    let mut rng = SeededRng::new(value);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    bytes.extend_from_slice(&value.to_le_bytes());
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// The values that an object of this size and tag is made of, if the pieces are its bytes. Values are whole, one after
/// the other, in the order that the tag says.
pub(crate) fn values_in(etag: &ETag, size: u64, pieces: &[Bytes]) -> Option<Vec<u64>> {
    let bytes = pieces.concat();
    let values = values_of_bytes(&bytes)?;
    let (first, rest) = values.split_first()?;
    let follow = |whole: ETag, value: &u64| whole.followed_by(&etag_of(*value));
    let whole = rest.iter().fold(etag_of(*first), follow);
    (bytes.len() as u64 == size && digest_of(&whole) == digest_of(etag)).then_some(values)
}

/// The values whose bytes these are; `None` if they are not those of values.
fn values_of_bytes(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let value = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let len = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let (head, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
        if head.len() < HEAD_BYTES || head != &content(value, head.len())[..] {
            return None;
        }
        values.push(value);
        bytes = rest;
    }
    Some(values)
}

/// The tag that a put of a value has.
pub(crate) fn etag_of(value: u64) -> ETag {
    let mut digest = [0; 16];
    digest[..8].copy_from_slice(&value.to_be_bytes());
    ETag::Md5(digest)
}

/// Names what an object is made of: a value, or values one after the other.
pub(crate) fn digest_of(etag: &ETag) -> u128 {
    let (ETag::Md5(digest) | ETag::Parts(digest, _)) = etag;
    u128::from_be_bytes(*digest)
}

/// Names what an object is made of after an append of a value.
pub(crate) fn grown(digest: u128, value: u64) -> u128 {
    digest_of(&ETag::Md5(digest.to_be_bytes()).followed_by(&etag_of(value)))
}

/// Tags that carry a number.
pub(crate) fn tags(number: u64) -> Vec<(String, String)> {
    vec![("n".to_owned(), number.to_string())]
}

/// The number that tags carry; 0 for none.
pub(crate) fn tags_number(tags: &[(String, String)]) -> u64 {
    tags.first().and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_recognized_by_their_bytes() {
        let (one, two) = (value(1, 100), value(2, 20));
        let bytes = [content(one, 100), content(two, 20)];
        let both = etag_of(one).followed_by(&etag_of(two));
        assert_eq!(values_in(&etag_of(one), 100, &bytes[..1]), Some(vec![one]));
        assert_eq!(values_in(&both, 120, &bytes), Some(vec![one, two]));
        assert_eq!(digest_of(&both), grown(digest_of(&etag_of(one)), two));
        let swapped = [bytes[1].clone(), bytes[0].clone()];
        assert_eq!(values_in(&both, 120, &swapped), None, "another order");
        let twice = [bytes[0].clone(), bytes[1].clone(), bytes[1].clone()];
        assert_eq!(values_in(&both, 140, &twice), None, "one of them twice");
        let torn = [bytes[0].clone(), bytes[1].slice(..18), bytes[0].slice(18..20)];
        assert_eq!(values_in(&both, 120, &torn), None, "a torn one");
        assert_eq!(values_in(&both, 120, &[bytes[0].clone()]), None, "one is missing");
    }
}
