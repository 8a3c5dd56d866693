//! The checksums of S3 that stored objects know: their names, their values as text, and computing them over a body.

use larder_types::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::error;

/// The prefix of all headers that speak of checksums.
pub(crate) const PREFIX: &str = "x-amz-checksum-";

/// All algorithms, in the order in which S3 lists them.
pub(crate) const ALL: [ChecksumAlgorithm; 5] = [
    ChecksumAlgorithm::Crc32,
    ChecksumAlgorithm::Crc32c,
    ChecksumAlgorithm::Crc64Nvme,
    ChecksumAlgorithm::Sha1,
    ChecksumAlgorithm::Sha256,
];

/// The algorithm of S3 if the client names none.
pub(crate) const DEFAULT: ChecksumAlgorithm = ChecksumAlgorithm::Crc64Nvme;

/// S3's name of an algorithm.
pub(crate) fn name(algorithm: ChecksumAlgorithm) -> &'static str {
    match algorithm {
        ChecksumAlgorithm::Crc32 => "CRC32",
        ChecksumAlgorithm::Crc32c => "CRC32C",
        ChecksumAlgorithm::Crc64Nvme => "CRC64NVME",
        ChecksumAlgorithm::Sha1 => "SHA1",
        ChecksumAlgorithm::Sha256 => "SHA256",
    }
}

/// S3's name of a kind.
pub(crate) fn kind_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::FullObject => "FULL_OBJECT",
        ChecksumKind::Composite => "COMPOSITE",
    }
}

/// The header, or trailer, in which an algorithm's value travels.
pub(crate) fn header(algorithm: ChecksumAlgorithm) -> &'static str {
    match algorithm {
        ChecksumAlgorithm::Crc32 => "x-amz-checksum-crc32",
        ChecksumAlgorithm::Crc32c => "x-amz-checksum-crc32c",
        ChecksumAlgorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
        ChecksumAlgorithm::Sha1 => "x-amz-checksum-sha1",
        ChecksumAlgorithm::Sha256 => "x-amz-checksum-sha256",
    }
}

/// Reads a name as S3 writes it.
///
/// # Errors
/// `InvalidRequest` for any other.
pub(crate) fn parse_name(text: &str) -> S3Result<ChecksumAlgorithm> {
    ALL.into_iter().find(|algorithm| name(*algorithm).eq_ignore_ascii_case(text)).ok_or_else(|| {
        error(
            S3ErrorCode::InvalidRequest,
            "Checksum algorithm provided is unsupported. Please try again with any of the valid \
             types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
        )
    })
}

/// Bytes of an algorithm's value.
fn value_bytes(algorithm: ChecksumAlgorithm) -> usize {
    match algorithm {
        ChecksumAlgorithm::Crc32 | ChecksumAlgorithm::Crc32c => 4,
        ChecksumAlgorithm::Crc64Nvme => 8,
        ChecksumAlgorithm::Sha1 => 20,
        ChecksumAlgorithm::Sha256 => 32,
    }
}

/// Reads a value in base64, which may end in `-N` as composite ones do.
///
/// # Errors
/// `InvalidRequest` if it is not a value of this algorithm.
pub(crate) fn parse_value(algorithm: ChecksumAlgorithm, text: &str) -> S3Result<Vec<u8>> {
    let base64 = text.split_once('-').map_or(text, |(value, _)| value);
    base64_simd::STANDARD
        .decode_to_vec(base64)
        .ok()
        .filter(|value| value.len() == value_bytes(algorithm))
        .ok_or_else(|| {
            error(
                S3ErrorCode::InvalidRequest,
                format!("Value for {} header is invalid.", header(algorithm)),
            )
        })
}

/// A stored checksum as S3 shows it.
pub(crate) fn text(checksum: &ObjectChecksum) -> String {
    use std::fmt::Write;
    let mut text = base64_simd::STANDARD.encode_to_string(&checksum.value);
    if let (ChecksumKind::Composite, Some(parts)) = (checksum.kind, checksum.parts) {
        let _ = write!(text, "-{parts}");
    }
    text
}

/// A checksum being computed.
pub(crate) enum Hasher {
    Crc32(Crc32),
    Crc32c(Crc32c),
    Crc64Nvme(Crc64Nvme),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Hasher {
    pub(crate) fn new(algorithm: ChecksumAlgorithm) -> Self {
        match algorithm {
            ChecksumAlgorithm::Crc32 => Self::Crc32(Crc32::new()),
            ChecksumAlgorithm::Crc32c => Self::Crc32c(Crc32c::new()),
            ChecksumAlgorithm::Crc64Nvme => Self::Crc64Nvme(Crc64Nvme::new()),
            ChecksumAlgorithm::Sha1 => Self::Sha1(Sha1::new()),
            ChecksumAlgorithm::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc32(hasher) => hasher.update(data),
            Self::Crc32c(hasher) => hasher.update(data),
            Self::Crc64Nvme(hasher) => hasher.update(data),
            Self::Sha1(hasher) => hasher.update(data),
            Self::Sha256(hasher) => hasher.update(data),
        }
    }

    /// The value, big-endian.
    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc32(hasher) => hasher.finalize().to_vec(),
            Self::Crc32c(hasher) => hasher.finalize().to_vec(),
            Self::Crc64Nvme(hasher) => hasher.finalize().to_vec(),
            Self::Sha1(hasher) => hasher.finalize().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
        }
    }
}

/// Puts a checksum into the one of a message's five fields that is for it.
macro_rules! show_checksum {
    ($message:expr, $checksum:expr) => {{
        let checksum: &larder_types::ObjectChecksum = $checksum;
        let text = Some($crate::digest::checksums::text(checksum));
        match checksum.algorithm {
            larder_types::ChecksumAlgorithm::Crc32 => $message.checksum_crc32 = text,
            larder_types::ChecksumAlgorithm::Crc32c => $message.checksum_crc32c = text,
            larder_types::ChecksumAlgorithm::Crc64Nvme => $message.checksum_crc64nvme = text,
            larder_types::ChecksumAlgorithm::Sha1 => $message.checksum_sha1 = text,
            larder_types::ChecksumAlgorithm::Sha256 => $message.checksum_sha256 = text,
        }
    }};
}
pub(crate) use show_checksum;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(algorithm: ChecksumAlgorithm, data: &[u8]) -> String {
        let mut hasher = Hasher::new(algorithm);
        for piece in data.chunks(4) {
            hasher.update(piece);
        }
        base64_simd::STANDARD.encode_to_string(hasher.finish())
    }

    #[test]
    fn values_are_those_of_the_published_test_vectors() {
        let digits = b"123456789";
        assert_eq!(of(ChecksumAlgorithm::Crc32, digits), "y/Q5Jg==");
        assert_eq!(of(ChecksumAlgorithm::Crc32c, digits), "4waSgw==");
        assert_eq!(of(ChecksumAlgorithm::Crc64Nvme, digits), "rosUhgp5mIg=");
        assert_eq!(of(ChecksumAlgorithm::Sha1, digits), "98O8HYCOBHMq32eZZczDTKeuNEE=");
        assert_eq!(
            of(ChecksumAlgorithm::Sha256, digits),
            "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="
        );
    }

    #[test]
    fn composite_values_show_their_parts() {
        let checksum = ObjectChecksum {
            algorithm: ChecksumAlgorithm::Crc32,
            kind: ChecksumKind::Composite,
            value: vec![0xcb, 0xf4, 0x39, 0x26],
            parts: Some(3),
        };
        assert_eq!(text(&checksum), "y/Q5Jg==-3");
        let back = parse_value(ChecksumAlgorithm::Crc32, "y/Q5Jg==-3").unwrap();
        assert_eq!(back, checksum.value);
    }
}
