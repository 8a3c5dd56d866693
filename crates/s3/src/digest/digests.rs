//! The digests of a body: MD5 and its checksum, over the same bytes, each looked at once while it is in cache.

use bytes::Bytes;
use larder_md5::Md5;
use larder_objects::BodyDigest;
use larder_types::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};
use s3s::{S3ErrorCode, S3Result};

use super::announced::Announced;
use super::checksums::Hasher;
use super::{lanes, verified};
use crate::errors::error;

/// MD5 and one checksum over the same bytes; seldom one more, which is only verified.
pub(crate) struct Digests {
    md5: Md5,
    checksum: Hasher,
    verified: Option<Box<verified::Hasher>>,
    algorithm: ChecksumAlgorithm,
}

impl Digests {
    pub(crate) fn new(announced: &Announced) -> Self {
        let algorithm = announced.algorithm;
        let verified = announced.verified.as_ref();
        let verified = verified.map(|(algorithm, _)| Box::new(verified::Hasher::new(*algorithm)));
        Self { md5: Md5::default(), checksum: Hasher::new(algorithm), verified, algorithm }
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
        Digested { digest, verified }
    }
}

/// The digests of a body.
pub(crate) struct Digested {
    /// Those that are stored.
    pub(crate) digest: BodyDigest,
    /// A value that is only verified.
    verified: Option<Vec<u8>>,
}

impl Digested {
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
        .ok_or_else(|| {
            error(S3ErrorCode::InvalidDigest, "The Content-MD5 you specified is invalid.")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_md5_is_16_bytes() {
        for header in ["", "AAAA", "JfnnlDI7RTiF9RgfG2JNC", "%%%"] {
            assert_eq!(parse_md5(header).unwrap_err().code(), &S3ErrorCode::InvalidDigest);
        }
    }
}
