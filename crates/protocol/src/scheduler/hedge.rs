//! Hedging of reads (Dean and Barroso, The Tail at Scale, 2013). Once a holder has taken longer than nearly all reads
//! of that size, a second holder is asked too, and the first verified response wins.
//!
//! # Invariants
//!
//! 1. At most one read in [`HEDGED_PART`] is hedged in the long run, however slow disks are: hedges add little load to servers
//!    that are overloaded.
//! 2. A read whose hedge was answered first counts as one that took long, so that hedging does not shorten the delay. A read
//!    that was given up, at its deadline or because its caller left, does not count.

use crate::limits::{HEDGE_AFTER_US_MAX, HEDGE_AFTER_US_MIN, HEDGED_PART, HEDGES_SAVED_MAX};

/// The estimate grows by one part in so many with an answer that took longer, and shrinks by one in [`SHRINKS_PART`]
/// with each that did not. It rests where about 1 answer in 40 takes longer: fewer than the reads that may be hedged, one in
/// [`HEDGED_PART`]. So the budget is full when a disk begins to hang.
const GROWS_PART: u64 = 5;
/// See [`GROWS_PART`].
const SHRINKS_PART: u64 = GROWS_PART * 40;

/// An estimate of the 97.5th percentile of the time that answers take, which needs no memory of single answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatencyEstimate {
    us: u64,
}

impl Default for LatencyEstimate {
    /// The longest delay, until answers shorten it.
    fn default() -> Self {
        Self { us: HEDGE_AFTER_US_MAX }
    }
}

impl LatencyEstimate {
    /// Moves the estimate, by an answer that took so long or a read whose hedge was answered first after so long.
    pub(super) fn note(&mut self, took_us: u64) {
        let moved = match took_us > self.us {
            true => self.us + self.us / GROWS_PART,
            false => self.us - self.us / SHRINKS_PART,
        };
        // From beyond the bounds it would take long to return.
        self.us = moved.clamp(HEDGE_AFTER_US_MIN, HEDGE_AFTER_US_MAX);
    }

    /// Returns the time to wait for an answer alone.
    pub(super) fn hedge_after_us(self) -> u64 {
        self.us
    }
}

/// The budget of hedges: a token bucket, to which each read adds one token.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    /// Tokens. A hedge costs [`HEDGED_PART`] of them.
    saved: u32,
}

impl Default for HedgeBudget {
    /// A full bucket.
    fn default() -> Self {
        Self { saved: HEDGED_PART * HEDGES_SAVED_MAX }
    }
}

impl HedgeBudget {
    /// Adds the token of a read that begins.
    pub(super) fn earn(&mut self) {
        self.saved = (self.saved + 1).min(HEDGED_PART * HEDGES_SAVED_MAX);
    }

    /// Pays for a hedge. Returns false if there are not enough tokens.
    pub(super) fn pay(&mut self) -> bool {
        let left = self.saved.checked_sub(HEDGED_PART);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_what_39_answers_of_40_stay_below() {
        let mut usual = LatencyEstimate::default();
        let mut longer = 0;
        // Evenly from 10.1 to 110 ms, mixed.
        for number in 0..20_000_u64 {
            let took_us = 10_000 + 100 * (1 + number * 387 % 1000);
            longer += u32::from(number >= 10_000 && took_us > usual.hedge_after_us());
            usual.note(took_us);
        }
        assert!((200..280).contains(&longer), "of 10,000: {longer}");
        let earned = 10_000 / HEDGED_PART;
        assert!(longer < earned, "{longer} want a hedge, {earned} have saved up for one");
    }

    #[test]
    fn the_delay_stays_within_its_bounds() {
        let mut usual = LatencyEstimate::default();
        (0..10_000).for_each(|_| usual.note(50));
        assert_eq!(usual.hedge_after_us(), HEDGE_AFTER_US_MIN);
        (0..100).for_each(|_| usual.note(4_000_000));
        assert_eq!(usual.hedge_after_us(), HEDGE_AFTER_US_MAX);
    }

    #[test]
    fn a_small_share_of_reads_is_hedged() {
        let mut hedge_budget = HedgeBudget::default();
        let reads = 100_000;
        let paid = (0..reads).filter(|_| {
            hedge_budget.earn();
            hedge_budget.pay()
        });
        let hedged = paid.count() as u32;
        let most = reads * 3 / 100 + HEDGES_SAVED_MAX;
        assert!((reads / 50..=most).contains(&hedged), "of {reads}: {hedged}");
    }
}
