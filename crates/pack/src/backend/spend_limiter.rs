//! A budget of money: what requests cost, against what may be spent. Pure; times are those since the request scheduler was made.
//!
//! # Invariants
//!
//! 1. Over a long time no more is spent than the budget, but for reads: they are never kept waiting
//!    for money, and what they take is missing to uploads.
//! 2. Money that is not spent gathers for [`BUDGET_SAVED`]; what readers owe is owed no longer than
//!    that.

use std::time::Duration;

use crate::class::{Prices, RequestClass};
use crate::limits::BUDGET_SAVED;

const DAY_SECONDS: f64 = 24.0 * 3600.0;

/// A budget of money, and what is left of it.
#[derive(Debug)]
pub(super) struct SpendLimiter {
    prices: Prices,
    per_second: Option<f64>,
    left: f64,
    at: Duration,
}

impl SpendLimiter {
    /// One that starts with all that can gather.
    pub(super) fn new(prices: Prices, per_day: Option<f64>, now: Duration) -> Self {
        let per_second = per_day.map(|per_day| per_day / DAY_SECONDS);
        let left = per_second.unwrap_or(0.0) * BUDGET_SAVED.as_secs_f64();
        Self { prices, per_second, left, at: now }
    }

    /// Returns the time that a request has to wait for money; `None` if it need not.
    pub(super) fn waits(&mut self, class: RequestClass, now: Duration) -> Option<Duration> {
        let per_second = self.gather(now)?;
        if class.is_read() || self.prices.of(class) == 0.0 || self.left > 0.0 {
            return None;
        }
        // So that there is something in it then, also where a float is not exact.
        let missing = -self.left + self.prices.of(class);
        Some(Duration::from_secs_f64((missing / per_second).min(BUDGET_SAVED.as_secs_f64())))
    }

    /// A request is made.
    pub(super) fn pay(&mut self, class: RequestClass, times: u64, now: Duration) {
        let Some(per_second) = self.gather(now) else { return };
        let most = per_second * BUDGET_SAVED.as_secs_f64();
        self.left = (self.left - self.prices.of(class) * times as f64).max(-most);
    }

    fn gather(&mut self, now: Duration) -> Option<f64> {
        let per_second = self.per_second?;
        let since = now.saturating_sub(self.at).as_secs_f64();
        let most = per_second * BUDGET_SAVED.as_secs_f64();
        self.left = (self.left + since * per_second).min(most);
        self.at = self.at.max(now);
        Some(per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A put costs 5 millionths; 2.4 a day are 20 puts a second, and 0.1 to begin with.
    fn spend_limiter() -> SpendLimiter {
        let per_day = 0.005 / 1000.0 * 20.0 * DAY_SECONDS;
        SpendLimiter::new(Prices::default(), Some(per_day), Duration::ZERO)
    }

    #[test]
    fn uploads_wait_when_the_budget_is_used_up_and_go_on_as_it_fills() {
        let mut spend_limiter = spend_limiter();
        let (mut made, mut now) = (0, Duration::ZERO);
        while now < 10 * BUDGET_SAVED {
            match spend_limiter.waits(RequestClass::Part, now) {
                None => {
                    spend_limiter.pay(RequestClass::Part, 1, now);
                    made += 1;
                }
                Some(wait) => now += wait,
            }
        }
        let most = 11 * BUDGET_SAVED.as_secs() * 20;
        assert!(made <= most + 2 && made > most * 99 / 100, "{made} of {most}");
    }

    #[test]
    fn reads_never_wait_and_owe_no_more_than_can_gather() {
        let mut spend_limiter = spend_limiter();
        spend_limiter.pay(RequestClass::Get, 1_000_000_000, SECOND);
        for free in [RequestClass::Get, RequestClass::Head, RequestClass::Delete] {
            assert_eq!(spend_limiter.waits(free, SECOND), None, "{free:?}");
        }
        for paid in [RequestClass::Put, RequestClass::Part, RequestClass::List] {
            assert_eq!(spend_limiter.waits(paid, SECOND), Some(BUDGET_SAVED), "{paid:?}");
        }
        assert_eq!(spend_limiter.waits(RequestClass::Put, 2 * SECOND + BUDGET_SAVED), None);
    }

    #[test]
    fn without_a_budget_nothing_waits() {
        let mut spend_limiter = SpendLimiter::new(Prices::default(), None, Duration::ZERO);
        spend_limiter.pay(RequestClass::Put, 1_000_000_000, SECOND);
        assert_eq!(spend_limiter.waits(RequestClass::Put, SECOND), None);
    }
}
