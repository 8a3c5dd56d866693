//! Answers other regions: from rows of the index, and with bytes read as clients' are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_link::message::Buckets;
use larder_link::{
    Ask, Declined, Fetch, FetchSink, Fetched, Hello, LinkError, List, ListedIn, Source, Told, Walk,
    Walked,
};
use larder_objects::{ObjectError, Objects, ReadBody};
use larder_protocol::Planted;
use larder_protocol::limits::{REGION_ASK_IDS_MAX, REGION_RUN_IDS_MAX, REGION_RUNS_MAX};
use larder_protocol::region::entry::What;
use larder_protocol::region::journal::{Batch, Why};
use larder_protocol::region::{Entry, Id, Kept, Name, Range, Token, Void, compare, kept};
use larder_types::{
    BucketId, BucketName, JournalHead, JournalRow, ObjectKey, OpSeq, PgId, RegionId, rows,
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::shown::Unreadable;
use crate::clock::now_ms;
use crate::limits::{REGION_CHANGED_TRIES_MAX, REGION_LEFT_COUNTED_MAX, REGION_NEWS_MS};

/// A PG's journal as it was read last.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// The index showed this op, at least.
    applied: OpSeq,
    /// The last outcome.
    last: OpSeq,
}

/// See the module's head.
pub(super) struct Answering(Arc<Desk>);

/// The state that answers are made from.
pub(super) struct Desk {
    shared: Arc<Shared>,
    /// By PG.
    seen: Vec<Mutex<Seen>>,
    /// Positions that each region reported as durable, by PG.
    passed: Mutex<BTreeMap<RegionId, BTreeMap<PgId, OpSeq>>>,
}

impl Answering {
    pub(super) fn new(desk: Arc<Desk>) -> Self {
        Self(desk)
    }
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let seen = (0..shared.shown.pg_count()).map(|_| Mutex::default()).collect();
        Self { shared, seen, passed: Mutex::default() }
    }

    /// The last outcome of a PG that all of these regions have; `None` if one has not said.
    pub(super) fn passed_by_all(
        &self,
        regions: impl Iterator<Item = RegionId>,
        pg: PgId,
    ) -> Option<OpSeq> {
        let passed = self.passed.lock();
        let of = |region| passed.get(&region).and_then(|pgs| pgs.get(&pg)).copied();
        regions.map(of).try_fold(OpSeq(u64::MAX), |least, passed| Some(least.min(passed?)))
    }

    fn since(
        &self,
        pg: PgId,
        token: Token,
        ids_max: usize,
    ) -> Result<Result<Batch, Void>, Unreadable> {
        let shown = &self.shared.shown;
        let applied = shown.applied(pg);
        let nothing = |last| Batch { ids: Vec::new(), token, last, left: (0, 0) };
        let seen = *self.seen[pg.0 as usize].lock();
        let void = |why| Ok(Err(Void { why, resume: Token { through: applied } }));
        if token.through > applied {
            return void(Why::Ahead);
        }
        if token.through > OpSeq(0) && seen.applied == applied && seen.last <= token.through {
            return Ok(Ok(nothing(seen.last)));
        }
        // Of what was there before there were regions no journal tells.
        if token.through == OpSeq(0) || token.through < self.forgotten(pg)? {
            return void(Why::Overrun);
        }
        let (mut batch, mut counted) = (nothing(token.through), 0);
        let (from, end) =
            (rows::outcome(pg, token.through.next()), rows::prefix_end(&rows::journal(pg)));
        // Where no id is told, that there are some is all that is wanted.
        let left_max = if ids_max == 0 { 1 } else { ids_max as u64 + REGION_LEFT_COUNTED_MAX };
        let mut is_all = true;
        shown.scan(&from, end.as_deref(), |row, value| {
            let form = || Unreadable::Form(row.escape_ascii().to_string());
            let (_, op) = rows::parse_outcome(row).ok_or_else(form)?;
            let id = kept::told_id(JournalRow::decode(value)?);
            counted += 1;
            if batch.ids.len() < ids_max {
                (batch.token, batch.last) = (Token { through: op }, op);
                batch.ids.push((op, id));
            } else if counted <= left_max {
                batch.left = (batch.left.0 + 1, batch.left.1.saturating_add(id.bytes));
            } else {
                is_all = false;
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if is_all && batch.left.0 == 0 {
            *self.seen[pg.0 as usize].lock() = Seen { applied, last: batch.last };
        }
        Ok(Ok(batch))
    }

    /// The last outcome that a PG's journal has forgotten.
    pub(super) fn forgotten(&self, pg: PgId) -> Result<OpSeq, Unreadable> {
        let head = self.shared.shown.row(&rows::outcome(pg, OpSeq(0)))?;
        Ok(head
            .map(|head| JournalHead::decode(&head))
            .transpose()?
            .map_or(OpSeq(0), |it| it.forgotten))
    }

    fn told(&self, from: RegionId, ask: &Ask) -> Result<Told, Unreadable> {
        let mut left = ask.ids_max as usize;
        let mut told = Told { pgs: Vec::with_capacity(ask.pgs.len()), buckets: Vec::new() };
        for (pg, behind, _) in &ask.pgs {
            let batch = self.since(*pg, *behind, left)?;
            left -= batch.as_ref().map_or(0, |batch| batch.ids.len());
            told.pgs.push((*pg, batch));
        }
        let ids = told.pgs.iter().filter_map(|(_, batch)| batch.as_ref().ok());
        told.buckets = self.names_of(ids.flat_map(|batch| batch.ids.iter().map(|(_, id)| id)));
        let mut passed = self.passed.lock();
        let passed = passed.entry(from).or_default();
        for (pg, _, durable) in &ask.pgs {
            let known = passed.entry(*pg).or_default();
            *known = durable.through.max(*known);
        }
        Ok(told)
    }

    /// The names of the buckets of these.
    fn names_of<'a>(&self, ids: impl Iterator<Item = &'a Id>) -> Buckets {
        let mentioned: BTreeSet<BucketId> = ids.map(|id| id.name.bucket).collect();
        let names = self.shared.shown.buckets();
        let named = |id: BucketId| names.get(&id).map(|name| (id, name.clone()));
        mentioned.into_iter().filter_map(named).collect()
    }

    fn all_names(&self) -> Buckets {
        self.shared.shown.buckets().iter().map(|(id, name)| (*id, name.clone())).collect()
    }

    fn ids(&self, range: &Range, ids_max: usize) -> Result<Vec<Id>, Unreadable> {
        let shown = &self.shared.shown;
        let buckets = shown.buckets().keys().map(|id| (*id, *id)).collect();
        shown.ids(&buckets, range, ids_max)
    }

    fn has_pg(&self, pg: PgId) -> Result<(), Declined> {
        let unsound = || Declined::Unsound(format!("there is no placement group {pg}"));
        if (pg.0 as usize) < self.seen.len() { Ok(()) } else { Err(unsound()) }
    }

    /// The entry of a name, with what its bytes are read from if there are any.
    async fn open(&self, name: &Name, with_bytes: bool) -> Result<Found, ObjectError> {
        let shown = &self.shared.shown;
        let Some(bucket) = shown.buckets().get(&name.bucket).cloned() else {
            return Ok(Found { entry: None, bytes: 0, body: None });
        };
        for _ in 0..REGION_CHANGED_TRIES_MAX {
            let mut kept = shown.kept(name.bucket, &name.key).map_err(unreadable)?;
            if kept == Kept::default() {
                // What was put a moment ago may not show yet.
                self.shared.proxy.settle_key(name.bucket, &name.key).await?;
                kept = shown.kept(name.bucket, &name.key).map_err(unreadable)?;
            }
            let entry = kept.entry(shown.own(), shown.pg_of(name.bucket, &name.key));
            let op = kept.version.map(|version| version.row.op);
            let is_object = matches!(&entry, Some(Entry { what: What::Object(_), .. }));
            if !is_object || !with_bytes {
                return Ok(Found { entry, bytes: 0, body: None });
            }
            match self.body(&bucket, &name.key, op).await {
                Ok(Some((bytes, body))) => return Ok(Found { entry, bytes, body: Some(body) }),
                // Another has taken its place meanwhile.
                Ok(None) | Err(ObjectError::NoSuchKey | ObjectError::Changed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ObjectError::SlowDown)
    }

    /// The bytes of a key's version, if it is that of this op.
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

/// True if an answer has outcomes, or says that a token is void.
fn has_news(told: &Told) -> bool {
    let is_news = |batch: &Batch| !batch.ids.is_empty() || batch.left.0 > 0;
    told.pgs.iter().any(|(_, batch)| batch.as_ref().map_or(true, is_news))
}

/// An entry and its bytes.
struct Found {
    entry: Option<Entry>,
    bytes: u64,
    body: Option<ReadBody>,
}

impl Source for Answering {
    async fn hello(&self, _: RegionId) -> Result<Hello, Declined> {
        let (number, pg_count) = (self.0.shared.shown.own(), self.0.shared.shown.pg_count());
        Ok(Hello { number, pg_count, now_ms: now_ms() })
    }

    async fn ask(&self, from: RegionId, ask: Ask) -> Result<Told, Declined> {
        ask.pgs.iter().try_for_each(|(pg, ..)| self.0.has_pg(*pg))?;
        let (ask, mut more) = (Arc::new(ask), self.0.shared.shown.shows_more());
        let until = Instant::now() + Duration::from_millis(REGION_NEWS_MS);
        loop {
            more.borrow_and_update();
            let asked = ask.clone();
            let told = self.look(move |desk| desk.told(from, &asked)).await?;
            // Where nothing is new the answer waits for something, so that it is told at once and little is asked meanwhile.
            if has_news(&told) || !matches!(timeout_at(until, more.changed()).await, Ok(Ok(()))) {
                return Ok(told);
            }
        }
    }

    async fn walk(&self, _: RegionId, walk: Walk) -> Result<Walked, Declined> {
        self.look(move |desk| {
            // One more than an answer has, so that it is seen where it ends.
            let ids = desk.ids(&walk.range, REGION_RUNS_MAX * REGION_RUN_IDS_MAX + 1)?;
            let summed = compare::summed(Planted::default(), &walk.range, ids.into_iter());
            Ok(Walked { summed, buckets: desk.all_names() })
        })
        .await
    }

    async fn list(&self, _: RegionId, list: List) -> Result<ListedIn, Declined> {
        self.look(move |desk| {
            let ids = desk.ids(&list.range, REGION_ASK_IDS_MAX + 1)?;
            let listed = compare::listed(Planted::default(), &list.range, ids.into_iter());
            let buckets = desk.names_of(listed.ids.iter());
            Ok(ListedIn { listed, buckets })
        })
        .await
    }

    async fn fetch(
        &self,
        from: RegionId,
        fetch: Fetch,
        mut sink: FetchSink,
    ) -> Result<(), Declined> {
        for (name, with_bytes) in fetch.names {
            let found = match self.0.open(&name, with_bytes).await {
                Ok(found) => found,
                Err(ObjectError::SlowDown) => return Err(Declined::Busy),
                Err(error) => {
                    tracing::warn!(%from, key = ?name.key, %error, "an object cannot be read for another region");
                    return Err(Declined::Busy);
                }
            };
            let Found { entry, bytes, body } = found;
            if let Err(error) = send(&mut sink, Fetched { name, entry, bytes }, body).await {
                tracing::debug!(%from, %error, "a region's fetch breaks off");
                return Err(Declined::Busy);
            }
            self.0.shared.watch.counters().told(bytes);
        }
        Ok(())
    }
}

impl Answering {
    /// Reads the index where it may wait for the disk.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Desk) -> Result<T, Unreadable> + Send + 'static,
    ) -> Result<T, Declined> {
        let desk = self.0.clone();
        let looked = tokio::task::spawn_blocking(move || read(&desk)).await;
        match looked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::error!(%error, "the index cannot be read for another region");
                Err(Declined::NotReady)
            }
            Err(_panicked) => Err(Declined::NotReady),
        }
    }
}

async fn send(
    sink: &mut FetchSink,
    fetched: Fetched,
    body: Option<ReadBody>,
) -> Result<(), LinkError> {
    use futures::StreamExt;
    sink.entry(fetched).await?;
    match body {
        None => Ok(()),
        Some(ReadBody::Whole(bytes)) => sink.bytes(bytes).await,
        Some(ReadBody::Stream(mut pieces)) => {
            while let Some(piece) = pieces.next().await {
                let bytes = piece.map_err(|error| LinkError::Unsound(error.to_string()))?;
                sink.bytes(bytes).await?;
            }
            Ok(())
        }
    }
}

fn unreadable(error: Unreadable) -> ObjectError {
    ObjectError::Unavailable { reason: error.to_string() }
}
