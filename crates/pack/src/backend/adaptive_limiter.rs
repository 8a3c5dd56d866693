//! Limits requests to a backend: those under way, those a second, and the pauses that the backend demands. Pure; times
//! are those since the request scheduler was made.
//!
//! # Invariants
//!
//! 1. No request begins while as many are under way as the limit says. The limit halves when the
//!    backend says that it is too much, or when a request stood still until it was given up. For
//!    the requests that are under way then it halves at most once. It grows by one for each round
//!    of good answers that filled it.
//! 2. Writes leave a part of it to reads, however low it is: one write may take hours.
//! 3. No request begins while a pause lasts that the backend asked for.
//! 4. In any second no more begin than the budget says, and a tenth of that besides, or one if that
//!    is more.

use std::time::Duration;

use crate::limits::{
    BACKEND_REQUESTS_MAX, BACKEND_REQUESTS_MIN, BACKEND_REQUESTS_START, RATE_BURST, RETRY_AFTER_MAX,
};

/// Whom a request is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// A reader, who waits for it.
    Read,
    /// An upload, or housekeeping.
    Write,
}

/// The answer to a request that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Now,
    /// Not before then, or when another has ended.
    At(Duration),
    /// Once another has ended.
    WhenOneEnds,
}

/// The news about the backend that an answer brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It had the time for it.
    Good,
    /// The backend throttled the request, and may have named a pause.
    Throttled(Option<Duration>),
    /// None in time: too many requests share the way there, or it is asked too much.
    Late,
    /// Nothing: a lost connection, an error of another kind.
    Unknown,
}

/// The state.
#[derive(Debug)]
pub(super) struct AdaptiveLimiter {
    limit: f64,
    under_way: u32,
    writes_in_flight: u32,
    /// Requests begun before this have been answered for already.
    lowered: Option<Duration>,
    paused_until: Duration,
    rate: Option<Rate>,
}

/// A budget of requests: what has gathered since they were last counted.
#[derive(Debug)]
struct Rate {
    per_second: f64,
    gathered: f64,
    at: Duration,
}

impl AdaptiveLimiter {
    pub(super) fn new() -> Self {
        Self {
            limit: f64::from(BACKEND_REQUESTS_START),
            under_way: 0,
            writes_in_flight: 0,
            lowered: None,
            paused_until: Duration::ZERO,
            rate: None,
        }
    }

    /// From now on so many requests a second, or any number.
    pub(super) fn set_rate(&mut self, per_second: Option<f64>, now: Duration) {
        self.rate = per_second.map(|per_second| Rate { per_second, gathered: 1.0, at: now });
    }

    /// Requests that may be under way at once.
    pub(super) fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Uploads that may be under way at once.
    pub(super) fn writes_max(&self) -> u32 {
        self.limit() * 3 / 4
    }

    pub(super) fn admits(&mut self, side: Side, now: Duration) -> Verdict {
        let writes_full = side == Side::Write && self.writes_in_flight >= self.writes_max();
        if self.under_way >= self.limit() || writes_full {
            return Verdict::WhenOneEnds;
        }
        if now < self.paused_until {
            return Verdict::At(self.paused_until);
        }
        match &mut self.rate {
            Some(rate) => rate.admits(now),
            None => Verdict::Now,
        }
    }

    /// A request begins, for which [`AdaptiveLimiter::admits`] said so.
    pub(super) fn begin(&mut self, side: Side) {
        assert!(self.under_way < self.limit(), "no more are under way than may be");
        self.under_way += 1;
        if side == Side::Write {
            self.writes_in_flight += 1;
        }
        if let Some(rate) = &mut self.rate {
            rate.gathered -= 1.0;
        }
    }

    /// A request ended that had begun at `began`.
    pub(super) fn end(&mut self, side: Side, began: Duration, answer: Answer, now: Duration) {
        let was_full = self.under_way >= self.limit();
        self.under_way -= 1;
        if side == Side::Write {
            self.writes_in_flight -= 1;
        }
        match answer {
            Answer::Good if was_full => {
                self.limit = (self.limit + 1.0 / self.limit).min(f64::from(BACKEND_REQUESTS_MAX));
            }
            Answer::Good | Answer::Unknown => {}
            Answer::Late => self.lower(began, now),
            Answer::Throttled(pause) => {
                self.lower(began, now);
                let until = now + pause.unwrap_or_default().min(RETRY_AFTER_MAX);
                self.paused_until = self.paused_until.max(until);
            }
        }
    }
}

impl AdaptiveLimiter {
    /// Halves the limit, unless it was lowered since the request began.
    fn lower(&mut self, began: Duration, now: Duration) {
        if self.lowered.is_none_or(|lowered| began > lowered) {
            self.limit = (self.limit / 2.0).max(f64::from(BACKEND_REQUESTS_MIN));
            self.lowered = Some(now);
        }
    }
}

impl Rate {
    fn admits(&mut self, now: Duration) -> Verdict {
        let most = (self.per_second * RATE_BURST.as_secs_f64()).max(1.0);
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.gathered = (self.gathered + since * self.per_second).min(most);
        self.at = self.at.max(now);
        // Nobody waits for what a float lost on the way.
        let missing = 1.0 - self.gathered;
        match missing <= 1e-6 {
            true => Verdict::Now,
            false => Verdict::At(now + Duration::from_secs_f64(missing / self.per_second)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fill(pace: &mut AdaptiveLimiter, side: Side, now: Duration) -> u32 {
        let mut begun = 0;
        while pace.admits(side, now) == Verdict::Now {
            pace.begin(side);
            begun += 1;
        }
        begun
    }

    #[test]
    fn a_refusal_halves_what_is_under_way_once_and_good_answers_win_it_back() {
        let mut pace = AdaptiveLimiter::new();
        let all = fill(&mut pace, Side::Read, Duration::ZERO);
        assert_eq!(all, BACKEND_REQUESTS_START);
        for _ in 0..all {
            pace.end(Side::Read, Duration::ZERO, Answer::Throttled(None), SECOND);
        }
        assert_eq!(pace.limit(), all / 2, "all of them were one refusal");
        let began = 2 * SECOND;
        assert_eq!(fill(&mut pace, Side::Read, began), all / 2);
        pace.end(Side::Read, began, Answer::Throttled(None), 3 * SECOND);
        assert_eq!(pace.limit(), all / 4, "that one had begun later");

        let mut pace = AdaptiveLimiter::new();
        let mut rounds = 0;
        while pace.limit() < BACKEND_REQUESTS_MAX {
            let begun = fill(&mut pace, Side::Read, Duration::ZERO);
            for _ in 0..begun {
                pace.end(Side::Read, Duration::ZERO, Answer::Good, SECOND);
                fill(&mut pace, Side::Read, Duration::ZERO);
            }
            while pace.under_way > 0 {
                pace.end(Side::Read, Duration::ZERO, Answer::Unknown, SECOND);
            }
            rounds += 1;
            assert!(rounds < 10 * BACKEND_REQUESTS_MAX);
        }
    }

    #[test]
    fn it_never_falls_below_its_floor_and_does_not_grow_where_it_is_not_used() {
        let mut pace = AdaptiveLimiter::new();
        for second in 1..20 {
            assert_eq!(pace.admits(Side::Write, second * SECOND), Verdict::Now);
            pace.begin(Side::Write);
            pace.end(Side::Write, second * SECOND, Answer::Throttled(None), second * SECOND);
        }
        assert_eq!(pace.limit(), BACKEND_REQUESTS_MIN);
        let mut pace = AdaptiveLimiter::new();
        for _ in 0..1000 {
            pace.begin(Side::Read);
            pace.end(Side::Read, Duration::ZERO, Answer::Good, SECOND);
        }
        assert_eq!(pace.limit(), BACKEND_REQUESTS_START);
    }

    #[test]
    fn writes_leave_room_for_reads() {
        let mut pace = AdaptiveLimiter::new();
        let writes = fill(&mut pace, Side::Write, Duration::ZERO);
        assert_eq!(writes, BACKEND_REQUESTS_START * 3 / 4);
        assert_eq!(fill(&mut pace, Side::Read, Duration::ZERO), BACKEND_REQUESTS_START - writes);
    }

    #[test]
    fn a_write_that_takes_long_leaves_places_where_the_limit_is_lowest() {
        let mut pace = AdaptiveLimiter::new();
        for second in 1..20 {
            pace.begin(Side::Write);
            pace.end(Side::Write, second * SECOND, Answer::Late, second * SECOND);
        }
        let now = 20 * SECOND;
        pace.begin(Side::Write);
        assert_eq!(pace.admits(Side::Write, now), Verdict::Now, "another write has a place");
        fill(&mut pace, Side::Write, now);
        assert_eq!(pace.admits(Side::Read, now), Verdict::Now, "and a read");
    }

    #[test]
    fn the_backend_is_left_alone_as_long_as_it_asks_and_no_longer_than_the_limit() {
        let mut pace = AdaptiveLimiter::new();
        pace.begin(Side::Read);
        pace.end(Side::Read, Duration::ZERO, Answer::Throttled(Some(7 * SECOND)), SECOND);
        assert_eq!(pace.admits(Side::Read, SECOND), Verdict::At(8 * SECOND));
        assert_eq!(pace.admits(Side::Read, 8 * SECOND), Verdict::Now);
        pace.begin(Side::Read);
        pace.end(Side::Read, 8 * SECOND, Answer::Throttled(Some(Duration::MAX)), 9 * SECOND);
        assert_eq!(pace.admits(Side::Read, 9 * SECOND), Verdict::At(9 * SECOND + RETRY_AFTER_MAX));
    }

    #[test]
    fn a_budget_of_requests_is_kept_over_time() {
        let mut pace = AdaptiveLimiter::new();
        pace.set_rate(Some(100.0), Duration::ZERO);
        let (mut begun, mut now) = (0, Duration::ZERO);
        while now < 10 * SECOND {
            match pace.admits(Side::Read, now) {
                Verdict::Now => {
                    pace.begin(Side::Read);
                    pace.end(Side::Read, now, Answer::Good, now);
                    begun += 1;
                }
                Verdict::At(at) => {
                    assert!(at > now, "time passes");
                    now = at;
                }
                Verdict::WhenOneEnds => panic!("none is under way"),
            }
        }
        assert!((990..=1011).contains(&begun), "{begun}");
        // Unused requests gather for a tenth of a second alone.
        assert_eq!(fill(&mut pace, Side::Read, 100 * SECOND), BACKEND_REQUESTS_START.min(10));
    }
}
