//! Verification of copies: in rounds over METAX, so that none goes unverified for longer than a set time.
//!
//! ```text
//!  period  ├───────────────────────────────┤   no copy goes longer unverified
//!  due     ├───────────────┤                   half of it after its last round a group is due again
//!  round   ├───────┤                           a round takes a quarter of it, at the pace that this needs
//! ```
//!
//! What is left of the period is for rounds that begin late, because a server was away, or because another led the
//! group before. A group's time is that at which its last whole round *began*. What a server does not know it takes
//! for as old as its own records: then it verifies too early, and never too late.
//!
//! # Invariants
//!
//! 1. A group counts as verified only if this server led it whenever the round came to one of its rows, and every copy
//!    that these name gave an answer.
//! 2. Rows before [`Round::after`] were looked at in this round: it goes on there after a restart. What was put or
//!    copied behind it since is younger than the round.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::PgId;
use serde::{Deserialize, Serialize};

use crate::limits::{SCRUB_BYTES_PER_S_MIN, SCRUB_PERIOD_MS_MIN};

/// Parts of the period after which a group is due again.
const DUE_PART: u64 = 2;
/// Parts of the period that a round is to take.
const ROUND_PART: u64 = 4;
/// Parts of the period that lie at least between the beginnings of two rounds.
const APART_PART: u64 = 16;

const _: () = assert!(APART_PART > ROUND_PART && ROUND_PART > DUE_PART, "rounds are in time");

/// Counts of the findings about copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Copies that were right.
    pub right: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Copies that are damaged or cannot be read.
    pub bad: u64,
    /// Copies for which no answer came.
    pub unanswered: u64,
}

/// A round under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The time at which it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Groups that it is to verify, and has not missed anything of.
    pub pgs: BTreeSet<PgId>,
    /// Bytes of copies that it is to verify, about.
    pub bytes: u64,
    /// The last row that was looked at.
    pub after: Vec<u8>,
    /// Its findings so far.
    pub tally: Tally,
}

/// A round that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The time at which it began.
    pub began_ms: u64,
    /// The time at which it ended.
    pub ended_ms: u64,
    /// Its findings.
    pub tally: Tally,
}

/// Where a server's scrub is; kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// A group that is not in `verified` counts as last verified then, in milliseconds since 1970.
    since_ms: u64,
    /// Beginning of each group's last whole round.
    verified: BTreeMap<PgId, u64>,
    round: Option<Round>,
    past: Option<Past>,
    /// Rounds that are over.
    rounds: u64,
}

impl Scrub {
    /// Nothing is known.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, verified: BTreeMap::new(), round: None, past: None, rounds: 0 }
    }

    /// The round under way.
    #[must_use]
    pub fn round(&self) -> Option<&Round> {
        self.round.as_ref()
    }

    /// The last round that is over.
    #[must_use]
    pub fn past(&self) -> Option<&Past> {
        self.past.as_ref()
    }

    /// Rounds that are over.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Damaged copies found by the last whole round, or by the one under way if that has found more.
    #[must_use]
    pub fn bad(&self) -> u64 {
        let past = self.past.map_or(0, |past| past.tally.bad);
        self.round.as_ref().map_or(0, |round| round.tally.bad).max(past)
    }

    /// Milliseconds for which nobody can say that a copy of these groups was verified: that of the oldest.
    #[must_use]
    pub fn oldest_ms(&self, now_ms: u64, led: &BTreeSet<PgId>) -> u64 {
        led.iter().map(|pg| self.age_ms(now_ms, *pg)).max().unwrap_or(0)
    }

    /// Returns true if a whole round over a group is on record.
    #[must_use]
    pub fn is_on_record(&self, pg: PgId) -> bool {
        self.verified.contains_key(&pg)
    }

    fn age_ms(&self, now_ms: u64, pg: PgId) -> u64 {
        now_ms.saturating_sub(self.verified.get(&pg).copied().unwrap_or(self.since_ms))
    }

    /// Sets times ahead of the clock, which was wrong then, to now, so that nothing waits for them.
    pub fn observe_clock(&mut self, now_ms: u64) {
        let set_back = |ms: &mut u64| *ms = (*ms).min(now_ms);
        set_back(&mut self.since_ms);
        self.verified.values_mut().for_each(set_back);
        self.round.iter_mut().for_each(|round| set_back(&mut round.began_ms));
        self.past.iter_mut().for_each(|past| set_back(&mut past.began_ms));
    }

    /// The groups with which a round begins now, of those that are led here; none if it is too early, or if one is
    /// under way.
    #[must_use]
    pub fn due(&self, now_ms: u64, period_ms: u64, led: &BTreeSet<PgId>) -> BTreeSet<PgId> {
        let period_ms = period_ms.max(SCRUB_PERIOD_MS_MIN);
        let due_ms = period_ms / DUE_PART;
        let began_ms = self.past.map(|past| past.began_ms);
        let is_apart =
            began_ms.is_none_or(|it| now_ms.saturating_sub(it) >= period_ms / APART_PART);
        if self.round.is_some() || !is_apart || self.oldest_ms(now_ms, led) < due_ms {
            return BTreeSet::new();
        }
        // Those that are nearly due come along: rounds stay few.
        let is_old = |pg: &&PgId| self.age_ms(now_ms, **pg) >= due_ms / 2;
        led.iter().filter(is_old).copied().collect()
    }

    /// A round begins over these groups, of which the copies have so many bytes.
    ///
    /// # Panics
    /// If one is under way.
    pub fn begin(&mut self, now_ms: u64, pgs: BTreeSet<PgId>, bytes: u64) {
        assert!(self.round.is_none(), "one round at a time");
        let tally = Tally::default();
        self.round = Some(Round { began_ms: now_ms, pgs, bytes, after: Vec::new(), tally });
    }

    /// Something of a group was not looked at in this round.
    pub fn missed(&mut self, pg: PgId) {
        if let Some(round) = &mut self.round {
            round.pgs.remove(&pg);
        }
    }

    /// Records findings since the last report; all rows up to `after` were examined, if it is given.
    pub fn found(&mut self, tally: Tally, after: Option<Vec<u8>>) {
        let Some(round) = &mut self.round else { return };
        let Tally { right, bytes, bad, unanswered } = &mut round.tally;
        *right += tally.right;
        *bytes += tally.bytes;
        *bad += tally.bad;
        *unanswered += tally.unanswered;
        if let Some(after) = after {
            round.after = after;
        }
    }

    /// All rows were looked at.
    pub fn end(&mut self, now_ms: u64) {
        let Some(Round { began_ms, pgs, tally, .. }) = self.round.take() else { return };
        pgs.into_iter().for_each(|pg| {
            self.verified.insert(pg, began_ms);
        });
        self.past = Some(Past { began_ms, ended_ms: now_ms, tally });
        self.rounds += 1;
    }

    /// Bytes a second at which the round under way ends in time.
    #[must_use]
    pub fn pace(&self, now_ms: u64, period_ms: u64) -> u64 {
        let Some(round) = &self.round else { return SCRUB_BYTES_PER_S_MIN };
        let round_ms = (period_ms / ROUND_PART).max(1);
        let left_ms = (round.began_ms + round_ms).saturating_sub(now_ms).max(1);
        let per_s = |bytes: u64, ms: u64| {
            u64::try_from(u128::from(bytes) * 1000 / u128::from(ms)).unwrap_or(u64::MAX)
        };
        let left = round.bytes.saturating_sub(round.tally.bytes);
        // There may be more than was thought.
        let steady = per_s(round.bytes, round_ms);
        per_s(left, left_ms).max(steady).max(SCRUB_BYTES_PER_S_MIN)
    }

    /// Thousandths of the round under way that are done: never all, as long as it is under way.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        let round = self.round.as_ref()?;
        let share = u128::from(round.tally.bytes) * 1000 / u128::from(round.bytes.max(1));
        Some(share.min(999) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 1000;
    const PERIOD: u64 = 16 * DAY;

    fn pgs(ids: &[u32]) -> BTreeSet<PgId> {
        ids.iter().copied().map(PgId).collect()
    }

    #[test]
    fn a_round_begins_when_a_group_is_due_and_takes_along_what_nearly_is() {
        let mut scrub = Scrub::new(0);
        let led = pgs(&[1, 2]);
        assert_eq!(
            scrub.due(8 * DAY - 1, PERIOD, &led),
            pgs(&[]),
            "half of the period is not over"
        );
        assert_eq!(scrub.due(8 * DAY, PERIOD, &led), led);
        scrub.begin(8 * DAY, pgs(&[1]), 100);
        assert_eq!(scrub.due(9 * DAY, PERIOD, &led), pgs(&[]), "one round at a time");
        scrub.end(9 * DAY);
        assert_eq!(scrub.due(9 * DAY - 1, PERIOD, &led), pgs(&[]), "rounds are some way apart");
        assert_eq!(scrub.due(9 * DAY, PERIOD, &led), pgs(&[2]));
        assert_eq!(scrub.due(12 * DAY, PERIOD, &led), led, "group 1 comes along");
    }

    #[test]
    fn a_group_of_which_something_was_missed_is_not_verified() {
        let mut scrub = Scrub::new(0);
        scrub.begin(8 * DAY, pgs(&[1, 2]), 100);
        scrub.missed(PgId(2));
        scrub.end(9 * DAY);
        assert_eq!(scrub.oldest_ms(10 * DAY, &pgs(&[1])), 2 * DAY, "counted from its beginning");
        assert_eq!(scrub.oldest_ms(10 * DAY, &pgs(&[1, 2])), 10 * DAY);
        assert_eq!(scrub.oldest_ms(10 * DAY, &pgs(&[])), 0);
        assert!(scrub.is_on_record(PgId(1)) && !scrub.is_on_record(PgId(2)));
    }

    #[test]
    fn steady_rounds_keep_every_copy_within_the_period() {
        let (mut scrub, led) = (Scrub::new(0), pgs(&[1]));
        let mut worst = 0;
        for hour in 0..24 * 100 {
            let now_ms = hour * 3600 * 1000;
            let due = scrub.due(now_ms, PERIOD, &led);
            if !due.is_empty() {
                scrub.begin(now_ms, due, 100);
            }
            worst = worst.max(scrub.oldest_ms(now_ms, &led));
            if scrub.round().is_some_and(|it| now_ms - it.began_ms >= PERIOD / ROUND_PART) {
                scrub.end(now_ms);
            }
        }
        assert!(worst <= PERIOD * 3 / 4 + 3_600_000, "{worst}");
        assert!(scrub.rounds() >= 10);
    }

    #[test]
    fn the_pace_ends_the_round_in_a_quarter_of_the_period() {
        let mut scrub = Scrub::new(0);
        let bytes = 4 * 86_400 * 100 * SCRUB_BYTES_PER_S_MIN;
        scrub.begin(0, pgs(&[1]), bytes);
        assert_eq!(scrub.pace(0, PERIOD), 100 * SCRUB_BYTES_PER_S_MIN);
        assert_eq!(
            scrub.pace(2 * DAY, PERIOD),
            200 * SCRUB_BYTES_PER_S_MIN,
            "it has fallen behind"
        );
        scrub.found(Tally { bytes: bytes * 3 / 4, ..Tally::default() }, None);
        assert_eq!(scrub.pace(2 * DAY, PERIOD), 100 * SCRUB_BYTES_PER_S_MIN, "never too slow");
        assert_eq!(scrub.share(), Some(750));
        scrub.found(Tally { bytes, ..Tally::default() }, None);
        assert_eq!(scrub.share(), Some(999), "it is not over");
        scrub.end(3 * DAY);
        assert_eq!((scrub.share(), scrub.pace(3 * DAY, PERIOD)), (None, SCRUB_BYTES_PER_S_MIN));
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_put_off_what_is_due() {
        let (mut scrub, led) = (Scrub::new(0), pgs(&[1]));
        scrub.begin(3650 * DAY, led.clone(), 100);
        scrub.end(3650 * DAY);
        assert_eq!(scrub.due(100 * DAY, PERIOD, &led), pgs(&[]), "it would be ten years");
        scrub.observe_clock(100 * DAY);
        assert_eq!(scrub.due(108 * DAY, PERIOD, &led), led);
    }

    #[test]
    fn damaged_copies_are_reported_until_a_whole_round_finds_none() {
        let mut scrub = Scrub::new(0);
        scrub.begin(0, pgs(&[1]), 100);
        scrub.found(Tally { bad: 2, ..Tally::default() }, Some(b"V1".to_vec()));
        assert_eq!((scrub.bad(), &scrub.round().unwrap().after[..]), (2, &b"V1"[..]));
        scrub.end(DAY);
        scrub.begin(8 * DAY, pgs(&[1]), 100);
        assert_eq!(scrub.bad(), 2);
        scrub.end(9 * DAY);
        assert_eq!(scrub.bad(), 0);
    }
}
