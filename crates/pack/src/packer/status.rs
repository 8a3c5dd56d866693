//! The status of a worker: a file of its directory, for `larder pack status`, that is written while it runs and as it
//! stops. It also counts the backend's requests of earlier runs, so that the bill continues.
//!
//! # Invariants
//!
//! 1. The file is replaced as a whole, durably; what a killed worker had counted since is missing from its bill,
//!    that of [`crate::limits::STATUS_PERIOD`] at most.
//! 2. Nothing but the bill depends on it: one that is missing or cannot be read is begun anew, and the log says so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError, RealDisk};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::class::{Prices, Requests};
use crate::clock::now_ms;
use crate::counters::Counters;
use crate::error::PackError;
use crate::limits::STATUS_WRITTEN_AT_LEAST;

/// Name of the file.
const FILE: &str = "status.json";
/// Version of its format.
const VERSION: u32 = 1;

/// The status of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the format: 1.
    pub version: u32,
    /// Number of the worker.
    pub worker: u64,
    /// True if it ran, false if it was about to stop in good order.
    pub running: bool,
    /// Milliseconds since 1970 at which this was written.
    pub written_ms: u64,
    /// The same at which counting began.
    pub since_ms: u64,
    /// The counts since then.
    pub totals: Totals,
    /// The prices of requests.
    pub prices: Prices,
    /// The state now.
    pub now: Moment,
}

/// Sums over all runs of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests made to the backend.
    pub requests: Requests,
    /// Those among them that it refused for now.
    pub throttled: u64,
    /// Requests that clients would have made to it themselves, about.
    pub direct: Requests,
    /// Bytes of objects packed.
    pub packed_bytes: u64,
    /// Blobs uploaded.
    pub blobs: u64,
    /// Bytes uploaded.
    pub uploaded_bytes: u64,
}

/// Amounts that rise and fall.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Blobs that are not uploaded.
    pub waiting_blobs: u64,
    /// Bytes of objects in them.
    pub waiting_bytes: u64,
    /// Requests that may be under way to the backend at once.
    pub requests_max: u32,
    /// True if uploads wait for the budget of money.
    pub budget_spent: bool,
    /// Bytes that the cache of reads has.
    pub cache_bytes: u64,
}

impl Status {
    /// Reads what the worker of a directory has written last; whether it still runs shows in its age alone.
    ///
    /// # Errors
    /// [`PackError::Disk`] if there is none, [`PackError::Damaged`], [`PackError::Version`].
    pub fn read(dir: &Path) -> Result<Self, PackError> {
        Self::decode(&read_file(&RealDisk::open(dir)?, FILE)?)
    }

    /// The price of the requests made to the backend.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.prices.cost(&self.totals.requests)
    }

    /// The price that the requests of clients would have had, about, if clients had made them to
    /// the backend themselves.
    #[must_use]
    pub fn direct_cost(&self) -> f64 {
        self.prices.cost(&self.totals.direct)
    }

    /// Milliseconds since it was written.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.written_ms)
    }

    /// Returns true if the worker runs, as far as the file can tell.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.running && u128::from(self.age_ms()) < 3 * STATUS_WRITTEN_AT_LEAST.as_millis()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, PackError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |error: serde_json::Error| PackError::damaged(FILE, error.to_string());
        let Versioned { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if version != VERSION {
            return Err(PackError::Version {
                name: FILE.to_owned(),
                found: version,
                known: VERSION,
            });
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("plain data always encodes");
        text.push(b'\n');
        text
    }
}

/// Writes the file.
pub(crate) struct StatusWriter {
    disk: Arc<dyn Disk>,
    counters: Arc<Counters>,
    prices: Prices,
    worker: u64,
    since_ms: u64,
    before: Totals,
    /// The status that was written last.
    written: Mutex<Option<Status>>,
}

impl StatusWriter {
    /// Goes on from what the directory's file says.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        counters: Arc<Counters>,
        prices: Prices,
        worker: u64,
    ) -> Self {
        let found = read_file(&*disk, FILE).map_err(PackError::from);
        let (since_ms, before) = match found.and_then(|bytes| Status::decode(&bytes)) {
            Ok(status) => (status.since_ms, status.totals),
            Err(PackError::Disk(DiskError::NotFound { .. })) => (now_ms(), Totals::default()),
            Err(error) => {
                tracing::warn!(%error, "earlier counts cannot be read: the bill starts from zero");
                (now_ms(), Totals::default())
            }
        };
        Self { disk, counters, prices, worker, since_ms, before, written: Mutex::new(None) }
    }

    /// The status now.
    pub(crate) fn status(&self, now: Moment, running: bool) -> Status {
        let totals = self.before.plus(&self.counters);
        let (worker, since_ms, prices) = (self.worker, self.since_ms, self.prices.clone());
        Status {
            version: VERSION,
            worker,
            running,
            written_ms: now_ms(),
            since_ms,
            totals,
            prices,
            now,
        }
    }

    /// Writes it down, if anything is new or the last time is long ago. Blocks.
    pub(crate) fn write_status(&self, now: Moment, running: bool) {
        let status = self.status(now, running);
        let mut written = self.written.lock();
        let same = |last: &Status| {
            let at = Status { written_ms: last.written_ms, ..status.clone() };
            at == *last && u128::from(last.age_ms()) < STATUS_WRITTEN_AT_LEAST.as_millis()
        };
        // No write follows the last one, even if one was under way.
        if written.as_ref().is_some_and(|last| !last.running || same(last)) {
            return;
        }
        match replace_file(&*self.disk, "", FILE, &status.encode()) {
            Ok(()) => *written = Some(status),
            Err(error) => tracing::warn!(%error, "the status could not be written"),
        }
    }
}

impl Totals {
    fn plus(&self, counters: &Counters) -> Self {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            requests: self.requests.plus(&counters.requests.load()),
            throttled: self.throttled + load(&counters.throttled),
            direct: self.direct.plus(&counters.direct.load()),
            packed_bytes: self.packed_bytes + load(&counters.packed_bytes),
            blobs: self.blobs + load(&counters.blobs),
            uploaded_bytes: self.uploaded_bytes + load(&counters.uploaded_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::RequestClass;
    use crate::counters::add;

    const GOLDEN: &str = include_str!("status/v1.json");

    fn sample() -> Status {
        Status {
            version: 1,
            worker: 3,
            running: true,
            written_ms: 1_800_000_000_123,
            since_ms: 1_700_000_000_000,
            totals: Totals {
                requests: Requests { put: 2, part: 128, get: 7, head: 1, list: 1, delete: 4 },
                throttled: 9,
                direct: Requests { put: 131_072, get: 8, ..Requests::default() },
                packed_bytes: 1_073_741_824,
                blobs: 1,
                uploaded_bytes: 1_080_000_000,
            },
            prices: Prices::default(),
            now: Moment {
                waiting_blobs: 1,
                waiting_bytes: 8192,
                requests_max: 16,
                budget_spent: false,
                cache_bytes: 65_536,
            },
        }
    }

    #[test]
    fn the_file_is_what_it_was_in_earlier_releases() {
        assert_eq!(String::from_utf8(sample().encode()).unwrap(), GOLDEN);
        assert_eq!(Status::decode(GOLDEN.as_bytes()).unwrap(), sample());
        let newer = GOLDEN.replace("\"version\": 1", "\"version\": 2");
        let refused = Status::decode(newer.as_bytes()).unwrap_err();
        assert!(matches!(refused, PackError::Version { found: 2, .. }), "{refused}");
    }

    #[test]
    fn the_bill_goes_on_after_a_restart_and_begins_anew_where_it_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let open = |counters: &Arc<Counters>| {
            StatusWriter::open(disk.clone(), counters.clone(), Prices::default(), 1)
        };
        let counters = Arc::<Counters>::default();
        counters.requests.count(RequestClass::Put, 5);
        add(&counters.blobs, 1);
        open(&counters).write_status(Moment::default(), false);
        let first = Status::read(dir.path()).unwrap();
        assert_eq!((first.totals.requests.put, first.totals.blobs, first.running), (5, 1, false));

        let counters = Arc::<Counters>::default();
        counters.requests.count(RequestClass::Put, 2);
        open(&counters).write_status(Moment::default(), true);
        let second = Status::read(dir.path()).unwrap();
        assert_eq!((second.totals.requests.put, second.totals.blobs), (7, 1));
        assert_eq!(second.since_ms, first.since_ms);
        assert!(second.is_fresh());

        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Status::read(dir.path()).is_err());
        open(&counters).write_status(Moment::default(), true);
        assert_eq!(Status::read(dir.path()).unwrap().totals.requests.put, 2);
    }

    #[test]
    fn a_worker_without_recent_status_counts_as_stopped() {
        let now = now_ms();
        let long = 3 * STATUS_WRITTEN_AT_LEAST.as_millis() as u64;
        assert!(Status { written_ms: now, ..sample() }.is_fresh());
        assert!(!Status { written_ms: now - long, ..sample() }.is_fresh());
        assert!(!Status { written_ms: now, running: false, ..sample() }.is_fresh());
    }
}
