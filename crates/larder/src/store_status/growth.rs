//! The rate at which a store fills, from what was free before: objects, index, log and whatever else is on its file system take
//! of that.
//!
//! A look every ten minutes, a week of them. Objects that come and go within a day do not make a trend. Nothing is foretold
//! from less than an hour, and a forecast goes by all of the time there is.

use std::collections::VecDeque;

use larder_roles::observed::Growth;

/// Seconds between two looks that are kept.
const PAUSE_S: u64 = 600;
/// Looks that are kept: of a week.
const SAMPLES_MAX: usize = 7 * 24 * 6;

/// Looks at the bytes that are free, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Seconds of a clock that never goes back, and bytes.
    samples: VecDeque<(u64, u64)>,
}

impl History {
    /// Keeps a look, if the last one is long enough ago.
    pub(super) fn note(&mut self, now_s: u64, free: u64) {
        if self.samples.back().is_some_and(|(last, _)| now_s < last + PAUSE_S) {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((now_s, free));
    }

    /// The growth until now, if there is any; `free` bytes are left.
    pub(super) fn growth(&self, now_s: u64, free: u64) -> Option<Growth> {
        let &(first_s, first) = self.samples.front()?;
        Growth::of(first.saturating_sub(free), now_s.saturating_sub(first_s), free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: u64 = 3600;

    #[test]
    fn a_store_that_fills_is_foretold_when_it_is_full() {
        let mut history = History::default();
        history.note(0, 1200);
        assert_eq!(history.growth(HOUR_S - 1, 100), None, "too early to tell");
        history.note(HOUR_S, 1100);
        let growth = history.growth(2 * HOUR_S, 1000);
        let expected = Growth { bytes: 200, within_s: 2 * HOUR_S, full_in_s: 10 * HOUR_S };
        assert_eq!(growth, Some(expected));
    }

    #[test]
    fn a_store_that_shrinks_or_stays_is_not_foretold() {
        let mut history = History::default();
        history.note(0, 1000);
        assert_eq!(history.growth(HOUR_S, 1000), None);
        assert_eq!(history.growth(HOUR_S, 1100), None);
    }

    #[test]
    fn a_week_is_kept_and_no_more() {
        let mut history = History::default();
        for second in 0..(SAMPLES_MAX as u64 + 10) * PAUSE_S {
            history.note(second, second);
        }
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert_eq!(history.samples.front(), Some(&(10 * PAUSE_S, 10 * PAUSE_S)));
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        let mut history = History::default();
        history.note(0, u64::MAX);
        let growth = history.growth(u64::MAX, u64::MAX - 1).unwrap();
        assert_eq!(growth.full_in_s, u64::MAX);
    }
}
