//! The status of the other workers: a file of this worker's directory beside `status.json`, while
//! it shares a bucket.

use std::path::Path;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError, RealDisk};
use serde::{Deserialize, Serialize};

use super::Others;
use crate::error::PackError;
use crate::limits::WORKERS_STATUS_PERIOD;

/// Name of the file.
const FILE: &str = "workers.json";
/// Version of its format.
const VERSION: u32 = 1;

/// The status of the workers with which a worker shares its bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersStatus {
    /// Version of the format: 1.
    pub version: u32,
    /// The worker's own name.
    pub name: String,
    /// Where it answers the others.
    pub address: Option<String>,
    /// Milliseconds since the last look in the bucket began that found everything of all.
    pub unseen_ms: u64,
    /// Requests of uploads that were handed on to the workers that began them, since the start.
    #[serde(default)]
    pub handed_on: u64,
    /// The others, by name.
    pub others: Vec<OtherStatus>,
}

/// The state of one other worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherStatus {
    /// Its name.
    pub name: String,
    /// The number of its claim.
    pub worker: u64,
    /// Where it answers.
    pub address: Option<String>,
    /// Milliseconds since the last look in the bucket began that found all of its changes there.
    pub unseen_ms: u64,
    /// Milliseconds since it answered itself; `None` if it never did.
    pub unheard_ms: Option<u64>,
    /// Bytes of changes that it had and this worker did not, when it answered last.
    pub behind_bytes: u64,
    /// Changes that are known of it and are not in the bucket, about: they are lost with its directory.
    pub not_uploaded: u64,
}

impl WorkersStatus {
    /// Reads what the worker of a directory has written last; `None` if it shares its bucket with nobody.
    ///
    /// # Errors
    /// [`PackError::Disk`], [`PackError::Damaged`], [`PackError::Version`].
    pub fn read(dir: &Path) -> Result<Option<Self>, PackError> {
        let bytes = match read_file(&RealDisk::open(dir)?, FILE) {
            Ok(bytes) => bytes,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let damaged = |error: serde_json::Error| PackError::damaged(FILE, error.to_string());
        let status: serde_json::Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        let found = status["version"].as_u64().unwrap_or(0);
        if found != u64::from(VERSION) {
            let found = u32::try_from(found).unwrap_or(u32::MAX);
            return Err(PackError::Version { name: FILE.to_owned(), found, known: VERSION });
        }
        serde_json::from_value(status).map(Some).map_err(damaged)
    }

    fn write(&self, disk: &dyn Disk) {
        let mut text = serde_json::to_vec_pretty(self).expect("plain data always encodes");
        text.push(b'\n');
        if let Err(error) = replace_file(disk, "", FILE, &text) {
            tracing::warn!(%error, "the status of the workers could not be written");
        }
    }
}

impl Others {
    /// Writes it down, if the last time is long enough ago.
    pub(crate) fn write_status(&self, disk: &dyn Disk) {
        let mut last_written = self.last_written.lock();
        if last_written.is_none_or(|at| at.elapsed() >= WORKERS_STATUS_PERIOD) {
            self.status().write(disk);
            *last_written = Some(tokio::time::Instant::now());
        }
    }

    /// The status now.
    pub(crate) fn status(&self) -> WorkersStatus {
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let others = self.peers().into_iter().map(|peer| {
            let announcement = peer.announcement();
            let not_uploaded =
                peer.known().map_or(0, |known| known.at().seq.0.saturating_sub(known.mark().seq.0));
            OtherStatus {
                name: announcement.name.to_string(),
                worker: announcement.worker.0,
                address: announcement.address,
                unseen_ms: ms(peer.unseen()),
                unheard_ms: peer.silent_for().map(ms),
                behind_bytes: peer.behind_bytes(),
                not_uploaded,
            }
        });
        WorkersStatus {
            version: VERSION,
            name: self.name().to_string(),
            address: self.me.address.clone(),
            unseen_ms: ms(self.unseen()),
            handed_on: self.handed_on(),
            others: others.collect(),
        }
    }
}
