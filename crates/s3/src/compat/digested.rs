//! Verifies the digests of request bodies that the protocol library reads by itself: XML.
//!
//! The library parses such a body before an operation sees it. It ignores its digests but for the hash that is signed,
//! whose mismatch it takes for a fault of its own. This watch stands in front of it and digests what passes. If the
//! digests are not those announced, it ends the stream in an error, so that the operation never runs.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use larder_objects::BodyError;
use s3s::crypto::{Checksum as _, Sha256};
use s3s::{S3Error, S3Result};

use crate::body::watched::Watch;
use crate::digest::announced::{Announced, Expected, verified_given};
use crate::digest::checksums;
use crate::digest::digests::{Digests, parse_md5};
use crate::errors;

/// A digest that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Differs {
    /// The hash that is signed.
    #[error("the body is not the one whose hash was signed")]
    Payload,
    /// The MD5 or a checksum.
    #[error("the body's digest is not the one announced")]
    Digest,
}

impl Differs {
    /// The answer to it.
    pub(crate) fn refusal(self) -> S3Error {
        match self {
            Self::Payload => errors::payload_mismatch(),
            Self::Digest => errors::from_body(BodyError::BadDigest),
        }
    }
}

/// The hash of a body that its request signs.
pub(crate) fn payload_hash(headers: &HeaderMap) -> Option<[u8; 32]> {
    let text = headers.get("x-amz-content-sha256")?.as_bytes();
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    let digit = |byte: u8| (byte as char).to_digit(16);
    let mut hash = [0; 32];
    if pairs.len() != hash.len() {
        return None;
    }
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = (digit(*high)? * 16 + digit(*low)?) as u8;
    }
    Some(hash)
}

/// The digests that a request's headers announce of its XML body.
pub(crate) struct Expectation {
    md5: Option<[u8; 16]>,
    checksum: Announced,
    payload: Option<[u8; 32]>,
    len: Option<u64>,
}

impl Expectation {
    /// `None` if nothing is announced. In a completion, checksum headers speak of the object.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` if an announcement is malformed.
    pub(crate) fn of(headers: &HeaderMap, op: &str) -> S3Result<Option<Self>> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let md5 = header("content-md5").map(parse_md5).transpose()?;
        let mut checksum = Announced::nothing();
        if op != "CompleteMultipartUpload" {
            let given =
                checksums::ALL.map(|algorithm| (algorithm, header(checksums::header(algorithm))));
            checksum = Announced::of(&given, verified_given(headers)?, None, None)?;
        }
        let payload = payload_hash(headers);
        let len = header(CONTENT_LENGTH.as_str()).and_then(|len| len.parse().ok());
        let expectation = Self { md5, checksum, payload, len };
        let announced = payload.is_some() || expectation.has_digests();
        Ok(announced.then_some(expectation))
    }

    fn has_digests(&self) -> bool {
        self.md5.is_some() || *self.checksum.expected().1 != Expected::Nothing
    }
}

/// Verifies a body's digests as it passes.
pub(crate) struct Digested {
    digests: Option<Digests>,
    payload: Option<Sha256>,
    expectation: Expectation,
    received: u64,
    verified: bool,
}

impl Digested {
    pub(crate) fn new(expectation: Expectation) -> Self {
        let digests = expectation.has_digests().then(|| Digests::new(&expectation.checksum));
        let payload = expectation.payload.map(|_| Sha256::new());
        Self { digests, payload, expectation, received: 0, verified: false }
    }

    fn verify(&mut self) -> Result<(), Differs> {
        if std::mem::replace(&mut self.verified, true) {
            return Ok(());
        }
        let payload = self.payload.take().map(Sha256::finalize);
        let expected = &self.expectation;
        if payload != expected.payload {
            return Err(Differs::Payload);
        }
        let differs = self.digests.take().is_some_and(|digests| !expected.holds(digests));
        if differs { Err(Differs::Digest) } else { Ok(()) }
    }
}

impl Watch for Digested {
    type Fault = Differs;

    /// The digests are verified with the last announced byte: the library looks no further.
    fn look(&mut self, piece: &[u8]) -> Result<(), Differs> {
        if let Some(digests) = &mut self.digests {
            digests.update(piece);
        }
        if let Some(payload) = &mut self.payload {
            payload.update(piece);
        }
        self.received += piece.len() as u64;
        if self.expectation.len == Some(self.received) { self.verify() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<(), Differs> {
        self.verify()
    }

    fn has_ended(&self) -> bool {
        self.verified
    }
}

impl Expectation {
    fn holds(&self, digests: Digests) -> bool {
        let digested = digests.finish();
        let checksum = match self.checksum.expected().1 {
            Expected::Value(value) => digested.value() == Some(value),
            Expected::Nothing | Expected::Trailer => true,
        };
        checksum && self.md5.is_none_or(|expected| expected == digested.digest.md5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_hash_is_64_hexadecimal_digits() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-amz-content-sha256", text.parse().unwrap());
            payload_hash(&headers)
        };
        assert_eq!(of(&"0F".repeat(32)), Some([15; 32]));
        for other in ["UNSIGNED-PAYLOAD", "", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
