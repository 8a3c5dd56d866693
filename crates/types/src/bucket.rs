//! Bucket records. They belong to the manager and are cached everywhere.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::home::Home;
use crate::ids::{BucketId, Epoch};
use crate::limits::REPLICAS_MAX;
use crate::name::BucketName;

/// Whether a bucket takes puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BucketState {
    /// It does.
    Live,
    /// It is being found empty; puts are refused.
    Deleting,
}

/// How many replicas must have a put's data before its client is answered (DESIGN §5). Whatever is missing then is
/// made up for afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WritePolicy {
    /// Every replica of the volume: as many as are wanted, or while some are out of reach at least the cluster's least.
    #[default]
    All,
    /// More than half of the copies that are wanted.
    Majority,
    /// So many, at least 1.
    AtLeast(u8),
}

impl WritePolicy {
    /// How many replicas are enough where `copies` are wanted; 0: every one of the volume.
    #[must_use]
    pub fn enough(self, copies: u8) -> u8 {
        match self {
            Self::All => 0,
            Self::Majority => copies / 2 + 1,
            Self::AtLeast(count) => count,
        }
    }
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => to.write_str("all"),
            Self::Majority => to.write_str("majority"),
            Self::AtLeast(1) => to.write_str("one"),
            Self::AtLeast(count) => write!(to, "{count}"),
        }
    }
}

/// Copies that can be asked for: a volume may have one more while one moves.
const COPIES_MAX: u8 = REPLICAS_MAX as u8 - 1;

/// What is not a write policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a write policy is all, majority, one, or a number of copies from 1 to {COPIES_MAX}")]
pub struct NotAPolicy;

impl FromStr for WritePolicy {
    type Err = NotAPolicy;

    fn from_str(text: &str) -> Result<Self, NotAPolicy> {
        match text {
            "all" => Ok(Self::All),
            "majority" => Ok(Self::Majority),
            "one" => Ok(Self::AtLeast(1)),
            count => match count.parse() {
                Ok(count @ 1..=COPIES_MAX) => Ok(Self::AtLeast(count)),
                _ => Err(NotAPolicy),
            },
        }
    }
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct BucketRecord {
    /// Never used again after its deletion.
    pub id: BucketId,
    /// Its name.
    pub name: BucketName,
    /// Grows with each change of this record but for the write policy's, which each put carries; a put that carries
    /// an older one is refused.
    pub epoch: Epoch,
    /// Whether it takes puts.
    pub state: BucketState,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// `LocationConstraint` as given at creation.
    pub location: Option<String>,
    /// When its puts are answered.
    pub write_policy: WritePolicy,
    /// Number of regions that must have a change before it is answered, this one included; at least 1.
    pub regions: u8,
    /// The region that decides about conditions, as this one knows it; `None` if there never was one.
    pub home: Option<Home>,
}

/// The reason why a bucket's home is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HomeNotSet {
    /// Look again: it was set since.
    #[error("the bucket's home changed since")]
    Changed,
    /// Wait: the bucket is being deleted, or is live again soon.
    #[error("the bucket is being deleted")]
    Deleting,
}

impl BucketRecord {
    /// Sets the home, if it is still the expected one, under a new epoch: what was decided under the one before is refused.
    ///
    /// # Errors
    /// [`HomeNotSet`]; the record is then as it was.
    pub fn set_home(&mut self, expected: Option<Home>, next: Home) -> Result<(), HomeNotSet> {
        if self.state != BucketState::Live {
            return Err(HomeNotSet::Deleting);
        }
        if self.home != expected || !next.may_follow(expected.as_ref()) {
            return Err(HomeNotSet::Changed);
        }
        self.home = Some(next);
        self.epoch = Epoch(self.epoch.0 + 1);
        Ok(())
    }

    /// True if some region has, or is about to get, the home, as far as this one knows.
    #[must_use]
    pub fn has_home(&self) -> bool {
        self.home.is_some_and(|home| home.region().is_some())
    }
}

/// The record as it is stored and sent.
#[derive(Serialize, Deserialize)]
struct Stored {
    id: BucketId,
    name: BucketName,
    epoch: Epoch,
    state: BucketState,
    created_ms: u64,
    settings: StoredSettings,
}

/// The first two are what was an optional location before there was anything else; with nothing else they are written
/// as they were, so that older releases read them. The same of the third, before there were regions to wait for, and of the
/// fourth, before there were homes.
#[derive(Serialize, Deserialize)]
enum StoredSettings {
    Nothing,
    Location(String),
    All { location: Option<String>, write_policy: WritePolicy },
    Regional { location: Option<String>, write_policy: WritePolicy, regions: u8 },
    Homed { location: Option<String>, write_policy: WritePolicy, regions: u8, home: Home },
}

impl From<BucketRecord> for Stored {
    fn from(record: BucketRecord) -> Self {
        let BucketRecord {
            id,
            name,
            epoch,
            state,
            created_ms,
            location,
            write_policy,
            regions,
            home,
        } = record;
        let settings = match (location, write_policy, regions, home) {
            (location, write_policy, regions, Some(home)) => {
                StoredSettings::Homed { location, write_policy, regions, home }
            }
            (None, WritePolicy::All, 1, None) => StoredSettings::Nothing,
            (Some(location), WritePolicy::All, 1, None) => StoredSettings::Location(location),
            (location, write_policy, 1, None) => StoredSettings::All { location, write_policy },
            (location, write_policy, regions, None) => {
                StoredSettings::Regional { location, write_policy, regions }
            }
        };
        Self { id, name, epoch, state, created_ms, settings }
    }
}

impl From<Stored> for BucketRecord {
    fn from(stored: Stored) -> Self {
        let Stored { id, name, epoch, state, created_ms, settings } = stored;
        let (location, write_policy, regions, home) = match settings {
            StoredSettings::Nothing => (None, WritePolicy::All, 1, None),
            StoredSettings::Location(location) => (Some(location), WritePolicy::All, 1, None),
            StoredSettings::All { location, write_policy } => (location, write_policy, 1, None),
            StoredSettings::Regional { location, write_policy, regions } => {
                (location, write_policy, regions, None)
            }
            StoredSettings::Homed { location, write_policy, regions, home } => {
                (location, write_policy, regions, Some(home))
            }
        };
        Self { id, name, epoch, state, created_ms, location, write_policy, regions, home }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for policy in ["all", "majority", "one", "2", "3"] {
            assert_eq!(
                policy.parse::<WritePolicy>().map(|it| it.to_string()).as_deref(),
                Ok(policy)
            );
        }
        for wrong in ["", "0", "most", "16", "-1", "All", "300"] {
            assert_eq!(wrong.parse::<WritePolicy>(), Err(NotAPolicy), "{wrong}");
        }
        let enough = |policy: WritePolicy| [1, 2, 3, 5].map(|copies| policy.enough(copies));
        assert_eq!(enough(WritePolicy::All), [0; 4]);
        assert_eq!(enough(WritePolicy::Majority), [1, 2, 2, 3]);
        assert_eq!(enough(WritePolicy::AtLeast(2)), [2; 4]);
    }
}
