//! Deletion marks of buckets that no proxy will finish: the proxy that set one has died, or has given up.

use std::collections::BTreeMap;

use larder_types::bucket::BucketState;
use larder_types::{BucketId, Epoch};

use super::{StepContext, Subject};
use crate::limits::MARK_KEPT_MS;
use crate::manager::state::Command;

/// Marks in the map, and since when this leader has seen each. There are at most as many as buckets.
#[derive(Debug, Default)]
pub(super) struct Marks(BTreeMap<(BucketId, Epoch), u64>);

impl StepContext<'_> {
    /// Has buckets live on that have been marked for so long that the proxies that marked them have given up.
    pub(super) fn lift_marks(&mut self) {
        let marked = |record: &&larder_types::BucketRecord| record.state == BucketState::Deleting;
        let (mut seen, mut old) = (BTreeMap::new(), Vec::new());
        for record in self.map.buckets.values().filter(marked) {
            let mark = (record.id, record.epoch);
            let since_ms = self.leading.marks.0.get(&mark).copied().unwrap_or(self.now_ms);
            seen.insert(mark, since_ms);
            if self.now_ms.saturating_sub(since_ms) >= MARK_KEPT_MS {
                old.push((record.id, record.name.clone(), record.epoch));
            }
        }
        self.leading.marks = Marks(seen);
        for (id, name, epoch) in old {
            let command = Command::EndDeletionOf(id, name, epoch, false);
            self.propose(Subject::Bucket(id), command);
        }
    }
}
