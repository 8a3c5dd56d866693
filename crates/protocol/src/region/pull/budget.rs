//! The budget of bytes a second that may be requested from a region.
//!
//! It yields to clients as background work of a store does (ADR 14). While many of their requests are under way the rate is
//! halved again and again, and it comes back by eighths. It never falls below an eighth, so that regions come to the same
//! all the time.

use crate::limits::{BACKGROUND_LEAST_PART, CLIENTS_QUEUE};

/// Bytes that may be asked for: they grow with time, and the last entry may overdraw them.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_s: u64,
    /// Parts of [`BACKGROUND_LEAST_PART`] that count now, at least 1.
    parts: u64,
    /// Thousandths of a byte, so that no share of a short time is lost.
    left: i128,
    at_ms: u64,
}

impl Budget {
    /// Begins with the bytes of one second, the most that it holds.
    pub(super) fn new(now_ms: u64, bytes_per_s: u64) -> Self {
        let left = i128::from(bytes_per_s) * 1000;
        Self { bytes_per_s, parts: BACKGROUND_LEAST_PART, left, at_ms: now_ms }
    }

    /// Takes note that `clients` requests of clients are under way.
    pub(super) fn observe_clients(&mut self, now_ms: u64, clients: u32) {
        // The time that has passed counts at the rate that it had.
        self.left(now_ms);
        self.parts = match clients >= CLIENTS_QUEUE {
            true => (self.parts / 2).max(1),
            false => (self.parts + 1).min(BACKGROUND_LEAST_PART),
        };
    }

    /// Part of the rate that counts now, from an eighth to 1.
    pub(super) fn share(&self) -> f64 {
        self.parts as f64 / BACKGROUND_LEAST_PART as f64
    }

    /// Whole bytes that may be asked for now, at least 1 if there are any.
    pub(super) fn left(&mut self, now_ms: u64) -> u64 {
        let passed = i128::from(now_ms.saturating_sub(self.at_ms));
        let rate = i128::from(self.bytes_per_s * self.parts / BACKGROUND_LEAST_PART);
        self.left = (self.left + passed * rate).min(i128::from(self.bytes_per_s) * 1000);
        self.at_ms = self.at_ms.max(now_ms);
        u64::try_from((self.left + 999) / 1000).unwrap_or(0)
    }

    /// Bytes of a part: those of a second, but half as many as these at least, and four times as many at most.
    pub(super) fn part_bytes(&self, bytes: u64) -> u64 {
        self.bytes_per_s.clamp(bytes / 2, 4 * bytes)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.left -= i128::from(bytes) * 1000;
    }

    /// So many of the reserved bytes arrived. Bytes above those took their own time: only a part of them is paid back.
    pub(super) fn settle(&mut self, taken: u64, came: u64) {
        let most = i128::from(self.bytes_per_s) * 1000;
        let owed = (i128::from(taken) - i128::from(came)) * 1000;
        let least = self.left.min(-4 * most);
        self.left = (self.left + owed).clamp(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_charged_in_the_end() {
        let mut budget = Budget::new(0, 1_000);
        budget.take(1_000);
        budget.settle(1_000, 300);
        assert_eq!(budget.left(0), 700);
        budget.take(700);
        budget.settle(700, 1_200);
        assert_eq!(budget.left(0), 0);
        assert_eq!(budget.left(500), 0, "what came beyond it is made up for first");
        assert_eq!(budget.left(600), 100);
        budget.settle(5_000, 0);
        assert_eq!(budget.left(600), 1_000, "it holds those of a second at most");
        budget.settle(0, 1_000_000);
        assert_eq!(budget.left(4_600), 0, "and owes those of four");
        assert_eq!(budget.left(4_700), 100);
    }

    #[test]
    fn it_yields_down_to_an_eighth_and_comes_back_by_eighths() {
        let (rate, mut now_ms) = (8_000, 1_000_000);
        let mut budget = Budget::new(now_ms, rate);
        let mut of_a_second = |budget: &mut Budget, clients| {
            let left = budget.left(now_ms);
            budget.take(left);
            now_ms += 1_000;
            let allowed = budget.left(now_ms);
            budget.observe_clients(now_ms, clients);
            allowed
        };
        assert_eq!(of_a_second(&mut budget, CLIENTS_QUEUE), rate);
        let yielding: Vec<_> = (0..4).map(|_| of_a_second(&mut budget, CLIENTS_QUEUE)).collect();
        assert_eq!(yielding, [4_000, 2_000, 1_000, 1_000]);
        assert!((budget.share() - 0.125).abs() < 1e-9);
        let back: Vec<_> = (0..9).map(|_| of_a_second(&mut budget, CLIENTS_QUEUE - 1)).collect();
        assert_eq!(back, [1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 8_000]);
    }
}
