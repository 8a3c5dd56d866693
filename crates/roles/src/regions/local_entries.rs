//! Reads the entries and sums that the state machine of pulling (`protocol/region/pull/`) will look up, before it is stepped.
//!
//! In a cluster the gateway asks the primaries. An entry that none gives in time is looked up again, a few times, then fetched;
//! a range not summed in time is listed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use larder_protocol::Planted;
use larder_protocol::limits::REGION_RUN_IDS_MAX;
use larder_protocol::region::pull::{LocalEntries, Lookup, Lookups};
use larder_protocol::region::{Contradiction, Entry, Name, Range, Sum, join};
use larder_types::RegionId;
use tokio::time::timeout;

use super::Shared;
use super::runs::Unreadable;
use crate::blocking;
use crate::limits::{REGION_CHECK_MS, REGION_SUMS_MAX};
use crate::proxy::RegionAccess;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct LookupRows {
    entries: BTreeMap<Name, Option<Entry>>,
    sums: BTreeMap<(RegionId, Range), Sum>,
}

impl LocalEntries for LookupRows {
    fn entry(&self, name: &Name) -> Lookup {
        self.entries.get(name).map_or(Lookup::Unknown, |entry| Lookup::Found(entry.clone()))
    }

    fn sum(&self, region: RegionId, range: &Range) -> Sum {
        self.sums.get(&(region, range.clone())).copied().unwrap_or_default()
    }
}

impl LookupRows {
    /// Reads what these lookups name; `None` if the driver is to stop. Blocks meanwhile.
    pub(super) fn of<R: RegionAccess>(shared: &Shared<R>, lookups: &Lookups) -> Option<Self> {
        if lookups.names.is_empty() && lookups.sums.is_empty() {
            return Some(Self::default());
        }
        shared.unless_stopped(async {
            let mut here = Self::default();
            here.read_entries(shared, lookups).await;
            let max_wait = Duration::from_millis(REGION_CHECK_MS);
            if timeout(max_wait, here.read_sums(shared, lookups)).await.is_err() {
                tracing::warn!("ranges could not be summed in time: listing them instead");
            }
            here
        })
    }

    async fn read_entries<R: RegionAccess>(&mut self, shared: &Shared<R>, lookups: &Lookups) {
        if lookups.names.is_empty() {
            return;
        }
        let keys: Vec<_> = lookups.names.iter().map(|it| (it.bucket, it.key.clone())).collect();
        let kept = shared.shown.all_kept(&keys).await;
        for (name, kept) in lookups.names.iter().zip(kept) {
            if let Some(kept) = kept {
                let entry = shared.shown.entry_of(name.bucket, &name.key, &kept);
                self.entries.insert(name.clone(), entry);
            }
        }
    }

    async fn read_sums<R: RegionAccess>(&mut self, shared: &Shared<R>, lookups: &Lookups) {
        let summing = lookups.sums.iter().map(async |(region, range)| {
            // One id more than a run has is enough to show that the sums differ.
            let buckets = shared.names.of(*region, &shared.shown.buckets());
            let ids = shared.shown.ids(&buckets, range, REGION_RUN_IDS_MAX + 1).await?;
            Ok::<_, Unreadable>(((*region, range.clone()), Sum::of(ids.iter())))
        });
        let mut summing = futures::stream::iter(summing).buffer_unordered(REGION_SUMS_MAX);
        while let Some(summed) = summing.next().await {
            match summed {
                Ok((of, sum)) => drop(self.sums.insert(of, sum)),
                Err(error) => tracing::error!(%error, "the index cannot be summed"),
            }
        }
    }

    /// The contradiction of an entry that was put before the machine heard of it: here the version has other content.
    pub(super) fn contradiction(&self, name: &Name, entry: &Entry) -> Option<Contradiction> {
        let here = self.entries.get(name)?.as_ref().filter(|here| here.at == entry.at)?;
        join(Planted::default(), name.slot, here, entry).err()
    }
}

impl<R: RegionAccess> Shared<R> {
    /// Blocks this thread on a future; `None` if the driver is to stop.
    pub(super) fn unless_stopped<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        let mut stops = self.stops.subscribe();
        blocking::wait(&self.runtime, async {
            tokio::select! {
                biased;
                _stops = stops.wait_for(|stops| *stops) => None,
                found = waiting => Some(found),
            }
        })
    }
}
