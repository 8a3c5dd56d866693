//! The order of copies in a cluster, as a meta server sees it. Each server reports what it has to copy, and the leading
//! manager answers with the priority up to which it may copy (`manager/policy/copies.rs`).
//!
//! ```text
//!  begin, found ─▶ need ─▶ the beat ─▶ managers ─▶ heard ─▶ may_copy, bytes_per_s
//! ```
//!
//! # Invariants
//!
//! 1. A chunk with a single copy never waits for a turn.
//! 2. A turn counts only if the report that it answers was sent after this server began to wait, and for
//!    [`COPY_TURN_MS`].
//! 3. A server without a turn for so long copies on its own: no copy waits for a manager for ever.
//! 4. Nothing here affects correctness: turns that are late, or of two leaders, change the order of copies alone.

use serde::{Deserialize, Serialize};

use crate::limits::{COPY_LENT_MAX, COPY_TURN_MS};

/// Copies with the least come first: of chunks of which the fewest copies can be read, and among these, of chunks in
/// volumes that are read a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CopyPriority {
    /// Copies that can be read: one at least.
    pub good: u8,
    /// The chunk's volume is not read much.
    pub is_cold: bool,
}

impl CopyPriority {
    /// The priority that nothing comes before.
    pub const FIRST: Self = Self { good: 1, is_cold: false };
    /// The priority that everything comes before.
    pub const LAST: Self = Self { good: u8::MAX, is_cold: true };

    /// That of a chunk of which so many copies can be read.
    #[must_use]
    pub fn new(good: usize, is_hot: bool) -> Self {
        Self { good: u8::try_from(good).unwrap_or(u8::MAX).max(1), is_cold: !is_hot }
    }

    /// Returns true if there is no other copy of the chunk.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.good <= 1
    }
}

/// The copies that a meta server has to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyNeed {
    /// The most urgent of what it copies, or waits to copy.
    pub priority: CopyPriority,
    /// Bytes of copies that were made since its start.
    pub made: u64,
    /// Its budget of background work.
    pub bytes_per_s: u64,
    /// It waits for its turn.
    pub waits: bool,
}

/// The copies that it may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTurn {
    /// Make copies as urgent as this.
    pub upto: CopyPriority,
    /// Take so many bytes a second for them.
    pub bytes_per_s: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Doing {
    #[default]
    Rests,
    /// It waits to make copies up to a bound, of which it knows that there are some.
    Waits,
    /// It looks for copies up to the bound, and makes what it has found, of this priority.
    Copies(Option<CopyPriority>),
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct CopyPacing {
    doing: Doing,
    bound: Option<CopyPriority>,
    /// Since when there is this bound.
    since_ms: u64,
    /// The latest turn, and when the need was said that it answers.
    turn: Option<(u64, CopyTurn)>,
}

impl CopyPacing {
    /// Copies up to a bound are to be made from now on.
    pub fn begin(&mut self, now_ms: u64, bound: CopyPriority) {
        self.doing = if bound.is_single() { Doing::Copies(None) } else { Doing::Waits };
        (self.bound, self.since_ms) = (Some(bound), now_ms);
    }

    /// Copies are being made, of which this is the most urgent; `None`: no longer. Others are held up by what was found,
    /// and not by a look for it.
    pub fn found(&mut self, priority: Option<CopyPriority>) {
        self.doing = Doing::Copies(priority);
    }

    /// Pauses what was begun, as it may not go on.
    pub fn wait(&mut self) {
        self.doing = Doing::Waits;
    }

    /// There is nothing to copy, or nothing that can be copied now.
    pub fn rest(&mut self) {
        (self.doing, self.bound) = (Doing::Rests, None);
    }

    /// Returns the need that the managers are to hear: the most urgent priority, and whether it waits.
    #[must_use]
    pub fn need(&self) -> Option<(CopyPriority, bool)> {
        match self.doing {
            Doing::Rests => None,
            Doing::Waits => self.bound.map(|bound| (bound, true)),
            Doing::Copies(Some(found)) => Some((found, false)),
            // It delays no other server, and still learns that others come first.
            Doing::Copies(None) if self.awaits_turns() => Some((CopyPriority::LAST, true)),
            Doing::Copies(None) => None,
        }
    }

    /// Returns true if what was begun may go on now.
    #[must_use]
    pub fn may_copy(&self, now_ms: u64) -> bool {
        let Some(bound) = self.bound.filter(|_| self.awaits_turns()) else { return true };
        match self.current_turn(now_ms).filter(|(sent_ms, _)| *sent_ms >= self.since_ms) {
            Some((_, turn)) => turn.upto >= bound,
            None => now_ms >= self.since_ms + COPY_TURN_MS,
        }
    }

    /// The leading manager answers what was said at `sent_ms`.
    pub fn receive_turn(&mut self, sent_ms: u64, turn: CopyTurn) {
        if self.turn.is_none_or(|(latest_ms, _)| sent_ms >= latest_ms) {
            self.turn = Some((sent_ms, turn));
        }
    }

    /// Bytes a second that copies may take, of a server whose own budget is this.
    #[must_use]
    pub fn bytes_per_s(&self, now_ms: u64, own: u64) -> u64 {
        let given = self.current_turn(now_ms).filter(|_| self.need().is_some());
        let given = given.map_or(own, |(_, turn)| turn.bytes_per_s);
        given.clamp(own, own.saturating_mul(COPY_LENT_MAX))
    }

    fn awaits_turns(&self) -> bool {
        self.bound.is_some_and(|bound| !bound.is_single())
    }

    fn current_turn(&self, now_ms: u64) -> Option<(u64, CopyTurn)> {
        self.turn.filter(|(sent_ms, _)| now_ms < sent_ms.saturating_add(COPY_TURN_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 64;

    fn priority(good: usize) -> CopyPriority {
        CopyPriority::new(good, false)
    }

    fn turn(upto: CopyPriority) -> CopyTurn {
        CopyTurn { upto, bytes_per_s: 3 * OWN }
    }

    #[test]
    fn single_copies_wait_for_nobody_and_hold_others_up_only_once_they_are_found() {
        let mut turns = CopyPacing::default();
        assert_eq!(turns.need(), None);
        turns.begin(100, priority(1));
        turns.receive_turn(100, turn(CopyPriority::FIRST));
        assert!(turns.may_copy(100));
        assert_eq!(turns.need(), None, "to look is no need");
        turns.found(Some(priority(1)));
        assert_eq!(turns.need(), Some((priority(1), false)));
        turns.found(None);
        assert_eq!(turns.need(), None);
    }

    #[test]
    fn what_is_less_urgent_waits_for_a_turn_that_answers_its_need() {
        let mut turns = CopyPacing::default();
        turns.receive_turn(90, turn(CopyPriority::LAST));
        turns.begin(100, priority(2));
        assert_eq!(turns.need(), Some((priority(2), true)), "it waits with it");
        assert!(!turns.may_copy(101), "the turn answers an earlier need");
        turns.receive_turn(200, turn(priority(1)));
        assert!(!turns.may_copy(201), "others come before");
        turns.receive_turn(300, turn(priority(2)));
        assert!(turns.may_copy(301));
        turns.receive_turn(250, turn(priority(1)));
        assert!(turns.may_copy(302), "it came late");
        turns.found(None);
        assert_eq!(turns.need(), Some((CopyPriority::LAST, true)), "to look on is hardly a need");
        turns.found(Some(priority(2)));
        assert_eq!(turns.need(), Some((priority(2), false)));
        turns.receive_turn(400, turn(priority(1)));
        assert!(!turns.may_copy(401), "somebody has lost more");
        turns.wait();
        assert_eq!(turns.need(), Some((priority(2), true)));
        assert_eq!(turns.bytes_per_s(401, OWN), 3 * OWN);
        turns.rest();
        assert!(turns.may_copy(402));
        assert_eq!(turns.bytes_per_s(402, OWN), OWN, "what it does not need it does not take");
    }

    #[test]
    fn without_managers_it_goes_on_by_itself_and_with_its_own() {
        let mut turns = CopyPacing::default();
        turns.begin(100, priority(2));
        assert!(!turns.may_copy(100 + COPY_TURN_MS - 1));
        assert!(turns.may_copy(100 + COPY_TURN_MS));
        turns.receive_turn(200, turn(priority(1)));
        assert!(!turns.may_copy(200 + COPY_TURN_MS - 1));
        assert!(turns.may_copy(200 + COPY_TURN_MS), "the turn is over, and no other comes");
        assert_eq!(turns.bytes_per_s(200 + COPY_TURN_MS, OWN), OWN);
    }

    #[test]
    fn no_turn_takes_from_the_budget_or_lends_without_end() {
        let mut turns = CopyPacing::default();
        turns.begin(100, priority(2));
        for (given, taken) in [(0, OWN), (OWN, OWN), (u64::MAX, COPY_LENT_MAX * OWN)] {
            turns.receive_turn(100, CopyTurn { upto: priority(2), bytes_per_s: given });
            assert_eq!(turns.bytes_per_s(101, OWN), taken);
        }
    }
}
