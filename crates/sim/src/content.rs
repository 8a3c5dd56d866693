//! Bytes that a value is made of, so that whoever reads them knows whose they are.

use bytes::Bytes;
use larder_env::SeededRng;

/// The bytes of a value.
pub(crate) fn content(value: u64, len: usize) -> Bytes {
    let mut rng = SeededRng::new(value);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Whether the pieces are the bytes of a value of that size.
pub(crate) fn matches(value: u64, size: u64, pieces: &[Bytes]) -> bool {
    let expected = content(value, size as usize);
    let mut rest = &expected[..];
    for piece in pieces {
        match rest.split_at_checked(piece.len()) {
            Some((head, tail)) if head == &piece[..] => rest = tail,
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Tags that carry a number.
pub(crate) fn tags(number: u64) -> Vec<(String, String)> {
    vec![("n".to_owned(), number.to_string())]
}

/// The number that tags carry; 0 for none.
pub(crate) fn tags_number(tags: &[(String, String)]) -> u64 {
    tags.first().and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}
