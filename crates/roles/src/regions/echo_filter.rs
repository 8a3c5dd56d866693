//! Remembers recent changes of each region, so that they are not sent back to it.
//!
//! A change applied from a region is journaled here like any other, since further regions need it. The region that sent
//! it has it, or a later version, for as long as its number lives, which is one life of its data. Sending it back would
//! cost both as much again as its id did.
//!
//! # Invariants
//!
//! 1. An entry counts as received from a region only with the print that it had then: an amended one has another.
//! 2. The prints of a region are bounded in number. A forgotten entry is sent back, and the region finds that it has
//!    it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_protocol::region::Id;
use larder_types::RegionId;
use parking_lot::Mutex;

use crate::limits::REGION_ECHOES_MAX;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct EchoFilter(Mutex<BTreeMap<RegionId, Prints>>);

/// Prints of one region's changes, in the order of their arrival.
#[derive(Debug, Default)]
struct Prints {
    all: BTreeSet<u128>,
    order: VecDeque<u128>,
}

impl EchoFilter {
    /// Notes ids that a region told.
    pub(super) fn note<'a>(&self, from: RegionId, ids: impl Iterator<Item = &'a Id>) {
        let mut echo_filter = self.0.lock();
        let prints = echo_filter.entry(from).or_default();
        for id in ids {
            if !prints.all.insert(id.print) {
                continue;
            }
            prints.order.push_back(id.print);
            if prints.order.len() > REGION_ECHOES_MAX
                && let Some(oldest) = prints.order.pop_front()
            {
                prints.all.remove(&oldest);
            }
        }
        assert_eq!(prints.all.len(), prints.order.len(), "each print has one place");
    }

    /// Leaves out ids that the asking region told itself.
    pub(super) fn leave_out<T>(&self, to: RegionId, entries: &mut Vec<(T, Id)>) {
        if let Some(prints) = self.0.lock().get(&to) {
            entries.retain(|(_, id)| !prints.all.contains(&id.print));
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::region::{Name, Slot};
    use larder_types::{BucketId, HybridClock, ObjectKey, OpId, OpSeq, Origin, PgId, Stamp, View};

    use super::*;

    fn id(print: u128) -> Id {
        let region = RegionId(2);
        let name =
            Name { bucket: BucketId(1), key: ObjectKey::new("k").unwrap(), slot: Slot::Null };
        let at = Stamp { clock: HybridClock::at_ms(1), region };
        let op = OpId { view: View(1), seq: OpSeq(1) };
        let origin = Origin { region, pg: PgId(0), op };
        Id { name, at, origin, is_purged: false, bytes: 0, print }
    }

    fn told_to(echo_filter: &EchoFilter, region: u16, prints: &[u128]) -> Vec<u128> {
        let mut entries: Vec<_> = prints.iter().map(|print| ((), id(*print))).collect();
        echo_filter.leave_out(RegionId(region), &mut entries);
        entries.iter().map(|(_, id)| id.print).collect()
    }

    #[test]
    fn a_region_gets_the_changes_of_others() {
        let echo_filter = EchoFilter::default();
        echo_filter.note(RegionId(2), [id(7), id(8), id(7)].iter());
        assert_eq!(told_to(&echo_filter, 2, &[6, 7, 8, 9]), [6, 9]);
        assert_eq!(told_to(&echo_filter, 3, &[6, 7, 8, 9]), [6, 7, 8, 9], "another hears of all");
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let echo_filter = EchoFilter::default();
        for print in 0..=REGION_ECHOES_MAX as u128 {
            echo_filter.note(RegionId(2), [id(print), id(print)].iter());
        }
        assert_eq!(told_to(&echo_filter, 2, &[0, 1]), [0]);
    }
}
