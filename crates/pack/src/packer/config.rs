//! The settings of a packed store.

use std::path::PathBuf;
use std::time::Duration;

use crate::class::Prices;
use crate::commit::policy::Packing;
use crate::error::PackError;
use crate::limits::{
    AHEAD_BYTES_DEFAULT, AHEAD_BYTES_MAX, BACKGROUND_BYTES_PER_S_DEFAULT, BACKUP_INTERVAL_DEFAULT,
    BLOB_BYTES_DEFAULT, BLOB_BYTES_MAX, BLOB_BYTES_MIN, CACHE_BYTES_DEFAULT, CACHE_BYTES_MIN,
    FLUSH_TIMEOUT_DEFAULT, GRACE_DEFAULT, HOUSEKEEPING_PERIOD_DEFAULT, PACKED_BYTES_MAX,
    PACKING_THREADS_MAX, PACKING_THREADS_MIN, RATE_MIN, REPACK_BELOW_PERCENT_DEFAULT,
    SPOOL_BYTES_DEFAULT,
};
use crate::peers::Sharing;

/// The moment at which a change is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// It is durable in the directory.
    Local,
    /// Besides, the blob with it is uploaded.
    Uploaded,
}

/// Settings of a packed store.
#[derive(Debug, Clone)]
pub struct PackConfig {
    /// Its directory; made if it is missing.
    pub dir: PathBuf,
    /// Bytes of bodies at which a blob is full.
    pub blob_bytes: u64,
    /// Age of a blob's oldest change at which it goes up.
    pub flush_timeout: Duration,
    /// Most bytes of an object that is packed.
    pub packed_bytes: u64,
    /// Bytes of bodies that may wait in the directory.
    pub spool_bytes: u64,
    /// The policy by which bodies lie together.
    pub packing: Packing,
    /// Threads that write bodies into the directory at once, each for other groups.
    pub packing_threads: usize,
    /// The moment at which a change is answered.
    pub acknowledge: Acknowledge,
    /// Percent of a blob's bodies that are live below which it is repacked; 0 for never.
    pub repack_below_percent: u8,
    /// Time for which things stay in the backend that nothing needs any more.
    pub grace: Duration,
    /// Bytes per second that work in the background reads or writes.
    pub background_bytes_per_s: u64,
    /// Time from one look whether there is work in the background to the next.
    pub housekeeping_period: Duration,
    /// Time from one backup of the index to the next; zero for none.
    pub backup_interval: Duration,
    /// True if the index may be rebuilt without blobs that are missing or damaged.
    pub accept_loss: bool,
    /// True if a new directory may take a backend over from the worker that has it.
    pub take_over: bool,
    /// The terms on which the bucket is shared with other workers; `None` if this worker has it to
    /// itself, or has a name already.
    pub sharing: Option<Sharing>,
    /// Requests a second that the backend is asked at most; `None` for as many as it takes.
    pub requests_per_second: Option<f64>,
    /// The most that requests may cost in a day, in the currency of the prices; uploads wait for
    /// more.
    pub spend_per_day: Option<f64>,
    /// The prices of requests.
    pub prices: Prices,
    /// Bytes of the directory that keep what was read from blobs; 0 for none.
    pub cache_bytes: u64,
    /// Bytes that are read ahead at most where keys are read in their order; 0 for none.
    pub ahead_bytes: u64,
}

impl PackConfig {
    /// The defaults, for a directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            blob_bytes: BLOB_BYTES_DEFAULT,
            flush_timeout: FLUSH_TIMEOUT_DEFAULT,
            packed_bytes: PACKED_BYTES_MAX,
            spool_bytes: SPOOL_BYTES_DEFAULT,
            packing: Packing::Arrival,
            packing_threads: threads_for(cores()),
            acknowledge: Acknowledge::Local,
            repack_below_percent: REPACK_BELOW_PERCENT_DEFAULT,
            grace: GRACE_DEFAULT,
            background_bytes_per_s: BACKGROUND_BYTES_PER_S_DEFAULT,
            housekeeping_period: HOUSEKEEPING_PERIOD_DEFAULT,
            backup_interval: BACKUP_INTERVAL_DEFAULT,
            accept_loss: false,
            take_over: false,
            sharing: None,
            requests_per_second: None,
            spend_per_day: None,
            prices: Prices::default(),
            cache_bytes: CACHE_BYTES_DEFAULT,
            ahead_bytes: AHEAD_BYTES_DEFAULT,
        }
    }

    /// Checks that a store can be opened with these settings. Changes nothing.
    ///
    /// # Errors
    /// [`PackError::Config`] names the setting that does not do.
    pub fn check(&self) -> Result<(), PackError> {
        let refuse = |what, found: u64, remedy: String| {
            Err(PackError::Config { what, found: format!("{found} bytes"), remedy })
        };
        if !(BLOB_BYTES_MIN..=BLOB_BYTES_MAX).contains(&self.blob_bytes) {
            let remedy = format!("{BLOB_BYTES_MIN} to {BLOB_BYTES_MAX}");
            return refuse("the size of blobs", self.blob_bytes, remedy);
        }
        let packed_max = PACKED_BYTES_MAX.min(self.blob_bytes);
        if self.packed_bytes > packed_max {
            let remedy = format!("at most {packed_max}");
            return refuse("the size of packed objects", self.packed_bytes, remedy);
        }
        if self.spool_bytes < 2 * self.blob_bytes {
            let remedy = format!("twice the size of a blob, {}, at least", 2 * self.blob_bytes);
            return refuse("the size of the spool", self.spool_bytes, remedy);
        }
        if !(1..=PACKING_THREADS_MAX).contains(&self.packing_threads) {
            let (what, found) = ("the number of packing threads", self.packing_threads.to_string());
            let remedy = format!("1 to {PACKING_THREADS_MAX}");
            return Err(PackError::Config { what, found, remedy });
        }
        self.packing.check()?;
        if self.repack_below_percent >= 100 {
            let (what, found) =
                ("the share below which blobs are repacked", self.repack_below_percent);
            let remedy = "0 to 99: full blobs would be repacked for ever".to_owned();
            return Err(PackError::Config { what, found: format!("{found} %"), remedy });
        }
        if self.background_bytes_per_s == 0 {
            return refuse("the pace of work in the background", 0, "more than that".to_owned());
        }
        if self.cache_bytes != 0 && self.cache_bytes < CACHE_BYTES_MIN {
            let remedy = format!("0 for none, or at least {CACHE_BYTES_MIN}");
            return refuse("the size of the cache", self.cache_bytes, remedy);
        }
        if self.ahead_bytes > AHEAD_BYTES_MAX {
            let remedy = format!("at most {AHEAD_BYTES_MAX}");
            return refuse("what is read ahead", self.ahead_bytes, remedy);
        }
        if self.ahead_bytes > 0 && self.cache_bytes == 0 {
            let remedy = "0 without a cache, which keeps it".to_owned();
            return refuse("what is read ahead", self.ahead_bytes, remedy);
        }
        if let Some(sharing) = &self.sharing {
            sharing.check(self.grace)?;
        }
        self.check_budgets()
    }

    fn check_budgets(&self) -> Result<(), PackError> {
        let refuse = |what, found: f64, remedy: String| {
            Err(PackError::Config { what, found: found.to_string(), remedy })
        };
        let at_least = |value: f64, least: f64| value.is_finite() && value >= least;
        if let Some(rate) = self.requests_per_second.filter(|rate| !at_least(*rate, RATE_MIN)) {
            let remedy = format!("{RATE_MIN} or more");
            return refuse("the number of requests a second", rate, remedy);
        }
        if let Some(day) = self.spend_per_day.filter(|day| !(day.is_finite() && *day > 0.0)) {
            return refuse("what requests may cost in a day", day, "more than 0".to_owned());
        }
        self.prices.check()
    }
}

/// Threads that write bodies at once on a machine with so many cores.
fn threads_for(cores: usize) -> usize {
    cores.clamp(PACKING_THREADS_MIN, PACKING_THREADS_MAX)
}

fn cores() -> usize {
    // Where the system does not say, the least do.
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_written_by_a_thread_for_each_core_within_bounds() {
        let threads = [1, 4, 6, 9, 64].map(threads_for);
        assert_eq!(threads, [PACKING_THREADS_MIN, 4, 6, 9, PACKING_THREADS_MAX]);
        assert_eq!(PackConfig::new("dir").packing_threads, threads_for(cores()));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let good = PackConfig::new("dir");
        assert!(good.check().is_ok());
        let refusal = |config: PackConfig| config.check().unwrap_err().to_string();
        let with = |change: fn(&mut PackConfig)| {
            let mut config = good.clone();
            change(&mut config);
            refusal(config)
        };
        for (refused, name) in [
            (with(|c| c.blob_bytes = 1), "the size of blobs"),
            (with(|c| c.packed_bytes = u64::MAX), "the size of packed objects"),
            (with(|c| c.spool_bytes = c.blob_bytes), "the size of the spool"),
            (with(|c| c.packing_threads = 0), "packing threads"),
            (with(|c| c.packing = Packing::Size(Vec::new())), "packing.classes"),
            (with(|c| c.repack_below_percent = 100), "below which blobs are repacked"),
            (with(|c| c.background_bytes_per_s = 0), "the pace of work in the background"),
            (with(|c| c.cache_bytes = 1), "the size of the cache"),
            (with(|c| c.cache_bytes = 0), "what is read ahead"),
            (with(|c| c.ahead_bytes = u64::MAX), "what is read ahead"),
            (with(|c| c.requests_per_second = Some(0.0)), "requests a second"),
            (with(|c| c.requests_per_second = Some(f64::NAN)), "requests a second"),
            (with(|c| c.spend_per_day = Some(0.0)), "cost in a day"),
            (with(|c| c.prices.per_thousand.get = -1.0), "a price"),
        ] {
            assert!(refused.contains(name), "{refused}");
        }
        let none = PackConfig { cache_bytes: 0, ahead_bytes: 0, ..good };
        assert!(none.check().is_ok());
    }
}
