//! The entries and sums that a step reads. In a cluster they lie on other servers, so that the driver reads them before the step.

use std::collections::BTreeSet;

use larder_types::RegionId;

use super::super::compare::Range;
use super::super::entry::Name;
use super::requests::Query;
use super::{Event, Fetched, Pull};
use crate::now::EventTime;

/// The entries and sums that a step may ask [`LocalEntries`](super::LocalEntries) for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lookups {
    /// Entries.
    pub names: BTreeSet<Name>,
    /// Sums of ranges, in the order of a region.
    pub sums: Vec<(RegionId, Range)>,
}

impl Pull {
    /// The entries and sums that [`Pull::step`] may read if it takes this event next, at this time.
    /// Reading them before the step is as good as during it: entries that are here stay, or something that wins over them does.
    #[must_use]
    pub fn lookups(&self, now: EventTime, event: &Event) -> Lookups {
        let mut lookups = Lookups::default();
        match event {
            Event::Tick => {
                let due = self.held.iter().filter(|(until_ms, _)| *until_ms <= now.steady_ms);
                lookups.names.extend(due.map(|(_, claim)| claim.id.name.clone()));
            }
            Event::Told { request, pgs, .. } if self.requests.contains_key(request) => {
                let batches = pgs.iter().filter_map(|(_, batch)| batch.as_ref().ok());
                let ids = batches.flat_map(|batch| &batch.ids);
                lookups.names.extend(ids.map(|(_, id)| id.name.clone()));
            }
            Event::Walked { request, summed } => {
                if let Some(asked) = self.requests.get(request) {
                    let of_region = |(range, _): &(Range, _)| (asked.region, range.clone());
                    lookups.sums.extend(summed.runs.iter().map(of_region));
                }
            }
            Event::Listed { request, listed, .. } if self.requests.contains_key(request) => {
                lookups.names.extend(listed.ids.iter().map(|id| id.name.clone()));
            }
            // Other claims of an entry that is gone are looked at again, and all of one that has changed here.
            Event::Fetched { request, fetched: Fetched { entries, changed, .. } } => {
                if let Some(Query::Fetch(asked)) = self.requests.get(request).map(|it| &it.what) {
                    let asked = |name: &Name| asked.iter().any(|it| it.name == *name);
                    let gone = entries.iter().filter(|(_, entry)| entry.is_none());
                    let again = gone.map(|(name, _)| name).chain(changed);
                    lookups.names.extend(again.filter(|name| asked(name)).cloned());
                }
            }
            Event::FoundBuckets { request, found } => {
                lookups.names.extend(self.names_found(*request, found));
            }
            Event::Merged { names } => {
                let again = names.iter().filter(|name| self.is_due_for_recheck(name));
                lookups.names.extend(again.cloned());
            }
            _ => {}
        }
        lookups
    }
}
