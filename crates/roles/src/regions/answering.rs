//! Answers other regions: from the store's rows, and with bytes read as for clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_link::{
    AskHome, Change, ChangeAnswer, CloseBucket, Declined, EndClosed, FetchRequest, FetchSink,
    Hello, IdsQuery, IdsReply, Keys, KeysReply, List, ListAnswer, RegionList, Report, Source,
    TellHomes, Walk, WalkAnswer,
};
use larder_objects::ObjectError;
use larder_protocol::Planted;
use larder_protocol::limits::{REGION_REQUEST_IDS_MAX, REGION_RUN_IDS_MAX, REGION_RUNS_MAX};
use larder_protocol::region::deletion::CloseAnswer;
use larder_protocol::region::home::HomeAnswer;
use larder_protocol::region::{Token, compare};
use larder_types::codec::encode;
use larder_types::{PgId, RegionId};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use super::changes;
use super::deletions;
use super::fetches;
use super::homes;
use super::lists;
use super::runs::{self, Unreadable};
use super::source::SourceState;
use crate::blocking;
use crate::clock::now_ms;
use crate::limits::{REGION_CHECKS_MS, REGION_UPDATE_MS, REGION_WALK_MS};
use crate::proxy::RegionAccess;

/// See the module's head.
pub(super) struct Answering<R: RegionAccess>(Arc<SourceState<R>>);

impl<R: RegionAccess> Answering<R> {
    pub(super) fn new(state: Arc<SourceState<R>>) -> Self {
        Self(state)
    }
}

impl<R: RegionAccess> Source for Answering<R> {
    async fn hello(&self, _: RegionId) -> Result<Hello, Declined> {
        let (number, pg_count) = (self.0.shared().shown.own(), self.0.shared().shown.pg_count());
        Ok(Hello { number, pg_count, now_ms: now_ms() })
    }

    async fn query_ids(&self, from: RegionId, mut ask: IdsQuery) -> Result<IdsReply, Declined> {
        ask.pgs.iter().try_for_each(|(pg, ..)| self.0.has_pg(*pg))?;
        let mut more = self.0.shared().notifier.subscribe();
        let until = Instant::now() + Duration::from_millis(REGION_UPDATE_MS);
        let mut is_first = true;
        loop {
            more.mark_seen();
            let asked = ask.clone();
            let (given, is_news) =
                self.look(async move |state| state.batches_behind(from, &asked).await).await?;
            // Without changes the response waits for some (a long poll), so that they arrive at once and the region
            // sends few requests.
            if is_news || !matches!(timeout_at(until, more.changed()).await, Ok(Ok(()))) {
                return Ok(given);
            }
            skip_examined(&mut ask, &given);
            // Changes taken from the asking region show all the time, and are no news to it.
            if !is_first {
                sleep(Duration::from_millis(REGION_CHECKS_MS)).await;
            }
            is_first = false;
        }
    }

    async fn reported(&self, from: RegionId, report: Report) -> Result<(), Declined> {
        report.pgs.iter().try_for_each(|(pg, _)| self.0.has_pg(*pg))?;
        self.0.hear(from);
        self.0.take_reports(from, report.pgs.into_iter(), Vec::new());
        Ok(())
    }

    async fn close_bucket(
        &self,
        from: RegionId,
        close: CloseBucket,
    ) -> Result<CloseAnswer, Declined> {
        let shared = self.0.shared().clone();
        whole(async move { deletions::close(&shared, from, close).await }).await
    }

    async fn end_closed(&self, _: RegionId, end: EndClosed) -> Result<bool, Declined> {
        let shared = self.0.shared().clone();
        whole(async move { deletions::end(&shared, end).await }).await
    }

    async fn last_met(&self) -> Result<RegionId, Declined> {
        self.look(async move |state| {
            let passed = state.shared().shown.passed().await?;
            Ok(passed.iter().map(|it| it.region).max().unwrap_or(RegionId::OWN))
        })
        .await
    }

    async fn keep(&self, known: RegionList) -> Result<(), Declined> {
        let kept = self.0.shared().shown.access().keep_regions(known.known(), encode(&known)).await;
        kept.map_err(|error| {
            tracing::warn!(%error, "a region's request waits until the managers have saved the region's number");
            Declined::NotReady
        })
    }

    async fn ask_home(&self, from: RegionId, ask: AskHome) -> Result<HomeAnswer, Declined> {
        let state = self.0.clone();
        whole(async move { state.answer_home(from, ask).await }).await
    }

    async fn tell_homes(&self, from: RegionId, given: TellHomes) -> Result<(), Declined> {
        let shared = self.0.shared().clone();
        whole(async move {
            homes::hear(&shared, from, given).await;
            Ok(())
        })
        .await
    }

    async fn change(&self, from: RegionId, change: Change) -> Result<ChangeAnswer, Declined> {
        let shared = self.0.shared().clone();
        whole(async move { Ok(changes::make(&shared, from, change).await) }).await
    }

    async fn keys(&self, _: RegionId, keys: Keys) -> Result<KeysReply, Declined> {
        lists::send_keys(self.0.shared(), keys).await
    }

    async fn walk(&self, _: RegionId, walk: Walk) -> Result<WalkAnswer, Declined> {
        self.look(async move |state| {
            // One id more than an answer has shows where it ends.
            let ids_max = REGION_RUNS_MAX * REGION_RUN_IDS_MAX + 1;
            let (shown, until) =
                (&state.shared().shown, Instant::now() + Duration::from_millis(REGION_WALK_MS));
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
            let (shown, ids_max) = (&state.shared().shown, REGION_REQUEST_IDS_MAX + 1);
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
        fetch: FetchRequest,
        sink: FetchSink,
    ) -> Result<(), Declined> {
        fetches::answer(self.0.shared(), from, fetch, sink).await
    }
}

impl<R: RegionAccess> Answering<R> {
    /// Reads rows on a thread that may wait for the disk.
    async fn look<T: Send + 'static>(
        &self,
        read: impl AsyncFnOnce(&SourceState<R>) -> Result<T, Unreadable> + Send + 'static,
    ) -> Result<T, Declined> {
        let (state, runtime) = (self.0.clone(), Handle::current());
        let looked = blocking::run(move || blocking::wait(&runtime, read(&state))).await;
        match looked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Unreadable::Store(error))) => {
                tracing::warn!(%error, "could not respond to another region now");
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

/// Executes a request to its end, even if the requesting region has disconnected.
async fn whole<T: Send + 'static>(
    doing: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
) -> Result<T, Declined> {
    match tokio::spawn(doing).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            tracing::warn!(%error, "another region's request about a bucket failed");
            Err(Declined::NotReady)
        }
        Err(_panicked) => Err(Declined::NotReady),
    }
}

/// Moves a request's tokens past outcomes that have been examined and hold no changes for the region.
fn skip_examined(ask: &mut IdsQuery, given: &IdsReply) {
    let passed: BTreeMap<PgId, Token> = given
        .pgs
        .iter()
        .filter_map(|(pg, given)| Some((*pg, given.as_ref().ok()?.token)))
        .collect();
    for (pg, behind, _) in &mut ask.pgs {
        *behind = passed.get(pg).map_or(*behind, |passed| (*behind).max(*passed));
    }
}
