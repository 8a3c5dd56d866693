//! The digests of a body: MD5 and its checksum, over the same bytes, each looked at once while it is in cache.

use bytes::Bytes;
use larder_objects::BodyDigest;
use larder_types::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::announced::Announced;
use super::checksums::Hasher;
use super::lanes::Chained;
use super::verified;
use crate::errors::{elements, error};

/// MD5 and one checksum over the same bytes; the SHA-256 that a request signs, and seldom one more checksum, are only
/// verified.
pub(crate) struct Digests {
    /// MD5, and the SHA-256 that is signed or is the checksum.
    chained: Chained,
    /// Unless it is the SHA-256 among the chained.
    checksum: Option<Hasher>,
    verified: Option<Box<verified::Hasher>>,
    algorithm: ChecksumAlgorithm,
}

impl Digests {
    pub(crate) fn new(announced: &Announced) -> Self {
        let algorithm = announced.algorithm;
        let verified = announced.verified.as_ref();
        let verified = verified.map(|(algorithm, _)| Box::new(verified::Hasher::new(*algorithm)));
        let (chained, checksum) = match algorithm {
            ChecksumAlgorithm::Sha256 => (Chained::default().with_sha256(), None),
            other => (Chained::default(), Some(Hasher::new(other))),
        };
        Self { chained, checksum, verified, algorithm }
    }

    /// Has the SHA-256 computed, too. Nothing has been digested yet.
    pub(crate) fn with_sha256(self) -> Self {
        Self { chained: self.chained.with_sha256(), ..self }
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.update_checksums(piece);
        self.chained.update(piece);
    }

    fn update_checksums(&mut self, piece: &[u8]) {
        if let Some(checksum) = &mut self.checksum {
            checksum.update(piece);
        }
        if let Some(verified) = &mut self.verified {
            verified.update(piece);
        }
    }

    /// The same in the company of other requests' pieces.
    pub(crate) async fn update_in_company(&mut self, piece: &Bytes) {
        self.update_checksums(piece);
        self.chained.update_in_company(piece).await;
    }

    pub(crate) fn finish(self) -> Digested {
        let (md5, sha256) = self.chained.finish();
        let value = match self.checksum {
            Some(checksum) => Some(checksum.finish()),
            None => sha256.map(|sha256| sha256.to_vec()),
        };
        let checksum = value.map(|value| full_object(self.algorithm, value));
        let verified = self.verified.map(|hasher| hasher.finish(&md5));
        Digested { digest: BodyDigest { md5, checksum }, verified, sha256 }
    }
}

/// The digests of a body.
pub(crate) struct Digested {
    /// Those that are stored.
    pub(crate) digest: BodyDigest,
    /// A value that is only verified.
    verified: Option<Vec<u8>>,
    sha256: Option<[u8; 32]>,
}

impl Digested {
    /// The SHA-256 of the bytes, if it was computed.
    pub(crate) fn sha256(&self) -> Option<[u8; 32]> {
        self.sha256
    }

    /// The value that is compared with the announced one.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        let stored = || self.digest.checksum.as_ref().map(|checksum| &checksum.value);
        self.verified.as_ref().or_else(stored).map(|value| &value[..])
    }
}

/// A checksum of all bytes.
pub(crate) fn whole(algorithm: ChecksumAlgorithm, hasher: Hasher) -> ObjectChecksum {
    full_object(algorithm, hasher.finish())
}

fn full_object(algorithm: ChecksumAlgorithm, value: Vec<u8>) -> ObjectChecksum {
    ObjectChecksum { algorithm, kind: ChecksumKind::FullObject, value, parts: None }
}

/// The value of a `Content-MD5` header.
///
/// # Errors
/// `InvalidDigest` if it is not 16 bytes in base64.
pub(crate) fn parse_md5(header: &str) -> S3Result<[u8; 16]> {
    base64_simd::STANDARD
        .decode_to_vec(header)
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| invalid_md5(header))
}

/// A `Content-MD5` that is none.
pub(crate) fn invalid_md5(header: &str) -> S3Error {
    let message = "The Content-MD5 you specified was invalid.";
    let invalid = error(S3ErrorCode::InvalidDigest, message);
    elements::with(invalid, [("Content-MD5", header.to_owned())])
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn the_signed_hash_is_that_of_the_same_bytes_whatever_the_checksum() {
        for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Sha256] {
            let announced = Announced { algorithm, ..Announced::nothing() };
            let mut digests = Digests::new(&announced).with_sha256();
            digests.update(b"hello");
            let digested = digests.finish();
            assert_eq!(digested.sha256(), Some(Sha256::digest(b"hello").into()));
        }
    }

    #[test]
    fn a_content_md5_is_16_bytes() {
        for header in ["", "AAAA", "JfnnlDI7RTiF9RgfG2JNC", "%%%"] {
            assert_eq!(parse_md5(header).unwrap_err().code(), &S3ErrorCode::InvalidDigest);
        }
    }
}
