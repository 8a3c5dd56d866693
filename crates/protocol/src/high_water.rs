//! High-water marks: of each LV the block from which on the PG's rows name none. They are kept in the index beside the
//! rows, so that a start gives what lies above at once, and reads the rows for the rest while it serves (ADR 37).
//!
//! ```text
//!  block  0 ############..###.#####....|.................. blocks
//!           named or not: not known    ▲ mark      free, but for open puts
//! ```
//!
//! # Invariants
//!
//! 1. In every state of the index the mark of an LV lies above each block of it that a row of the PG names: the batch that
//!    names a block beyond raises the mark too. So a crash takes back both or none.
//! 2. Marks are believed only if they are of the view of the applied position that lies beside them. A release that does not
//!    know them begins a view of its own, and whatever it named is not trusted to lie below.
//! 3. Marks fall only when the space is known whole: to the end of what is used then, open puts included.

use std::collections::BTreeMap;

use larder_types::{HighWaterRow, LvId, OpId, View};

use crate::limits::{HIGH_WATER_STEP_BLOCKS_MAX, HIGH_WATER_STEP_PART};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HighWater {
    view: View,
    marks: BTreeMap<LvId, u32>,
    /// The index does not have them like this yet.
    has_changed: bool,
}

impl HighWater {
    /// The marks of a PG whose index never had a row.
    pub(crate) fn of_no_rows() -> Self {
        Self::known(View(0), BTreeMap::new())
    }

    /// Marks of rows that are all known.
    pub(crate) fn known(view: View, marks: BTreeMap<LvId, u32>) -> Self {
        Self { view, marks, has_changed: true }
    }

    /// The marks that the index has, if they are of its applied position.
    pub(crate) fn restored(row: HighWaterRow, applied: OpId) -> Option<Self> {
        let HighWaterRow { view, marks } = row;
        let marks = marks.into_iter().collect();
        (view == applied.view).then_some(Self { view, marks, has_changed: false })
    }

    /// The block from which on no row names any of an LV.
    pub(crate) fn mark(&self, lv: LvId) -> u32 {
        self.marks.get(&lv).copied().unwrap_or(0)
    }

    /// A row names blocks of an LV up to here.
    pub(crate) fn raise(&mut self, lv: LvId, end: u32) {
        let mark = self.marks.entry(lv).or_insert(0);
        if *mark < end {
            let step = (end / HIGH_WATER_STEP_PART).min(HIGH_WATER_STEP_BLOCKS_MAX);
            *mark = end.saturating_add(step);
            self.has_changed = true;
        }
        assert!(self.mark(lv) >= end, "LV {lv}: the mark lies above what is named");
    }

    /// The row of an index that shows an op of this view.
    pub(crate) fn row(&self, view: View) -> HighWaterRow {
        HighWaterRow { view, marks: self.marks.iter().map(|(lv, mark)| (*lv, *mark)).collect() }
    }

    /// The row as the index is to have it once it shows an op of this view; `None` if it has it already.
    pub(crate) fn changed(&mut self, view: View) -> Option<HighWaterRow> {
        assert!(view >= self.view, "views never go back");
        self.has_changed |= view != self.view;
        self.view = view;
        std::mem::take(&mut self.has_changed).then(|| self.row(view))
    }
}

#[cfg(test)]
mod tests {
    use larder_types::OpSeq;

    use super::*;

    const LV: LvId = LvId(3);

    fn applied(view: u64) -> OpId {
        OpId { view: View(view), seq: OpSeq(9) }
    }

    #[test]
    fn marks_rise_ahead_and_are_written_only_then() {
        let mut marks = HighWater::of_no_rows();
        assert_eq!(marks.changed(View(1)).unwrap().marks, [], "the view is news");
        marks.raise(LV, 80);
        assert_eq!(marks.changed(View(1)).unwrap().marks, [(LV, 90)]);
        marks.raise(LV, 90);
        assert_eq!(marks.changed(View(1)), None, "it lies below");
        marks.raise(LV, 91);
        assert_eq!(marks.changed(View(1)).unwrap().marks, [(LV, 102)]);
        marks.raise(LV, 1_000_000);
        assert_eq!(marks.mark(LV), 1_001_024);
        marks.raise(LV, u32::MAX);
        assert_eq!((marks.mark(LV), marks.mark(LvId(4))), (u32::MAX, 0));
    }

    #[test]
    fn marks_are_those_of_the_rows_beside_them_or_none() {
        let mut marks = HighWater::known(View(4), [(LV, 7)].into());
        let row = marks.changed(View(5)).unwrap();
        assert_eq!(HighWater::restored(row.clone(), applied(5)).unwrap().mark(LV), 7);
        assert_eq!(HighWater::restored(row.clone(), applied(6)), None, "others have named since");
        assert_eq!(HighWater::restored(row, applied(4)), None);
    }
}
