//! A limit on log lines about events that strangers can cause at will: some of them get a line.

use crate::limits::LINE_INTERVAL_MS;

/// Events of one kind: one of them in each [`LINE_INTERVAL_MS`] gets a line, which tells of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogLimiter {
    /// The time from which the next event gets a line.
    next_ms: u64,
    without: u64,
}

impl LogLimiter {
    /// Notes an event, at a time of a clock that never goes back. If it gets a line: the number of events before it that
    /// had none.
    pub fn happens(&mut self, now_ms: u64) -> Option<u64> {
        if now_ms < self.next_ms {
            self.without = self.without.saturating_add(1);
            return None;
        }
        self.next_ms = now_ms.saturating_add(LINE_INTERVAL_MS);
        Some(std::mem::take(&mut self.without))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_in_an_interval_gets_a_line_that_counts_the_others() {
        let mut kind = LogLimiter::default();
        assert_eq!(kind.happens(5), Some(0));
        for _ in 0..100 {
            assert_eq!(kind.happens(4 + LINE_INTERVAL_MS), None);
        }
        assert_eq!(kind.happens(5 + LINE_INTERVAL_MS), Some(100));
        assert_eq!(kind.happens(5 + LINE_INTERVAL_MS), None);
        assert_eq!(kind.happens(u64::MAX), Some(1));
    }
}
