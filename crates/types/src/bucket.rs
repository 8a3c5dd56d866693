//! Bucket records. They belong to the manager and are cached everywhere.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cors::CorsRules;
use crate::home::Home;
use crate::ids::{BucketId, Epoch};
use crate::limits::REPLICAS_MAX;
use crate::name::BucketName;

/// The state of a bucket: it takes puts or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BucketState {
    /// It takes puts.
    Live,
    /// It is being found empty; puts are refused.
    Deleting,
}

/// The regions that have a bucket (ADR 49).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Sharing {
    /// All of them.
    #[default]
    All,
    /// This one alone: no other region is told of the bucket, and nothing of theirs is taken into it.
    Local,
    /// As [`Sharing::Local`], and all are to have it. What others tell of a bucket of that name waits: if one of them has one, it stays
    /// local.
    Opening,
    /// All of them. Its objects are being renewed, as others were told nothing of them.
    Renewing,
}

/// The number of replicas that must have a put's data before its client is answered (ADR 19). Whatever is missing then
/// is made up for afterwards.
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
    /// Returns the number of replicas that are enough where `copies` are wanted; 0: every one of the volume.
    #[must_use]
    pub fn required_copies(self, copies: u8) -> u8 {
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

/// The text that is not a write policy.
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
    /// Grows with each change of this record but two: the write policy's, which each put carries, and the CORS rules', by
    /// which nothing is stored. A put that carries an older one is refused.
    pub epoch: Epoch,
    /// Its state: it takes puts or not.
    pub state: BucketState,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// `LocationConstraint` as given at creation.
    pub location: Option<String>,
    /// The replicas that its puts wait for before they are answered.
    pub write_policy: WritePolicy,
    /// Number of regions that must have a change before it is answered, this one included; at least 1.
    pub regions: u8,
    /// The region that decides about conditions, as this one knows it; `None` if there never was one.
    pub home: Option<Home>,
    /// The regions that have it.
    pub sharing: Sharing,
    /// The pages of other origins that may use it, in this region.
    pub cors: Option<CorsRules>,
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
    /// Give up: other regions do not have the bucket.
    #[error("this region alone has the bucket")]
    Local,
}

/// The reason why a bucket is neither made local nor shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotShared {
    /// Wait: the bucket is being deleted, or is live again soon.
    #[error("the bucket is being deleted")]
    Deleting,
    /// Give the home up first.
    #[error("the bucket has a home, which decides for all regions: give it up first")]
    HasHome,
}

impl BucketRecord {
    /// A bucket as it is made: live, of all regions, and with no setting.
    #[must_use]
    pub fn new(id: BucketId, name: BucketName, created_ms: u64) -> Self {
        Self {
            id,
            name,
            epoch: Epoch(1),
            state: BucketState::Live,
            created_ms,
            location: None,
            write_policy: WritePolicy::All,
            regions: 1,
            home: None,
            sharing: Sharing::All,
            cors: None,
        }
    }

    /// Sets the home, if it is still the expected one, under a new epoch: what was decided under the one before is refused.
    ///
    /// # Errors
    /// [`HomeNotSet`]; the record is then as it was.
    pub fn set_home(&mut self, expected: Option<Home>, next: Home) -> Result<(), HomeNotSet> {
        if self.state != BucketState::Live {
            return Err(HomeNotSet::Deleting);
        }
        if self.is_local() {
            return Err(HomeNotSet::Local);
        }
        if self.home != expected || !next.may_follow(expected.as_ref()) {
            return Err(HomeNotSet::Changed);
        }
        self.home = Some(next);
        self.epoch = Epoch(self.epoch.0 + 1);
        Ok(())
    }

    /// True if this region alone has the bucket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.sharing, Sharing::Local | Sharing::Opening)
    }

    /// Makes the bucket local, or begins to share it, under a new epoch: changes of other regions that were on their way
    /// are refused. Returns false if it is so already.
    ///
    /// # Errors
    /// [`NotShared`]; the record is then as it was.
    pub fn set_local(&mut self, is_local: bool) -> Result<bool, NotShared> {
        let is_so = match self.sharing {
            Sharing::Local => is_local,
            Sharing::All | Sharing::Opening | Sharing::Renewing => !is_local,
        };
        if is_so {
            return Ok(false);
        }
        if self.state != BucketState::Live {
            return Err(NotShared::Deleting);
        }
        if self.has_home() {
            return Err(NotShared::HasHome);
        }
        self.sharing = if is_local { Sharing::Local } else { Sharing::Opening };
        self.epoch = Epoch(self.epoch.0 + 1);
        Ok(true)
    }

    /// Goes on to the next step of sharing, of this bucket as it is under this epoch; false if it is not at the step before.
    #[must_use = "another may have been begun since"]
    pub fn share(&mut self, id: BucketId, epoch: Epoch, next: Sharing) -> bool {
        let may_follow = match next {
            Sharing::Local | Sharing::Renewing => self.sharing == Sharing::Opening,
            Sharing::All => self.sharing == Sharing::Renewing,
            Sharing::Opening => false,
        };
        let is_it = may_follow && (self.id, self.epoch) == (id, epoch);
        if is_it {
            self.sharing = next;
        }
        is_it
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

/// The first two are what was an optional location before there was anything else; with nothing else they are written as
/// they were, so that older releases read them. The third was written likewise before there were regions to wait for, and
/// the fourth before there were homes. So was the fifth before a region could have a bucket alone, and the sixth before
/// there were CORS rules.
#[derive(Serialize, Deserialize)]
enum StoredSettings {
    Nothing,
    Location(String),
    All {
        location: Option<String>,
        write_policy: WritePolicy,
    },
    Regional {
        location: Option<String>,
        write_policy: WritePolicy,
        regions: u8,
    },
    Homed {
        location: Option<String>,
        write_policy: WritePolicy,
        regions: u8,
        home: Home,
    },
    Local {
        location: Option<String>,
        write_policy: WritePolicy,
        regions: u8,
        home: Option<Home>,
        sharing: Sharing,
    },
    Cors {
        location: Option<String>,
        write_policy: WritePolicy,
        regions: u8,
        home: Option<Home>,
        sharing: Sharing,
        cors: CorsRules,
    },
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
            sharing,
            cors,
        } = record;
        if let Some(cors) = cors {
            let settings =
                StoredSettings::Cors { location, write_policy, regions, home, sharing, cors };
            return Self { id, name, epoch, state, created_ms, settings };
        }
        let settings = match (location, write_policy, regions, home) {
            (location, write_policy, regions, home) if sharing != Sharing::All => {
                StoredSettings::Local { location, write_policy, regions, home, sharing }
            }
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
        let (all, one) = (WritePolicy::All, 1);
        let mut rules = None;
        let (location, write_policy, regions, home, sharing) = match settings {
            StoredSettings::Nothing => (None, all, one, None, Sharing::All),
            StoredSettings::Location(location) => (Some(location), all, one, None, Sharing::All),
            StoredSettings::All { location, write_policy } => {
                (location, write_policy, one, None, Sharing::All)
            }
            StoredSettings::Regional { location, write_policy, regions } => {
                (location, write_policy, regions, None, Sharing::All)
            }
            StoredSettings::Homed { location, write_policy, regions, home } => {
                (location, write_policy, regions, Some(home), Sharing::All)
            }
            StoredSettings::Local { location, write_policy, regions, home, sharing } => {
                (location, write_policy, regions, home, sharing)
            }
            StoredSettings::Cors { location, write_policy, regions, home, sharing, cors } => {
                rules = Some(cors);
                (location, write_policy, regions, home, sharing)
            }
        };
        Self {
            id,
            name,
            epoch,
            state,
            created_ms,
            location,
            write_policy,
            regions,
            home,
            sharing,
            cors: rules,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HomeScope, HomeState, HomeTerm, RegionId};

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
        let required_copies =
            |policy: WritePolicy| [1, 2, 3, 5].map(|copies| policy.required_copies(copies));
        assert_eq!(required_copies(WritePolicy::All), [0; 4]);
        assert_eq!(required_copies(WritePolicy::Majority), [1, 2, 2, 3]);
        assert_eq!(required_copies(WritePolicy::AtLeast(2)), [2; 4]);
    }

    fn bucket() -> BucketRecord {
        let name = BucketName::new("photos").unwrap();
        BucketRecord { epoch: Epoch(4), ..BucketRecord::new(BucketId(3), name, 0) }
    }

    #[test]
    fn a_bucket_is_shared_step_by_step_and_only_as_it_was_looked_at() {
        let mut record = bucket();
        let id = record.id;
        assert_eq!(record.set_local(false), Ok(false), "it is so");
        assert_eq!(record.set_local(true), Ok(true));
        assert_eq!((record.sharing, record.epoch), (Sharing::Local, Epoch(5)));
        assert_eq!(record.set_local(true), Ok(false));
        for next in [Sharing::All, Sharing::Local, Sharing::Opening, Sharing::Renewing] {
            assert!(!record.share(id, Epoch(5), next), "it is not to be shared");
        }
        assert_eq!((record.set_local(false), record.is_local()), (Ok(true), true));
        assert_eq!(record.set_local(false), Ok(false));
        assert_eq!((record.set_local(true), record.set_local(false)), (Ok(true), Ok(true)));
        assert!(!record.share(id, Epoch(6), Sharing::Renewing), "it was local since");
        assert!(!record.share(BucketId(2), Epoch(8), Sharing::Renewing), "that one was deleted");
        assert!(!record.share(id, Epoch(8), Sharing::All), "its objects are told to nobody yet");
        assert!(record.share(id, Epoch(8), Sharing::Renewing) && !record.is_local());
        assert!(!record.share(id, Epoch(8), Sharing::Local), "others may have it by now");
        assert!(record.share(id, Epoch(8), Sharing::All));
        assert_eq!((record.sharing, record.epoch), (Sharing::All, Epoch(8)));
        assert_eq!((record.set_local(true), record.set_local(false)), (Ok(true), Ok(true)));
        assert!(record.share(id, Epoch(10), Sharing::Local), "another region has one");
    }

    #[test]
    fn a_bucket_that_others_count_on_does_not_become_local() {
        let mut closed = BucketRecord { state: BucketState::Deleting, ..bucket() };
        assert_eq!(closed.set_local(true), Err(NotShared::Deleting));
        let term = HomeTerm { count: 1, of: RegionId(2) };
        let (scope, state) = (HomeScope::Conditions, HomeState::Elsewhere);
        let elsewhere = Home { term, scope, state };
        let home = Some(elsewhere);
        let mut homed = BucketRecord { home, ..bucket() };
        assert_eq!(homed.set_local(true), Err(NotShared::HasHome));
        assert_eq!(homed, BucketRecord { home, ..bucket() }, "it is as it was");
        let mut local = BucketRecord { sharing: Sharing::Local, ..bucket() };
        assert_eq!(local.set_home(None, elsewhere), Err(HomeNotSet::Local));
    }
}
