//! The checksum that a client announces for a body: by a header, by a trailer, or by no more than an algorithm's name.

use http::{HeaderMap, HeaderName, HeaderValue};
use larder_types::ChecksumAlgorithm;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::checksums::{ALL, DEFAULT, PREFIX, header, name, parse_name, parse_value};
use super::verified::Verified;
use crate::errors::error;

/// The ends of checksum headers that give no value.
const ABOUT: [&str; 3] = ["algorithm", "mode", "type"];

/// An algorithm that a client names: of those that are stored, or of those that are only verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Stored(ChecksumAlgorithm),
    Verified(Verified),
}

impl Named {
    fn all() -> impl Iterator<Item = Self> {
        ALL.into_iter().map(Self::Stored).chain(Verified::ALL.into_iter().map(Self::Verified))
    }

    fn header(self) -> &'static str {
        match self {
            Self::Stored(algorithm) => header(algorithm),
            Self::Verified(algorithm) => algorithm.header(),
        }
    }

    fn parse(text: &str) -> S3Result<Self> {
        let verified = Verified::ALL.into_iter();
        match verified.clone().find(|algorithm| algorithm.name().eq_ignore_ascii_case(text)) {
            Some(algorithm) => Ok(Self::Verified(algorithm)),
            None => parse_name(text).map(Self::Stored).map_err(|_| unsupported()),
        }
    }
}

/// Checks one header of any request, if it speaks of checksums.
///
/// # Errors
/// `InvalidRequest` for a checksum that nobody can verify, a value that is nothing,
/// or an algorithm that does not exist.
pub(crate) fn check_header(name: &HeaderName, value: &HeaderValue) -> S3Result<()> {
    let name = name.as_str();
    if name == "x-amz-sdk-checksum-algorithm" || name == "x-amz-checksum-algorithm" {
        let named = value.to_str().unwrap_or_default();
        return if value.is_empty() { Ok(()) } else { Named::parse(named).map(drop) };
    }
    let Some(what) = name.strip_prefix(PREFIX).filter(|what| !ABOUT.contains(what)) else {
        return Ok(());
    };
    let message = match value.is_empty() {
        true => format!("Value for {name} header is invalid."),
        false if Named::all().any(|algorithm| algorithm.header() == name) => return Ok(()),
        false => format!("The header {name} is not supported: no algorithm is called {what}."),
    };
    Err(error(S3ErrorCode::InvalidRequest, message))
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

/// The checksum that a client announces for a body it sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The algorithm.
    pub(crate) algorithm: ChecksumAlgorithm,
    /// Its value.
    pub(crate) expected: Expected,
    /// True if the client named the algorithm and so gets the value back.
    pub(crate) asked: bool,
    /// A value to verify and not to store, beside the default.
    pub(crate) verified: Option<(Verified, Expected)>,
}

impl Announced {
    /// No word about checksums: the default is computed and stored.
    pub(crate) fn nothing() -> Self {
        Self { algorithm: DEFAULT, expected: Expected::Nothing, asked: false, verified: None }
    }

    /// Finds what a client announces, from its values, the algorithm it names, and the trailers it
    /// names.
    ///
    /// # Errors
    /// `InvalidRequest` if these contradict each other or name what does not exist.
    pub(crate) fn of(
        given: &Given<'_>,
        verified: Option<(Verified, Vec<u8>)>,
        named: Option<&str>,
        trailer: Option<&str>,
    ) -> S3Result<Self> {
        let named = named.map(Named::parse).transpose()?;
        let contradiction = |algorithm| named.is_some_and(|named| named != algorithm);
        let invalid = |message: &'static str| Err(error(S3ErrorCode::InvalidRequest, message));
        let value = match (single(given)?, verified) {
            (Some(_), Some(_)) => return Err(multiple()),
            (Some((algorithm, value)), None) => Some((Named::Stored(algorithm), value)),
            (None, Some((algorithm, value))) => Some((Named::Verified(algorithm), value)),
            (None, None) => None,
        };
        if let Some((algorithm, value)) = value {
            if contradiction(algorithm) || trailer.is_some_and(|names| names.contains(PREFIX)) {
                return invalid("Value for x-amz-sdk-checksum-algorithm header is invalid.");
            }
            return Ok(announces(algorithm, Expected::Value(value)));
        }
        if let Some(names) = trailer {
            let algorithm = Named::all().find(|algorithm| {
                names.split(',').any(|name| name.trim().eq_ignore_ascii_case(algorithm.header()))
            });
            return match algorithm {
                Some(algorithm) if !contradiction(algorithm) => {
                    Ok(announces(algorithm, Expected::Trailer))
                }
                _ => invalid("The value specified in the x-amz-trailer header is not supported"),
            };
        }
        match named {
            Some(algorithm @ Named::Stored(_)) => Ok(announces(algorithm, Expected::Nothing)),
            Some(Named::Verified(_)) => Err(without_value()),
            None => Ok(Self::nothing()),
        }
    }

    fn verified(algorithm: Verified, expected: Expected) -> Self {
        Self { verified: Some((algorithm, expected)), ..Self::nothing() }
    }

    /// The digest of a body of which its headers say no more than in which trailers its digest comes.
    ///
    /// # Errors
    /// `InvalidRequest` if the trailers have none.
    pub(crate) fn of_trailer(trailer: Option<&str>) -> S3Result<Self> {
        Self::of(&ALL.map(|algorithm| (algorithm, None)), None, None, trailer)
    }

    /// True if a value comes with the body, or before it, that it is compared with.
    pub(crate) fn is_verified(&self) -> bool {
        *self.expected().1 != Expected::Nothing
    }

    /// The algorithm's name, and the value that the computed one is compared with.
    pub(crate) fn expected(&self) -> (&'static str, &Expected) {
        match &self.verified {
            Some((algorithm, expected)) => (algorithm.name(), expected),
            None => (name(self.algorithm), &self.expected),
        }
    }

    /// The value that came as a trailer, if one was announced.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not a value of the algorithm.
    pub(crate) fn trailer(&self, trailers: &HeaderMap) -> Option<S3Result<Vec<u8>>> {
        let text = |name| trailers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        Some(match self.verified {
            Some((algorithm, _)) => algorithm.parse_value(text(algorithm.header())?),
            None => parse_value(self.algorithm, text(header(self.algorithm))?),
        })
    }
}

/// Values given in checksum headers (or fields), one slot per algorithm.
pub(crate) type Given<'g> = [(ChecksumAlgorithm, Option<&'g str>); 5];

/// The one value among `given`.
///
/// # Errors
/// `InvalidRequest` if there are several, or it is not a value.
pub(crate) fn single(given: &Given<'_>) -> S3Result<Option<(ChecksumAlgorithm, Vec<u8>)>> {
    let mut found = None;
    for (algorithm, text) in given {
        let Some(text) = text else { continue };
        if found.is_some() {
            return Err(multiple());
        }
        found = Some((*algorithm, parse_value(*algorithm, text)?));
    }
    Ok(found)
}

/// A library of S3's has named an algorithm, and no value came.
pub(crate) fn without_value() -> S3Error {
    error(
        S3ErrorCode::InvalidRequest,
        "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers \
         were found.",
    )
}

/// An algorithm that there is not.
fn unsupported() -> S3Error {
    let mut names: Vec<&str> = Verified::ALL.into_iter().map(Verified::name).collect();
    names.extend(ALL.map(name));
    names.sort_unstable();
    let message =
        "Checksum algorithm provided is unsupported. Please try again with any of the valid types";
    error(S3ErrorCode::InvalidRequest, format!("{message}: [{}]", names.join(", ")))
}

/// A message has one checksum at most.
fn multiple() -> S3Error {
    error(
        S3ErrorCode::InvalidRequest,
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
    )
}

/// The value that a request's headers give to be verified and not stored, if any.
///
/// # Errors
/// `InvalidRequest` if there are several, or it is not a value.
pub(crate) fn verified_given(headers: &HeaderMap) -> S3Result<Option<(Verified, Vec<u8>)>> {
    let mut found = None;
    for (name, value) in headers {
        if !name.as_str().starts_with(PREFIX) {
            continue;
        }
        let known = Verified::ALL.into_iter().find(|algorithm| name == algorithm.header());
        let Some(algorithm) = known else { continue };
        if found.is_some() {
            return Err(multiple());
        }
        found = Some((algorithm, algorithm.parse_value(value.to_str().unwrap_or_default())?));
    }
    Ok(found)
}

fn announces(algorithm: Named, expected: Expected) -> Announced {
    match algorithm {
        Named::Stored(algorithm) => {
            Announced { algorithm, expected, asked: true, ..Announced::nothing() }
        }
        Named::Verified(algorithm) => Announced::verified(algorithm, expected),
    }
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

    #[test]
    fn a_value_in_a_header_is_expected() {
        let announced = Announced::of(&with(0, "y/Q5Jg=="), None, Some("crc32"), None).unwrap();
        assert_eq!(announced.algorithm, ChecksumAlgorithm::Crc32);
        assert_eq!(announced.expected, Expected::Value(vec![0xcb, 0xf4, 0x39, 0x26]));
        assert!(announced.asked);
    }

    #[test]
    fn a_trailer_or_algorithm_name_selects_the_checksum() {
        let trailer = Announced::of(&NONE, None, None, Some("X-Amz-Checksum-SHA1")).unwrap();
        assert_eq!(trailer.algorithm, ChecksumAlgorithm::Sha1);
        assert_eq!(trailer.expected, Expected::Trailer);
        let named = Announced::of(&NONE, None, Some("SHA256"), None).unwrap();
        assert_eq!(named.algorithm, ChecksumAlgorithm::Sha256);
        assert_eq!(named.expected, Expected::Nothing);
        assert_eq!(Announced::of(&NONE, None, None, None).unwrap(), Announced::nothing());
        assert!(trailer.is_verified() && !named.is_verified());
        assert_eq!(Announced::of_trailer(Some("x-amz-checksum-sha1")).unwrap(), trailer);
        assert_eq!(Announced::of_trailer(None).unwrap(), Announced::nothing());
        assert!(Announced::of_trailer(Some("x-amz-other")).is_err());
    }

    #[test]
    fn what_is_only_verified_leaves_the_default_to_be_stored() {
        let value = Some((Verified::Xxhash3, vec![0; 8]));
        let given = Announced::of(&NONE, value, Some("xxhash3"), None).unwrap();
        assert_eq!(given.expected(), ("XXHASH3", &Expected::Value(vec![0; 8])));
        assert_eq!((given.algorithm, given.asked), (DEFAULT, false));
        let trailer = Announced::of(&NONE, None, Some("MD5"), Some("x-amz-checksum-md5")).unwrap();
        assert_eq!(trailer.expected(), ("MD5", &Expected::Trailer));
    }

    #[test]
    fn headers_that_nobody_can_verify_are_refused() {
        let check = |name: &'static str, value: &'static str| {
            check_header(&HeaderName::from_static(name), &HeaderValue::from_static(value))
        };
        for algorithm in Named::all() {
            assert!(check(algorithm.header(), "AAAA").is_ok());
            assert!(check(algorithm.header(), "").is_err(), "given as nothing");
        }
        assert!(check("x-amz-checksum-mode", "ENABLED").is_ok());
        assert!(check("x-amz-checksum-type", "COMPOSITE").is_ok());
        assert!(check("x-amz-checksum-algorithm", "xxhash128").is_ok());
        assert!(check("x-amz-checksum-algorithm", "FOO").is_err());
        let named = check("x-amz-sdk-checksum-algorithm", "FOO").unwrap_err();
        let all =
            "[CRC32, CRC32C, CRC64NVME, MD5, SHA1, SHA256, SHA512, XXHASH128, XXHASH3, XXHASH64]";
        assert!(named.message().is_some_and(|message| message.ends_with(all)), "{named:?}");
        assert!(check("x-amz-checksum-foo", "AAAA").is_err());
        assert!(check("x-amz-meta-checksum", "AAAA").is_ok());
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
            let refused = Announced::of(&given, None, named, trailer);
            assert!(refused.is_err(), "{given:?} {named:?} {trailer:?}");
        }
        let verified = || Some((Verified::Xxhash3, vec![0; 8]));
        for (given, named, trailer) in [
            (with(0, "y/Q5Jg=="), None, None),
            (NONE, Some("XXHASH64"), None),
            (NONE, None, Some("x-amz-checksum-xxhash3")),
        ] {
            let refused = Announced::of(&given, verified(), named, trailer);
            assert!(refused.is_err(), "{given:?} {named:?} {trailer:?}");
        }
    }

    #[test]
    fn one_value_is_given_at_most() {
        let mut headers = HeaderMap::new();
        assert_eq!(verified_given(&headers).unwrap(), None);
        headers.insert("x-amz-checksum-xxhash64", "AAAAAAAAAAA=".parse().unwrap());
        assert_eq!(verified_given(&headers).unwrap(), Some((Verified::Xxhash64, vec![0; 8])));
        headers.insert("x-amz-checksum-xxhash3", "AAAAAAAAAAA=".parse().unwrap());
        assert!(verified_given(&headers).is_err());
        headers.remove("x-amz-checksum-xxhash64");
        headers.insert("x-amz-checksum-xxhash3", "AAAA".parse().unwrap());
        assert!(verified_given(&headers).is_err());
    }
}
