//! Names of workers that share a bucket, and where each has its own things.
//!
//! A worker that shares lies below `workers/NAME/`, as a store of one worker lies in the whole
//! bucket. One that was alone in the bucket before it got a name stays where it is. So no two
//! workers ever write, or remove, an object of one name.
//!
//! # Invariant
//!
//! Numbers of workers are given once in the whole bucket: those of a name begin where its hash puts them. So blobs,
//! uploads and objects of their own have names that are theirs among all workers.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::PackError;
use crate::ids::WorkerId;

/// Most characters of a name.
const NAME_MAX: usize = 32;
/// Below it each worker that shares has its things.
const PREFIX: &str = "workers";

/// A worker's name: 1 to 32 of `a-z`, `0-9` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

impl WorkerName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`PackError::Config`].
    pub fn new(name: &str) -> Result<Self, PackError> {
        let is_good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_good) {
            return Ok(Self(name.to_owned()));
        }
        Err(PackError::Config {
            what: "the name of a worker",
            found: format!("{name:?}"),
            remedy: format!("1 to {NAME_MAX} of a-z, 0-9 and -"),
        })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where a new worker of this name lies.
    pub(crate) fn prefix(&self) -> String {
        format!("{PREFIX}/{}", self.0)
    }
}

/// Before the first number of the worker that lies below a prefix.
pub(crate) fn base(prefix: &str) -> WorkerId {
    if prefix.is_empty() {
        return WorkerId(0);
    }
    WorkerId((xxh3_64(prefix.as_bytes()) | 1 << WorkerId::TAKE_OVER_BITS) & !WorkerId::TAKE_OVERS)
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for WorkerName {
    type Error = PackError;

    fn try_from(name: String) -> Result<Self, PackError> {
        Self::new(&name)
    }
}

impl From<WorkerName> for String {
    fn from(name: WorkerName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_paths_and_nothing_else() {
        for good in ["a", "worker-1", &"x".repeat(NAME_MAX)] {
            assert_eq!(WorkerName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "A", "a/b", "..", "a b", "ü", &"x".repeat(NAME_MAX + 1)] {
            assert!(WorkerName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_of_names_are_apart_and_stay_so_over_take_overs() {
        let bases: Vec<_> =
            ["", "workers/a", "workers/b", "workers/c"].iter().map(|prefix| base(prefix)).collect();
        for (at, one) in bases.iter().enumerate() {
            assert_eq!(one.0 & WorkerId::TAKE_OVERS, 0);
            assert_eq!(WorkerId(one.0 + 1).first(), WorkerId(one.0 + 1));
            assert_eq!(WorkerId(one.0 + 77).first(), WorkerId(one.0 + 1));
            for other in &bases[at + 1..] {
                assert_ne!(one.line(), other.line());
            }
        }
        // Stored in every bucket that is shared.
        assert_eq!(base("workers/a").0, xxh3_64(b"workers/a") & !0xFFFF | 0x1_0000);
    }
}
