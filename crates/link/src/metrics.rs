//! Counters of requests between regions, for a process to export.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use larder_types::{LogLimiter, RegionId};
use parking_lot::Mutex;

/// A number that is counted up, or up and down. Servers of a cluster have one of their own (`larder-net`), which knows
/// nothing of regions.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value: what was added since the process began, less what was taken.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }
}

/// Counters of the link to another region. Bytes are those of messages, without TLS and HTTP.
#[derive(Debug, Default)]
pub struct PeerMetrics {
    /// Requests to it.
    pub asked: Counter,
    /// Requests to it that were not answered, or were declined.
    pub failed: Counter,
    /// Connections to it that were made.
    pub connected: Counter,
    /// Connections to it that are open.
    pub open: Counter,
    /// Bytes of requests to it.
    pub bytes_requested: Counter,
    /// Bytes of its answers.
    pub bytes_told: Counter,
    /// Requests from it.
    pub answered: Counter,
    /// Requests from it that were declined.
    pub declined: Counter,
    /// Bytes of answers to it.
    pub bytes_answered: Counter,
    /// Bytes by which compression made answers to it shorter.
    pub bytes_spared: Counter,
}

/// Counters of all links of a process.
#[derive(Debug)]
pub struct Metrics {
    peers: Mutex<BTreeMap<RegionId, Arc<PeerMetrics>>>,
    /// Connections of callers that are no region, and handshakes that failed.
    pub strangers: Counter,
    /// Requests to join that were refused.
    pub joins_refused: Counter,
    since: Instant,
    lines: Mutex<LogLimiter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            peers: Mutex::default(),
            strangers: Counter::default(),
            joins_refused: Counter::default(),
            since: Instant::now(),
            lines: Mutex::default(),
        }
    }
}

impl Metrics {
    /// The counters of the link to a region.
    pub fn of(&self, region: RegionId) -> Arc<PeerMetrics> {
        self.peers.lock().entry(region).or_default().clone()
    }

    /// The counters of each region, in the order of their numbers.
    #[must_use]
    pub fn peers(&self) -> Vec<(RegionId, Arc<PeerMetrics>)> {
        self.peers.lock().iter().map(|(region, of)| (*region, of.clone())).collect()
    }

    /// Counts a caller that is no region. If it gets a line in the log, returns how many before it had none.
    pub(crate) fn stranger(&self) -> Option<u64> {
        self.strangers.add(1);
        self.lines.lock().happens(self.since.elapsed().as_millis() as u64)
    }
}
