//! Regions that lack something for a while: a bucket that others have, or room for their changes.

use std::collections::BTreeMap;

use larder_protocol::region::pull::{Event, Source};
use larder_protocol::region::{Entry, Id, Name, Token};
use larder_types::{BucketId, PgId, RegionId};

use super::{BEGIN_MS, World};

/// The bucket that regions lack.
const LACKED: BucketId = BucketId(1);

/// Milliseconds that a region lacks something, and then something else or nothing.
const LACKS_MS: u64 = 7_000;

impl World {
    /// Returns true if a region lacks this now.
    fn lacks(&self, at: usize, number: u64) -> bool {
        let turn = (self.now_ms - BEGIN_MS) / (self.pace * LACKS_MS) + at as u64;
        self.has_lacks && self.now_ms < self.faulty_until_ms && turn % 3 == number
    }

    /// An answer as it is taken by a region that lacks something.
    pub(super) fn lacking(&mut self, at: usize, event: Event) -> Event {
        let (lacks_bucket, lacks_room) = (self.lacks(at, 0), self.lacks(at, 1));
        let is_lacked = |id: &Id| id.name.bucket == LACKED;
        match event {
            Event::Told { request, mut pgs, .. } if lacks_bucket => {
                let mut unnamed = BTreeMap::new();
                for (pg, reported) in &mut pgs {
                    let Ok(batch) = reported else { continue };
                    let lacked = batch.ids.extract_if(.., |(_, id)| is_lacked(id));
                    unnamed.insert(*pg, lacked.collect());
                }
                Event::Told { request, pgs, unnamed }
            }
            Event::Listed { request, mut listed, groups, .. } if lacks_bucket => {
                let ids = groups.into_iter().zip(std::mem::take(&mut listed.ids));
                let (unnamed, named): (Vec<_>, Vec<_>) = ids.partition(|(_, id)| is_lacked(id));
                let groups;
                (groups, listed.ids) = named.into_iter().unzip();
                Event::Listed { request, listed, groups, unnamed }
            }
            Event::FoundBuckets { request, mut found } if lacks_bucket => {
                found.remove(&LACKED);
                Event::FoundBuckets { request, found }
            }
            Event::Fetched { request, mut fetched } if lacks_room => {
                let with_bytes = |(name, entry): &mut (Name, Option<Entry>)| {
                    entry.as_ref().is_some_and(|entry| entry.id(name.clone()).bytes > 0)
                };
                let untaken = fetched.entries.extract_if(.., with_bytes).map(|(name, _)| name);
                fetched.untaken = untaken.collect();
                self.counts.untaken += fetched.untaken.len() as u64;
                Event::Fetched { request, fetched }
            }
            event => event,
        }
    }

    /// Counts the journals in which a region goes back.
    pub(super) fn note_asked(
        &mut self,
        by: RegionId,
        region: RegionId,
        pgs: &[(PgId, Token, Token)],
    ) {
        for (pg, behind, _) in pgs {
            let before = self.asked.insert((by, Source { region, pg: *pg }), *behind);
            self.counts.went_back += u64::from(before.is_some_and(|before| *behind < before));
        }
    }
}
