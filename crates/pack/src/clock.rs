//! Clocks: the time of day, and a clock for the age of what was read from the bucket, which continues while the machine
//! is suspended. The steady clock of `Instant` stands still then: a worker that woke up after a night would take what
//! it saw the evening before for new.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Milliseconds since 1970; 0 on a machine whose clock is before that.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The machine's uptime, with the time for which it was suspended.
pub(crate) type Uptime = fn() -> Duration;

/// The uptime of this machine.
pub(crate) fn uptime() -> Duration {
    Duration::from_millis(larder_env::clock::uptime_ms())
}

/// The time at which the bucket was looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuspendAwareInstant {
    pub(crate) steady: Instant,
    at: Duration,
    uptime: Uptime,
}

impl SuspendAwareInstant {
    pub(crate) fn now(uptime: Uptime) -> Self {
        Self { steady: Instant::now(), at: uptime(), uptime }
    }

    /// Time since then: by the clock by which it is longer.
    pub(crate) fn elapsed(&self) -> Duration {
        self.steady.elapsed().max((self.uptime)().saturating_sub(self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Hours of uptime, suspended ones among them.
    static HOURS: AtomicU64 = AtomicU64::new(5);

    fn slept() -> Duration {
        Duration::from_secs(3600 * HOURS.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn time_for_which_the_machine_was_suspended_counts() {
        let sighting = SuspendAwareInstant::now(slept);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(sighting.elapsed(), Duration::from_secs(60));
        HOURS.fetch_add(8, Ordering::Relaxed);
        assert_eq!(sighting.elapsed(), Duration::from_secs(8 * 3600));
        assert!(uptime() >= Duration::from_secs(1));
    }
}
