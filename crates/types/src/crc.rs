//! S3's CRCs: of bytes, and of bytes of which only the CRCs of two halves are known.

use crc_fast::CrcAlgorithm;

use crate::metax::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};

/// The CRC of bytes, big-endian as S3 has it; `None` for algorithms that are no CRC.
#[must_use]
pub fn of(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> Option<Vec<u8>> {
    let (crc, width) = parameters(algorithm)?;
    Some(shown(crc_fast::checksum(crc, bytes), width))
}

/// The CRC of bytes from the CRC of their beginning, and CRC and length of what follows; `None` for algorithms
/// that are no CRC.
#[must_use]
pub fn combined(
    algorithm: ChecksumAlgorithm,
    first: &[u8],
    next: &[u8],
    next_len: u64,
) -> Option<Vec<u8>> {
    let (crc, width) = parameters(algorithm)?;
    let number = |value: &[u8]| value.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    Some(shown(crc_fast::checksum_combine(crc, number(first), number(next), next_len), width))
}

impl ObjectChecksum {
    /// The checksum of an object after an append of bytes with the checksum `next`: known if both are CRCs of one
    /// kind over all their bytes.
    #[must_use]
    pub fn followed_by(&self, next: &Self, next_len: u64) -> Option<Self> {
        let covers_all = |sum: &Self| sum.kind == ChecksumKind::FullObject;
        if self.algorithm != next.algorithm || !covers_all(self) || !covers_all(next) {
            return None;
        }
        let value = combined(self.algorithm, &self.value, &next.value, next_len)?;
        Some(Self { value, ..self.clone() })
    }
}

fn parameters(algorithm: ChecksumAlgorithm) -> Option<(CrcAlgorithm, usize)> {
    match algorithm {
        ChecksumAlgorithm::Crc32 => Some((CrcAlgorithm::Crc32IsoHdlc, 4)),
        ChecksumAlgorithm::Crc32c => Some((CrcAlgorithm::Crc32Iscsi, 4)),
        ChecksumAlgorithm::Crc64Nvme => Some((CrcAlgorithm::Crc64Nvme, 8)),
        ChecksumAlgorithm::Sha1 | ChecksumAlgorithm::Sha256 => None,
    }
}

fn shown(value: u64, width: usize) -> Vec<u8> {
    value.to_be_bytes()[8 - width..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> ObjectChecksum {
        let value = of(algorithm, bytes).unwrap_or_default();
        ObjectChecksum { algorithm, kind: ChecksumKind::FullObject, value, parts: None }
    }

    #[test]
    fn an_append_has_the_crc_of_all_bytes() {
        use ChecksumAlgorithm::{Crc32, Crc32c, Crc64Nvme};
        for algorithm in [Crc32, Crc32c, Crc64Nvme] {
            for (first, next) in [("123456", "789"), ("", "123456789"), ("12345678", "9")] {
                let next_len = next.len() as u64;
                let next = whole(algorithm, next.as_bytes());
                let made = whole(algorithm, first.as_bytes()).followed_by(&next, next_len);
                assert_eq!(made, Some(whole(algorithm, b"123456789")));
            }
        }
    }

    #[test]
    fn what_is_no_crc_of_all_bytes_is_not_known_after_an_append() {
        let crc = whole(ChecksumAlgorithm::Crc32, b"a");
        let sha = whole(ChecksumAlgorithm::Sha256, b"a");
        let composite = ObjectChecksum { kind: ChecksumKind::Composite, ..crc.clone() };
        assert_eq!(sha.followed_by(&sha, 1), None);
        assert_eq!(crc.followed_by(&whole(ChecksumAlgorithm::Crc32c, b"a"), 1), None);
        assert_eq!(composite.followed_by(&crc, 1), None);
        assert_eq!(crc.followed_by(&composite, 1), None);
    }
}
