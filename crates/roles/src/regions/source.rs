//! The state from which a region answers others: journals and buckets that they may get, and their positions.
//!
//! It knows nothing of the requests that it is for: `answering.rs` serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_link::message::Buckets as Names;
use larder_link::{Declined, IdsQuery, IdsReply};
use larder_objects::ObjectError;
use larder_protocol::limits::REGION_REQUEST_IDS_MAX;
use larder_protocol::region::journal::{Batch, VoidReason};
use larder_protocol::region::{Id, Token, Void};
use larder_types::codec::encode;
use larder_types::{BucketId, OpSeq, PgId, RegionId};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::Shared;
use super::reported::Reported;
use super::runs::Unreadable;
use super::shown::Buckets;
use crate::limits::{REGION_KEEP_LIST_MS, REGION_NAMES_MS, REGION_SETTLE_MS};
use crate::notifier::{Notifier, NotifierWatch};
use crate::planted::{self, Bug};
use crate::proxy::{JournalRequest, RegionAccess};
use crate::wire::Position;

/// Alarm of a region that went back.
const LOST: &str = "it has changes of this region that this one has lost: was this directory restored from a backup? Then remove \
                    this region there, and let an empty store join in its place";

/// The state that answers are made from.
pub(super) struct SourceState<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    /// By PG: true once all puts from before the store had a number show, so that its journal may be told.
    is_settled: Vec<AtomicBool>,
    passed: Arc<Mutex<Reported>>,
    /// Tells when a region comes further.
    moved: Notifier,
    /// The buckets as each region was told them last, and when.
    named: Mutex<BTreeMap<RegionId, (Arc<Buckets>, Instant)>>,
}

impl<R: RegionAccess> SourceState<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        let reported = shared.watch.reported();
        let is_settled = (0..shared.shown.pg_count()).map(|_| AtomicBool::new(false)).collect();
        Self {
            shared,
            is_settled,
            passed: reported,
            moved: Notifier::default(),
            named: Mutex::default(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared<R>> {
        &self.shared
    }

    /// The position in a PG's journal that all of these regions have passed; `None` if one has reported none.
    pub(super) fn passed_by_all(
        &self,
        regions: impl Iterator<Item = RegionId>,
        pg: PgId,
    ) -> Option<OpSeq> {
        let passed = self.passed.lock();
        let mut of = regions.map(|region| passed.of(region, pg));
        of.try_fold(OpSeq(u64::MAX), |least, passed| Some(least.min(passed?)))
    }

    /// The positions of regions in the journals of PGs.
    pub(super) fn positions(
        &self,
        regions: &[RegionId],
        pgs: impl Iterator<Item = PgId>,
    ) -> Vec<(PgId, Vec<Position>)> {
        let passed = self.passed.lock();
        pgs.map(|pg| (pg, passed.positions(regions, pg))).collect()
    }

    /// Tells when a region comes further in a journal.
    pub(super) fn moved(&self) -> NotifierWatch {
        self.moved.subscribe()
    }

    /// Takes the PGs of which a region has come further.
    pub(super) fn take_moved(&self) -> BTreeSet<PgId> {
        self.passed.lock().take_moved()
    }

    /// Notes that a region was heard.
    pub(super) fn hear(&self, region: RegionId) {
        self.passed.lock().hear(region);
    }

    /// Takes how far a region reports to be, and what shows here.
    pub(super) fn take_reports(
        &self,
        from: RegionId,
        reports: impl Iterator<Item = (PgId, Token)>,
        shown: Vec<(PgId, OpSeq)>,
    ) {
        let mut passed = self.passed.lock();
        shown.into_iter().for_each(|(pg, applied)| passed.show(pg, applied));
        reports.for_each(|(pg, durable)| passed.take(from, pg, durable));
        let has_moved = passed.has_moved();
        drop(passed);
        if has_moved {
            self.moved.notify();
        }
    }

    /// Notes of what a region lacks something: of the first outcome behind its token, or of what it has asked for and has not durable.
    fn note_lacking(&self, from: RegionId, ask: &IdsQuery, lacking: &[(PgId, Option<OpSeq>)]) {
        let lacking: BTreeMap<_, _> = lacking.iter().copied().collect();
        let mut passed = self.passed.lock();
        for (pg, behind, durable) in &ask.pgs {
            let Some(first) = lacking.get(pg) else { continue };
            let lacks = if durable < behind { Some(behind.through) } else { *first };
            passed.note_lacking((from, *pg), lacks, *durable);
        }
    }

    fn is_settled(&self, pg: PgId) -> bool {
        self.is_settled[pg.0 as usize].load(Ordering::Acquire)
    }

    /// Answers with the outcomes behind the asking region's tokens, of settled PGs whose primary answers now; also
    /// returns true if these are news.
    pub(super) async fn batches_behind(
        &self,
        from: RegionId,
        ask: &IdsQuery,
    ) -> Result<(IdsReply, bool), Unreadable> {
        self.hear(from);
        let asked = ask.pgs.iter().map(|(pg, behind, _)| (*pg, *behind));
        let pgs: Vec<_> = asked.filter(|(pg, _)| self.is_settled(*pg)).collect();
        let behind: BTreeMap<PgId, Token> = pgs.iter().copied().collect();
        let ids_max = (ask.ids_max as usize).min(REGION_REQUEST_IDS_MAX);
        let journals = JournalRequest { pgs, ids_max, settled: false };
        let (mut left, mut reply) = (ids_max, IdsReply { pgs: Vec::new(), buckets: Vec::new() });
        let (mut shown_here, mut lacking) = (Vec::new(), Vec::new());
        for (pg, shown) in self.shared.shown.journals(&journals).await? {
            shown_here.push((pg, shown.applied));
            let behind = behind.get(&pg).copied().unwrap_or_default();
            let mut batch = shown.batch.map(|batch| cut(batch, behind, left));
            lacking.push((pg, first_lacked(&batch, behind)));
            if let Ok(batch) = &mut batch {
                self.leave_out_closed(batch, behind);
                self.shared.echo_filter.leave_out(from, &mut batch.ids);
            }
            left -= batch.as_ref().map_or(0, |batch| batch.ids.len());
            reply.pgs.push((pg, batch));
        }
        let are_new = self.has_sent_all_names(from);
        let ids = reply.pgs.iter().filter_map(|(_, batch)| batch.as_ref().ok());
        reply.buckets = match are_new {
            Some(_) => self.all_names(),
            None => self.names_of(ids.flat_map(|batch| batch.ids.iter().map(|(_, id)| id)))?,
        };
        // A token ahead of the journal is of changes that this store has lost: others get their numbers.
        let is_ahead = |pg| {
            let void =
                reply.pgs.iter().find(|(of, _)| *of == pg).and_then(|(_, it)| it.as_ref().err());
            void.is_some_and(|void| void.why == VoidReason::Ahead)
        };
        if ask.pgs.iter().any(|(pg, ..)| is_ahead(*pg)) {
            self.shared.watch.lost(from, LOST);
        }
        let reports = ask.pgs.iter().filter(|(pg, ..)| !is_ahead(*pg));
        let reports = reports.map(|(pg, behind, durable)| {
            (*pg, if planted::has(Bug::TrustsRequests) { *behind } else { *durable })
        });
        self.take_reports(from, reports, shown_here);
        self.note_lacking(from, ask, &lacking);
        let is_news = are_new == Some(true) || has_updates(&reply);
        Ok((reply, is_news))
    }

    /// `Some` if a region gets the names of all buckets now, so that it makes empty ones too; true if they have
    /// changed. An answer may be lost: it gets them again after a while.
    fn has_sent_all_names(&self, to: RegionId) -> Option<bool> {
        let (buckets, now) = (self.shared.shown.buckets(), Instant::now());
        let mut named = self.named.lock();
        let is_new = named.get(&to).is_none_or(|(reply, _)| {
            // Most new maps change no name.
            !Arc::ptr_eq(reply, &buckets) && !reply.reports_the_same(&buckets)
        });
        let again = Duration::from_millis(REGION_NAMES_MS);
        if !is_new && named.get(&to).is_some_and(|(_, at)| now.duration_since(*at) < again) {
            return None;
        }
        named.insert(to, (buckets, now));
        Some(is_new)
    }

    /// Leaves out changes of buckets that were deleted, and of those that are local. Ends the batch before the first one of a bucket
    /// that is being deleted: if it is not, that is told later.
    fn leave_out_closed(&self, batch: &mut Batch, behind: Token) {
        let (shown, buckets) = (&self.shared.shown, self.shared.shown.buckets());
        let reply = batch.ids.len();
        batch.ids.retain(|(_, id)| !buckets.local().contains(&id.name.bucket));
        self.shared.watch.counters().left_out(reply - batch.ids.len());
        let closed = |(_, id): &(OpSeq, Id)| buckets.is_closed(id.name.bucket);
        if let Some(first) = batch.ids.iter().position(closed) {
            batch.ids.truncate(first);
            // Else the asking region would ask again at once.
            batch.left = (0, 0);
            batch.token = batch.ids.last().map_or(behind, |(op, _)| Token { through: *op });
        }
        batch.ids.retain(|(_, id)| !shown.is_deleted(id.name.bucket));
    }

    /// The names of these ids' buckets. One that is being deleted is not named.
    pub(super) fn names_of<'a>(
        &self,
        ids: impl Iterator<Item = &'a Id>,
    ) -> Result<Names, ObjectError> {
        let mentioned: BTreeSet<BucketId> = ids.map(|id| id.name.bucket).collect();
        let buckets = self.shared.shown.buckets();
        let mut named = Vec::with_capacity(mentioned.len());
        for id in mentioned {
            match buckets.live().get(&id) {
                Some(name) => named.push((id, name.clone())),
                // One that is this region's alone since is told as one that has nothing.
                None if buckets.is_closed(id) || buckets.local().contains(&id) => {}
                None => return Err(ObjectError::NoSuchBucket),
            }
        }
        Ok(named)
    }

    pub(super) fn all_names(&self) -> Names {
        self.shared.shown.buckets().live().iter().map(|(id, name)| (*id, name.clone())).collect()
    }

    /// Maps each shared bucket's id to itself: the answering region's own order counts. Those that are being deleted are compared,
    /// too: they may stay.
    pub(super) fn own_buckets(&self) -> BTreeMap<BucketId, BucketId> {
        self.shared.shown.buckets().shared().map(|id| (id, id)).collect()
    }

    pub(super) fn has_pg(&self, pg: PgId) -> Result<(), Declined> {
        let unsound = || Declined::Unsound(format!("there is no placement group {pg}"));
        if (pg.0 as usize) < self.is_settled.len() { Ok(()) } else { Err(unsound()) }
    }
}

/// Lets PGs' journals be told once all puts from before the store had a number show, as no journal has them. Ends when
/// all may be.
pub(super) async fn settle<R: RegionAccess>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    loop {
        let pgs = (0..shared.shown.pg_count()).map(PgId).filter(|pg| !state.is_settled(*pg));
        let pgs: Vec<_> = pgs.map(|pg| (pg, Token::default())).collect();
        if pgs.is_empty() {
            return;
        }
        match shared.shown.journals(&JournalRequest { pgs, ids_max: 0, settled: true }).await {
            Ok(shown) => {
                for (pg, _) in shown {
                    state.is_settled[pg.0 as usize].store(true, Ordering::Release);
                }
                shared.notifier.notify();
            }
            Err(error) => tracing::debug!(%error, "no journal may be sent yet"),
        }
        sleep(Duration::from_millis(REGION_SETTLE_MS)).await;
    }
}

/// Keeps the list of regions outside the directory, too, whenever it changes. Does not end while the site lives.
pub(super) async fn keep_list<R: RegionAccess>(shared: Arc<Shared<R>>) {
    let mut members = shared.region_endpoint.members();
    loop {
        members.mark_unchanged();
        let known = shared.region_endpoint.known();
        let kept = shared.shown.access().keep_regions(known.known(), encode(&known)).await;
        if let Err(error) = kept {
            tracing::debug!(%error, "the list of regions will be saved later");
            sleep(Duration::from_millis(REGION_KEEP_LIST_MS)).await;
            continue;
        }
        shared.region_endpoint.is_kept(&known);
        if members.changed().await.is_err() {
            return;
        }
    }
}

/// The first outcome of a PG that is not behind a token.
fn first_lacked(batch: &Result<Batch, Void>, behind: Token) -> Option<OpSeq> {
    match batch {
        Ok(batch) => match batch.ids.first() {
            Some((op, _)) => Some(*op),
            None => (batch.left.0 > 0).then(|| behind.through.next()),
        },
        Err(_void) => Some(OpSeq(u64::MAX)),
    }
}

/// Cuts a batch behind a token to its first `ids_max` outcomes.
fn cut(mut batch: Batch, behind: Token, ids_max: usize) -> Batch {
    if batch.ids.len() <= ids_max {
        return batch;
    }
    for (_, id) in batch.ids.drain(ids_max..) {
        batch.left = (batch.left.0.saturating_add(1), batch.left.1.saturating_add(id.bytes));
    }
    batch.token = batch.ids.last().map_or(behind, |(op, _)| Token { through: *op });
    batch
}

/// Returns true if an answer has outcomes, or says that a token is void.
fn has_updates(reply: &IdsReply) -> bool {
    let is_news = |batch: &Batch| !batch.ids.is_empty() || batch.left.0 > 0;
    reply.pgs.iter().any(|(_, batch)| batch.as_ref().map_or(true, is_news))
}
