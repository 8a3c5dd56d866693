//! The encoding of stored values: one version byte, then the value in postcard's wire format.
//!
//! `docs/formats/` describes each format byte by byte. A new version is a new type with a conversion
//! from the old one; old bytes stay readable for ever and are never rewritten for an upgrade.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of every format below as written today, but for those that name another.
pub const V1: u8 = 1;
/// Version of rows that say more of a version than those of a bucket without versioning ([`crate::version`]), and of maps of
/// clusters that are regions.
pub const V2: u8 = 2;
/// Version of maps of clusters whose managers know the gateway to the other regions.
pub const V3: u8 = 3;
/// Version of maps while rebalancing is paused.
pub const V4: u8 = 4;
/// Version of maps of clusters whose version was raised.
pub const V5: u8 = 5;
/// Version of maps of clusters whose root keys were rotated.
pub const V6: u8 = 6;
/// Version of maps of clusters whose managers have begun timelines.
pub const V7: u8 = 7;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Written by a later release: upgrade this one.
    #[error(
        "{what} has format version {found}, this release knows up to {known}: use a newer release"
    )]
    Version {
        /// Kind of value.
        what: &'static str,
        /// Version found.
        found: u8,
        /// Latest version that is read there.
        known: u8,
    },
    /// Not a value of this kind.
    #[error("{what} cannot be decoded: {reason}")]
    Damaged {
        /// Kind of value.
        what: &'static str,
        /// The fault in it.
        reason: String,
    },
}

/// Appends the value's encoding to `out`.
pub fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    encode_as_into(V1, value, out);
}

fn encode_as_into<T: Serialize>(version: u8, value: &T, out: &mut Vec<u8>) {
    out.push(version);
    let body = std::mem::take(out);
    *out = postcard::to_extend(value, body).expect("plain data always encodes");
}

/// Returns the number of bytes that a value takes within another's encoding.
#[must_use]
pub fn encoded_len<T: Serialize>(value: &T) -> usize {
    let size = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(value, size).expect("plain data always encodes")
}

/// The value's encoding.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    encode_into(value, &mut out);
    out
}

/// The encoding of a value of which this version is written.
#[must_use]
pub fn encode_as<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    encode_as_into(version, value, &mut out);
    out
}

/// Reads a value that fills `bytes` to the end.
///
/// # Errors
/// [`CodecError`]; `what` names the kind of value in it.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, CodecError> {
    decode_as(what, V1, bytes)
}

/// Reads a value of this version, as [`decode`] does.
///
/// # Errors
/// [`CodecError`].
pub fn decode_as<T: DeserializeOwned>(
    what: &'static str,
    known: u8,
    bytes: &[u8],
) -> Result<T, CodecError> {
    let damaged = |reason: String| CodecError::Damaged { what, reason };
    let (&version, body) = bytes.split_first().ok_or_else(|| damaged("it is empty".into()))?;
    if version != known {
        return Err(CodecError::Version { what, found: version, known });
    }
    let (value, rest) =
        postcard::take_from_bytes(body).map_err(|error| damaged(error.to_string()))?;
    if !rest.is_empty() {
        return Err(damaged(format!("{} bytes are left over", rest.len())));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_versions_and_extra_bytes_are_refused() {
        let mut bytes = encode(&7u32);
        assert_eq!(decode::<u32>("number", &bytes), Ok(7));
        bytes.push(0);
        assert!(matches!(decode::<u32>("number", &bytes), Err(CodecError::Damaged { .. })));
        bytes[0] = 9;
        assert!(matches!(
            decode::<u32>("number", &bytes),
            Err(CodecError::Version { found: 9, .. })
        ));
    }
}
