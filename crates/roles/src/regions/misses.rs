//! Asks other regions once for a missing key, before a client gets `NoSuchKey`.
//!
//! An object that one of them has is stored like any other change, and then read here. A large one, which
//! comes in parts by itself, is read from there (`remote.rs`). The answering region looks only at what it
//! has itself, and asks nobody.
//!
//! # Invariants
//!
//! 1. Of an object that another region is known to have no client hears that it is not there.
//! 2. A bucket of which many absent keys are read leaves the others their turn.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use larder_link::{Change, Fetch, Link, LinkError};
use larder_objects::ObjectError;
use larder_protocol::region::deletion::Mark;
use larder_protocol::region::entry::EntryKind;
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_protocol::region::{Entry, Name, Slot};
use larder_types::{BucketId, BucketName, BucketRecord, Epoch, ObjectKey, RegionId};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Shared;
use super::changes;
use super::deletions;
use super::in_flight::InFlightGuard;
use super::lists;
use super::places::Places;
use super::remote;
use super::taking;
use crate::limits::{
    REGION_ABSENT_KEYS_MAX, REGION_ABSENT_MS, REGION_MISS_BYTES_MAX, REGION_MISS_COMING_MS,
    REGION_MISS_MS, REGION_MISSES_MAX,
};
use crate::proxy::{HomeChange, OtherRegions, RegionAccess, RegionLookup};
use crate::wire::{RemotePart, RemoteVersion};

/// See the module's head.
pub(super) struct Misses<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    places: Arc<Places>,
    absent: Mutex<Absent>,
}

/// Keys for which other regions gave no object a moment ago.
#[derive(Default)]
struct Absent {
    keys: BTreeMap<(BucketId, ObjectKey), Instant>,
}

impl Absent {
    fn has(&self, key: &(BucketId, ObjectKey)) -> bool {
        self.keys.get(key).is_some_and(|until| *until > Instant::now())
    }

    fn note(&mut self, key: (BucketId, ObjectKey)) {
        let now = Instant::now();
        if self.keys.len() >= REGION_ABSENT_KEYS_MAX {
            self.keys.retain(|_, until| *until > now);
        }
        // While the set is full, other regions are asked each time.
        if self.keys.len() < REGION_ABSENT_KEYS_MAX {
            self.keys.insert(key, now + Duration::from_millis(REGION_ABSENT_MS));
        }
    }
}

impl<R: RegionAccess> Misses<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        let places = Places::new(REGION_MISSES_MAX);
        Self { shared, places, absent: Mutex::default() }
    }

    /// The newest version of a key among the regions that answer: its entry as each says it that has it.
    async fn query_regions(&self, name: &Name) -> Vec<(Entry, Arc<Link>)> {
        let members = self.shared.region_endpoint.members().borrow().clone();
        let asked = members.live().filter(|peer| !peer.paused).filter_map(|peer| {
            let there = self.shared.names.there(peer.number, name)?;
            let link = self.shared.region_endpoint.link_to(peer.number).ok().flatten()?;
            self.shared.watch.is_reached(peer.number).then_some((there, link))
        });
        let asked = asked.map(async |(there, link)| {
            let entry =
                timeout(Duration::from_millis(REGION_MISS_MS), entry_of(&link, there)).await;
            Some((entry.ok()?.ok()??, link))
        });
        let mut found: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let newest = found.iter().map(|(entry, _)| entry.at).max();
        found.retain(|(entry, _)| Some(entry.at) == newest);
        // The tags that were set last come first.
        found.sort_by_key(|(entry, _)| Reverse(entry.clock()));
        found
    }

    /// Counts a key as being fetched, after any fetch of it that is under way.
    async fn alone(&self, name: &Name) -> Result<InFlightGuard, ObjectError> {
        let max_wait = Duration::from_millis(REGION_MISS_COMING_MS);
        let alone = timeout(max_wait, self.shared.in_flight.begin_after(name)).await;
        alone.map_err(|_late| unavailable("the object is in another region, and on its way here"))
    }

    async fn fill(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<RegionLookup, ObjectError> {
        let Some(bucket) = self.shared.shown.bucket(bucket) else {
            return Ok(RegionLookup::Nowhere);
        };
        let at = (bucket, key.clone());
        let is_local = self.shared.shown.buckets().local().contains(&bucket);
        if is_local || self.absent.lock().has(&at) {
            return Ok(RegionLookup::Nowhere);
        }
        let max_wait = Duration::from_millis(REGION_MISS_MS);
        let Ok(_place) = timeout(max_wait, self.places.take(bucket)).await else {
            return Err(ObjectError::SlowDown);
        };
        let counters = self.shared.watch.counters();
        counters.misses.fetch_add(1, Ordering::Relaxed);
        let name = Name { bucket, key: key.clone(), slot: Slot::Null };
        let latest = self.shared.shown.kept(bucket, key).await.ok();
        let latest = latest.and_then(|kept| kept.latest(self.shared.shown.own()));
        let mut found = self.query_regions(&name).await;
        found.retain(|(entry, _)| {
            let is_newer = latest.is_none_or(|latest| entry.at > latest);
            is_newer && matches!(entry.what, EntryKind::Object(_))
        });
        let Some((entry, _)) = found.first().cloned() else {
            // It is known to be elsewhere, even if some region has not answered now.
            if self.shared.in_flight.has(&name) || self.shared.partials.has(&name) {
                return Err(unavailable("the object is in another region, and on its way here"));
            }
            self.absent.lock().note(at);
            return Ok(RegionLookup::Nowhere);
        };
        if entry.bytes() > REGION_MISS_BYTES_MAX {
            counters.misses_remote.fetch_add(1, Ordering::Relaxed);
            found.retain(|(entry, link)| {
                taking::is_to_be_taken(&self.shared, link.number(), &name, entry)
            });
            let regions = found.iter().map(|(_, link)| link.number()).collect();
            let entry = found.into_iter().next().map(|(entry, _)| entry);
            let entry = entry.ok_or_else(|| {
                unavailable("the object is in another region, and cannot be taken from there now")
            })?;
            return Ok(RegionLookup::There(Box::new(RemoteVersion { name, regions, entry })));
        }
        // It is fetched once for all that want it: the machine that pulls, or another client.
        let _alone = self.alone(&name).await?;
        let kept = self.shared.shown.kept(bucket, key).await.ok();
        if kept.is_some_and(|kept| kept.latest(self.shared.shown.own()) >= Some(entry.at)) {
            return Ok(RegionLookup::Here);
        }
        let (mut is_here, mut is_known, began) = (false, true, Instant::now());
        for (_, link) in &found {
            // A client waits no longer for several regions than for one.
            if began.elapsed() >= Duration::from_millis(REGION_MISS_COMING_MS) {
                is_known = false;
                break;
            }
            let taken = taking::take_one(&self.shared, link, name.clone()).await;
            is_known &= taken.is_some();
            is_here = taken == Some(true);
            if is_here {
                break;
            }
        }
        if !is_here && !is_known {
            return Err(unavailable(
                "the object is in another region, and cannot be had from there now",
            ));
        }
        counters.misses_filled.fetch_add(u64::from(is_here), Ordering::Relaxed);
        Ok(if is_here { RegionLookup::Here } else { RegionLookup::Nowhere })
    }
}

fn unavailable(reason: &str) -> ObjectError {
    ObjectError::Unavailable { reason: reason.to_owned() }
}

impl<R: RegionAccess> OtherRegions for Misses<R> {
    fn is_removed(&self) -> bool {
        self.shared.region_endpoint.members().borrow().own.removed
    }

    fn find_elsewhere<'a>(
        &'a self,
        bucket: &'a BucketName,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<RegionLookup, ObjectError>> {
        Box::pin(self.fill(bucket, key))
    }

    fn part(&self, part: RemotePart) -> BoxFuture<'_, Result<Bytes, ObjectError>> {
        Box::pin(remote::part(&self.shared, part))
    }

    fn delete_bucket(&self, marked: BucketRecord) -> BoxFuture<'static, Result<(), ObjectError>> {
        Box::pin(deletions::begin(&self.shared, marked))
    }

    fn deletion_of(
        &self,
        (bucket, name, epoch): (BucketId, BucketName, Epoch),
    ) -> BoxFuture<'_, Option<Result<(), ObjectError>>> {
        Box::pin(
            async move { deletions::end_of(&self.shared, &name, Mark { bucket, epoch }).await },
        )
    }

    fn change(
        &self,
        home: RegionId,
        change: Change,
    ) -> BoxFuture<'_, Result<HomeChange, ObjectError>> {
        Box::pin(changes::make_at(&self.shared, home, change))
    }

    fn list<'a>(
        &'a self,
        bucket: &'a BucketName,
        ask: PageRequest,
    ) -> BoxFuture<'a, Result<ListedPage, ObjectError>> {
        Box::pin(lists::page(&self.shared, bucket, ask))
    }
}

/// Fetches a key's entry from a region, without its bytes.
async fn entry_of(link: &Link, name: Name) -> Result<Option<Entry>, LinkError> {
    let mut found = link.fetch(Fetch { names: vec![(name, false)] }).await?;
    let fetched = found.next().await?;
    while found.next().await?.is_some() {}
    Ok(fetched.and_then(|fetched| fetched.entry))
}
