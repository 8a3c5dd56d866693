//! Status of a region's links: DIR/region/status.json, which the server writes and `larder region status`
//! reads.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use larder_types::{Home, RegionId};
use serde::{Deserialize, Serialize};

use crate::error::LinkError;
use crate::files;
use crate::limits::STATUS_AGE_MAX;
use crate::name::RegionName;
use crate::registry::now_ms;
use crate::waiting::Order;

const FILE: &str = "status.json";
/// Version of the file as it is written today.
const VERSION: u32 = 1;

/// Status of a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Version of the file.
    pub version: u32,
    /// Time at which it was written: milliseconds since 1970.
    pub written_ms: u64,
    /// The region's number.
    pub number: RegionId,
    /// Its name.
    pub name: RegionName,
    /// The other regions.
    pub peers: Vec<PeerStatus>,
    /// Buckets that have a home, or are to have one.
    #[serde(default)]
    pub homes: Vec<HomeStatus>,
    /// Buckets that are to be shared and are not, each with the last reason.
    #[serde(default)]
    pub unshared: BTreeMap<String, String>,
}

/// The home of a bucket, as the region knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeStatus {
    /// The bucket.
    pub bucket: String,
    /// The home; `None` if there never was one.
    pub home: Option<Home>,
    /// An order that was given here and is not carried out yet.
    pub order: Option<Order>,
    /// The last reason why that is not so yet.
    pub why: Option<String>,
}

/// Status of its link to another region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its number.
    pub number: RegionId,
    /// Its name.
    pub name: RegionName,
    /// This region pulls nothing from it.
    pub paused: bool,
    /// Reason why it cannot be asked; `None` if it answered last.
    pub unreachable: Option<String>,
    /// Keys are being compared: the numbers count only what is known to differ.
    pub comparing: bool,
    /// Changes that are not here yet.
    pub operations_behind: u64,
    /// Their bytes.
    pub bytes_behind: u64,
    /// Age of the oldest of them.
    pub seconds_behind: Option<f64>,
    /// Bytes a second that were taken lately.
    pub bytes_per_s: f64,
    /// Time until all of it is here, at this rate.
    pub seconds_left: Option<f64>,
    /// The last alarm.
    pub alarm: Option<String>,
    /// Changes are behind, and none was taken for long: it does not go on by itself.
    pub stuck: bool,
    /// Seconds for which it has lacked changes of this region; 0 if it has all that showed here when it asked last.
    #[serde(default)]
    pub lacks_seconds: f64,
    /// Placement groups here of which it lacks changes.
    #[serde(default)]
    pub lacks_groups: u32,
    /// Seconds since it asked for changes of this region, or since the start.
    #[serde(default)]
    pub asked_seconds: f64,
    /// The oldest change that is not here, of those that it has told.
    #[serde(default)]
    pub oldest: Option<OldestChange>,
}

/// The oldest change of another region that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldestChange {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The reason why it could not be had, or taken, the last time.
    pub why: Option<String>,
}

impl RegionStatus {
    /// The status of a region at this moment.
    #[must_use]
    pub fn now(number: RegionId, name: RegionName, peers: Vec<PeerStatus>) -> Self {
        let (homes, unshared) = (Vec::new(), BTreeMap::new());
        Self { version: VERSION, written_ms: now_ms(), number, name, peers, homes, unshared }
    }

    /// Writes it into the directory of the store. Only the server does.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), LinkError> {
        let text = serde_json::to_vec(self).expect("plain data is JSON");
        files::replace_unsynced(&files::path(dir, FILE), &text)
    }

    /// Reads the status that was written last; `None` if none was.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Self>, LinkError> {
        let path = files::path(dir, FILE);
        let bytes = match files::read(&path) {
            Err(LinkError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(None);
            }
            read => read?,
        };
        let damaged = |why: String| LinkError::Damaged { path: path.clone(), why };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match value["version"].as_u64() {
            Some(version) if version > u64::from(VERSION) => {
                Err(damaged(format!("it has version {version}: use the release of the server")))
            }
            _ => {
                serde_json::from_value(value).map(Some).map_err(|error| damaged(error.to_string()))
            }
        }
    }

    /// Milliseconds since it was written.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.written_ms)
    }

    /// True if a server wrote it a moment ago.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.age_ms() <= STATUS_AGE_MAX.as_millis() as u64
    }
}

impl PeerStatus {
    /// True if this region is level with that one, or comes closer.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.unreachable.is_none() && !self.stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back_and_a_later_one_is_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        files::make_folder(dir.path()).unwrap();
        assert_eq!(RegionStatus::read(dir.path()).unwrap(), None);
        let mut status = RegionStatus::now(RegionId(2), "b".parse().unwrap(), Vec::new());
        status.write(dir.path()).unwrap();
        assert_eq!(RegionStatus::read(dir.path()).unwrap().as_ref(), Some(&status));
        assert!(status.is_fresh());
        status.written_ms -= 11_000;
        assert!(!status.is_fresh());
        status.version = 2;
        status.write(dir.path()).unwrap();
        let later = RegionStatus::read(dir.path()).unwrap_err().to_string();
        assert!(later.contains("use the release of the server"), "{later}");
    }
}
