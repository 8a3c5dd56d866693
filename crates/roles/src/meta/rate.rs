//! A moving average of a rate per second.

use crate::limits::RATE_SECONDS;

/// A rate per second, averaged over about [`RATE_SECONDS`].
#[derive(Debug, Default)]
pub(super) struct Rate {
    total: u64,
    per_s: f64,
}

impl Rate {
    /// Notes the total, so many seconds after the last call.
    pub(super) fn note(&mut self, total: u64, seconds: f64) {
        let more = total.saturating_sub(std::mem::replace(&mut self.total, total));
        let now = more as f64 / seconds;
        self.per_s += (now - self.per_s) * (seconds / RATE_SECONDS).min(1.0);
    }

    /// The average, per second.
    pub(super) fn per_s(&self) -> u64 {
        self.per_s as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_and_forgets() {
        let mut rate = Rate::default();
        for second in 1..=60 {
            rate.note(second * 1000, 1.0);
        }
        assert!((990..=1000).contains(&rate.per_s()), "{rate:?}");
        for _ in 0..60 {
            rate.note(60_000, 1.0);
        }
        assert!(rate.per_s() < 10, "{rate:?}");
    }
}
