//! The digests of a body: MD5 and its checksum, over the same bytes, each looked at once while it is in cache.

use bytes::Bytes;
use larder_md5::Md5;
use larder_objects::BodyDigest;
use larder_types::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha2::{Digest, Sha256};

use super::announced::Announced;
use super::checksums::Hasher;
use super::{lanes, verified};
use crate::errors::{elements, error};

/// MD5 and one checksum over the same bytes; the SHA-256 that a request signs, and seldom one more checksum, are only
/// verified.
pub(crate) struct Digests {
    md5: Md5,
    checksum: Hasher,
    verified: Option<Box<verified::Hasher>>,
    /// Of a body whose hash is signed, unless that is its checksum.
    signed: Option<Sha256>,
    algorithm: ChecksumAlgorithm,
}

impl Digests {
    pub(crate) fn new(announced: &Announced) -> Self {
        let algorithm = announced.algorithm;
        let verified = announced.verified.as_ref();
        let verified = verified.map(|(algorithm, _)| Box::new(verified::Hasher::new(*algorithm)));
        let (md5, checksum) = (Md5::default(), Hasher::new(algorithm));
        Self { md5, checksum, verified, signed: None, algorithm }
    }

    /// Has the SHA-256 computed, too.
    pub(crate) fn with_sha256(mut self) -> Self {
        let is_checksum = self.algorithm == ChecksumAlgorithm::Sha256;
        self.signed = (!is_checksum).then(Sha256::new);
        self
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.update_checksums(piece);
        self.md5.update(piece);
    }

    fn update_checksums(&mut self, piece: &[u8]) {
        self.checksum.update(piece);
        if let Some(verified) = &mut self.verified {
            verified.update(piece);
        }
        if let Some(signed) = &mut self.signed {
            signed.update(piece);
        }
    }

    /// The same in the company of other requests' pieces.
    pub(crate) async fn update_in_company(&mut self, piece: &Bytes) {
        self.update_checksums(piece);
        lanes::update(&mut self.md5, piece).await;
    }

    pub(crate) fn finish(self) -> Digested {
        let digest = BodyDigest {
            md5: self.md5.finish(),
            checksum: Some(whole(self.algorithm, self.checksum)),
        };
        let verified = self.verified.map(|hasher| hasher.finish(&digest.md5));
        Digested { digest, verified, signed: self.signed.map(|hasher| hasher.finalize().into()) }
    }
}

/// The digests of a body.
pub(crate) struct Digested {
    /// Those that are stored.
    pub(crate) digest: BodyDigest,
    /// A value that is only verified.
    verified: Option<Vec<u8>>,
    signed: Option<[u8; 32]>,
}

impl Digested {
    /// True if the bytes have this SHA-256, which was computed.
    pub(crate) fn is_sha256(&self, hash: &[u8; 32]) -> bool {
        let checksum = || self.digest.checksum.as_ref().map(|checksum| &checksum.value[..]);
        self.signed.as_ref().map(|signed| &signed[..]).or_else(checksum) == Some(&hash[..])
    }

    /// The value that is compared with the announced one.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        let stored = || self.digest.checksum.as_ref().map(|checksum| &checksum.value);
        self.verified.as_ref().or_else(stored).map(|value| &value[..])
    }
}

/// A checksum of all bytes.
pub(crate) fn whole(algorithm: ChecksumAlgorithm, hasher: Hasher) -> ObjectChecksum {
    let value = hasher.finish();
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
    use super::*;

    #[test]
    fn the_signed_hash_is_that_of_the_same_bytes_whatever_the_checksum() {
        for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Sha256] {
            let announced = Announced { algorithm, ..Announced::nothing() };
            let mut digests = Digests::new(&announced).with_sha256();
            digests.update(b"hello");
            let digested = digests.finish();
            assert!(digested.is_sha256(&Sha256::digest(b"hello").into()));
            assert!(!digested.is_sha256(&Sha256::digest(b"hullo").into()));
        }
    }

    #[test]
    fn a_content_md5_is_16_bytes() {
        for header in ["", "AAAA", "JfnnlDI7RTiF9RgfG2JNC", "%%%"] {
            assert_eq!(parse_md5(header).unwrap_err().code(), &S3ErrorCode::InvalidDigest);
        }
    }
}
