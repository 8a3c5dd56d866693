//! Numbers of a member, for metrics.

use larder_types::LvId;

use super::{CoalesceCounts, Pg};
use crate::space::{SpaceUse, VolumeGroup};

/// Numbers for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PgGauges {
    /// Ops above the applied position.
    pub tail_ops: usize,
    /// Puts without an outcome.
    pub open_puts: usize,
    /// Puts in doubt.
    pub in_doubt: usize,
    /// Milliseconds for which the oldest of them has been open.
    pub in_doubt_ms: u64,
    /// Calls that wait: for a row, for space, for what is under way to show, or for room in the log.
    pub waiting_calls: usize,
    /// Requests that may be repeated, which the log is kept back for.
    pub remembered: usize,
    /// Copies under way, and changes of holders that have no op yet.
    pub refills: usize,
    /// Grants on most replicas of an LV of which others were out of reach, since this member began.
    pub grants_on_most: u64,
    /// Reads that waited for puts of their key, since this member began.
    pub reads_waited: u64,
    /// Reads that were answered while puts that came after them had no outcome.
    pub reads_passed: u64,
    /// Chunks that are being moved.
    pub moves: usize,
    /// Rows of garbage that went in steps, since this member began.
    pub reaped_rows: u64,
    /// Pieces of objects that became part of larger ones, since this member began.
    pub coalesced: CoalesceCounts,
    /// True while this primary has some garbage removed.
    pub is_reaping: bool,
    /// Space.
    pub space: SpaceUse,
    /// Blocks that became free before they had rested, as space was short, since this member began.
    pub unrested: u64,
}

impl Pg {
    /// Numbers for metrics.
    #[must_use]
    pub fn gauges(&self) -> PgGauges {
        PgGauges {
            tail_ops: self.tail.len(),
            open_puts: self.open.len(),
            in_doubt: self.in_doubt().count(),
            in_doubt_ms: self.in_doubt().map(|open| self.age_ms(open)).max().unwrap_or(0),
            waiting_calls: self.waiting_calls() + self.barriers.len() + self.drops.len(),
            remembered: self.sessions.remembered_count(),
            refills: self.refills.len(),
            grants_on_most: self.grants_on_most,
            reads_waited: self.slots.reads_waited,
            reads_passed: self.slots.reads_passed,
            moves: self.moves.len(),
            reaped_rows: self.reaper.reaped_rows,
            coalesced: self.coalesce_counts,
            is_reaping: self.reaper.is_reaping(),
            space: self.space.as_ref().map(VolumeGroup::usage).unwrap_or_default(),
            unrested: self.unrested + self.space.as_ref().map_or(0, VolumeGroup::given_up),
        }
    }
    /// Blocks of each LV, as a primary knows them; none at others.
    pub fn usage_by_lv(&self) -> impl Iterator<Item = (LvId, SpaceUse)> {
        self.space.iter().flat_map(VolumeGroup::usage_by_lv)
    }
}
