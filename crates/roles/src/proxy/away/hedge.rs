//! When a read is hedged: a replica that has not answered for longer than it nearly always takes is not waited for any
//! longer alone, the next is asked too, and the first right answer counts (Dean and Barroso, The Tail at Scale, 2013).
//!
//! # Invariants
//!
//! 1. Of all reads a small share is hedged, whatever the replicas do: servers with too much to do get little more.
//! 2. A server that was not waited for to the end counts as slow: its delay does not shrink by not being measured.

use std::time::Duration;

use crate::limits::{HEDGE_AFTER_MS_MAX, HEDGE_AFTER_MS_MIN, HEDGED_PART, HEDGES_SAVED_MAX};

/// The estimate grows by one part in so many with an answer that took longer, and shrinks by one in
/// [`SHRINKS_PART`] with each that did not: it rests where 1 answer in 20 takes longer.
const GROWS_PART: u32 = 5;
/// See [`GROWS_PART`].
const SHRINKS_PART: u32 = GROWS_PART * 20;

/// How long a server takes to answer, but for one read in about 20: an estimate of the 95th percentile that needs no
/// memory of single answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usual(Duration);

impl Default for Usual {
    /// Of a server that was never asked.
    fn default() -> Self {
        Self(Duration::from_millis(HEDGE_AFTER_MS_MAX))
    }
}

impl Usual {
    /// An answer took so long, or was given up after so long.
    pub(super) fn note(&mut self, took: Duration) {
        self.0 = if took > self.0 {
            self.0 + self.0 / GROWS_PART
        } else {
            self.0 - self.0 / SHRINKS_PART
        };
        // Beyond the bounds it would take long to come back.
        self.0 = self.hedge_after();
    }

    /// How long to wait for an answer alone.
    pub(super) fn hedge_after(self) -> Duration {
        let [min, max] = [HEDGE_AFTER_MS_MIN, HEDGE_AFTER_MS_MAX].map(Duration::from_millis);
        self.0.clamp(min, max)
    }
}

/// What reads have saved up for hedges.
#[derive(Debug)]
pub(super) struct Purse {
    /// A hedge costs [`HEDGED_PART`].
    saved: u32,
}

impl Default for Purse {
    /// Full.
    fn default() -> Self {
        Self { saved: HEDGED_PART * HEDGES_SAVED_MAX }
    }
}

impl Purse {
    /// A read begins.
    pub(super) fn earn(&mut self) {
        self.saved = (self.saved + 1).min(HEDGED_PART * HEDGES_SAVED_MAX);
    }

    /// Pays for a hedge; false if there is not enough.
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
    fn the_delay_is_what_19_answers_of_20_stay_below() {
        let mut usual = Usual::default();
        let mut longer = 0;
        // Evenly from 10.1 to 110 ms, mixed.
        for number in 0..20_000_u64 {
            let took = Duration::from_micros(10_000 + 100 * (1 + number * 387 % 1000));
            longer += u32::from(number >= 10_000 && took > usual.hedge_after());
            usual.note(took);
        }
        assert!((400..700).contains(&longer), "of 10,000: {longer}");
    }

    #[test]
    fn the_delay_stays_within_its_bounds() {
        let mut usual = Usual::default();
        (0..10_000).for_each(|_| usual.note(Duration::from_micros(50)));
        assert_eq!(usual.hedge_after(), Duration::from_millis(HEDGE_AFTER_MS_MIN));
        (0..100).for_each(|_| usual.note(Duration::from_secs(4)));
        assert_eq!(usual.hedge_after(), Duration::from_millis(HEDGE_AFTER_MS_MAX));
    }

    #[test]
    fn a_small_share_of_reads_is_hedged() {
        let mut purse = Purse::default();
        let reads = 100_000;
        let paid = (0..reads).filter(|_| {
            purse.earn();
            purse.pay()
        });
        let hedged = paid.count() as u32;
        let share = reads / HEDGED_PART;
        assert!((share..=share + HEDGES_SAVED_MAX).contains(&hedged), "of {reads}: {hedged}");
    }
}
