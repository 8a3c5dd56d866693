//! Names of buckets and objects, checked once where they enter.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::limits::KEY_BYTES_MAX;

/// The reason for which a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Keys have 1 to 1024 bytes.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {bytes}")]
    KeyLength {
        /// Bytes of the name.
        bytes: usize,
    },
    /// Keys are UTF-8.
    #[error("a key must be UTF-8")]
    KeyEncoding,
    /// Bucket names follow S3's rules.
    #[error("bucket name {name:?}: {rule}")]
    Bucket {
        /// The refused name.
        name: String,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// An object's key: 1 to 1024 bytes of UTF-8, compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Bytes", into = "Bytes")]
pub struct ObjectKey(Bytes);

impl ObjectKey {
    /// Checks and takes a key.
    ///
    /// # Errors
    /// [`NameError::KeyLength`].
    pub fn new(key: &str) -> Result<Self, NameError> {
        Self::try_from(Bytes::copy_from_slice(key.as_bytes()))
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when the key was made")
    }
}

/// The group of a key in a list: its beginning up to the first delimiter behind the prefix, if there is one.
#[must_use]
pub fn group_of<'a>(key: &'a str, prefix: &str, delimiter: Option<&str>) -> Option<&'a str> {
    let delimiter = delimiter?;
    let at = key.get(prefix.len()..)?.find(delimiter)?;
    key.get(..prefix.len() + at + delimiter.len())
}

impl TryFrom<Bytes> for ObjectKey {
    type Error = NameError;

    fn try_from(bytes: Bytes) -> Result<Self, NameError> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(NameError::KeyLength { bytes: bytes.len() });
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(NameError::KeyEncoding);
        }
        Ok(Self(bytes))
    }
}

impl From<ObjectKey> for Bytes {
    fn from(key: ObjectKey) -> Bytes {
        key.0
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A bucket's name: 3 to 63 of `a-z 0-9 . -`, begun and ended by a letter or digit, no `..`, not
/// like an IP address, and none that Larder's own paths use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BucketName(String);

/// Paths of the S3 listener that are Larder's own.
pub const RESERVED_BUCKETS: [&str; 3] = ["healthz", "readyz", "metrics"];

impl BucketName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`NameError::Bucket`] with the rule that is broken.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let refuse = |rule| Err(NameError::Bucket { name: name.to_owned(), rule });
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        if !(3..=63).contains(&name.len()) {
            return refuse("it must have 3 to 63 characters");
        }
        if !name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')) {
            return refuse("only a-z, 0-9, '.' and '-' are allowed");
        }
        if !edge(name.as_bytes().first()) || !edge(name.as_bytes().last()) {
            return refuse("it must begin and end with a letter or a digit");
        }
        if ["..", ".-", "-."].iter().any(|pair| name.contains(pair)) {
            return refuse("a dot may not stand next to another or to a hyphen");
        }
        if name.parse::<std::net::Ipv4Addr>().is_ok() {
            return refuse("it may not look like an IP address");
        }
        if RESERVED_BUCKETS.contains(&name) {
            return refuse("this name is reserved for the server's own paths");
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BucketName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(&name)
    }
}

impl From<BucketName> for String {
    fn from(name: BucketName) -> String {
        name.0
    }
}

impl fmt::Display for BucketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_at_the_first_delimiter_behind_the_prefix() {
        assert_eq!(group_of("a/b/c", "", Some("/")), Some("a/"));
        assert_eq!(group_of("a/b/c", "a/", Some("/")), Some("a/b/"));
        assert_eq!(group_of("a/b/c", "a/b/", Some("/")), None);
        assert_eq!(group_of("axxb", "a", Some("xx")), Some("axx"));
        assert_eq!(group_of("plain", "", None), None);
    }

    #[test]
    fn bucket_names_follow_the_rules() {
        for good in ["abc", "a-b.c", "0ab", &"a".repeat(63)] {
            assert!(BucketName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "ab",
            &"a".repeat(64),
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            "a..b",
            "a.-b",
            "a-.b",
            "10.0.0.1",
            "metrics",
            "ä12",
        ] {
            assert!(BucketName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_have_a_length() {
        assert!(ObjectKey::new("").is_err());
        assert!(ObjectKey::new(&"k".repeat(1024)).is_ok());
        assert!(ObjectKey::new(&"k".repeat(1025)).is_err());
    }
}
