//! S3's checksums: computing them over a body, and finding what a client announced.

use http::HeaderMap;
use larder_types::{ChecksumAlgorithm, ChecksumKind, ObjectChecksum};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::error;

/// All algorithms, in the order in which S3 lists them.
pub(crate) const ALL: [ChecksumAlgorithm; 5] = [
    ChecksumAlgorithm::Crc32,
    ChecksumAlgorithm::Crc32c,
    ChecksumAlgorithm::Crc64Nvme,
    ChecksumAlgorithm::Sha1,
    ChecksumAlgorithm::Sha256,
];

/// What S3 stores when the client names no algorithm.
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

/// Where the value to verify against comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nowhere: it is only computed.
    Nothing,
    /// A header gave it.
    Value(Vec<u8>),
    /// It follows the body.
    Trailer,
}

/// What a client says about the checksum of a body it sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Which.
    pub(crate) algorithm: ChecksumAlgorithm,
    /// Its value.
    pub(crate) expected: Expected,
    /// Whether the client named the algorithm and so gets the value back.
    pub(crate) asked: bool,
}

impl Announced {
    /// No word about checksums: the default is computed and stored.
    pub(crate) fn nothing() -> Self {
        Self { algorithm: DEFAULT, expected: Expected::Nothing, asked: false }
    }

    /// The value that came as a trailer, if one was announced.
    pub(crate) fn trailer<'t>(&self, trailers: &'t HeaderMap) -> Option<&'t str> {
        trailers.get(header(self.algorithm))?.to_str().ok()
    }
}

/// Values given in checksum headers (or fields), one slot per algorithm.
pub(crate) type Given<'g> = [(ChecksumAlgorithm, Option<&'g str>); 5];

/// Collects a message's five checksum fields.
macro_rules! given_checksums {
    ($message:expr) => {
        [
            (larder_types::ChecksumAlgorithm::Crc32, $message.checksum_crc32.as_deref()),
            (larder_types::ChecksumAlgorithm::Crc32c, $message.checksum_crc32c.as_deref()),
            (larder_types::ChecksumAlgorithm::Crc64Nvme, $message.checksum_crc64nvme.as_deref()),
            (larder_types::ChecksumAlgorithm::Sha1, $message.checksum_sha1.as_deref()),
            (larder_types::ChecksumAlgorithm::Sha256, $message.checksum_sha256.as_deref()),
        ]
    };
}
pub(crate) use given_checksums;

/// Puts a checksum into the one of a message's five fields that is for it.
macro_rules! show_checksum {
    ($message:expr, $checksum:expr) => {{
        let checksum: &larder_types::ObjectChecksum = $checksum;
        let text = Some($crate::checksums::text(checksum));
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

/// The one value among `given`.
///
/// # Errors
/// `InvalidRequest` if there are several, or it is not a value.
pub(crate) fn single(given: &Given<'_>) -> S3Result<Option<(ChecksumAlgorithm, Vec<u8>)>> {
    let mut found = None;
    for (algorithm, text) in given {
        let Some(text) = text else { continue };
        if found.is_some() {
            return Err(error(
                S3ErrorCode::InvalidRequest,
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
            ));
        }
        found = Some((*algorithm, parse_value(*algorithm, text)?));
    }
    Ok(found)
}

/// What a client announces, from its values, the algorithm it names, and the trailers it names.
///
/// # Errors
/// `InvalidRequest` if these contradict each other or name what does not exist.
pub(crate) fn announced(
    given: &Given<'_>,
    named: Option<&str>,
    trailer: Option<&str>,
) -> S3Result<Announced> {
    let named = named.map(parse_name).transpose()?;
    let contradiction = |algorithm| named.is_some_and(|named| named != algorithm);
    if let Some((algorithm, value)) = single(given)? {
        if contradiction(algorithm)
            || trailer.is_some_and(|names| names.contains("x-amz-checksum-"))
        {
            return Err(error(
                S3ErrorCode::InvalidRequest,
                "Value for x-amz-sdk-checksum-algorithm header is invalid.",
            ));
        }
        return Ok(Announced { algorithm, expected: Expected::Value(value), asked: true });
    }
    if let Some(names) = trailer {
        let algorithm = ALL.into_iter().find(|algorithm| {
            names.split(',').any(|name| name.trim().eq_ignore_ascii_case(header(*algorithm)))
        });
        return match algorithm {
            Some(algorithm) if !contradiction(algorithm) => {
                Ok(Announced { algorithm, expected: Expected::Trailer, asked: true })
            }
            _ => Err(error(
                S3ErrorCode::InvalidRequest,
                "The value specified in the x-amz-trailer header is not supported",
            )),
        };
    }
    Ok(match named {
        Some(algorithm) => Announced { algorithm, expected: Expected::Nothing, asked: true },
        None => Announced::nothing(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Given<'static> = [
        (ChecksumAlgorithm::Crc32, None),
        (ChecksumAlgorithm::Crc32c, None),
        (ChecksumAlgorithm::Crc64Nvme, None),
        (ChecksumAlgorithm::Sha1, None),
        (ChecksumAlgorithm::Sha256, None),
    ];

    fn with(index: usize, text: &'static str) -> Given<'static> {
        let mut given = NONE;
        given[index].1 = Some(text);
        given
    }

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
    fn a_value_in_a_header_is_expected() {
        let announced = announced(&with(0, "y/Q5Jg=="), Some("crc32"), None).unwrap();
        assert_eq!(announced.algorithm, ChecksumAlgorithm::Crc32);
        assert_eq!(announced.expected, Expected::Value(vec![0xcb, 0xf4, 0x39, 0x26]));
        assert!(announced.asked);
    }

    #[test]
    fn a_trailer_or_a_name_alone_says_what_to_compute() {
        let trailer = announced(&NONE, None, Some("X-Amz-Checksum-SHA1")).unwrap();
        assert_eq!(trailer.algorithm, ChecksumAlgorithm::Sha1);
        assert_eq!(trailer.expected, Expected::Trailer);
        let named = announced(&NONE, Some("SHA256"), None).unwrap();
        assert_eq!(named.algorithm, ChecksumAlgorithm::Sha256);
        assert_eq!(named.expected, Expected::Nothing);
        assert_eq!(announced(&NONE, None, None).unwrap(), Announced::nothing());
    }

    #[test]
    fn contradictions_are_refused() {
        let mut two = with(0, "y/Q5Jg==");
        two[1].1 = Some("4waSgw==");
        for (given, named, trailer) in [
            (two, None, None),
            (with(0, "y/Q5Jg=="), Some("SHA1"), None),
            (with(0, "y/Q5Jg=="), None, Some("x-amz-checksum-crc32")),
            (with(0, "not base64"), None, None),
            (with(0, "AAAA"), None, None),
            (NONE, Some("MD5"), None),
            (NONE, None, Some("x-amz-other")),
            (NONE, Some("SHA1"), Some("x-amz-checksum-crc32")),
        ] {
            assert!(announced(&given, named, trailer).is_err(), "{given:?} {named:?} {trailer:?}");
        }
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
