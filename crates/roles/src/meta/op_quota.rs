//! Bounds the ops of other members that are taken while the log is behind: each group has a few. A
//! primary reports a member that makes no progress as unreachable, and a log that is full of other groups' ops must not
//! cause that.
//!
//! # Invariants
//!
//! 1. While the log is behind, at most one op of a group is taken in [`STARVED_MS`].
//! 2. If it is behind for longer, one op of each group that gets ops as often is taken.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::STARVED_MS;

/// The quota of one group.
#[derive(Debug, Default)]
pub(super) struct OpQuota {
    /// The time at which its ops were first turned away, or at which one was taken since.
    since: Option<Instant>,
}

impl OpQuota {
    /// The number of a message's ops that are taken now.
    pub(super) fn takes(&mut self, now: Instant, is_behind: bool, ops: usize) -> usize {
        if !is_behind {
            self.since = None;
            return ops;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < Duration::from_millis(STARVED_MS) {
            return 0;
        }
        self.since = Some(now);
        ops.min(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_on_by_one_op_at_a_time_while_the_log_is_behind() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut turns = OpQuota::default();
        assert_eq!(turns.takes(at(0), false, 9), 9);
        let taken: Vec<u64> =
            (1..=3 * STARVED_MS).filter(|ms| turns.takes(at(*ms), true, 9) == 1).collect();
        assert_eq!(taken, [1 + STARVED_MS, 1 + 2 * STARVED_MS]);
        assert_eq!(turns.takes(at(4 * STARVED_MS), false, 9), 9);
        assert_eq!(turns.takes(at(9 * STARVED_MS), true, 9), 0, "it was turned away just now");
    }
}
