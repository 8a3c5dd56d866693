//! A token bucket for background work at the backend: limits requests and bytes a second.

use std::time::Duration;

use tokio::time::Instant;

/// A budget that refills as time goes by; it lends one step ahead.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    requests_per_s: u64,
    bytes_per_s: u64,
    /// The time at which everything spent so far is earned.
    earned: Option<Instant>,
}

impl TokenBucket {
    pub(crate) fn new(requests_per_s: u64, bytes_per_s: u64) -> Self {
        assert!(requests_per_s > 0 && bytes_per_s > 0, "a pace is above 0");
        Self { requests_per_s, bytes_per_s, earned: None }
    }

    /// Waits until a request of so many bytes may be made.
    pub(crate) async fn spend(&mut self, bytes: u64) {
        let now = Instant::now();
        let earned = self.earned.map_or(now, |earned| earned.max(now));
        // Whichever takes longer: formula is max(1 / requests_per_s, bytes / bytes_per_s) seconds.
        let request =
            Duration::from_secs(1) / u32::try_from(self.requests_per_s).unwrap_or(u32::MAX);
        let transfer = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_s);
        self.earned = Some(earned + request.max(transfer));
        if earned > now {
            tokio::time::sleep_until(earned).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_and_bytes_are_kept_to_their_rates() {
        let begun = Instant::now();
        let mut pace = TokenBucket::new(10, 1000);
        for _ in 0..11 {
            pace.spend(1).await;
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        pace.spend(500).await;
        pace.spend(500).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(1600));
    }
}
