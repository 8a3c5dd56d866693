//! The answers of a halted group whose process goes on: that of a single node whose index cannot be read in part.
//!
//! # Invariants
//!
//! 1. Only what the index shows whole is answered: rows that no op of the group, taken and not applied, could change.
//! 2. Nobody waits for a halted group: it refuses the calls that waited. Their callers do not learn whether an op that was
//!    appended will take effect, as the next start decides.
//! 3. While the index is damaged, no call halts its group before an op of it was appended (`Index::is_damaged`).

use larder_types::{BucketId, ObjectKey, rows};

use super::slots::Slot;
use super::{Pg, Role};
use crate::index::RowSpan;
use crate::message::{Outbox, Refusal};

impl Pg {
    /// Returns true if the index alone can answer a read of the key, though the group is halted: no op on it is under way.
    #[must_use]
    pub fn is_quiescent_halted(&self, bucket: BucketId, key: &ObjectKey) -> bool {
        self.may_answer_halted() && self.slots.at_rest(&Slot::Version(bucket, key.clone()))
    }

    /// Returns true if the index shows everything that was taken of these rows, though the group is halted.
    #[must_use]
    pub fn shows_all_halted(&self, span: &RowSpan) -> bool {
        let may_change = |slot: &Slot| match slot {
            Slot::Version(bucket, key) => span.has(&rows::version(*bucket, key, rows::UNVERSIONED)),
            // Lists of versions show neither, and other lists must not miss any.
            Slot::Stream(_) | Slot::Upload(_) => !span.from.starts_with(b"V"),
        };
        self.may_answer_halted() && !self.slots.in_motion().any(may_change)
    }

    /// Refuses the callers whose ops were appended and are not answered yet: a halted group answers none of them.
    pub fn refuse_appended(&mut self, out: &mut Outbox) {
        let appended = self.tail.iter_mut().filter_map(|tail| tail.reply.take());
        for (token, _) in appended.collect::<Vec<_>>() {
            self.refuse(token, Refusal::IndexDamaged, out);
        }
    }

    /// Rows that contradict each other are not believed, nor are those that a snapshot left in part.
    fn may_answer_halted(&self) -> bool {
        self.role == Role::Halted && self.contradiction.is_none() && self.is_whole()
    }
}
