//! Request ids: unique within a run of the server, unlikely to repeat between runs.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// The header in which a client gets the id.
pub(crate) const X_AMZ_REQUEST_ID: &str = "x-amz-request-id";

/// The id of one request, shown as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId(u64);

impl RequestId {
    pub(crate) fn header(self) -> HeaderValue {
        let mut text = [0; 16];
        for (index, digit) in text.iter_mut().enumerate() {
            *digit = b"0123456789ABCDEF"[(self.0 >> (60 - 4 * index) & 15) as usize];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

/// Hands out ids.
#[derive(Debug)]
pub(crate) struct RequestIds(AtomicU64);

impl RequestIds {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(std::process::id())))
    }

    /// Multiplying by an odd number maps different counts to different, dissimilar ids.
    pub(crate) fn next(&self) -> RequestId {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        RequestId(count.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_the_same_in_header_and_log() {
        let ids = RequestIds::new();
        let (first, second) = (ids.next(), ids.next());
        assert_ne!(first, second);
        assert_eq!(first.header().to_str().unwrap(), first.to_string());
    }
}
