//! Steps the machine by which this region becomes the home of a bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use larder_link::AskHome;
use larder_protocol::region::home::{Effect, Event, HomeAnswer, HomeRefused, HomeRequest, Taking};
use larder_types::{BucketName, Home, HomeScope, HomeState, RegionId};
use tokio::time::{sleep, timeout};

use super::super::Shared;
use crate::limits::{
    REGION_HOME_AGAIN_MS, REGION_HOME_ANSWER_MS, REGION_HOME_LEVEL_MS, REGION_HOME_RUNS_MAX,
};
use crate::proxy::RegionAccess;

/// An event for the machine.
struct Answered {
    event: Event,
    /// The reason why a region did not answer, or a record was not set.
    why: Option<String>,
    /// Number of the request; 0 if it answers none of another region.
    number: u64,
}

/// The reason why a run ended before this region was the home.
enum Ended {
    /// The machine ended.
    HomeRefused(HomeRefused),
    /// This region lacks changes, and nothing is claimed yet: it is tried again soon.
    Behind,
    /// The order was taken back.
    TakenBack,
}

/// Begins to make this region the home of a bucket, unless that is under way. Of those that are only ordered as many are under way
/// as may be; one that is `awaited` already has its record, and clients wait for it.
pub(super) fn begin<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    bucket: BucketName,
    (scope, awaited): (HomeScope, bool),
) {
    let ends = Arc::new(AtomicBool::new(false));
    {
        let mut runs = shared.homes.runs.lock();
        let is_over = || runs.carried_out.get(&bucket) == Some(&scope);
        let is_ordered_in_vain = || is_over() || runs.ends.len() >= REGION_HOME_RUNS_MAX;
        if runs.ends.contains_key(&bucket) || !awaited && is_ordered_in_vain() {
            return;
        }
        runs.ends.insert(bucket.clone(), ends.clone());
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut stops = shared.stops.subscribe();
        tokio::select! {
            biased;
            // The next run of a gateway begins anew with what the record says.
            _stops = stops.wait_for(|stops| *stops) => {}
            () = perform(&shared, (&bucket, ends), scope) => {}
        }
        shared.homes.runs.lock().ends.remove(&bucket);
    });
}

async fn perform<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    (bucket, ends): (&BucketName, Arc<AtomicBool>),
    scope: HomeScope,
) {
    let mut run = Run::of(shared, (bucket.clone(), ends), scope);
    match run.take().await {
        Ok(()) => {
            shared.homes.reasons.lock().remove(bucket);
            shared.homes.runs.lock().carried_out.insert(bucket.clone(), scope);
            shared.homes.carried_out.notify_one();
            shared.homes.counters.taken.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%bucket, "this region has become the home of a bucket");
        }
        Err(Ended::HomeRefused(why)) => {
            shared.homes.reason(bucket, run.reason(why));
            sleep(Duration::from_millis(REGION_HOME_AGAIN_MS)).await;
        }
        Err(Ended::Behind) => {
            let why = "changes of other regions are on their way here, or under way there";
            shared.homes.note(bucket, why);
        }
        Err(Ended::TakenBack) => {
            shared.homes.reasons.lock().remove(bucket);
        }
    }
}

/// A machine, and what it asks for.
struct Run<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    bucket: BucketName,
    scope: HomeScope,
    others: BTreeSet<RegionId>,
    pending_calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    ends: Arc<AtomicBool>,
    /// Number of the last request to each region: earlier answers do not count.
    asked: BTreeMap<RegionId, u64>,
    /// The last reason for having no answer.
    why: Option<String>,
}

impl<R: RegionAccess> Run<R> {
    fn of(
        shared: &Arc<Shared<R>>,
        (bucket, ends): (BucketName, Arc<AtomicBool>),
        scope: HomeScope,
    ) -> Self {
        let others =
            shared.region_endpoint.members().borrow().live().map(|peer| peer.number).collect();
        let (shared, pending_calls) = (shared.clone(), FuturesUnordered::new());
        let asked = BTreeMap::new();
        Self { shared, bucket, scope, others, pending_calls, ends, asked, why: None }
    }

    /// True once the record here says that this region is about to become the home.
    fn is_awaited(&self) -> bool {
        let home = self.shared.homed(&self.bucket).and_then(|record| record.home);
        home.is_some_and(|home| home.is_awaited())
    }

    async fn take(&mut self) -> Result<(), Ended> {
        let own = self.shared.shown.own();
        let record = self.shared.homed(&self.bucket);
        let record = record.ok_or(Ended::HomeRefused(HomeRefused::Changed))?;
        let mut out = Vec::new();
        let others = self.others.iter().copied();
        let mut taking = Taking::begin(own, others, (record.home, self.scope), &mut out);
        loop {
            if self.ends.load(Ordering::Relaxed) {
                return Err(Ended::TakenBack);
            }
            for effect in std::mem::take(&mut out) {
                match effect {
                    Effect::Ask(region, ask) => self.send_request(region, ask),
                    Effect::Set { expected, next } => self.set(expected, next),
                    Effect::Wait if !self.is_awaited() => return Err(Ended::Behind),
                    Effect::Wait => {
                        let wait = async {
                            sleep(Duration::from_millis(REGION_HOME_LEVEL_MS)).await;
                            Answered { event: Event::Waited, why: None, number: 0 }
                        };
                        self.pending_calls.push(wait.boxed());
                    }
                    Effect::End(ended) => return ended.map_err(Ended::HomeRefused),
                }
            }
            let event = self.next().await?;
            if let Event::Answered(from, Some(HomeAnswer::Knows(Some(home)))) = event {
                super::hear_home(&self.shared, from, &self.bucket, home).await;
            }
            taking.step(event, &mut out);
        }
    }

    /// The next event that counts. While something is asked, and that is until the end, there is one.
    async fn next(&mut self) -> Result<Event, Ended> {
        loop {
            let next = self.pending_calls.next().await;
            let Answered { event, why, number } =
                next.ok_or(Ended::HomeRefused(HomeRefused::Changed))?;
            if let Event::Answered(from, _) = event
                && self.asked.get(&from) != Some(&number)
            {
                continue;
            }
            self.why = why.or_else(|| self.why.take());
            return Ok(event);
        }
    }

    fn send_request(&mut self, region: RegionId, ask: HomeRequest) {
        let number = self.asked.get(&region).map_or(1, |number| number + 1);
        self.asked.insert(region, number);
        let own = self.shared.shown.own();
        let regions = self.others.iter().copied().chain([own]).collect();
        let asked = AskHome { bucket: self.bucket.clone(), ask, regions };
        let shared = self.shared.clone();
        let pending_calls = async move {
            let pending_calls = async { shared.link_to(region)?.ask_home(asked).await };
            let answered =
                timeout(Duration::from_millis(REGION_HOME_ANSWER_MS), pending_calls).await;
            let (answer, why) = match answered {
                Ok(Ok(answer)) if is_sound(&answer) => (Some(answer), None),
                Ok(Ok(_)) => (None, Some("it says what no region says".to_owned())),
                Ok(Err(error)) => (None, Some(error.to_string())),
                Err(_elapsed) => {
                    (None, Some(format!("no answer within {REGION_HOME_ANSWER_MS} ms")))
                }
            };
            Answered { event: Event::Answered(region, answer), why, number }
        };
        self.pending_calls.push(pending_calls.boxed());
    }

    fn set(&self, expected: Option<Home>, next: Home) {
        let (shared, bucket, others) =
            (self.shared.clone(), self.bucket.clone(), self.others.clone());
        let setting = async move {
            let members = shared.region_endpoint.members().borrow().clone();
            // One that has joined since may know the bucket without its home.
            let has_joined = members.live().any(|peer| !others.contains(&peer.number));
            if has_joined && (next.is_awaited() || next.state == HomeState::Here) {
                return Answered { event: Event::Set(false), why: None, number: 0 };
            }
            let (is_set, why) = match shared.shown.access().set_home(&bucket, expected, next).await
            {
                Ok(is_set) => (is_set, None),
                Err(error) => (false, Some(error.into_reason())),
            };
            Answered { event: Event::Set(is_set), why, number: 0 }
        };
        self.pending_calls.push(setting.boxed());
    }

    /// A reason for operators.
    fn reason(&self, why: HomeRefused) -> String {
        let members = self.shared.region_endpoint.members().borrow().clone();
        let name = |number: RegionId| {
            members.peer(number).map_or_else(|| number.to_string(), |peer| peer.name.to_string())
        };
        match why {
            HomeRefused::NoAnswer(region) => {
                let why = self.why.as_deref().unwrap_or("no reason is known");
                format!("region {} does not answer: {why}", name(region))
            }
            HomeRefused::Absent(region) => {
                format!("region {} does not have the bucket yet, or deletes it", name(region))
            }
            HomeRefused::OtherRegions(region) => {
                format!("region {} knows other regions than this one", name(region))
            }
            HomeRefused::Refused(region) => {
                format!("region {} says that another one is to be the home", name(region))
            }
            HomeRefused::Changed => match &self.why {
                Some(why) => format!("the bucket's record is not set: {why}"),
                None => "the home has changed meanwhile, or another region has joined".to_owned(),
            },
        }
    }
}

/// Returns true if no record in the answer has a count that no region reaches.
fn is_sound(answer: &HomeAnswer) -> bool {
    match answer {
        HomeAnswer::Knows(home) => home.is_none_or(|home| home.is_sound()),
        HomeAnswer::Yours { home, .. } => home.is_sound(),
        HomeAnswer::Behind | HomeAnswer::Absent | HomeAnswer::OtherRegions => true,
    }
}
