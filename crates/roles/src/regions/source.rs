//! Answers other regions: from the store's rows, and with bytes read as for clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt, stream};
use larder_link::message::Buckets;
use larder_link::{
    Ask, AskAnswer, Declined, Fetch, FetchSink, Fetched, Hello, LinkError, List, ListAnswer,
    RegionList, Report, Source, Walk, WalkAnswer,
};
use larder_objects::{ObjectError, Objects, ReadBody};
use larder_protocol::Planted;
use larder_protocol::limits::{REGION_ASK_IDS_MAX, REGION_RUN_IDS_MAX, REGION_RUNS_MAX};
use larder_protocol::region::entry::What;
use larder_protocol::region::journal::{Batch, Why};
use larder_protocol::region::{Entry, Id, KeyRows, Name, Token, compare};
use larder_types::codec::encode;
use larder_types::{BucketId, BucketName, ObjectKey, OpSeq, PgId, RegionId};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Shared;
use super::reported::Reported;
use super::runs;
use super::shown::Unreadable;
use crate::clock::now_ms;
use crate::limits::{
    REGION_AHEAD_BYTES_MAX, REGION_CHANGED_TRIES_MAX, REGION_KEEP_LIST_MS, REGION_LOOKS_MS,
    REGION_NAMES_MS, REGION_NEWS_MS, REGION_OPEN_MS, REGION_OPENS_MAX, REGION_SETTLE_MS,
    REGION_WALK_MS,
};
use crate::proxy::{JournalAsk, RegionReach};
use crate::wire::Position;

/// Names of buckets, by their ids.
type BucketNames = BTreeMap<BucketId, BucketName>;

/// See the module's head.
pub(super) struct Answering<R>(Arc<SourceState<R>>);

/// The state that answers are made from.
pub(super) struct SourceState<R> {
    shared: Arc<Shared<R>>,
    /// By PG: true once all puts from before the store had a number show, so that its journal may be told.
    is_settled: Vec<AtomicBool>,
    passed: Mutex<Reported>,
    /// Counts up when a region comes further.
    moved: watch::Sender<u64>,
    /// All names of buckets as each region was told them last, and when.
    named: Mutex<BTreeMap<RegionId, (Arc<BucketNames>, Instant)>>,
}

impl<R: RegionReach> Answering<R> {
    pub(super) fn new(state: Arc<SourceState<R>>) -> Self {
        Self(state)
    }
}

impl<R: RegionReach> SourceState<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        let is_settled = (0..shared.shown.pg_count()).map(|_| AtomicBool::new(false)).collect();
        Self {
            shared,
            is_settled,
            passed: Mutex::default(),
            moved: watch::Sender::new(0),
            named: Mutex::default(),
        }
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

    /// A count that grows when a region comes further in a journal.
    pub(super) fn moved(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Takes the PGs of which a region has come further.
    pub(super) fn take_moved(&self) -> BTreeSet<PgId> {
        self.passed.lock().take_moved()
    }

    /// Takes how far a region reports to be, and what shows here.
    fn take_reports(
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
            self.moved.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn is_settled(&self, pg: PgId) -> bool {
        self.is_settled[pg.0 as usize].load(Ordering::Acquire)
    }

    /// Answers with the outcomes behind the asking region's tokens, of settled PGs whose primary answers now; also
    /// returns true if these are news.
    async fn told(&self, from: RegionId, ask: &Ask) -> Result<(AskAnswer, bool), Unreadable> {
        let asked = ask.pgs.iter().map(|(pg, behind, _)| (*pg, *behind));
        let pgs: Vec<_> = asked.filter(|(pg, _)| self.is_settled(*pg)).collect();
        let behind: BTreeMap<PgId, Token> = pgs.iter().copied().collect();
        let ids_max = (ask.ids_max as usize).min(REGION_ASK_IDS_MAX);
        let journals = JournalAsk { pgs, ids_max, settled: false };
        let (mut left, mut told) = (ids_max, AskAnswer { pgs: Vec::new(), buckets: Vec::new() });
        let mut shown_here = Vec::new();
        for (pg, shown) in self.shared.shown.journals(&journals).await? {
            shown_here.push((pg, shown.applied));
            let behind = behind.get(&pg).copied().unwrap_or_default();
            let mut batch = shown.told.map(|batch| cut(batch, behind, left));
            if let Ok(batch) = &mut batch {
                self.shared.echoes.leave_out(from, &mut batch.ids);
            }
            left -= batch.as_ref().map_or(0, |batch| batch.ids.len());
            told.pgs.push((pg, batch));
        }
        let are_new = self.tells_all_names(from);
        let ids = told.pgs.iter().filter_map(|(_, batch)| batch.as_ref().ok());
        told.buckets = match are_new {
            Some(_) => self.all_names(),
            None => self.names_of(ids.flat_map(|batch| batch.ids.iter().map(|(_, id)| id)))?,
        };
        // A token ahead of the journal is of changes that this store has lost: others get their numbers.
        let is_ahead = |pg| {
            let void =
                told.pgs.iter().find(|(of, _)| *of == pg).and_then(|(_, it)| it.as_ref().err());
            void.is_some_and(|void| void.why == Why::Ahead)
        };
        let reports = ask.pgs.iter().filter(|(pg, ..)| !is_ahead(*pg));
        let reports = reports.map(|(pg, _, durable)| (*pg, *durable));
        self.take_reports(from, reports, shown_here);
        let is_news = are_new == Some(true) || has_news(&told);
        Ok((told, is_news))
    }

    /// `Some` if a region gets the names of all buckets now, so that it makes empty ones too; true if they have
    /// changed. An answer may be lost: it gets them again after a while.
    fn tells_all_names(&self, to: RegionId) -> Option<bool> {
        let (names, now) = (self.shared.shown.buckets(), Instant::now());
        let mut named = self.named.lock();
        let is_new = named.get(&to).is_none_or(|(told, _)| {
            // Most new maps change no name.
            !Arc::ptr_eq(told, &names) && *told != names
        });
        let again = Duration::from_millis(REGION_NAMES_MS);
        if !is_new && named.get(&to).is_some_and(|(_, at)| now.duration_since(*at) < again) {
            return None;
        }
        named.insert(to, (names, now));
        Some(is_new)
    }

    /// The names of these ids' buckets. Each has one: no bucket of a region is deleted.
    fn names_of<'a>(&self, ids: impl Iterator<Item = &'a Id>) -> Result<Buckets, ObjectError> {
        let mentioned: BTreeSet<BucketId> = ids.map(|id| id.name.bucket).collect();
        let names = self.shared.shown.buckets();
        let named = |id: BucketId| {
            let name = names.get(&id).ok_or(ObjectError::NoSuchBucket)?;
            Ok((id, name.clone()))
        };
        mentioned.into_iter().map(named).collect()
    }

    fn all_names(&self) -> Buckets {
        self.shared.shown.buckets().iter().map(|(id, name)| (*id, name.clone())).collect()
    }

    /// Maps each bucket's id to itself: the answering region's own order counts.
    fn own_buckets(&self) -> BTreeMap<BucketId, BucketId> {
        self.shared.shown.buckets().keys().map(|id| (*id, *id)).collect()
    }

    fn has_pg(&self, pg: PgId) -> Result<(), Declined> {
        let unsound = || Declined::Unsound(format!("there is no placement group {pg}"));
        if (pg.0 as usize) < self.is_settled.len() { Ok(()) } else { Err(unsound()) }
    }

    /// Reads a name's entry. Opens its bytes if they are wanted and at most `bytes_max`.
    async fn open(&self, name: &Name, bytes_max: Option<u64>) -> Result<Found, ObjectError> {
        let shown = &self.shared.shown;
        let Some(bucket) = shown.buckets().get(&name.bucket).cloned() else {
            // No bucket of a region is deleted: this one is not known here yet.
            return Err(ObjectError::NoSuchBucket);
        };
        for _ in 0..REGION_CHANGED_TRIES_MAX {
            let mut kept = shown.kept(name.bucket, &name.key).await?;
            if kept == KeyRows::default() {
                // A put of a moment ago may not show yet.
                shown.reach().shows(name.bucket, &name.key).await?;
                kept = shown.kept(name.bucket, &name.key).await?;
            }
            let entry = shown.entry_of(name.bucket, &name.key, &kept);
            let op = kept.version.map(|version| version.row.op);
            let (Some(Entry { what: What::Object(object), .. }), Some(bytes_max)) =
                (&entry, bytes_max)
            else {
                return Ok(Found { entry, bytes: 0, body: None, is_large: false });
            };
            if object.bytes() > bytes_max {
                return Ok(Found { entry, bytes: 0, body: None, is_large: true });
            }
            match self.body(&bucket, &name.key, op).await {
                Ok(Some((bytes, body))) => {
                    return Ok(Found { entry, bytes, body: Some(body), is_large: false });
                }
                // Another version has taken its place meanwhile.
                Ok(None) | Err(ObjectError::NoSuchKey | ObjectError::Changed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ObjectError::SlowDown)
    }

    /// Opens the bytes of a key's version, if this op made it.
    async fn body(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        op: Option<larder_types::OpId>,
    ) -> Result<Option<(u64, ReadBody)>, ObjectError> {
        let opened = self.shared.proxy.open_here(bucket, key).await?;
        if Some(opened.op) != op {
            return Ok(None);
        }
        let size = opened.metax.size;
        Ok(Some((size, self.shared.proxy.read(&opened, 0..size).await?)))
    }
}

/// Lets PGs' journals be told once all puts from before the store had a number show, as no journal has them. Ends when
/// all may be.
pub(super) async fn settle<R: RegionReach>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    loop {
        let pgs = (0..shared.shown.pg_count()).map(PgId).filter(|pg| !state.is_settled(*pg));
        let pgs: Vec<_> = pgs.map(|pg| (pg, Token::default())).collect();
        if pgs.is_empty() {
            return;
        }
        match shared.shown.journals(&JournalAsk { pgs, ids_max: 0, settled: true }).await {
            Ok(shown) => {
                for (pg, _) in shown {
                    state.is_settled[pg.0 as usize].store(true, Ordering::Release);
                }
                shared.news.send_modify(|count| *count = count.wrapping_add(1));
            }
            Err(error) => tracing::debug!(%error, "no journal may be told yet"),
        }
        sleep(Duration::from_millis(REGION_SETTLE_MS)).await;
    }
}

/// Keeps the list of regions outside the directory, too, whenever it changes. Does not end while the site lives.
pub(super) async fn keep_list<R: RegionReach>(shared: Arc<Shared<R>>) {
    let mut members = shared.site.members();
    loop {
        members.mark_unchanged();
        let known = shared.site.known();
        let kept = shared.shown.reach().keep_regions(known.known(), encode(&known)).await;
        if let Err(error) = kept {
            tracing::debug!(%error, "the list of regions is kept a little later");
            sleep(Duration::from_millis(REGION_KEEP_LIST_MS)).await;
            continue;
        }
        shared.site.is_kept(&known);
        if members.changed().await.is_err() {
            return;
        }
    }
}

/// True if an answer has outcomes, or says that a token is void.
fn has_news(told: &AskAnswer) -> bool {
    let is_news = |batch: &Batch| !batch.ids.is_empty() || batch.left.0 > 0;
    told.pgs.iter().any(|(_, batch)| batch.as_ref().map_or(true, is_news))
}

/// An entry and its bytes.
struct Found {
    entry: Option<Entry>,
    bytes: u64,
    body: Option<ReadBody>,
    /// True if it has more bytes than were to be opened.
    is_large: bool,
}

impl<R: RegionReach> Source for Answering<R> {
    async fn hello(&self, _: RegionId) -> Result<Hello, Declined> {
        let (number, pg_count) = (self.0.shared.shown.own(), self.0.shared.shown.pg_count());
        Ok(Hello { number, pg_count, now_ms: now_ms() })
    }

    async fn ask(&self, from: RegionId, mut ask: Ask) -> Result<AskAnswer, Declined> {
        ask.pgs.iter().try_for_each(|(pg, ..)| self.0.has_pg(*pg))?;
        let mut more = self.0.shared.news.subscribe();
        let until = Instant::now() + Duration::from_millis(REGION_NEWS_MS);
        let mut is_first = true;
        loop {
            more.borrow_and_update();
            let asked = ask.clone();
            let (told, is_news) =
                self.look(async move |state| state.told(from, &asked).await).await?;
            // Without news the answer waits for some, so that they are told at once and the region asks little meanwhile.
            if is_news || !matches!(timeout_at(until, more.changed()).await, Ok(Ok(()))) {
                return Ok(told);
            }
            skip_looked_at(&mut ask, &told);
            // Changes taken from the asking region show all the time, and are no news to it.
            if !is_first {
                sleep(Duration::from_millis(REGION_LOOKS_MS)).await;
            }
            is_first = false;
        }
    }

    async fn reported(&self, from: RegionId, report: Report) -> Result<(), Declined> {
        report.pgs.iter().try_for_each(|(pg, _)| self.0.has_pg(*pg))?;
        self.0.take_reports(from, report.pgs.into_iter(), Vec::new());
        Ok(())
    }

    async fn keep(&self, known: RegionList) -> Result<(), Declined> {
        let kept = self.0.shared.shown.reach().keep_regions(known.known(), encode(&known)).await;
        kept.map_err(|error| {
            tracing::warn!(%error, "a region waits, as the managers have not kept its number yet");
            Declined::NotReady
        })
    }

    async fn walk(&self, _: RegionId, walk: Walk) -> Result<WalkAnswer, Declined> {
        self.look(async move |state| {
            // One id more than an answer has shows where it ends.
            let ids_max = REGION_RUNS_MAX * REGION_RUN_IDS_MAX + 1;
            let (shown, until) =
                (&state.shared.shown, Instant::now() + Duration::from_millis(REGION_WALK_MS));
            let buckets = state.own_buckets();
            let read = shown.ids_until(&buckets, &walk.range, ids_max, Some(until));
            let (ids, left_at) = read.await?;
            let summed = runs::summed(&walk.range, ids, left_at);
            Ok(WalkAnswer { summed, buckets: state.all_names() })
        })
        .await
    }

    async fn list(&self, _: RegionId, list: List) -> Result<ListAnswer, Declined> {
        self.look(async move |state| {
            let (shown, ids_max) = (&state.shared.shown, REGION_ASK_IDS_MAX + 1);
            let ids = shown.ids(&state.own_buckets(), &list.range, ids_max).await?;
            let listed = compare::listed(Planted::default(), &list.range, ids.into_iter());
            let buckets = state.names_of(listed.ids.iter())?;
            Ok(ListAnswer { listed, buckets })
        })
        .await
    }

    async fn fetch(
        &self,
        from: RegionId,
        fetch: Fetch,
        mut sink: FetchSink,
    ) -> Result<(), Declined> {
        let ahead = |(name, with_bytes): (Name, bool)| {
            let bytes_max = with_bytes.then_some(REGION_AHEAD_BYTES_MAX);
            opened(self.0.clone(), from, name, bytes_max)
        };
        let ahead = stream::iter(fetch.names).map(ahead).buffered(REGION_OPENS_MAX);
        let mut ahead = Ahead { opening: pin!(ahead), opened: VecDeque::new() };
        loop {
            let next = ahead.next(&mut sink).await.map_err(|error| broken_off(from, &error))?;
            let Some(Opened { mut fetched, mut body, is_large }) = next else { return Ok(()) };
            if is_large {
                // Entries before it do not wait for it.
                sink.flush().await.map_err(|error| broken_off(from, &error))?;
                let opening = opened(self.0.clone(), from, fetched.name, Some(u64::MAX));
                Opened { fetched, body, .. } = ahead.beside(opening).await;
            }
            let bytes = fetched.bytes;
            if let Err(error) = ahead.beside(send(&mut sink, fetched, body)).await {
                // Entries before this one are whole.
                let _gone = sink.flush().await;
                return Err(broken_off(from, &error));
            }
            self.0.shared.watch.counters().told(bytes);
        }
    }
}

/// Entries of a fetch that are opened before their turn. Opening goes on while an earlier one is sent: what it waits
/// for has a deadline.
struct Ahead<S: Stream> {
    opening: S,
    opened: VecDeque<S::Item>,
}

impl<S: Stream + Unpin> Ahead<S> {
    /// Takes the next entry; if it is not ready, entries gathered before are sent.
    async fn next(&mut self, sink: &mut FetchSink) -> Result<Option<S::Item>, LinkError> {
        match self.opened.pop_front() {
            Some(next) => Ok(Some(next)),
            None => next_of(&mut self.opening, sink).await,
        }
    }

    /// Awaits `doing`, and opens more entries meanwhile.
    async fn beside<T>(&mut self, doing: impl Future<Output = T>) -> T {
        let Self { opening, opened } = self;
        let opens = async {
            while opened.len() < REGION_OPENS_MAX
                && let Some(next) = opening.next().await
            {
                opened.push_back(next);
            }
        };
        let mut doing = pin!(doing);
        tokio::select! {
            biased;
            done = &mut doing => return done,
            () = opens => {}
        }
        doing.await
    }
}

fn broken_off(from: RegionId, error: &LinkError) -> Declined {
    tracing::debug!(%from, %error, "a region's fetch breaks off");
    Declined::Busy
}

/// An entry of a fetch, as it is sent.
struct Opened {
    fetched: Fetched,
    body: Option<ReadBody>,
    /// True if it is opened only at its turn: its bytes would wait in memory, and might be replaced meanwhile.
    is_large: bool,
}

/// Opens an entry of a fetch. One that cannot be read is withheld: it holds up no other.
async fn opened<R: RegionReach>(
    state: Arc<SourceState<R>>,
    from: RegionId,
    name: Name,
    bytes_max: Option<u64>,
) -> Opened {
    let patience = Duration::from_millis(REGION_OPEN_MS);
    let late = || ObjectError::Unavailable { reason: "it is not open in time".to_owned() };
    let found =
        timeout(patience, state.open(&name, bytes_max)).await.unwrap_or_else(|_| Err(late()));
    let (found, is_withheld) = match found {
        Ok(found) => (found, false),
        Err(error) => {
            tracing::debug!(%from, key = ?name.key, %error, "an object cannot be read for another region");
            (Found { entry: None, bytes: 0, body: None, is_large: false }, true)
        }
    };
    let Found { entry, bytes, body, is_large } = found;
    Opened { fetched: Fetched { name, entry, bytes, is_withheld }, body, is_large }
}

impl<R: RegionReach> Answering<R> {
    /// Reads rows on a thread that may wait for the disk.
    async fn look<T: Send + 'static>(
        &self,
        read: impl AsyncFnOnce(&SourceState<R>) -> Result<T, Unreadable> + Send + 'static,
    ) -> Result<T, Declined> {
        let (state, runtime) = (self.0.clone(), Handle::current());
        let looked = tokio::task::spawn_blocking(move || runtime.block_on(read(&state))).await;
        match looked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Unreadable::Store(error))) => {
                tracing::warn!(%error, "another region is not answered now");
                Err(Declined::NotReady)
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the index cannot be read for another region");
                Err(Declined::NotReady)
            }
            Err(_panicked) => Err(Declined::NotReady),
        }
    }
}

/// Moves an ask's tokens over outcomes that were looked at and are no news.
fn skip_looked_at(ask: &mut Ask, told: &AskAnswer) {
    let passed: BTreeMap<PgId, Token> =
        told.pgs.iter().filter_map(|(pg, told)| Some((*pg, told.as_ref().ok()?.token))).collect();
    for (pg, behind, _) in &mut ask.pgs {
        *behind = passed.get(pg).map_or(*behind, |passed| (*behind).max(*passed));
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

async fn send(
    sink: &mut FetchSink,
    fetched: Fetched,
    body: Option<ReadBody>,
) -> Result<(), LinkError> {
    sink.entry(fetched).await?;
    match body {
        None => Ok(()),
        Some(ReadBody::Whole(bytes)) => sink.bytes(bytes).await,
        Some(ReadBody::Stream(mut pieces)) => {
            while let Some(piece) = next_of(&mut pieces, sink).await? {
                let bytes = piece.map_err(|error| LinkError::Unsound(error.to_string()))?;
                sink.bytes(bytes).await?;
            }
            Ok(())
        }
    }
}

/// Takes the next of these; if it is not ready, entries gathered before are sent.
async fn next_of<S: Stream + Unpin>(
    from: &mut S,
    sink: &mut FetchSink,
) -> Result<Option<S::Item>, LinkError> {
    if let Some(next) = from.next().now_or_never() {
        return Ok(next);
    }
    sink.flush().await?;
    Ok(from.next().await)
}

#[cfg(test)]
mod tests;
