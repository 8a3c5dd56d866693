//! Shares local buckets with the other regions (ADR 49).
//!
//! While this region alone has a bucket its changes are left out of what other regions are told. Changes of
//! a bucket of that name in another region are left out of what is taken here. Tokens pass both. A region
//! that has passed a change takes it for what was here (ADR 42), so it would not take it later. Hence:
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

use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use larder_link::AskHome;
use larder_objects::ObjectError;
use larder_protocol::region::home::{HomeAnswer, HomeRequest};
use larder_types::{
    BucketId, BucketName, BucketRecord, Epoch, ObjectKey, OpId, OpSeq, PgId, RegionId, Sharing,
    VersionRow, rows,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::homes::Heads;
use super::runs::{Rows, Unreadable};
use super::source::SourceState;
use crate::limits::{
    REGION_BUSY_MS, REGION_BUSY_TRIES_MAX, REGION_CLOSE_MS, REGION_RENEW_CLIENTS,
    REGION_RENEW_PAUSE_MS, REGION_RENEW_STUCK_MS, REGION_RENEWS_MAX, REGION_SHARING_MS,
    REGION_SHARING_REASONS_MAX, REGION_SLICE_ROWS_MAX,
};
use crate::proxy::{BucketSnapshot, RegionAccess};

/// The last reason why each bucket is not shared yet, or stays local.
#[derive(Debug, Default)]
pub(super) struct Unshared(Mutex<BTreeMap<BucketName, (Step, String)>>);

/// A step of sharing, under the epoch of the order.
type Step = (Epoch, Sharing);

impl Unshared {
    /// Notes a reason that holds while the bucket is at this step.
    fn note(&self, bucket: &BucketName, step: Step, why: String) {
        let mut reasons = self.0.lock();
        let noted = (step, why);
        if reasons.get(bucket) == Some(&noted) {
            return;
        }
        let (_, why) = &noted;
        tracing::warn!(%bucket, %why, "a bucket is not shared with the other regions");
        if reasons.len() >= REGION_SHARING_REASONS_MAX {
            reasons.pop_first();
        }
        reasons.insert(bucket.clone(), noted);
    }

    fn forget(&self, bucket: &BucketName) {
        self.0.lock().remove(bucket);
    }

    /// The reasons, for the status.
    pub(super) fn status(&self) -> BTreeMap<String, String> {
        self.0.lock().iter().map(|(bucket, (_, why))| (bucket.to_string(), why.clone())).collect()
    }
}

/// The way through the objects of a bucket that are renewed. It is lost with the process: they are renewed once more then.
struct Renewal {
    /// Versions up to here are renewed.
    heads: Heads,
    /// The row from which it goes on.
    from: Vec<u8>,
    /// The last ops that renewed some: it goes on once the regions that are reached have passed these.
    last: Heads,
    /// Positions that it waits for, and since when none has moved.
    waits: (Positions, Instant),
    /// Positions that stood still for so long that nobody waits for them until they move: something holds them up.
    stuck: Positions,
}

impl Renewal {
    /// Returns true if it continues once a region has advanced.
    fn waits_for_regions(&self) -> bool {
        !self.waits.0.is_empty()
    }
}

/// Positions of regions in journals.
type Positions = BTreeMap<(PgId, RegionId), OpSeq>;

/// State of buckets that are being shared.
#[derive(Default)]
struct Sharings {
    renewals: BTreeMap<BucketId, Renewal>,
    /// Buckets, with the epochs in which other regions were asked: the time of the last request, and true once earlier
    /// reports are void.
    asked: BTreeMap<(BucketId, Epoch), (Instant, bool)>,
}

/// Shares what is to be shared. Does not end.
pub(super) async fn follow<R: RegionAccess>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    let pause = Duration::from_millis(REGION_SHARING_MS);
    let (mut sharings, mut moved) = (Sharings::default(), state.moved());
    loop {
        moved.mark_seen();
        let version = shared.shown.access().map_version();
        let buckets = shared.shown.buckets();
        let sharing = buckets.sharing();
        let is_in = |id: BucketId, step| sharing.iter().any(|it| it.id == id && it.sharing == step);
        sharings.renewals.retain(|id, _| is_in(*id, Sharing::Renewing));
        sharings.asked.retain(|(id, _), _| is_in(*id, Sharing::Opening));
        shared.forget_reasons_of_sharing();
        let mut waits = pause;
        for record in sharing {
            let step = match record.sharing {
                Sharing::Opening => open(&shared, record, &mut sharings).await,
                _ => renew_some(&state, record, &mut sharings.renewals).await,
            };
            match step {
                Ok(wait_ms) => waits = waits.min(Duration::from_millis(wait_ms)),
                Err(error) => {
                    let step = (record.epoch, record.sharing);
                    shared.unshared.note(&record.name, step, error.into_reason());
                }
            }
        }
        let is_awaited = sharings.renewals.values().any(Renewal::waits_for_regions);
        let notifier = async {
            tokio::select! {
                biased;
                () = shared.shown.access().map_passes(version) => {}
                Ok(()) = moved.changed(), if is_awaited => {}
            }
        };
        // A single node's map is polled, and requests to silent regions are repeated.
        let _news = timeout(waits, notifier).await;
    }
}

/// Has other regions have the bucket, unless one of them has one of that name. Returns the time to wait for what comes next.
async fn open<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    record: &BucketRecord,
    sharings: &mut Sharings,
) -> Result<u64, ObjectError> {
    let turn = (record.id, record.epoch);
    let (asked, mut is_new) = sharings.asked.get(&turn).copied().unzip();
    if asked.is_some_and(|at| at.elapsed() < Duration::from_millis(REGION_SHARING_MS)) {
        return Ok(REGION_SHARING_MS);
    }
    let mut found = theirs(shared, record).await;
    // Of what was told before, some may have been passed over: they are asked once more when that counts no more.
    if found == Ok(None) && is_new != Some(true) && shared.inbox.void_answers().await {
        is_new = Some(true);
        found = theirs(shared, record).await;
    }
    sharings.asked.insert(turn, (Instant::now(), is_new == Some(true)));
    match found? {
        // A bucket of a region that joined since does not count yet: none of it was passed over.
        None => {
            sharings.renewals.remove(&record.id);
            shared.shown.access().share_bucket(record, Sharing::Renewing).await?;
        }
        Some(region) => {
            shared.shown.access().share_bucket(record, Sharing::Local).await?;
            let why = format!(
                "region {} has a bucket of this name: it stays local until that one is deleted or local, and you order this again",
                shared.name_of(region)
            );
            shared.unshared.note(&record.name, (record.epoch, Sharing::Local), why);
        }
    }
    Ok(0)
}

/// Makes sure that no other region has a bucket of the name of one that is local and closed: it would be made here without what was
/// passed over.
pub(super) async fn require_absent_elsewhere<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    closed: &BucketRecord,
) -> Result<(), ObjectError> {
    let unavailable = |reason| ObjectError::Unavailable { reason };
    let mut found = theirs(shared, closed).await?;
    if found.is_none() {
        if !shared.inbox.void_answers().await {
            return Err(unavailable("this region is being stopped".to_owned()));
        }
        found = theirs(shared, closed).await?;
    }
    match found {
        None => Ok(()),
        Some(region) => Err(unavailable(format!(
            "region {} has a bucket of this name, which would come in place of this one without what it has by now: delete that \
             one first, or make it local there",
            shared.name_of(region)
        ))),
    }
}

/// A region that has a bucket of that name, which is not its alone.
async fn theirs<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    record: &BucketRecord,
) -> Result<Option<RegionId>, ObjectError> {
    let max_wait = Duration::from_millis(REGION_CLOSE_MS);
    let asking = live(shared).into_iter().map(async |region| {
        let answered = timeout(max_wait, has_one(shared, region, record)).await;
        (region, answered.unwrap_or_else(|_| Err("it does not answer".to_owned())))
    });
    let mut asking: FuturesUnordered<_> = asking.collect();
    let mut silent = None;
    while let Some((region, answered)) = asking.next().await {
        match answered {
            Ok(false) => {}
            Ok(true) => return Ok(Some(region)),
            Err(why) => silent = Some((region, why)),
        }
    }
    match silent {
        None => Ok(None),
        Some((region, why)) => {
            let name = shared.name_of(region);
            let reason =
                format!("region {name} does not say whether it has a bucket of this name: {why}");
            Err(ObjectError::Unavailable { reason })
        }
    }
}

fn live<R: RegionAccess>(shared: &Shared<R>) -> BTreeSet<RegionId> {
    shared.region_endpoint.members().borrow().live().map(|peer| peer.number).collect()
}

/// Returns true if a region has a bucket of that name that is not its alone.
async fn has_one<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    region: RegionId,
    record: &BucketRecord,
) -> Result<bool, String> {
    let (bucket, own) = (record.name.clone(), shared.shown.own());
    let asked = AskHome { bucket, ask: HomeRequest::Look, regions: vec![own] };
    let answered = async { shared.link_to(region)?.ask_home(asked).await }.await;
    match answered {
        Ok(HomeAnswer::Absent) => Ok(false),
        Ok(HomeAnswer::Behind) => Err("it is deleting one".to_owned()),
        Ok(_) => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}

impl<R: RegionAccess> Shared<R> {
    fn name_of(&self, region: RegionId) -> String {
        let members = self.region_endpoint.members().borrow().clone();
        members.peer(region).map_or_else(|| region.to_string(), |peer| peer.name.to_string())
    }

    /// Reasons go with their buckets, once these are shared, and with another order.
    fn forget_reasons_of_sharing(&self) {
        let holds = |bucket: &BucketName, step: Step| {
            let is_it = |it: &BucketRecord| (it.epoch, it.sharing) == step;
            self.shown.access().bucket(bucket, is_it).unwrap_or(false)
        };
        self.unshared.0.lock().retain(|bucket, (step, _)| holds(bucket, *step));
    }
}

impl<R: RegionAccess> SourceState<R> {
    /// Returns true if each region that is reached has passed the last ops of a renewal, or does not get on.
    fn have_passed(&self, renewal: &mut Renewal) -> bool {
        let shared = self.shared();
        let reached: Vec<_> =
            live(shared).into_iter().filter(|region| shared.watch.is_reached(*region)).collect();
        let positions = self.positions(&reached, renewal.last.keys().copied());
        let all = positions.into_iter().flat_map(|(pg, of)| of.into_iter().map(move |it| (pg, it)));
        let behind = all.filter(|(pg, (_, through))| *through < renewal.last[pg]);
        let behind: Positions = behind
            .map(|(pg, (region, through))| ((pg, region), through))
            .filter(|(of, through)| renewal.stuck.get(of) != Some(through))
            .collect();
        if behind != renewal.waits.0 {
            renewal.waits = (behind, Instant::now());
        } else if renewal.waits.1.elapsed() >= Duration::from_millis(REGION_RENEW_STUCK_MS) {
            // One object that a region cannot take holds up the position of its group, and nothing else.
            renewal.stuck.append(&mut renewal.waits.0);
        }
        !renewal.waits_for_regions()
    }
}

/// Renews the next objects of a bucket, and notes that it is shared after the last ones. Returns the time to wait for what comes next.
async fn renew_some<R: RegionAccess>(
    state: &SourceState<R>,
    record: &BucketRecord,
    renewals: &mut BTreeMap<BucketId, Renewal>,
) -> Result<u64, ObjectError> {
    let shared = state.shared();
    let renewal = match renewals.entry(record.id) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            // Later versions are sent like all others: they arrived when this process knew that the bucket is shared.
            let Some(heads) = shared.heads().await? else {
                let reason = "a placement group does not answer now".to_owned();
                return Err(ObjectError::Unavailable { reason });
            };
            let (from, last) = (rows::bucket(b'V', record.id), Heads::new());
            let (waits, stuck) = ((Positions::new(), Instant::now()), Positions::new());
            place.insert(Renewal { heads, from, last, waits, stuck })
        }
    };
    // They are old, and would be pulled before what clients change now.
    if !state.have_passed(renewal) {
        return Ok(REGION_SHARING_MS);
    }
    let read = slice(shared, record, renewal).await.map_err(|error| match error {
        Unreadable::Store(error) => error,
        error => ObjectError::Unavailable { reason: error.to_string() },
    });
    let (versions, next) = read?;
    // Those that are renewed are above the heads by then: what fails is read again.
    let renewing =
        versions.into_iter().map(async |(key, was)| renew(shared, record, &key, was).await);
    let mut renewing = stream::iter(renewing).buffer_unordered(REGION_RENEWS_MAX);
    let mut ended = Ok(());
    while let Some(renewed) = renewing.next().await {
        match renewed {
            Ok(Some((pg, op))) => {
                let last = renewal.last.entry(pg).or_default();
                *last = op.max(*last);
            }
            Ok(None) => {}
            Err(error) => ended = Err(error),
        }
    }
    ended?;
    shared.unshared.forget(&record.name);
    let Some(next) = next else {
        shared.shown.access().share_bucket(record, Sharing::All).await?;
        tracing::info!(bucket = %record.name, "sending all objects of a bucket to the other regions");
        return Ok(0);
    };
    renewal.from = next;
    let has_clients = shared.clients_in_flight() >= REGION_RENEW_CLIENTS;
    Ok(if has_clients { REGION_RENEW_PAUSE_MS } else { 0 })
}

/// Renews a version, if it is still that of the key; returns its PG and the op.
async fn renew<R: RegionAccess>(
    shared: &Shared<R>,
    record: &BucketRecord,
    key: &ObjectKey,
    was: OpId,
) -> Result<Option<(PgId, OpSeq)>, ObjectError> {
    let known = (&record.name, BucketSnapshot::of(record));
    let mut tries = 0;
    loop {
        match shared.proxy.renew(known, key, was).await {
            Err(ObjectError::SlowDown) if tries < REGION_BUSY_TRIES_MAX => {
                tries += 1;
                sleep(Duration::from_millis(REGION_BUSY_MS)).await;
            }
            Ok(renewed) => {
                // Else it has changed since, and that is told.
                let count = u64::from(renewed.is_some());
                shared.watch.counters().renewed.fetch_add(count, Ordering::Relaxed);
                return Ok(renewed);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Keys with the ops of their rows, those up to the heads; and where to go on.
type Versions = (Vec<(ObjectKey, OpId)>, Option<Vec<u8>>);

/// Reads the next versions of a bucket.
async fn slice<R: RegionAccess>(
    shared: &Shared<R>,
    record: &BucketRecord,
    Renewal { heads, from, .. }: &Renewal,
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
