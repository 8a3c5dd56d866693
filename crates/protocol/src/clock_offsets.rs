//! Judges this machine's wall clock by those of other machines.
//!
//! A question to another machine is sent, and its answer received, at times of this machine's steady clock; the other reads
//! its wall clock in between. So from then on the other's clock is known against the steady clock, within the time of the
//! round trip: that is its *offset*. This machine's wall clock has no part in it. Setting that clock, to a right time or a wrong
//! one, changes no offset, and its own history proves nothing.
//!
//! ```text
//!  steady clock   ──sent────────────received──────────────now──▶
//!  other's clock          reads c                at least c + (now - received), at most c + (now - sent)
//! ```
//!
//! # Invariants
//!
//! 1. The time is held back, and never moved ahead: a time that is too early ends with its cause, one that is too late
//!    stays in logs.
//! 2. It is held back only to [`CLOCK_AHEAD_MS_MAX`] above a majority of the other clocks that were heard of late, by the latest that
//!    each may read. Below that it is the wall's. So the limit has no edge at which times would jump.
//!    Others' changes are judged by that time only if two other clocks set the bound. With one nobody knows which of the two is
//!    wrong. A change that is not taken loses to none, but a later one made here may lose to it.
//! 3. Without a reading of late it is the wall's: a machine that hears nobody goes on. A clock that shows a time before this
//!    program was written is wrong for certain, as of a machine whose battery is empty: it holds nobody back.
//! 4. What another machine tells bounds nothing but the time: no answer breaks an assertion.
//!
//! A machine that stood still without its steady clock noticing holds readings that are as much too early, until the next
//! answer. So while the wall is above the bound, questions are due again soon.

use std::collections::BTreeMap;

use crate::limits::{
    CLOCK_AHEAD_MS_MAX, CLOCK_ASK_AGAIN_MS, CLOCK_ASK_MS, CLOCK_FLOOR_MS, CLOCK_FRESH_MS,
    CLOCK_JUDGES_MIN,
};
use crate::now::EventTime;

/// An answered question: when it was sent and its answer received, on the steady clock, and the other's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Time before which the other had not read its clock.
    pub sent_ms: u64,
    /// Time after which it had.
    pub received_ms: u64,
    /// Milliseconds since 1970 by the other's clock.
    pub clock_ms: u64,
}

impl ClockReading {
    /// The other's clock less this machine's steady one: the least that this may be.
    fn offset_min(self) -> i64 {
        offset(self.clock_ms, self.received_ms)
    }

    /// The most.
    fn offset_max(self) -> i64 {
        offset(self.clock_ms, self.sent_ms)
    }

    /// False for a clock that cannot be right.
    fn counts(self) -> bool {
        self.clock_ms >= CLOCK_FLOOR_MS
    }

    fn is_fresh(self, steady_ms: u64) -> bool {
        steady_ms.saturating_sub(self.sent_ms) <= CLOCK_FRESH_MS
    }
}

fn offset(clock_ms: u64, steady_ms: u64) -> i64 {
    i64::try_from(clock_ms).unwrap_or(i64::MAX).saturating_sub_unsigned(steady_ms)
}

/// The latest that the wall's clock counts for, as an offset against the steady clock. By default there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockBound(i64);

impl Default for ClockBound {
    fn default() -> Self {
        Self(i64::MAX)
    }
}

impl ClockBound {
    /// The bound of this number.
    #[must_use]
    pub fn from_raw(raw: i64) -> Self {
        Self(raw)
    }

    /// Its number.
    #[must_use]
    pub fn to_raw(self) -> i64 {
        self.0
    }

    /// The time by both clocks, of which the wall's is held back to the bound.
    #[must_use]
    pub fn hold_back(self, now: EventTime) -> EventTime {
        if self == Self::default() {
            return now;
        }
        let latest_ms = self.0.saturating_add_unsigned(now.steady_ms);
        let wall_ms = now.wall_ms.min(u64::try_from(latest_ms).unwrap_or(0));
        assert!(wall_ms <= now.wall_ms, "a time is held back only");
        EventTime { wall_ms, ..now }
    }
}

/// By how much another clock differs from this machine's, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockDifference {
    /// The other is ahead by so many milliseconds.
    Ahead(u64),
    /// It is behind.
    Behind(u64),
}

#[derive(Debug, Clone, Copy, Default)]
struct OtherClock {
    /// Time of the last question.
    requested_ms: Option<u64>,
    is_asked: bool,
    /// A question has ended, with an answer or without.
    was_asked: bool,
    reading: Option<ClockReading>,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub struct ClockOffsets<K> {
    others: BTreeMap<K, OtherClock>,
}

impl<K> Default for ClockOffsets<K> {
    fn default() -> Self {
        Self { others: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> ClockOffsets<K> {
    /// Sets the machines whose clocks count. What others told is forgotten.
    pub fn set_others(&mut self, others: impl Iterator<Item = K>) {
        let mut before = std::mem::take(&mut self.others);
        self.others =
            others.map(|other| (other, before.remove(&other).unwrap_or_default())).collect();
    }

    /// Returns true if another machine is to be asked now.
    #[must_use]
    pub fn is_due(&self, now: EventTime, other: K) -> bool {
        let Some(known) = self.others.get(&other).filter(|it| !it.is_asked) else { return false };
        let is_known = known.reading.is_some_and(|it| it.is_fresh(now.steady_ms));
        let is_settled = is_known && self.ahead_ms(now) == 0;
        let pause_ms = if is_settled { CLOCK_ASK_MS } else { CLOCK_ASK_AGAIN_MS };
        known
            .requested_ms
            .is_none_or(|requested_ms| now.steady_ms.saturating_sub(requested_ms) >= pause_ms)
    }

    /// Notes that a machine is asked.
    pub fn asked(&mut self, steady_ms: u64, other: K) {
        if let Some(known) = self.others.get_mut(&other) {
            assert!(!known.is_asked, "one question to a machine is under way");
            (known.requested_ms, known.is_asked) = (Some(steady_ms), true);
        }
    }

    /// Takes the end of a question: the reading, if there was an answer. Of two readings that of the later question counts.
    ///
    /// # Panics
    /// If the answer came before the question was sent, which is this machine's own fault.
    pub fn answered(&mut self, other: K, reading: Option<ClockReading>) {
        if let Some(it) = reading {
            assert!(it.sent_ms <= it.received_ms, "an answer follows its question");
        }
        let Some(known) = self.others.get_mut(&other) else { return };
        (known.is_asked, known.was_asked) = (false, true);
        let sent_ms = |it: Option<ClockReading>| it.map(|it| it.sent_ms);
        if sent_ms(reading) >= sent_ms(known.reading) {
            known.reading = reading;
        }
    }

    /// Returns true once a question to each machine has ended.
    #[must_use]
    pub fn has_asked_all(&self) -> bool {
        self.others.values().all(|known| known.was_asked)
    }

    /// The machines that have answered of late.
    fn fresh(&self, steady_ms: u64) -> impl Iterator<Item = (K, ClockReading)> {
        let fresh = move |reading: ClockReading| reading.is_fresh(steady_ms);
        self.others.iter().filter_map(move |(other, known)| {
            Some((*other, known.reading.filter(|it| fresh(*it))?))
        })
    }

    /// The least offset that a majority of the other clocks do not exceed: more than half of them. With this machine's own clock,
    /// if that is above, they are at least half of all. So a tie goes to the earlier.
    fn majority(&self, steady_ms: u64) -> Option<i64> {
        let counting = self.fresh(steady_ms).filter(|(_, it)| it.counts());
        let mut offsets: Vec<i64> = counting.map(|(_, it)| it.offset_max()).collect();
        offsets.sort_unstable();
        offsets.get(offsets.len() / 2).copied()
    }

    /// The bound of the wall's clock.
    #[must_use]
    pub fn bound(&self, steady_ms: u64) -> ClockBound {
        let Some(majority) = self.majority(steady_ms) else { return ClockBound::default() };
        ClockBound(majority.saturating_add_unsigned(CLOCK_AHEAD_MS_MAX))
    }

    /// The bound of the time by which changes of others are judged to be ahead: the same, but none with one other clock.
    #[must_use]
    pub fn judging_bound(&self, steady_ms: u64) -> ClockBound {
        let counting = self.fresh(steady_ms).filter(|(_, it)| it.counts()).count();
        if counting < CLOCK_JUDGES_MIN { ClockBound::default() } else { self.bound(steady_ms) }
    }

    /// Milliseconds by which this machine's clock is ahead of a majority, at least, if that is more than the limit; else 0.
    #[must_use]
    pub fn ahead_ms(&self, now: EventTime) -> u64 {
        let held_back = self.bound(now.steady_ms).hold_back(now);
        match now.wall_ms - held_back.wall_ms {
            0 => 0,
            above_ms => above_ms.saturating_add(CLOCK_AHEAD_MS_MAX),
        }
    }

    /// The clocks that differ from this machine's by more than the limit.
    pub fn differing(&self, now: EventTime) -> impl Iterator<Item = (K, ClockDifference)> {
        let own = offset(now.wall_ms, now.steady_ms);
        let differs = move |reading: ClockReading| {
            let ahead_ms = reading.offset_min().saturating_sub(own);
            let behind_ms = own.saturating_sub(reading.offset_max());
            let is_over = |ms: i64| u64::try_from(ms).ok().filter(|ms| *ms > CLOCK_AHEAD_MS_MAX);
            let ahead = is_over(ahead_ms).map(ClockDifference::Ahead);
            ahead.or(is_over(behind_ms).map(ClockDifference::Behind))
        };
        self.fresh(now.steady_ms).filter_map(move |(other, it)| Some((other, differs(it)?)))
    }
}

#[cfg(test)]
mod tests;
