//! Deletes buckets in all regions (ADR 47): has other regions close a bucket that is deleted here, and closes buckets here that
//! others delete.
//!
//! # Invariants
//!
//! 1. A closed bucket is one that is marked in the map and was found empty under that mark. It takes no changes, neither of clients
//!    nor of regions, so it is empty until the mark is lifted. What the map here says of it may be late: until it says that a bucket is
//!    open, no other region hears of a change that was made since.
//! 2. No region is told the name of a closed bucket ([`Shown`](super::shown::Shown)). When all have closed it, each voids the answers
//!    that it has asked for until then: they make no buckets (`names.rs`).
//! 3. Every mark ends: with the deletion, when it fails, or, of one set for another region, after [`REGION_CLOSED_MS`]. The managers
//!    of a cluster lift those of a gateway that is gone, and a single node lifts all when it starts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{BoxFuture, Shared as SharedFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use larder_link::{CloseBucket, EndClosed, LinkError};
use larder_objects::ObjectError;
use larder_protocol::region::deletion::{CloseAnswer, Deletion, Effect, Event, Failed, Mark};
use larder_types::{BucketName, BucketRecord, BucketState, RegionId, rows};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::runs::{Rows, Unreadable};
use super::sharing;
use crate::limits::{
    REGION_CLOSE_MS, REGION_CLOSED_MS, REGION_DELETIONS_KEPT_MAX, REGION_DELETIONS_MAX,
};
use crate::proxy::RegionAccess;

/// The result of a deletion, for all who wait for it.
type Ending = SharedFuture<BoxFuture<'static, Result<(), ObjectError>>>;

/// Where the result is told.
type DeletionReply = tokio::sync::oneshot::Sender<Result<(), ObjectError>>;

/// Deletions that this region and others have begun.
pub(super) struct Deletions {
    /// Of this region, by their marks.
    running: Mutex<BTreeMap<Mark, Ending>>,
    /// Buckets that are closed for other regions, and those that are being closed, which have no mark yet.
    closed: Mutex<BTreeMap<BucketName, Option<Mark>>>,
    /// The ends of the last ones of this region.
    ended: Mutex<VecDeque<(Mark, Result<(), ObjectError>)>>,
    /// Held while one is being closed.
    closing: tokio::sync::Mutex<()>,
    places: Semaphore,
}

impl Default for Deletions {
    fn default() -> Self {
        let places = Semaphore::new(REGION_DELETIONS_MAX);
        let (running, closed, closing, ended) = Default::default();
        Self { running, closed, ended, closing, places }
    }
}

impl Deletions {
    /// Returns true if the bucket is closed for another region under this mark, or is being closed.
    fn is_for_another(&self, record: &BucketRecord) -> bool {
        let closed = self.closed.lock();
        closed.get(&record.name).is_some_and(|mark| mark.is_none_or(|mark| mark == mark_of(record)))
    }

    /// Returns true if the bucket is closed for another region under this mark.
    fn has_closed(&self, marked: &BucketRecord) -> bool {
        self.closed.lock().get(&marked.name) == Some(&Some(mark_of(marked)))
    }

    fn note_ended(&self, mark: Mark, end: Result<(), ObjectError>) {
        let mut ended = self.ended.lock();
        if ended.len() >= REGION_DELETIONS_KEPT_MAX {
            ended.pop_front();
        }
        ended.push_back((mark, end));
    }

    fn forget(&self, marked: &BucketRecord) {
        let mut closed = self.closed.lock();
        if closed.get(&marked.name) == Some(&Some(mark_of(marked))) {
            closed.remove(&marked.name);
        }
    }
}

fn mark_of(record: &BucketRecord) -> Mark {
    Mark { bucket: record.id, epoch: record.epoch }
}

fn is_marked(record: &BucketRecord, mark: Mark) -> bool {
    record.state == BucketState::Deleting && mark_of(record) == mark
}

/// Deletes buckets that other proxies of the cluster have marked. Does not end.
pub(super) async fn follow<R: RegionAccess>(shared: Arc<Shared<R>>) {
    // Of marks from before it is not known for whom they are: a gateway may have closed these buckets for other regions.
    for record in shared.shown.closed() {
        let (shared, name) = (shared.clone(), record.name.clone());
        shared.deletions.closed.lock().insert(name, Some(mark_of(&record)));
        tokio::spawn(open_again(shared, record));
    }
    loop {
        let version = shared.shown.access().map_version();
        for record in shared.shown.closed() {
            if !shared.deletions.is_for_another(&record) {
                // The waiting caller looks at the map.
                drop(begin(&shared, record));
            }
        }
        // A single node's own requests begin at once, but for one whose client went away at the wrong moment.
        let max_wait = Duration::from_millis(REGION_CLOSE_MS);
        let _passed = timeout(max_wait, shared.shown.access().map_passes(version)).await;
    }
}

/// Deletes a bucket that is marked here, once all regions have closed it. Goes on if nobody waits.
pub(super) fn begin<R: RegionAccess>(shared: &Arc<Shared<R>>, record: BucketRecord) -> Ending {
    let mark = mark_of(&record);
    let mut running = shared.deletions.running.lock();
    let ending = running.entry(mark).or_insert_with(|| {
        let (tells, done) = tokio::sync::oneshot::channel();
        let shared = shared.clone();
        tokio::spawn(async move {
            let ended = delete(&shared, record, tells).await;
            shared.deletions.running.lock().remove(&mark);
            ended
        });
        let broken = || unavailable("its deletion broke off".to_owned());
        done.map(move |done| done.unwrap_or_else(|_| Err(broken()))).boxed().shared()
    });
    ending.clone()
}

/// The end of the deletion of a bucket that is marked so, or was a moment ago; `None` if it is not known.
pub(super) async fn end_of<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    name: &BucketName,
    mark: Mark,
) -> Option<Result<(), ObjectError>> {
    let running = shared.deletions.running.lock().get(&mark).cloned();
    if let Some(running) = running {
        return Some(running.await);
    }
    // Noted before it runs no more.
    let ended = shared.deletions.ended.lock().iter().find(|(of, _)| *of == mark).cloned();
    if let Some((_, ended)) = ended {
        return Some(ended);
    }
    let marked = |record: &BucketRecord| is_marked(record, mark).then(|| record.clone());
    let record = shared.shown.access().bucket(name, marked).flatten()?;
    if shared.deletions.is_for_another(&record) {
        return None;
    }
    Some(begin(shared, record).await)
}

/// Steps a deletion, and tells how it ended as soon as that is known. Answers that come later are looked at, too.
async fn delete<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    record: BucketRecord,
    tells: DeletionReply,
) {
    let _place = shared.deletions.places.acquire().await;
    let mut run = Run::of(shared, record);
    if run.record.is_local()
        && let Err(error) = sharing::require_absent_elsewhere(shared, &run.record).await
    {
        give_up(shared, &run.record).await;
        return reply(shared, mark_of(&run.record), tells, Err(error));
    }
    if let Err(error) = run.find_empty().await {
        return reply(shared, mark_of(&run.record), tells, Err(error));
    }
    let (mut out, mut tells) = (Vec::new(), Some(tells));
    let mut deletion = Deletion::begin(run.others.iter().copied(), &mut out);
    loop {
        for effect in std::mem::take(&mut out) {
            if let Some(ended) = run.perform(effect).await
                && let Some(tells) = tells.take()
            {
                reply(shared, mark_of(&run.record), tells, ended);
            }
        }
        let Some((event, why)) = run.pending_calls.next().await else { return };
        run.reasons.extend(why);
        deletion.step(event, &mut out);
    }
}

fn reply<R: RegionAccess>(
    shared: &Shared<R>,
    mark: Mark,
    tells: DeletionReply,
    ended: Result<(), ObjectError>,
) {
    shared.deletions.note_ended(mark, ended.clone());
    let counters = shared.watch.counters();
    let counter = if ended.is_ok() { &counters.deleted } else { &counters.undeleted };
    counter.fetch_add(1, Ordering::Relaxed);
    // Nobody may be waiting any more.
    let _gone = tells.send(ended);
}

/// A deletion of this region that is under way.
struct Run<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    record: BucketRecord,
    others: BTreeSet<RegionId>,
    pending_calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The last reason of each region for not doing what it was asked.
    reasons: BTreeMap<RegionId, String>,
}

impl<R: RegionAccess> Run<R> {
    fn of(shared: &Arc<Shared<R>>, record: BucketRecord) -> Self {
        let members = shared.region_endpoint.members().borrow().clone();
        // No other region has one that is local, or has one of its name.
        let others = members.live().filter(|_| !record.is_local());
        let others = others.map(|peer| peer.number).collect();
        let (pending_calls, reasons) = (FuturesUnordered::new(), BTreeMap::new());
        Self { shared: shared.clone(), record, others, pending_calls, reasons }
    }

    /// Returns true if the bucket is closed here under the mark of this deletion still.
    fn is_closed(&self) -> bool {
        let (access, mark) = (self.shared.shown.access(), mark_of(&self.record));
        access.bucket(&self.record.name, |now| is_marked(now, mark)) == Some(true)
    }

    /// Finds the bucket to be empty here, or opens it again.
    async fn find_empty(&mut self) -> Result<(), ObjectError> {
        if !self.is_closed() {
            return Err(self.failure(Failed::Lifted));
        }
        let found = match self.shared.proxy.holds_objects(self.record.id).await {
            Ok(false) => return Ok(()),
            Ok(true) => Err(ObjectError::BucketNotEmpty),
            Err(error) => Err(error),
        };
        give_up(&self.shared, &self.record).await;
        found
    }

    /// Carries out an effect; returns how the deletion ended, if it has.
    async fn perform(&mut self, effect: Effect) -> Option<Result<(), ObjectError>> {
        match effect {
            Effect::Close(region) => self.request_close(region),
            Effect::CheckOwn => {
                let event = Event::Own(self.is_closed());
                self.pending_calls.push(std::future::ready((event, None)).boxed());
            }
            Effect::Delete(region, mark) => self.request_end(region, mark, true),
            Effect::Reopen(region, mark) => self.request_end(region, Some(mark), false),
            Effect::DeleteOwn => {
                let deleted = delete_closed(&self.shared, &self.record).await;
                match &deleted {
                    Ok(()) => tracing::info!(bucket = %self.record.name, "deleted in all regions"),
                    Err(_) => give_up(&self.shared, &self.record).await,
                }
                return Some(deleted);
            }
            Effect::ReopenOwn(failed) => {
                give_up(&self.shared, &self.record).await;
                return Some(Err(self.failure(failed)));
            }
        }
        None
    }

    fn request_close(&self, region: RegionId) {
        let own = self.shared.shown.own();
        let regions = self.others.iter().copied().chain([own]).collect();
        let (shared, bucket) = (self.shared.clone(), self.record.name.clone());
        let close = CloseBucket { bucket, regions };
        let pending_calls = async move {
            match call_region(region, async { shared.link_to(region)?.close_bucket(close).await })
                .await
            {
                Ok(answer) => (Event::Close(region, Some(answer)), None),
                Err(why) => (Event::Close(region, None), Some(why)),
            }
        };
        self.pending_calls.push(pending_calls.boxed());
    }

    fn request_end(&self, region: RegionId, mark: Option<Mark>, delete: bool) {
        let (shared, bucket) = (self.shared.clone(), self.record.name.clone());
        let end = EndClosed { bucket, mark, delete };
        let pending_calls = async move {
            match call_region(region, async { shared.link_to(region)?.end_closed(end).await }).await
            {
                Ok(is_done) => (Event::Delete(region, delete && is_done), None),
                Err(why) => (Event::Delete(region, false), Some(why)),
            }
        };
        self.pending_calls.push(pending_calls.boxed());
    }

    /// The error for the client.
    fn failure(&self, failed: Failed) -> ObjectError {
        let (bucket, members) =
            (&self.record.name, self.shared.region_endpoint.members().borrow().clone());
        let name = |number: RegionId| {
            let known = members.live().find(|peer| peer.number == number);
            known.map_or_else(|| number.to_string(), |peer| peer.name.to_string())
        };
        match failed {
            Failed::HasObjects(region) => {
                let region = name(region);
                tracing::info!(%bucket, %region, "not deleted: this region has objects in it");
                ObjectError::BucketNotEmpty
            }
            Failed::HasHome(region) => unavailable(format!(
                "region {} knows of a home of the bucket still: try again in some seconds",
                name(region)
            )),
            Failed::NoAnswer(region) => {
                let why = self.reasons.get(&region).map_or("it was opened again", |it| it);
                let region = name(region);
                tracing::warn!(%bucket, %region, %why, "not deleted");
                unavailable(format!(
                    "a bucket is deleted in all regions at once, and region {region} does not do it now: {why}"
                ))
            }
            Failed::Lifted => unavailable(
                "another deletion of the bucket has begun, or this one took too long".to_owned(),
            ),
            Failed::OtherRegions(region) => unavailable(format!(
                "region {} knows other regions than this one: try again in some seconds",
                name(region)
            )),
        }
    }
}

/// A region's answer; if there is none, also the reason.
type Answered = (Event, Option<(RegionId, String)>);

async fn call_region<T>(
    region: RegionId,
    pending_calls: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, (RegionId, String)> {
    match timeout(Duration::from_millis(REGION_CLOSE_MS), pending_calls).await {
        Ok(answered) => answered.map_err(|error| (region, error.to_string())),
        Err(_elapsed) => Err((region, format!("no answer within {REGION_CLOSE_MS} ms"))),
    }
}

fn unavailable(reason: String) -> ObjectError {
    ObjectError::Unavailable { reason }
}

/// Deletes a closed bucket here, with its open uploads. These go last: if the bucket stays they do, too.
async fn delete_closed<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    record: &BucketRecord,
) -> Result<(), ObjectError> {
    // While the bucket is there none is made in its place; afterwards none from what was asked for before.
    shared.names.void_answers().await;
    shared.shown.access().delete_closed(record.clone()).await?;
    // Nobody waits for that: there may be many.
    let (shared, record) = (shared.clone(), record.clone());
    tokio::spawn(async move {
        if let Err(error) = shared.proxy.end_uploads(record.id).await {
            tracing::debug!(bucket = %record.name, %error, "open uploads of a deleted bucket will be aborted later");
        }
    });
    Ok(())
}

/// Ends open uploads that deleted buckets have left behind.
pub(super) async fn end_left_uploads<R: RegionAccess>(
    shared: &Shared<R>,
) -> Result<(), Unreadable> {
    let mut from = b"U".to_vec();
    loop {
        let mut first = None;
        shared
            .shown
            .visit(&from, b"V", 1, |row, _| {
                first = rows::bucket_of(row);
                Ok(ControlFlow::Break(()))
            })
            .await?;
        let Some(bucket) = first else { return Ok(()) };
        if shared.shown.is_deleted(bucket) {
            // If some stay, those of other buckets are ended all the same.
            if let Err(error) = shared.proxy.end_uploads(bucket).await {
                tracing::debug!(%bucket, %error, "open uploads of a deleted bucket will be aborted later");
            }
        }
        let Some(next) = rows::prefix_end(&rows::bucket(b'U', bucket)) else { return Ok(()) };
        from = next;
    }
}

/// Opens a closed bucket again, if it is closed under this mark still; true if it is not.
async fn reopen<R: RegionAccess>(shared: &Shared<R>, record: &BucketRecord) -> bool {
    let access = shared.shown.access();
    match access.end_deletion(record.clone(), false).await {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(bucket = %record.name, %error, "a closed bucket was not opened again");
            let mark = mark_of(record);
            !access.bucket(&record.name, |now| is_marked(now, mark)).unwrap_or(false)
        }
    }
}

/// Opens a bucket again whose deletion failed. While that cannot be done, the mark is not taken for a new deletion.
async fn give_up<R: RegionAccess>(shared: &Arc<Shared<R>>, record: &BucketRecord) {
    if !reopen(shared, record).await {
        let (mark, name) = (Some(mark_of(record)), record.name.clone());
        shared.deletions.closed.lock().insert(name, mark);
        tokio::spawn(open_again(shared.clone(), record.clone()));
    }
}

/// Closes a bucket here that another region deletes.
pub(super) async fn close<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    close: CloseBucket,
) -> Result<CloseAnswer, ObjectError> {
    let until = Instant::now() + Duration::from_millis(REGION_CLOSE_MS);
    let members = shared.region_endpoint.members().borrow().clone();
    if members.live().any(|peer| !close.regions.contains(&peer.number)) {
        return Ok(CloseAnswer::OtherRegions);
    }
    let (deletions, access, name) = (&shared.deletions, shared.shown.access(), close.bucket);
    let _turn = deletions.closing.lock().await;
    if Instant::now() >= until {
        return Err(unavailable("others are being closed".to_owned()));
    }
    if let Some(record) = access.bucket(&name, BucketRecord::clone) {
        if record.is_local() {
            return Ok(CloseAnswer::Absent);
        }
        let is_closed = record.state == BucketState::Deleting && deletions.has_closed(&record);
        // Changes are not disturbed in a bucket that plainly has objects.
        if is_closed || record.state == BucketState::Live {
            if shared.proxy.holds_objects(record.id).await? {
                return Ok(CloseAnswer::HasObjects);
            }
            if is_closed {
                return Ok(CloseAnswer::Closed(mark_of(&record)));
            }
        }
    }
    // Also one that does not show here: the managers know. If a client has marked it, that deletion fails: its answer would be
    // that of this one, which may fail yet.
    deletions.closed.lock().insert(name.clone(), None);
    let mut marked = access.begin_deletion(&name).await;
    if marked == Err(ObjectError::NoSuchBucket) {
        // One that is being made, from what was asked for before, would end the deletion later.
        shared.names.void_answers().await;
        marked = access.begin_deletion(&name).await;
    }
    let marked = match marked {
        Ok(marked) => marked,
        Err(error @ (ObjectError::NoSuchBucket | ObjectError::HasHome)) => {
            deletions.closed.lock().remove(&name);
            if error == ObjectError::HasHome {
                return Ok(CloseAnswer::HasHome);
            }
            return Ok(CloseAnswer::Absent);
        }
        Err(error) => {
            // It may be marked all the same, now or later.
            tokio::spawn(open_unsure(shared.clone(), name));
            return Err(error);
        }
    };
    let mark = mark_of(&marked);
    deletions.closed.lock().insert(name.clone(), Some(mark));
    if marked.is_local() {
        // It has become that since somebody looked.
        tokio::spawn(open_again(shared.clone(), marked));
        return Ok(CloseAnswer::Absent);
    }
    let is_empty = shared.proxy.holds_objects(marked.id).await.map(|holds| !holds);
    if is_empty != Ok(true) || Instant::now() >= until {
        tokio::spawn(open_again(shared.clone(), marked));
        is_empty?;
        // Nobody waits for it any more, if it is that.
        return Ok(CloseAnswer::HasObjects);
    }
    tracing::debug!(bucket = %name, %from, "closed: another region deletes it");
    let late = shared.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(REGION_CLOSED_MS)).await;
        open_again(late, marked).await;
    });
    Ok(CloseAnswer::Closed(mark))
}

/// Opens a bucket again that was closed for another region, unless that has ended.
async fn open_again<R: RegionAccess>(shared: Arc<Shared<R>>, marked: BucketRecord) {
    // Once this driver has stopped, the gateway that comes next opens it.
    let is_stopped = || *shared.stops.borrow();
    while shared.deletions.has_closed(&marked) && !is_stopped() && !reopen(&shared, &marked).await {
        sleep(Duration::from_millis(REGION_CLOSE_MS)).await;
    }
    shared.deletions.forget(&marked);
}

/// Opens a bucket again that may be marked for another region some time.
async fn open_unsure<R: RegionAccess>(shared: Arc<Shared<R>>, name: BucketName) {
    sleep(Duration::from_millis(REGION_CLOSED_MS)).await;
    let is_unsure = shared.deletions.closed.lock().get(&name) == Some(&None);
    let record = shared.shown.access().bucket(&name, BucketRecord::clone);
    if let Some(record) = record.filter(|it| is_unsure && it.state == BucketState::Deleting) {
        shared.deletions.closed.lock().insert(name, Some(mark_of(&record)));
        open_again(shared, record).await;
    } else if is_unsure {
        shared.deletions.closed.lock().remove(&name);
    }
}

/// Deletes a bucket that was closed here, or opens it again; true if it is as asked.
pub(super) async fn end<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    end: EndClosed,
) -> Result<bool, ObjectError> {
    let Some(mark) = end.mark else {
        return stays_absent(shared, &end.bucket).await;
    };
    let record = shared.shown.access().bucket(&end.bucket, BucketRecord::clone);
    // If another deletion has deleted it, it may have come back elsewhere since.
    let Some(record) = record.filter(|record| is_marked(record, mark)) else {
        return Ok(!end.delete);
    };
    if end.delete {
        delete_closed(shared, &record).await?;
        tracing::info!(bucket = %record.name, "deleted: another region deletes it");
    } else if !reopen(shared, &record).await {
        return Ok(false);
    }
    shared.deletions.forget(&record);
    Ok(true)
}

/// Returns true if there is no such bucket, and none is made from what was asked for until now.
async fn stays_absent<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    name: &BucketName,
) -> Result<bool, ObjectError> {
    shared.names.void_answers().await;
    if shared.shown.access().bucket(name, BucketRecord::is_local) == Some(true) {
        return Ok(true);
    }
    let _turn = shared.deletions.closing.lock().await;
    shared.deletions.closed.lock().insert(name.clone(), None);
    match shared.shown.access().begin_deletion(name).await {
        Err(ObjectError::NoSuchBucket) => {
            shared.deletions.closed.lock().remove(name);
            Ok(true)
        }
        Err(error) => {
            tokio::spawn(open_unsure(shared.clone(), name.clone()));
            Err(error)
        }
        Ok(marked) => {
            shared.deletions.closed.lock().insert(name.clone(), Some(mark_of(&marked)));
            tokio::spawn(open_again(shared.clone(), marked));
            Ok(false)
        }
    }
}
