//! Shares buckets that this region had alone with the others (ADR 49).
//!
//! While this region alone has a bucket its changes are left out of what other regions are told, and changes of a bucket of that name in
//! another region out of what is taken here. Tokens pass both. A region that has passed a change takes it for what was here (ADR 42), so
//! it would not take it later. Hence:
//!
//! ```text
//!  Local ──an operator──▶ Opening ──no other region has a bucket of that name──▶ Renewing ──each object is a new version──▶ All
//!    ▲                       │
//!    └──── one has one ──────┘
//! ```
//!
//! # Invariants
//!
//! 1. Nothing of another region's bucket is passed over any more when it is asked whether it has one.
//! 2. No region has passed the op of an object that is told: each version that was made until the bucket was shared is renewed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use larder_link::AskHome;
use larder_objects::ObjectError;
use larder_protocol::region::home::{HomeAnswer, HomeAsk};
use larder_types::{
    BucketId, BucketName, BucketRecord, Epoch, ObjectKey, OpId, RegionId, Sharing, VersionRow, rows,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::homes::Heads;
use super::puller::link_to;
use super::runs::Rows;
use super::shown::Unreadable;
use crate::limits::{
    REGION_BUSY_MS, REGION_BUSY_TRIES_MAX, REGION_RENEW_CLIENTS, REGION_RENEW_PAUSE_MS,
    REGION_RENEWS_MAX, REGION_SHARING_MS, REGION_SHARING_REASONS_MAX, REGION_SLICE_ROWS_MAX,
};
use crate::proxy::{ChangeOutcome, KnownBucket, RegionReach};

/// The last reason why each bucket is not shared yet, or stays local.
#[derive(Debug, Default)]
pub(super) struct Unshared(Mutex<BTreeMap<BucketName, String>>);

impl Unshared {
    fn note(&self, bucket: &BucketName, why: String) {
        let mut reasons = self.0.lock();
        if reasons.get(bucket) == Some(&why) {
            return;
        }
        tracing::warn!(%bucket, %why, "a bucket is not shared with the other regions");
        if reasons.len() >= REGION_SHARING_REASONS_MAX {
            reasons.pop_first();
        }
        reasons.insert(bucket.clone(), why);
    }

    fn forget(&self, bucket: &BucketName) {
        self.0.lock().remove(bucket);
    }

    /// The reasons, for the status.
    pub(super) fn status(&self) -> BTreeMap<String, String> {
        self.0.lock().iter().map(|(bucket, why)| (bucket.to_string(), why.clone())).collect()
    }
}

/// A bucket, under the epoch in which it is to be shared. It may be local again, and then under another one.
type Turn = (BucketId, Epoch);

/// The way through the objects of a bucket that are renewed. It is lost with the process: they are renewed once more then.
struct Renewal {
    /// Versions up to here are renewed.
    heads: Heads,
    /// The row from which it goes on.
    from: Vec<u8>,
}

/// Shares what is to be shared. Does not end.
pub(super) async fn follow<R: RegionReach>(shared: Arc<Shared<R>>) {
    let pause = Duration::from_millis(REGION_SHARING_MS);
    let mut renewals: BTreeMap<Turn, Renewal> = BTreeMap::new();
    let mut restarted: BTreeSet<Turn> = BTreeSet::new();
    loop {
        let version = shared.shown.reach().map_version();
        let buckets = shared.shown.buckets();
        let sharing = buckets.sharing();
        let turns: BTreeSet<Turn> = sharing.iter().map(|it| (it.id, it.epoch)).collect();
        renewals.retain(|turn, _| turns.contains(turn));
        restarted.retain(|turn| turns.contains(turn));
        shared.forget_reasons_of_sharing();
        let mut has_moved = false;
        for record in sharing {
            let done = match record.sharing {
                // Of what was told before, some may have been passed over.
                Sharing::Opening => {
                    let turn = (record.id, record.epoch);
                    if !restarted.contains(&turn) && shared.inbox.restart().await {
                        restarted.insert(turn);
                    }
                    open(&shared, record).await
                }
                _ => renew_some(&shared, record, &mut renewals).await,
            };
            match done {
                Ok(()) => has_moved = true,
                Err(error) if record.is_local() => {
                    shared.unshared.note(&record.name, error.to_string());
                }
                Err(error) => {
                    tracing::debug!(bucket = %record.name, %error, "its objects are told later");
                }
            }
        }
        if has_moved {
            continue;
        }
        // A single node's map is looked at regularly, and regions that do not answer are asked again.
        let _passed = timeout(pause, shared.shown.reach().map_passes(version)).await;
    }
}

/// Has other regions have the bucket, unless one of them has one of that name.
async fn open<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    record: &BucketRecord,
) -> Result<(), ObjectError> {
    match theirs(shared, record).await? {
        // What a region has that joined since counts for nothing yet: none of it was passed over.
        None => {
            shared.shown.reach().share_bucket(record, Sharing::Renewing).await?;
            shared.unshared.forget(&record.name);
        }
        Some(region) => {
            shared.shown.reach().share_bucket(record, Sharing::Local).await?;
            let why = format!(
                "region {} has a bucket of this name: it stays local until that one is deleted",
                shared.name_of(region)
            );
            shared.unshared.note(&record.name, why);
        }
    }
    Ok(())
}

/// Makes sure that no other region has a bucket of the name of one that is local and closed: it would be made here without what was
/// passed over.
pub(super) async fn none_elsewhere<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    closed: &BucketRecord,
) -> Result<(), ObjectError> {
    let unavailable = |reason| ObjectError::Unavailable { reason };
    if !shared.inbox.restart().await {
        return Err(unavailable("this region is being stopped".to_owned()));
    }
    match theirs(shared, closed).await? {
        None => Ok(()),
        Some(region) => Err(unavailable(format!(
            "region {} has a bucket of this name, which would come in place of this one without what it has by now: delete that \
             one first",
            shared.name_of(region)
        ))),
    }
}

/// A region that has a bucket of that name, which is not its alone.
async fn theirs<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    record: &BucketRecord,
) -> Result<Option<RegionId>, ObjectError> {
    let regions: BTreeSet<RegionId> = live(shared);
    let asking =
        regions.iter().map(async |region| (*region, has_one(shared, *region, record).await));
    let mut silent = None;
    for (region, answered) in join_all(asking).await {
        match answered {
            Ok(false) => {}
            Ok(true) => return Ok(Some(region)),
            Err(why) => silent = Some((region, why)),
        }
    }
    match silent {
        None => Ok(None),
        Some((region, why)) => {
            let reason = format!(
                "region {} does not say whether it has a bucket of this name: {why}",
                shared.name_of(region)
            );
            Err(ObjectError::Unavailable { reason })
        }
    }
}

fn live<R>(shared: &Shared<R>) -> BTreeSet<RegionId> {
    shared.site.members().borrow().live().map(|peer| peer.number).collect()
}

/// True if a region has a bucket of that name that is not its alone.
async fn has_one<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    region: RegionId,
    record: &BucketRecord,
) -> Result<bool, String> {
    let (bucket, own) = (record.name.clone(), shared.shown.own());
    let asked = AskHome { bucket, ask: HomeAsk::Look, regions: vec![own] };
    let answered = async { link_to(shared, region)?.ask_home(asked).await }.await;
    match answered {
        Ok(HomeAnswer::Absent) => Ok(false),
        Ok(HomeAnswer::Behind) => Err("it is deleting one".to_owned()),
        Ok(_) => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}

impl<R: RegionReach> Shared<R> {
    fn name_of(&self, region: RegionId) -> String {
        let members = self.site.members().borrow().clone();
        members.peer(region).map_or_else(|| region.to_string(), |peer| peer.name.to_string())
    }

    /// Reasons go with their buckets, and once these are shared.
    fn forget_reasons_of_sharing(&self) {
        let is_local = |bucket: &BucketName| {
            self.shown.reach().bucket(bucket, BucketRecord::is_local).unwrap_or(false)
        };
        self.unshared.0.lock().retain(|bucket, _| is_local(bucket));
    }
}

/// Renews the next objects of a bucket, and notes that it is shared after the last ones.
async fn renew_some<R: RegionReach>(
    shared: &Shared<R>,
    record: &BucketRecord,
    renewals: &mut BTreeMap<Turn, Renewal>,
) -> Result<(), ObjectError> {
    let renewal = match renewals.entry((record.id, record.epoch)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            // Later versions are told as all others: they came when this process knew the bucket to be shared.
            let Some(heads) = shared.heads().await? else {
                let reason = "a placement group does not answer now".to_owned();
                return Err(ObjectError::Unavailable { reason });
            };
            place.insert(Renewal { heads, from: rows::bucket(b'V', record.id) })
        }
    };
    let read = slice(shared, record, renewal).await.map_err(|error| match error {
        Unreadable::Store(error) => error,
        error => ObjectError::Unavailable { reason: error.to_string() },
    });
    let (versions, next) = read?;
    // Those that are renewed are above the heads by then: what fails is read again.
    let renewing =
        versions.into_iter().map(async |(key, was)| renew(shared, record, &key, was).await);
    stream::iter(renewing).buffer_unordered(REGION_RENEWS_MAX).try_collect::<()>().await?;
    match next {
        Some(next) => {
            renewal.from = next;
            if shared.proxy.clients_under_way() >= REGION_RENEW_CLIENTS {
                sleep(Duration::from_millis(REGION_RENEW_PAUSE_MS)).await;
            }
        }
        None => {
            shared.shown.reach().share_bucket(record, Sharing::All).await?;
            tracing::info!(bucket = %record.name, "all its objects are told to the other regions");
        }
    }
    Ok(())
}

/// Renews a version, if it is still that of the key.
async fn renew<R: RegionReach>(
    shared: &Shared<R>,
    record: &BucketRecord,
    key: &ObjectKey,
    was: OpId,
) -> Result<(), ObjectError> {
    let known = (&record.name, KnownBucket::of(record));
    let mut tries = 0;
    let renewed = loop {
        match shared.proxy.renew(known, key, was).await {
            Err(ObjectError::SlowDown) if tries < REGION_BUSY_TRIES_MAX => {
                tries += 1;
                sleep(Duration::from_millis(REGION_BUSY_MS)).await;
            }
            renewed => break renewed?,
        }
    };
    // Else it has changed since, and that is told.
    let is_renewed = renewed == ChangeOutcome::Taken;
    shared.watch.counters().renewed.fetch_add(u64::from(is_renewed), Ordering::Relaxed);
    Ok(())
}

/// Keys with the ops of their rows, those up to the heads; and where to go on.
type Versions = (Vec<(ObjectKey, OpId)>, Option<Vec<u8>>);

/// Reads the next versions of a bucket.
async fn slice<R: RegionReach>(
    shared: &Shared<R>,
    record: &BucketRecord,
    Renewal { heads, from }: &Renewal,
) -> Result<Versions, Unreadable> {
    let Some(behind) = rows::prefix_end(&rows::bucket(b'V', record.id)) else {
        return Ok((Vec::new(), None));
    };
    let (mut found, mut count, mut next) = (Vec::new(), 0, None);
    let visit = |row: &[u8], value: &[u8]| {
        if count == REGION_SLICE_ROWS_MAX {
            next = Some(row.to_vec());
            return Ok(ControlFlow::Break(()));
        }
        count += 1;
        let form = || Unreadable::Form(row.escape_ascii().to_string());
        let (_, key, slot) = rows::parse_version(row).ok_or_else(form)?;
        if slot.is_unversioned() {
            let op = VersionRow::read(value)?.op;
            let head = heads.get(&shared.shown.pg_of(record.id, &key));
            if head.is_some_and(|head| op.seq <= *head) {
                found.push((key, op));
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    shared.shown.visit(from, &behind, REGION_SLICE_ROWS_MAX + 1, visit).await?;
    Ok((found, next))
}
