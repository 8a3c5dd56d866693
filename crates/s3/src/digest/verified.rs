//! Checksums that are verified and not stored: those that S3 takes beside the five of
//! [`larder_types::ChecksumAlgorithm`], which stored objects know.

use s3s::{S3ErrorCode, S3Result};
use sha2::{Digest, Sha512};
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh64::Xxh64;

use crate::errors::error;

/// An algorithm whose values are verified and not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verified {
    Md5,
    Sha512,
    Xxhash3,
    Xxhash64,
    Xxhash128,
}

impl Verified {
    pub(crate) const ALL: [Self; 5] =
        [Self::Md5, Self::Sha512, Self::Xxhash3, Self::Xxhash64, Self::Xxhash128];

    /// S3's name of the algorithm.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha512 => "SHA512",
            Self::Xxhash3 => "XXHASH3",
            Self::Xxhash64 => "XXHASH64",
            Self::Xxhash128 => "XXHASH128",
        }
    }

    /// The header, or trailer, in which a value travels.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Md5 => "x-amz-checksum-md5",
            Self::Sha512 => "x-amz-checksum-sha512",
            Self::Xxhash3 => "x-amz-checksum-xxhash3",
            Self::Xxhash64 => "x-amz-checksum-xxhash64",
            Self::Xxhash128 => "x-amz-checksum-xxhash128",
        }
    }

    fn value_bytes(self) -> usize {
        match self {
            Self::Xxhash3 | Self::Xxhash64 => 8,
            Self::Md5 | Self::Xxhash128 => 16,
            Self::Sha512 => 64,
        }
    }

    /// Reads a value in base64.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not a value of this algorithm.
    pub(crate) fn parse_value(self, text: &str) -> S3Result<Vec<u8>> {
        let value = base64_simd::STANDARD.decode_to_vec(text).ok();
        value.filter(|value| value.len() == self.value_bytes()).ok_or_else(|| {
            let message = format!("Value for {} header is invalid.", self.header());
            error(S3ErrorCode::InvalidRequest, message)
        })
    }
}

/// A value being computed. The MD5 of a body is computed anyway.
pub(crate) enum Hasher {
    Md5,
    Sha512(Sha512),
    Xxhash3(Xxh3),
    Xxhash64(Xxh64),
    Xxhash128(Xxh3),
}

impl Hasher {
    pub(crate) fn new(algorithm: Verified) -> Self {
        match algorithm {
            Verified::Md5 => Self::Md5,
            Verified::Sha512 => Self::Sha512(Sha512::new()),
            Verified::Xxhash3 => Self::Xxhash3(Xxh3::new()),
            Verified::Xxhash64 => Self::Xxhash64(Xxh64::new(0)),
            Verified::Xxhash128 => Self::Xxhash128(Xxh3::new()),
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Md5 => {}
            Self::Sha512(hasher) => hasher.update(data),
            Self::Xxhash3(hasher) | Self::Xxhash128(hasher) => hasher.update(data),
            Self::Xxhash64(hasher) => hasher.update(data),
        }
    }

    /// The value, big-endian.
    pub(crate) fn finish(self, md5: &[u8; 16]) -> Vec<u8> {
        match self {
            Self::Md5 => md5.to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
            Self::Xxhash3(hasher) => hasher.digest().to_be_bytes().to_vec(),
            Self::Xxhash64(hasher) => hasher.digest().to_be_bytes().to_vec(),
            Self::Xxhash128(hasher) => hasher.digest128().to_be_bytes().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_published_test_vectors() {
        let of = |algorithm: Verified, data: &[u8]| {
            let mut hasher = Hasher::new(algorithm);
            data.chunks(4).for_each(|piece| hasher.update(piece));
            let value = hasher.finish(&[7; 16]);
            assert_eq!(value.len(), algorithm.value_bytes());
            value.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(of(Verified::Xxhash64, b""), "ef46db3751d8e999");
        assert_eq!(of(Verified::Xxhash64, b"123456789"), "8cb841db40e6ae83");
        assert_eq!(of(Verified::Xxhash3, b""), "2d06800538d394c2");
        assert_eq!(of(Verified::Xxhash128, b""), "99aa06d3014798d86001c324468d497f");
        assert!(of(Verified::Sha512, b"abc").starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(of(Verified::Md5, b"abc"), "07".repeat(16));
    }
}
