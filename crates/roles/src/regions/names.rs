//! Maps buckets of other regions to those here: each region has bucket ids of its own, and buckets are the same by name.
//!
//! # Invariants
//!
//! 1. An id of another region stands for the bucket here that has the name now: never for a deleted one. The machine begins anew
//!    if it wants anything of a bucket that was deleted here, and made again as another one ([`BucketIds::former`]).
//! 2. Nothing is taken into a bucket that this region alone has: what another region tells of its bucket of that name is passed over
//!    (ADR 49).
//! 3. A bucket is made here only from an answer that was asked for after the last deletion here (ADR 47).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_link::{AskHome, Link, LinkError, Walk};
use larder_objects::{ObjectError, Objects};
use larder_protocol::region::home::{HomeAnswer, HomeRequest, merge_home};
use larder_protocol::region::pull::LocalBucket;
use larder_protocol::region::{Id, Name, Range};
use larder_types::limits::BUCKETS_MAX;
use larder_types::{BucketId, BucketName, BucketRecord, BucketState, Home, RegionId};
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep};

use super::Shared;
use super::shown::Buckets;
use crate::limits::{
    REGION_DELETED_MS, REGION_MAKING_MS, REGION_NAMES_AGAIN_MS, REGION_REFUSED_MAX,
    REGION_REFUSED_MS,
};
use crate::proxy::RegionAccess;

/// Bucket ids of one other region.
#[derive(Debug, Default, Clone)]
struct KnownIds {
    /// Ids here, by those there.
    here: BTreeMap<BucketId, BucketId>,
    there: BTreeMap<BucketId, BucketId>,
}

/// Buckets of other regions, and the same ones here.
#[derive(Debug, Default)]
pub(super) struct BucketIds {
    known: RwLock<BTreeMap<RegionId, KnownIds>>,
    /// Counts up before a bucket is deleted here, and when all regions have closed one that is not here.
    voided: AtomicU64,
    /// Held while one is made.
    making: tokio::sync::Mutex<()>,
    /// Former ids of buckets that were deleted and made again, and until when entries may be told under them.
    former: Mutex<BTreeMap<BucketId, Instant>>,
    /// Buckets that are not here any more, and since when that is so.
    deleted: Mutex<BTreeMap<BucketId, Instant>>,
    /// Regions that announced a bucket too early: their buckets are requested again.
    missed: Mutex<BTreeSet<RegionId>>,
    /// Buckets that could not be made here, and until when they are tried again only if changes of them wait.
    refused: Mutex<BTreeMap<(RegionId, BucketName), Instant>>,
}

/// The time at which an answer was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTime {
    /// As a count of deletions.
    voided: u64,
    /// Time until which buckets are made that it names.
    until: Instant,
}

/// Ids that another region told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translated<T> {
    /// Those of buckets here, by which they are named now.
    pub(super) named: Vec<(T, Id)>,
    /// Entries whose bucket is not known here, or may be shared soon. They are to be sent again.
    pub(super) unnamed: Vec<(T, Id)>,
}

impl BucketIds {
    /// A region's bucket ids in order, each with its id here, without those of buckets that this region alone has.
    pub(super) fn of(&self, region: RegionId, buckets: &Buckets) -> BTreeMap<BucketId, BucketId> {
        let known = self.known.read();
        let ids = known.get(&region).into_iter().flat_map(|known| &known.here);
        let shared = |(_, here): &(&BucketId, &BucketId)| !buckets.local().contains(here);
        ids.filter(shared).map(|(there, here)| (*there, *here)).collect()
    }

    /// Translates a name of this region into the other's.
    pub(super) fn there(&self, region: RegionId, name: &Name) -> Option<Name> {
        let bucket = *self.known.read().get(&region)?.there.get(&name.bucket)?;
        Some(Name { bucket, ..name.clone() })
    }

    /// Translates what a region tells into ids of the buckets here, without those of buckets that this
    /// region alone has.
    pub(super) fn translate<T>(
        &self,
        region: RegionId,
        entries: Vec<(T, Id)>,
        buckets: &Buckets,
    ) -> Translated<T> {
        let known = self.known.read();
        let of_region = known.get(&region);
        let (mut named, mut unnamed) = (Vec::with_capacity(entries.len()), Vec::new());
        for (at, mut id) in entries {
            match find(of_region, id.name.bucket, buckets) {
                Some(LocalBucket::Shared(here)) => {
                    id.name.bucket = here;
                    named.push((at, id));
                }
                Some(LocalBucket::Local | LocalBucket::Gone) => {}
                None => unnamed.push((at, id)),
            }
        }
        Translated { named, unnamed }
    }

    /// Finds these buckets of a region, without those that are not known here. It names the `live` ones.
    pub(super) fn find(
        &self,
        region: RegionId,
        (sought, live): (&BTreeSet<BucketId>, &BTreeSet<BucketId>),
        buckets: &Buckets,
    ) -> BTreeMap<BucketId, LocalBucket> {
        let known = self.known.read();
        let of_region = known.get(&region);
        let found = sought.iter().filter_map(|there| {
            let deleted = (!live.contains(there)).then_some(LocalBucket::Gone);
            Some((*there, find(of_region, *there, buckets).or(deleted)?))
        });
        found.collect()
    }

    /// Now, for an answer that is asked for.
    pub(super) fn now(&self) -> RequestTime {
        let until = Instant::now() + Duration::from_millis(REGION_MAKING_MS);
        RequestTime { voided: self.voided.load(Ordering::Acquire), until }
    }

    /// True if no answers were voided since this one was asked for.
    fn holds(&self, requested_at: RequestTime) -> bool {
        self.voided.load(Ordering::Acquire) == requested_at.voided
    }

    /// Remembers that a bucket could not be made.
    fn refuse(&self, region: RegionId, name: &BucketName) {
        let (mut refused, now) = (self.refused.lock(), Instant::now());
        if refused.len() >= REGION_REFUSED_MAX {
            refused.retain(|_, until| *until > now);
        }
        // One that is not remembered is tried with each answer that names it.
        if refused.len() < REGION_REFUSED_MAX {
            let until = now + Duration::from_millis(REGION_REFUSED_MS);
            refused.insert((region, name.clone()), until);
        }
    }

    /// True if a bucket could not be made lately.
    fn is_refused(&self, region: RegionId, name: &BucketName) -> bool {
        let (mut refused, of) = (self.refused.lock(), (region, name.clone()));
        let is_refused = refused.get(&of).is_some_and(|until| *until > Instant::now());
        if !is_refused {
            refused.remove(&of);
        }
        is_refused
    }

    /// Has answers that were asked for until now make no buckets. Returns once none is being made.
    pub(super) async fn void_answers(&self) {
        let _none_is_made = self.making.lock().await;
        self.voided.fetch_add(1, Ordering::AcqRel);
    }

    /// Former ids of buckets that were deleted and made again a while ago: entries may have been told under them.
    pub(super) fn former(&self) -> BTreeSet<BucketId> {
        let (mut former, now) = (self.former.lock(), Instant::now());
        former.retain(|_, until| *until > now);
        former.keys().copied().collect()
    }

    /// Forgets the ids of buckets that have been gone for a while. Entries may still be wanted under them.
    pub(super) fn forget_deleted(&self, buckets: &Buckets) {
        let (now, lately) = (Instant::now(), Duration::from_millis(REGION_DELETED_MS));
        let mut deleted = self.deleted.lock();
        deleted.retain(|id, _| !buckets.all().contains_key(id));
        for known in self.known.read().values() {
            let ids = known.there.keys().filter(|id| !buckets.all().contains_key(id));
            ids.for_each(|id| _ = deleted.entry(*id).or_insert(now));
        }
        let long = deleted.extract_if(.., |_, since| now.duration_since(*since) >= lately);
        let long: BTreeSet<BucketId> = long.map(|(id, _)| id).collect();
        if long.is_empty() {
            return;
        }
        for known in self.known.write().values_mut() {
            known.there.retain(|here, _| !long.contains(here));
            known.here.retain(|_, here| !long.contains(here));
        }
        self.former.lock().extend(long.into_iter().map(|id| (id, now + lately)));
    }

    /// Takes the regions that are to be asked for their buckets.
    pub(super) fn take_missed(&self) -> BTreeSet<RegionId> {
        std::mem::take(&mut self.missed.lock())
    }

    /// Learns which bucket is which. Of the same bucket here the later one there counts: an answer may be late.
    fn associate(&self, region: RegionId, there: BucketId, here: BucketId) {
        let mut known = self.known.write();
        let known = known.entry(region).or_default();
        if known.there.get(&here).is_some_and(|later| *later > there) {
            return;
        }
        if let Some(before) = known.there.insert(here, there).filter(|before| *before != there) {
            known.here.remove(&before);
        }
        if let Some(former) = known.here.insert(there, here).filter(|former| *former != here) {
            let until = Instant::now() + Duration::from_millis(REGION_DELETED_MS);
            self.former.lock().insert(former, until);
        }
    }
}

/// The bucket here that one of a region is, if it is known.
fn find(of_region: Option<&KnownIds>, there: BucketId, buckets: &Buckets) -> Option<LocalBucket> {
    let here = *of_region?.here.get(&there)?;
    if !buckets.all().contains_key(&here) || buckets.waits(here) {
        return None;
    }
    let is_local = buckets.local().contains(&here);
    Some(if is_local { LocalBucket::Local } else { LocalBucket::Shared(here) })
}

impl<R: RegionAccess> Shared<R> {
    /// Learns a region's buckets, and makes those that are not here, until it is late. One that could not be made lately is tried only
    /// if it is `sought`.
    pub(super) async fn resolve_names(
        &self,
        region: RegionId,
        entries: Vec<(BucketId, BucketName)>,
        (sought, requested_at): (&BTreeSet<BucketId>, RequestTime),
    ) {
        let (mut is_begun, mut failed) = (false, None);
        for (there, name) in entries {
            if self.shown.bucket(&name).is_none() {
                if !sought.contains(&there) && self.names.is_refused(region, &name) {
                    continue;
                }
                // At least one is made, however late it is: all are in the end.
                if is_begun && Instant::now() >= requested_at.until {
                    self.names.missed.lock().insert(region);
                    continue;
                }
                is_begun = true;
                if let Err(error) = self.make_bucket(region, &name, requested_at).await {
                    self.names.refuse(region, &name);
                    // The next answer may name many more.
                    failed.get_or_insert((name, error));
                    continue;
                }
            }
            // An answer that was asked for before a deletion may be of a bucket that is gone. One that is
            // being deleted here is another bucket than the one that a region has by that time.
            if !self.names.holds(requested_at) {
                continue;
            }
            let live =
                |record: &BucketRecord| (record.state == BucketState::Live).then_some(record.id);
            if let Some(here) = self.shown.access().bucket(&name, live).flatten() {
                self.names.associate(region, there, here);
            }
        }
        if let Some((name, error)) = failed {
            self.watch.cannot_make(region, &name, &error);
        }
    }

    /// Looks for buckets of a region that are not known here: it is asked for its buckets, and those are made.
    pub(super) async fn find_buckets(
        &self,
        link: &Link,
        region: RegionId,
        sought: &BTreeSet<BucketId>,
    ) -> Result<BTreeMap<BucketId, LocalBucket>, LinkError> {
        let requested_at = self.names.now();
        let entries = link.walk(no_keys()).await?.buckets;
        let live = entries.iter().map(|(there, _)| *there).collect();
        self.resolve_names(region, entries, (sought, requested_at)).await;
        Ok(self.names.find(region, (sought, &live), &self.shown.buckets()))
    }

    /// Asks a region for its buckets: it told of one before another was deleted here.
    pub(super) async fn request_names(&self, region: RegionId) {
        let asked = async {
            let requested_at = self.names.now();
            let entries = self.link_to(region)?.walk(no_keys()).await?;
            Ok::<_, LinkError>((entries.buckets, requested_at))
        };
        match asked.await {
            Ok((entries, requested_at)) => {
                self.resolve_names(region, entries, (&BTreeSet::new(), requested_at)).await;
            }
            Err(error) => {
                tracing::debug!(%region, %error, "requesting a region's buckets again");
                sleep(Duration::from_millis(REGION_NAMES_AGAIN_MS)).await;
                if self.region_endpoint.members().borrow().peer(region).is_some() {
                    self.names.missed.lock().insert(region);
                }
            }
        }
    }

    /// The home of a bucket, as a region that has the bucket knows it.
    async fn home_there(
        &self,
        region: RegionId,
        bucket: &BucketName,
    ) -> Result<Option<Home>, ObjectError> {
        let own = self.shown.own();
        let asked = AskHome { bucket: bucket.clone(), ask: HomeRequest::Look, regions: vec![own] };
        let answered = async { self.link_to(region)?.ask_home(asked).await }.await;
        match answered {
            Ok(HomeAnswer::Knows(home)) => Ok(home.and_then(|home| merge_home(own, None, home))),
            // A region of a release without homes refuses the request as unknown.
            Ok(_) | Err(LinkError::Unsound(_)) => Ok(None),
            Err(error) => Err(ObjectError::Unavailable { reason: error.to_string() }),
        }
    }

    /// Makes a bucket that another region has, unless one was deleted since it was asked.
    async fn make_bucket(
        &self,
        region: RegionId,
        name: &BucketName,
        requested_at: RequestTime,
    ) -> Result<(), ObjectError> {
        // Its home is not asked for in vain.
        if self.shown.buckets().all().len() >= BUCKETS_MAX {
            return Err(ObjectError::TooManyBuckets);
        }
        // Its home goes along, so that no change is decided here that is decided there.
        let home = self.home_there(region, name).await?;
        let _alone = self.names.making.lock().await;
        if !self.names.holds(requested_at) {
            self.names.missed.lock().insert(region);
            return Ok(());
        }
        let made = match home {
            Some(home) => self.shown.access().adopt_bucket(name, home).await,
            None => self.proxy.create_bucket(name, None).await.map(|_record| ()),
        };
        match made {
            Ok(()) => {
                tracing::info!(bucket = %name, %region, "created: another region has this bucket")
            }
            // This process may not know yet a bucket that another made: until it does, nothing of it is taken.
            Err(ObjectError::BucketExists) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A walk in which no key is, and with which all buckets are told.
fn no_keys() -> Walk {
    Walk { range: Range { from: Vec::new(), to: Some(vec![0]) } }
}

#[cfg(test)]
mod tests {
    use larder_protocol::region::{EntryKind, Slot};
    use larder_types::{HybridClock, ObjectKey, OpId, OpSeq, Origin, PgId, Sharing, Stamp, View};

    use super::*;

    fn id(bucket: u64) -> Id {
        let at = Stamp { clock: HybridClock::at_ms(1), region: RegionId(2) };
        let op = OpId { view: View(1), seq: OpSeq(bucket) };
        let origin = Origin { region: RegionId(2), pg: PgId(0), op };
        let key = ObjectKey::new("k").unwrap();
        let name = Name { bucket: BucketId(bucket), key, slot: Slot::Null };
        larder_protocol::region::Entry { at, origin, what: EntryKind::Purged }.id(name)
    }

    fn record(id: u64, sharing: Sharing) -> BucketRecord {
        let name = BucketName::new(&format!("bucket-{id}")).unwrap();
        BucketRecord { sharing, ..BucketRecord::new(BucketId(id), name, 0) }
    }

    #[tokio::test(start_paused = true)]
    async fn ids_of_buckets_that_are_gone_are_forgotten_after_a_while() {
        let names = BucketIds::default();
        let is_known = |id: &BucketId| names.of(RegionId(2), &Buckets::default()).contains_key(id);
        for here in 1..=1_000 {
            names.associate(RegionId(2), BucketId(2_000 + here), BucketId(here));
        }
        let left = Buckets::of(vec![record(7, Sharing::All)]);
        names.forget_deleted(&left);
        assert!(is_known(&BucketId(2_001)), "entries may be told under it");
        tokio::time::advance(Duration::from_millis(REGION_DELETED_MS)).await;
        names.forget_deleted(&left);
        let known: Vec<_> = names.of(RegionId(2), &left).into_iter().collect();
        assert_eq!(known, [(BucketId(2_007), BucketId(7))]);
        assert_eq!(names.former().len(), 999, "nothing more of them is wanted");
        tokio::time::advance(Duration::from_millis(REGION_DELETED_MS)).await;
        names.forget_deleted(&left);
        assert_eq!((names.former().len(), names.deleted.lock().len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_cannot_be_made_is_remembered_for_a_while() {
        let (names, name) = (BucketIds::default(), BucketName::new("too-many").unwrap());
        assert!(!names.is_refused(RegionId(2), &name));
        names.refuse(RegionId(2), &name);
        assert!(names.is_refused(RegionId(2), &name));
        assert!(!names.is_refused(RegionId(3), &name), "another region is asked for its home");
        tokio::time::advance(Duration::from_millis(REGION_REFUSED_MS)).await;
        assert!(!names.is_refused(RegionId(2), &name));
        for number in 0..=REGION_REFUSED_MAX {
            names.refuse(RegionId(2), &BucketName::new(&format!("bucket-{number}")).unwrap());
        }
        assert_eq!(names.refused.lock().len(), REGION_REFUSED_MAX);
    }

    #[test]
    fn a_bucket_is_found_by_its_id_there() {
        let sharings = [Sharing::All, Sharing::Local, Sharing::Opening];
        let records = (1..).zip(sharings).map(|(id, sharing)| record(id, sharing));
        let (names, buckets) = (BucketIds::default(), Buckets::of(records.collect()));
        (1..=3).for_each(|here| names.associate(RegionId(2), BucketId(10 + here), BucketId(here)));
        let sought = (11..=15).map(BucketId).collect();
        // The fourth is named and not made here, the fifth is named no more.
        let live = (11..=14).map(BucketId).collect();
        let found = names.find(RegionId(2), (&sought, &live), &buckets);
        let expected = [
            (BucketId(11), LocalBucket::Shared(BucketId(1))),
            (BucketId(12), LocalBucket::Local),
            (BucketId(15), LocalBucket::Gone),
        ];
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn a_bucket_that_is_not_known_here_holds_up_no_other() {
        let buckets = Buckets::of(vec![
            record(1, Sharing::All),
            record(2, Sharing::Local),
            record(3, Sharing::Opening),
        ]);
        let names = BucketIds::default();
        // The fourth was deleted here; nothing is known of the fifth.
        for here in 1..=4 {
            names.associate(RegionId(2), BucketId(10 + here), BucketId(here));
        }
        let entries = [15, 14, 13, 12, 11].map(|there| (there, id(there))).to_vec();
        let Translated { named, unnamed } = names.translate(RegionId(2), entries, &buckets);
        let named: Vec<_> = named.iter().map(|(at, id)| (*at, id.name.bucket.0)).collect();
        assert_eq!(named, [(11, 1)]);
        let unnamed: Vec<_> = unnamed.iter().map(|(at, id)| (*at, id.name.bucket.0)).collect();
        assert_eq!(unnamed, [(15, 15), (14, 14), (13, 13)], "they may be known soon");
    }
}
