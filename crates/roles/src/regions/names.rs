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

use larder_link::{AskHome, LinkError, Walk};
use larder_objects::{ObjectError, Objects};
use larder_protocol::region::home::{HomeAnswer, HomeRequest, heard};
use larder_protocol::region::{Id, Name, Range};
use larder_types::{BucketId, BucketName, BucketRecord, BucketState, Home, RegionId};
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep};

use super::Shared;
use super::shown::Buckets;
use crate::limits::{REGION_DELETED_MS, REGION_NAMES_AGAIN_MS};
use crate::proxy::RegionAccess;

/// Bucket ids of one other region.
#[derive(Debug, Default, Clone)]
struct Known {
    /// Ids here, by those there.
    here: BTreeMap<BucketId, BucketId>,
    there: BTreeMap<BucketId, BucketId>,
}

/// Buckets of other regions, and the same ones here.
#[derive(Debug, Default)]
pub(super) struct BucketIds {
    known: RwLock<BTreeMap<RegionId, Known>>,
    /// Counts up before a bucket is deleted here, and when all regions have closed one that is not here.
    voided: AtomicU64,
    /// Held while one is made.
    making: tokio::sync::Mutex<()>,
    /// Former ids of buckets that were deleted and made again, and until when entries may be told under them.
    former: Mutex<BTreeMap<BucketId, Instant>>,
    /// Buckets that are not here any more, and since when that is so.
    gone: Mutex<BTreeMap<BucketId, Instant>>,
    /// Regions that announced a bucket too early: their buckets are requested again.
    missed: Mutex<BTreeSet<RegionId>>,
}

/// The time at which an answer was asked for, as a count of deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AskedAt(u64);

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
        told: Vec<(T, Id)>,
        buckets: &Buckets,
    ) -> Translated<T> {
        let known = self.known.read();
        let of_region = known.get(&region);
        let (mut named, mut unnamed) = (Vec::with_capacity(told.len()), Vec::new());
        for (at, mut id) in told {
            let here = of_region.and_then(|known| known.here.get(&id.name.bucket)).copied();
            match here.filter(|here| buckets.all().contains_key(here) && !buckets.waits(*here)) {
                Some(here) if buckets.local().contains(&here) => {}
                Some(here) => {
                    id.name.bucket = here;
                    named.push((at, id));
                }
                None => unnamed.push((at, id)),
            }
        }
        Translated { named, unnamed }
    }

    /// Now, for an answer that is asked for.
    pub(super) fn now(&self) -> AskedAt {
        AskedAt(self.voided.load(Ordering::Acquire))
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
    pub(super) fn forget_gone(&self, buckets: &Buckets) {
        let (now, lately) = (Instant::now(), Duration::from_millis(REGION_DELETED_MS));
        let mut gone = self.gone.lock();
        gone.retain(|id, _| !buckets.all().contains_key(id));
        for known in self.known.read().values() {
            let ids = known.there.keys().filter(|id| !buckets.all().contains_key(id));
            ids.for_each(|id| _ = gone.entry(*id).or_insert(now));
        }
        let long = gone.extract_if(.., |_, since| now.duration_since(*since) >= lately);
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
    fn learn(&self, region: RegionId, there: BucketId, here: BucketId) {
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

impl<R: RegionAccess> Shared<R> {
    /// Learns a region's buckets, and makes those that are not here. One that cannot be made is an error only if it is
    /// `needed`.
    pub(super) async fn learn_names(
        &self,
        region: RegionId,
        told: Vec<(BucketId, BucketName)>,
        (needed, asked_at): (&BTreeSet<BucketId>, AskedAt),
    ) -> Result<(), ObjectError> {
        for (there, name) in told {
            if self.shown.bucket(&name).is_none()
                && let Err(error) = self.make_bucket(region, &name, asked_at).await
            {
                if needed.contains(&there) {
                    return Err(error);
                }
                self.watch.cannot_make(region, &name, &error);
            }
            // An answer that was asked for before a deletion may be of a bucket that is gone. One that is
            // being deleted here is another bucket than the one that a region has by that time.
            if self.names.now() != asked_at {
                continue;
            }
            let live =
                |record: &BucketRecord| (record.state == BucketState::Live).then_some(record.id);
            if let Some(here) = self.shown.access().bucket(&name, live).flatten() {
                self.names.learn(region, there, here);
            }
        }
        Ok(())
    }

    /// Asks a region for its buckets: it told of one before another was deleted here.
    pub(super) async fn ask_for_names(&self, region: RegionId) {
        let asked = async {
            let asked_at = self.names.now();
            // No key is there, and all buckets are told.
            let range = Range { from: Vec::new(), to: Some(vec![0]) };
            let told = self.link_to(region)?.walk(Walk { range }).await?;
            Ok::<_, LinkError>((told.buckets, asked_at))
        };
        match asked.await {
            Ok((told, asked_at)) => {
                // The parts of it that are needed are told again with its changes.
                if let Err(error) =
                    self.learn_names(region, told, (&BTreeSet::new(), asked_at)).await
                {
                    tracing::debug!(%region, %error, "a bucket of another region could not be created");
                }
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
            Ok(HomeAnswer::Knows(home)) => Ok(home.and_then(|home| heard(own, None, home))),
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
        asked_at: AskedAt,
    ) -> Result<(), ObjectError> {
        // Its home goes along, so that no change is decided here that is decided there.
        let home = self.home_there(region, name).await?;
        let _alone = self.names.making.lock().await;
        if self.names.now() != asked_at {
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
            names.learn(RegionId(2), BucketId(2_000 + here), BucketId(here));
        }
        let left = Buckets::of(vec![record(7, Sharing::All)]);
        names.forget_gone(&left);
        assert!(is_known(&BucketId(2_001)), "entries may be told under it");
        tokio::time::advance(Duration::from_millis(REGION_DELETED_MS)).await;
        names.forget_gone(&left);
        let known: Vec<_> = names.of(RegionId(2), &left).into_iter().collect();
        assert_eq!(known, [(BucketId(2_007), BucketId(7))]);
        assert_eq!(names.former().len(), 999, "nothing more of them is wanted");
        tokio::time::advance(Duration::from_millis(REGION_DELETED_MS)).await;
        names.forget_gone(&left);
        assert_eq!((names.former().len(), names.gone.lock().len()), (0, 0));
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
            names.learn(RegionId(2), BucketId(10 + here), BucketId(here));
        }
        let told = [15, 14, 13, 12, 11].map(|there| (there, id(there))).to_vec();
        let Translated { named, unnamed } = names.translate(RegionId(2), told, &buckets);
        let named: Vec<_> = named.iter().map(|(at, id)| (*at, id.name.bucket.0)).collect();
        assert_eq!(named, [(11, 1)]);
        let unnamed: Vec<_> = unnamed.iter().map(|(at, id)| (*at, id.name.bucket.0)).collect();
        assert_eq!(unnamed, [(15, 15), (14, 14), (13, 13)], "they may be known soon");
    }
}
