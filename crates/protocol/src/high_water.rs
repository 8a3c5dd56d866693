//! High-water marks: for each LV the first block above all that the PG's rows name. The index keeps them beside the
//! rows (ADR 39). So a start allocates above the marks at once, and reads the rows for the space below while it serves.
//!
//! ```text
//!  block  0 ############..###.#####|.................. blocks
//!            named or not: unknown ▲ mark   free, but for open puts
//! ```
//!
//! # Invariants
//!
//! 1. In every state of the index the mark of an LV lies above each block of it that a row of the PG names. A batch that
//!    names blocks has the marks too, so that a crash takes back both or none.
//! 2. Marks are written with each applied position, with its op, and are believed only if the index's applied position *is*
//!    that op. A release that does not know them moves the position on and leaves them behind: whatever it named is not
//!    taken to lie below.
//! 3. Marks fall only when the space is known whole. They fall to the end of what is not free then, or to that of what rows
//!    name at a member that serves nothing.

use std::collections::BTreeMap;

use larder_types::{HighWaterRow, LvId, OpId};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HighWater(BTreeMap<LvId, u32>);

impl HighWater {
    /// Marks of rows that are all known.
    pub(crate) fn known(marks: BTreeMap<LvId, u32>) -> Self {
        Self(marks)
    }

    /// The marks that the index has, if they are those of its applied position.
    pub(crate) fn restored(row: HighWaterRow, applied: OpId, is_untied: bool) -> Option<Self> {
        (row.op == applied || is_untied).then(|| Self(row.marks.into_iter().collect()))
    }

    /// The block from which on no row names any of an LV.
    pub(crate) fn mark(&self, lv: LvId) -> u32 {
        self.0.get(&lv).copied().unwrap_or(0)
    }

    /// LVs of which rows may name a block.
    pub(crate) fn lvs(&self) -> impl Iterator<Item = LvId> {
        self.0.iter().filter(|(_, mark)| **mark > 0).map(|(lv, _)| *lv)
    }

    /// A row names blocks of an LV up to here.
    pub(crate) fn raise(&mut self, lv: LvId, end: u32) {
        let mark = self.0.entry(lv).or_insert(0);
        *mark = end.max(*mark);
    }

    /// The row beside an applied position.
    pub(crate) fn row(&self, applied: OpId) -> HighWaterRow {
        HighWaterRow { op: applied, marks: self.0.iter().map(|(lv, mark)| (*lv, *mark)).collect() }
    }

    /// A row that nobody believes, of an index that shows an op.
    pub(crate) fn void() -> HighWaterRow {
        HighWaterRow { op: OpId::default(), marks: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use larder_types::{OpSeq, View};

    use super::*;

    fn op(view: u64, seq: u64) -> OpId {
        OpId { view: View(view), seq: OpSeq(seq) }
    }

    #[test]
    fn a_mark_is_the_highest_end_that_was_named() {
        let mut marks = HighWater::default();
        assert_eq!(marks.mark(LvId(3)), 0);
        for (end, mark) in [(80, 80), (20, 80), (81, 81)] {
            marks.raise(LvId(3), end);
            assert_eq!(marks.mark(LvId(3)), mark);
        }
        assert_eq!(marks.row(op(1, 2)).marks, [(LvId(3), 81)]);
    }

    #[test]
    fn marks_are_those_of_the_applied_position_beside_them_or_none() {
        let row = HighWater::known([(LvId(3), 7)].into()).row(op(4, 9));
        let restored = |at| HighWater::restored(row.clone(), at, false);
        assert_eq!(restored(op(4, 9)).map(|marks| marks.mark(LvId(3))), Some(7));
        for at in [op(4, 10), op(5, 9), op(4, 8), op(5, 10)] {
            assert_eq!(restored(at), None, "others have named since: {at:?}");
        }
        assert_eq!(HighWater::restored(HighWater::void(), op(1, 1), false), None);
    }
}
