//! The ops applied last, for followers that are behind.

use std::collections::VecDeque;

use larder_types::{OpId, OpSeq};

use crate::limits::{HISTORY_DOUBLINGS_MAX, HISTORY_OPS_MAX, HISTORY_OPS_MIN};
use crate::message::LogEntry;

/// Ops that were applied, without a gap; the first of them comes after `before`.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    before: OpId,
    ops: VecDeque<LogEntry>,
    /// The number of times that the bound was doubled, as a follower got no whole snapshot within it.
    doublings: u32,
}

impl History {
    /// Nothing is remembered of what was applied through an op.
    pub(super) fn after(before: OpId) -> Self {
        Self { before, ..Self::default() }
    }

    /// The op that comes before all that is remembered.
    pub(super) fn before(&self) -> OpId {
        self.before
    }

    /// The op at a position, if that is remembered.
    pub(super) fn id(&self, seq: OpSeq) -> Option<OpId> {
        if seq == self.before.seq {
            return Some(self.before);
        }
        let at = seq.0.checked_sub(self.before.seq.0 + 1)?;
        self.ops.get(usize::try_from(at).ok()?).map(|entry| entry.id)
    }

    /// Returns the ops that follow a position, as far back as they are remembered.
    pub(super) fn ops_after(&self, seq: OpSeq) -> impl Iterator<Item = &LogEntry> {
        let skipped = usize::try_from(seq.0.saturating_sub(self.before.seq.0));
        self.ops.range(skipped.unwrap_or(usize::MAX).min(self.ops.len())..)
    }

    /// Remembers an op that was applied after the others; older ones as long as somebody needs what follows `needed`.
    pub(super) fn push(&mut self, entry: LogEntry, needed: OpSeq) {
        self.ops.push_back(entry);
        while let Some(oldest) = self.ops.front()
            && (self.ops.len() > self.ops_max()
                || self.ops.len() > HISTORY_OPS_MIN && oldest.id.seq <= needed)
        {
            self.before = oldest.id;
            self.ops.pop_front();
        }
    }

    /// A snapshot took so long that what follows it is forgotten: the next one has twice the time, up to a bound.
    pub(super) fn was_too_short(&mut self) {
        self.doublings = (self.doublings + 1).min(HISTORY_DOUBLINGS_MAX);
    }

    /// Nobody takes a snapshot any more.
    pub(super) fn is_long_enough(&mut self) {
        self.doublings = 0;
    }

    fn ops_max(&self) -> usize {
        HISTORY_OPS_MAX << self.doublings
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_types::{Op, View};

    use super::*;

    fn push(history: &mut History, ops: std::ops::RangeInclusive<usize>) {
        for seq in ops {
            let id = OpId { view: View(1), seq: OpSeq(seq as u64) };
            history.push(LogEntry { id, op: Arc::new(Op::SnapshotBegin) }, OpSeq(0));
        }
    }

    #[test]
    fn a_snapshot_that_took_too_long_has_twice_the_time_until_nobody_takes_one() {
        let mut history = History::default();
        push(&mut history, 1..=HISTORY_OPS_MAX + 1);
        assert_eq!(history.before().seq, OpSeq(1));
        let mut last = HISTORY_OPS_MAX + 1;
        for doublings in 1..=HISTORY_DOUBLINGS_MAX + 1 {
            history.was_too_short();
            let ops_max = HISTORY_OPS_MAX << doublings.min(HISTORY_DOUBLINGS_MAX);
            let before = history.before().seq;
            let room = ops_max - (last - before.0 as usize);
            push(&mut history, last + 1..=last + room);
            last += room;
            assert_eq!(history.before().seq, before, "{doublings}");
            push(&mut history, last + 1..=last + 1);
            last += 1;
            assert_eq!(history.before().seq.0, before.0 + 1, "{doublings}");
        }
        history.is_long_enough();
        push(&mut history, last + 1..=last + 1);
        assert_eq!(history.before().seq.0 as usize, last + 1 - HISTORY_OPS_MAX);
    }
}
