//! Continuation tokens: opaque to clients, and good for any server of the cluster at any time.

use s3s::{S3ErrorCode, S3Result};

use crate::errors::{elements, error};

/// First byte of a token: the version of its form.
const V1: u8 = 1;

/// The token of the page after `last`.
pub(crate) fn encode(last: &str) -> String {
    let mut bytes = Vec::with_capacity(1 + last.len());
    bytes.push(V1);
    bytes.extend_from_slice(last.as_bytes());
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes)
}

/// Returns what [`encode`] was given.
///
/// # Errors
/// `InvalidArgument` for anything that it did not make.
pub(crate) fn decode(token: &str) -> S3Result<String> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok();
    let last = bytes.and_then(|bytes| match bytes.split_first() {
        Some((&V1, last)) if !last.is_empty() => String::from_utf8(last.to_vec()).ok(),
        _ => None,
    });
    last.ok_or_else(|| {
        let message = "The continuation token provided is incorrect";
        let argument = [("ArgumentName", "continuation-token".to_owned())];
        elements::with(error(S3ErrorCode::InvalidArgument, message), argument)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_read_back(last in ".{1,40}") {
            prop_assert_eq!(decode(&encode(&last)).unwrap(), last);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for token in ["", "a", "%%%", "AQ", "AmE", "Af8", "foo bar"] {
            assert!(decode(token).is_err(), "{token}");
        }
    }
}
