//! Verifies the digests of request bodies that the protocol library reads by itself: XML.
//!
//! The library parses such a body before an operation sees it, and ignores its digests. This watch stands in front of it
//! and digests what passes. If the
//! digests are not those announced, it ends the stream in an error, so that the operation never runs.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use larder_objects::BodyError;
use s3s::{S3Error, S3Result};

use crate::body::sent::Sent;
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

/// The digests that a request announces of its XML body.
pub(crate) struct Expectation {
    md5: Option<[u8; 16]>,
    checksum: Announced,
    sent: Sent,
    /// Bytes after which the body ends, unless that is for its framing to say.
    len: Option<u64>,
}

impl Expectation {
    /// `None` if nothing is announced. In a completion, checksum headers speak of the object.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` if an announcement is malformed.
    pub(crate) fn of(
        headers: &HeaderMap,
        op: &str,
        sent: Sent,
        is_chunked: bool,
    ) -> S3Result<Option<Self>> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let md5 = header("content-md5").map(parse_md5).transpose()?;
        let mut checksum = Announced::nothing();
        if op != "CompleteMultipartUpload" {
            let given =
                checksums::ALL.map(|algorithm| (algorithm, header(checksums::header(algorithm))));
            let trailer = header("x-amz-trailer").filter(|_| is_chunked);
            checksum = Announced::of(&given, verified_given(headers)?, None, trailer)?;
        }
        let len = header(CONTENT_LENGTH.as_str()).and_then(|len| len.parse().ok());
        let len = len.filter(|_| !is_chunked);
        let has_checksum = *checksum.expected().1 != Expected::Nothing;
        let announced = md5.is_some() || has_checksum || sent.hash.is_some();
        Ok(announced.then_some(Self { md5, checksum, sent, len }))
    }

    fn compare(&self, digests: Digests) -> Result<(), Differs> {
        let digested = digests.finish();
        if self.sent.hash.is_some_and(|expected| !digested.is_sha256(&expected)) {
            return Err(Differs::Payload);
        }
        let trailer = || {
            let trailers = self.sent.trailers.get()?;
            self.checksum.trailer(trailers)?.ok()
        };
        let is_checksum = match self.checksum.expected().1 {
            Expected::Nothing => true,
            Expected::Value(value) => digested.value() == Some(value),
            Expected::Trailer => trailer().is_some_and(|value| digested.value() == Some(&value)),
        };
        let is_md5 = self.md5.is_none_or(|expected| expected == digested.digest.md5);
        if is_checksum && is_md5 { Ok(()) } else { Err(Differs::Digest) }
    }
}

/// Verifies a body's digests as it passes.
pub(crate) struct Digested {
    /// `None` once they are verified.
    digests: Option<Digests>,
    expectation: Expectation,
    received: u64,
}

impl Digested {
    pub(crate) fn new(expectation: Expectation) -> Self {
        let digests = Digests::new(&expectation.checksum);
        let is_hashed = expectation.sent.hash.is_some();
        let digests = Some(if is_hashed { digests.with_sha256() } else { digests });
        Self { digests, expectation, received: 0 }
    }

    fn verify(&mut self) -> Result<(), Differs> {
        self.digests.take().map_or(Ok(()), |digests| self.expectation.compare(digests))
    }
}

impl Watch for Digested {
    type Fault = Differs;

    /// The digests are verified with the last announced byte: the library looks no further.
    fn look(&mut self, piece: &[u8]) -> Result<(), Differs> {
        if let Some(digests) = &mut self.digests {
            digests.update(piece);
        }
        self.received += piece.len() as u64;
        if self.expectation.len == Some(self.received) { self.verify() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<(), Differs> {
        self.verify()
    }

    fn has_ended(&self) -> bool {
        self.digests.is_none()
    }
}
