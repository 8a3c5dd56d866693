//! Homes of buckets: executes orders, responds to other regions, and reports homes to them (ADR 48).
//!
//! # Invariants
//!
//! 1. A decision that a region made before it gave a home, or accepted a claim, is at the other one before
//!    this one says so. Behind a barrier that passes under a map with the record nothing is taken that
//!    another record allowed. Puts that were taken before it, and have data, are in its journal with their
//!    outcomes alone. So the journals' ends are read once none of these puts is left open (`marks.rs`).
//! 2. At most one machine runs for a bucket. It ends, and another begins from the record, if regions join or are removed.
//! 3. An order is over once this region was the home after it, also if the home is elsewhere when orders are looked at next.
//!    Else two regions with an order each would take the home from one another for good.

mod marks;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use larder_link::{AskHome, HomeOrder, HomeStatus, Order, TellHomes};
use larder_objects::ObjectError;
use larder_protocol::region::home::{
    HomeAnswer, HomeRequest, Reply, ended, is_owed, merge_home, reply,
};
use larder_types::{BucketName, BucketRecord, BucketState, Home, HomeScope, HomeState, RegionId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub(super) use self::marks::Heads;
use self::marks::{Mark, Waits};
use super::Shared;
use super::source::SourceState;
use crate::blocking;
use crate::limits::{
    REGION_HOME_MARKS_MAX, REGION_HOME_MARKS_MS, REGION_HOME_RUNS_MAX, REGION_HOMES_MS,
    REGION_HOMES_REPORT_MS,
};
use crate::proxy::RegionAccess;

/// Homes as a region was told them.
type ReportedHomes = Vec<(BucketName, Home)>;

/// State of homes.
#[derive(Debug, Default)]
pub(super) struct Homes {
    marks: Mutex<BTreeMap<Mark, (Waits, Instant)>>,
    orders: Mutex<BTreeMap<BucketName, Order>>,
    runs: Mutex<Runs>,
    /// A run has carried an order out.
    carried_out: Notify,
    /// Orders that were begun, so that all have their turn.
    next_region: AtomicUsize,
    /// The last reason why an order is not carried out.
    reasons: Mutex<BTreeMap<BucketName, String>>,
    /// The homes that each region was told last, and when.
    reported: Mutex<BTreeMap<RegionId, (ReportedHomes, Instant)>>,
    counters: HomeCounters,
}

/// Runs of machines, by bucket.
#[derive(Debug, Default)]
struct Runs {
    /// Those under way; true for one that is to end, as its order was taken back.
    ends: BTreeMap<BucketName, Arc<AtomicBool>>,
    /// Scopes of those that made this region the home, until the orders for that are forgotten.
    carried_out: BTreeMap<BucketName, HomeScope>,
}

/// Counters of homes, for metrics.
#[derive(Debug, Default)]
pub struct HomeCounters {
    /// Clients' changes that another region, their bucket's home, was asked to make and answered.
    pub asked: AtomicU64,
    /// Those that it did not answer.
    pub unanswered: AtomicU64,
    /// Changes of other regions' clients that were made here.
    pub made: AtomicU64,
    /// Those that were not, such as for a condition that does not hold.
    pub refused: AtomicU64,
    /// Homes that this region has become.
    pub taken: AtomicU64,
    /// Homes that this region gave to another, or gave up.
    pub given: AtomicU64,
}

impl Homes {
    pub(super) fn counters(&self) -> &HomeCounters {
        &self.counters
    }

    pub(super) fn count_request(&self, is_answered: bool) {
        let HomeCounters { asked, unanswered, .. } = &self.counters;
        if is_answered { asked } else { unanswered }.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_made(&self, is_made: bool) {
        let HomeCounters { made, refused, .. } = &self.counters;
        if is_made { made } else { refused }.fetch_add(1, Ordering::Relaxed);
    }

    /// Has a run end; false if there is none.
    fn ends_run(&self, bucket: &BucketName) -> bool {
        let runs = self.runs.lock();
        let run = runs.ends.get(bucket);
        run.inspect(|ends| ends.store(true, Ordering::Relaxed)).is_some()
    }

    /// True if a run has carried this order out.
    fn has_executed(&self, bucket: &BucketName, scope: HomeScope) -> bool {
        self.runs.lock().carried_out.get(bucket) == Some(&scope)
    }

    /// Notes what an order waits for.
    fn note(&self, bucket: &BucketName, why: &str) {
        self.reasons.lock().insert(bucket.clone(), why.to_owned());
    }

    /// Notes what keeps an order from being carried out now.
    fn reason(&self, bucket: &BucketName, why: String) {
        if self.is_news(bucket, &why) {
            tracing::warn!(%bucket, %why, "a home could not be moved: will retry");
        }
    }

    /// Notes why an order will never be carried out here.
    fn drops(&self, bucket: &BucketName, why: String) {
        if self.is_news(bucket, &why) {
            tracing::warn!(%bucket, %why, "a home could not be moved: the order was dropped");
        }
    }

    fn is_news(&self, bucket: &BucketName, why: &str) -> bool {
        let before = self.reasons.lock().insert(bucket.clone(), why.to_owned());
        before.as_deref() != Some(why)
    }

    /// Homes, and orders that are not carried out yet, for the status.
    pub(super) fn status(&self, buckets: Vec<BucketRecord>) -> Vec<HomeStatus> {
        let (orders, reasons) = (self.orders.lock(), self.reasons.lock());
        let mut all: BTreeMap<BucketName, Option<Home>> = BTreeMap::new();
        all.extend(orders.keys().chain(reasons.keys()).map(|name| (name.clone(), None)));
        let homed = buckets.into_iter().filter(|record| record.home.is_some());
        all.extend(homed.map(|record| (record.name, record.home)));
        let status = |(bucket, home): (BucketName, Option<Home>)| HomeStatus {
            order: orders.get(&bucket).copied(),
            why: reasons.get(&bucket).cloned(),
            bucket: bucket.to_string(),
            home,
        };
        all.into_iter().map(status).collect()
    }

    /// Moments that are not asked for any more go.
    fn forget_marks(&self) {
        let kept = Duration::from_millis(REGION_HOME_MARKS_MS);
        self.marks.lock().retain(|_, (_, since)| since.elapsed() < kept);
    }
}

/// Takes another region's record of a bucket's home, if it is later. If that record makes this region the home, and
/// this region does not know that, it requests the home.
pub(super) async fn hear_home<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    bucket: &BucketName,
    reported: Home,
) {
    let Some(record) = shared.homed(bucket) else { return };
    if is_owed(shared.shown.own(), record.home.as_ref(), reported) {
        return run::begin(shared, bucket.clone(), (reported.scope, true));
    }
    let Some(next) = merge_home(shared.shown.own(), record.home.as_ref(), reported) else { return };
    match shared.shown.access().set_home(bucket, record.home, next).await {
        Ok(true) => {
            tracing::info!(%bucket, %from, home = ?next, "the home of a bucket has moved")
        }
        // It is told again.
        Ok(false) => {}
        Err(error) => {
            tracing::debug!(%bucket, %error, "the home of a bucket will be recorded later")
        }
    }
}

impl<R: RegionAccess> Shared<R> {
    /// Reasons go with what they were for. That of an order which could not be carried out stays until the next order.
    fn forget_reasons(&self) {
        let mut reasons = self.homes.reasons.lock();
        reasons.retain(|bucket, _| {
            !self
                .homed(bucket)
                .is_some_and(|record| record.home.is_some_and(|home| home.state == HomeState::Here))
        });
        while reasons.len() > REGION_HOME_MARKS_MAX {
            reasons.pop_first();
        }
    }

    /// The record of a bucket that takes changes, and that other regions have.
    fn homed(&self, bucket: &BucketName) -> Option<BucketRecord> {
        let is_fit =
            |record: &BucketRecord| record.state == BucketState::Live && !record.is_local();
        let live = |record: &BucketRecord| is_fit(record).then(|| record.clone());
        self.shown.access().bucket(bucket, live).flatten()
    }
}

impl<R: RegionAccess> SourceState<R> {
    /// Answers a region that is to become the home of a bucket.
    pub(super) async fn answer_home(
        &self,
        from: RegionId,
        asked: AskHome,
    ) -> Result<HomeAnswer, ObjectError> {
        let AskHome { bucket, ask, regions } = asked;
        let shared = self.shared();
        let members = shared.region_endpoint.members().borrow().clone();
        let is_claim = matches!(ask, HomeRequest::Claim(..));
        if is_claim && members.live().any(|peer| !regions.contains(&peer.number)) {
            return Ok(HomeAnswer::OtherRegions);
        }
        let Some(record) = shared.homed(&bucket) else {
            let look = |record: &BucketRecord| (record.is_local(), record.home);
            return Ok(match (shared.shown.access().bucket(&bucket, look), ask) {
                // It decides nothing for others, and has nothing that they lack.
                (Some((true, home)), HomeRequest::Claim(term, scope))
                    if home.is_none_or(|home| home.term < term) =>
                {
                    let home = Home { term, scope, state: HomeState::Elsewhere };
                    HomeAnswer::Yours { home, is_level: true }
                }
                (Some((true, _)), HomeRequest::Look) | (None, _) => HomeAnswer::Absent,
                (Some((true, home)), _) => HomeAnswer::Knows(home.map(Home::as_remote)),
                // One that is being deleted may stay.
                (Some((false, _)), HomeRequest::Look) => HomeAnswer::Behind,
                (Some((false, _)), _) => HomeAnswer::Absent,
            });
        };
        let mark = |record: &BucketRecord, is_last| Mark {
            bucket: record.id,
            epoch: record.epoch,
            region: from,
            is_last,
        };
        let home = match reply(record.home.as_ref(), (from, ask)) {
            Reply::Say(answer) => return Ok(answer),
            Reply::Prepare if self.has_passed(mark(&record, false)).await? => {
                return Ok(HomeAnswer::Knows(record.home));
            }
            Reply::Prepare => return Ok(HomeAnswer::Behind),
            Reply::Yours(home) => home,
            Reply::Give(home) => {
                // Changes with conditions wait while the home moves: it moves once the other region has nearly all, and no put is open
                // for long.
                if !self.has_passed(mark(&record, false)).await? {
                    return Ok(HomeAnswer::Behind);
                }
                if !shared.shown.access().set_home(&bucket, record.home, home).await? {
                    return Ok(HomeAnswer::Behind);
                }
                shared.homes.counters.given.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%bucket, to = %from, "the home of a bucket was released to another region");
                // It may take a while until the other region has all, and it is to write down soon that it is given the home.
                return Ok(HomeAnswer::Yours { home: home.as_remote(), is_level: false });
            }
            Reply::Accept(home) => {
                if !shared.shown.access().set_home(&bucket, record.home, home).await? {
                    return Ok(HomeAnswer::Knows(shared.homed(&bucket).and_then(|it| it.home)));
                }
                home
            }
        };
        // By the record as it is now: it may have been set by another request.
        let now = shared.homed(&bucket).filter(|now| now.id == record.id);
        let Some(now) = now.filter(|now| now.home == Some(home)) else {
            return Ok(HomeAnswer::Behind);
        };
        let is_level = self.has_passed(mark(&now, true)).await?;
        Ok(HomeAnswer::Yours { home: home.as_remote(), is_level })
    }
}

/// Takes what another region tells of homes.
pub(super) async fn hear<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    reported: TellHomes,
) {
    for (bucket, home) in reported.homes {
        hear_home(shared, from, &bucket, home).await;
    }
}

/// Tells other regions of homes, when these change and every [`REGION_HOMES_REPORT_MS`]. Does not end.
pub(super) async fn report_loop<R: RegionAccess>(shared: Arc<Shared<R>>) {
    loop {
        let version = shared.shown.access().map_version();
        let buckets = shared.shown.access().buckets();
        let homes = buckets.into_iter().filter(|it| !it.is_local());
        let homes: Vec<_> = homes.filter_map(|it| Some((it.name, it.home?.as_remote()))).collect();
        let members = shared.region_endpoint.members().borrow().clone();
        let telling = members.live().map(async |peer| {
            let region = peer.number;
            let again = Duration::from_millis(REGION_HOMES_REPORT_MS);
            let is_told = shared
                .homes
                .reported
                .lock()
                .get(&region)
                .is_some_and(|(reported, at)| *reported == homes && at.elapsed() < again);
            if is_told || homes.is_empty() {
                return;
            }
            let asked = async {
                for part in homes.chunks(larder_link::limits::HOMES_REPORTED_MAX) {
                    let reported = TellHomes { homes: part.to_vec() };
                    shared.link_to(region)?.tell_homes(reported).await?;
                }
                Ok::<_, larder_link::LinkError>(())
            };
            match asked.await {
                Ok(()) => {
                    let reported = (homes.clone(), Instant::now());
                    shared.homes.reported.lock().insert(region, reported);
                }
                // It would decide by itself.
                Err(larder_link::LinkError::Unsound(_)) => shared.watch.alarm(
                    region,
                    "it is of a release that knows no homes of buckets, and decides about conditions itself".to_owned(),
                ),
                Err(error) => tracing::debug!(%region, %error, "homes will be reported later"),
            }
        });
        futures::future::join_all(telling).await;
        // A single node's map is looked at regularly.
        let max_wait = Duration::from_millis(REGION_HOMES_MS);
        let _passed = timeout(max_wait, shared.shown.access().map_passes(version)).await;
    }
}

/// Carries out orders, and goes on with homes that are coming. Does not end.
pub(super) async fn follow<R: RegionAccess>(shared: Arc<Shared<R>>, dir: PathBuf) {
    let mut times = interval(Duration::from_millis(REGION_HOMES_MS));
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _tick = times.tick() => {}
            () = shared.homes.carried_out.notified() => {}
        }
        shared.homes.forget_marks();
        // Those that are carried out while orders are read may still be in the file after this turn.
        let carried_out = shared.homes.runs.lock().carried_out.clone();
        let of = dir.clone();
        let orders: Vec<HomeOrder> = match blocking::run(move || larder_link::asked(&of)).await {
            Ok(Ok(orders)) => orders,
            Ok(Err(error)) => {
                tracing::warn!(%error, "orders about homes will be executed later");
                continue;
            }
            Err(_panicked) => continue,
        };
        let of_buckets = orders.iter().map(|it| (it.bucket.clone(), it.order));
        *shared.homes.orders.lock() = of_buckets.collect();
        shared.forget_reasons();
        // Clients wait for these.
        let coming = shared.shown.access().buckets().into_iter().filter_map(|record| {
            let home = record.home.filter(Home::is_awaited)?;
            // A home that is to be released continues only if it has to.
            let is_kept = home.state == HomeState::Claimed(false)
                || shared.homes.orders.lock().get(&record.name) != Some(&Order::Nowhere);
            is_kept.then_some((record.name, home.scope))
        });
        for (bucket, scope) in coming.collect::<Vec<_>>() {
            run::begin(&shared, bucket, (scope, true));
        }
        let over = perform(&shared, orders).await;
        shared.homes.orders.lock().retain(|bucket, _| over.iter().all(|it| it.bucket != *bucket));
        if !over.is_empty() {
            let of = dir.clone();
            let forgotten = blocking::run(move || larder_link::forget(&of, &over)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::warn!(%error, "executed orders about homes could not be removed from the list");
                continue;
            }
        }
        let mut runs = shared.homes.runs.lock();
        runs.carried_out.retain(|bucket, scope| carried_out.get(bucket) != Some(scope));
    }
}

/// Begins what is ordered; returns the orders that are carried out, or cannot be.
async fn perform<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    mut orders: Vec<HomeOrder>,
) -> Vec<HomeOrder> {
    let mut over = Vec::new();
    if !orders.is_empty() {
        let first = shared.homes.next_region.fetch_add(REGION_HOME_RUNS_MAX, Ordering::Relaxed);
        let first = first % orders.len();
        orders.rotate_left(first);
    }
    for ordered in orders {
        let bucket = &ordered.bucket;
        let record = shared.homed(bucket);
        let home = record.as_ref().and_then(|record| record.home);
        // A run ends before its home is given up, unless it has to go on.
        let must_go_on = home.is_some_and(|home| home.state == HomeState::Claimed(false));
        let is_taken_back = ordered.order == Order::Nowhere && !must_go_on;
        if is_taken_back && shared.homes.ends_run(bucket) {
            continue;
        }
        let Some(record) = record else {
            let is_local = shared.shown.access().bucket(bucket, BucketRecord::is_local);
            let why = match is_local {
                Some(true) => "this region alone has the bucket: share it first",
                Some(false) | None => "there is no such bucket here",
            };
            shared.homes.drops(bucket, why.to_owned());
            over.push(ordered);
            continue;
        };
        let is_so = match (ordered.order, record.home) {
            (Order::Here(scope), Some(home)) if home.state == HomeState::Here => {
                home.scope == scope
            }
            (Order::Here(scope), _) if shared.homes.has_executed(bucket, scope) => true,
            (Order::Nowhere, None) => true,
            (Order::Nowhere, Some(home)) => match give_up(shared, bucket, home).await {
                Some(is_so) => is_so,
                None => {
                    over.push(ordered);
                    continue;
                }
            },
            (Order::Here(_), _) => false,
        };
        if is_so {
            shared.homes.reasons.lock().remove(bucket);
            over.push(ordered);
        } else if let Order::Here(scope) = ordered.order {
            run::begin(shared, bucket.clone(), (scope, false));
        }
    }
    over
}

/// Gives a home up, so that the bucket has none; true if it is so, `None` if this region cannot.
async fn give_up<R: RegionAccess>(
    shared: &Shared<R>,
    bucket: &BucketName,
    home: Home,
) -> Option<bool> {
    let why = match home.state {
        HomeState::Nowhere => return Some(true),
        HomeState::Here | HomeState::Coming(_) | HomeState::Claimed(true) => {
            let next = ended(shared.shown.own(), &home);
            match shared.shown.access().set_home(bucket, Some(home), next).await {
                Ok(true) => {
                    shared.homes.counters.given.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%bucket, "a bucket has no home any more");
                    return Some(true);
                }
                Ok(false) => "its home has changed meanwhile".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        HomeState::Claimed(false) => {
            "this region has claimed it, and gives it up once all regions have answered".to_owned()
        }
        HomeState::Elsewhere | HomeState::Given => {
            let region = home.term.of;
            shared.homes.drops(bucket, format!("region {region} is its home: give it up there"));
            return None;
        }
    };
    shared.homes.reason(bucket, why);
    Some(false)
}

const _: () = assert!(
    2 * REGION_HOME_RUNS_MAX * larder_link::limits::REGIONS_MAX <= REGION_HOME_MARKS_MAX,
    "what regions wait for has a place"
);
