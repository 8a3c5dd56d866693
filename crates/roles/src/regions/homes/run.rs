//! Steps the machine by which this region becomes the home of a bucket.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use larder_link::AskHome;
use larder_protocol::region::home::{Effect, Event, HomeAnswer, HomeAsk, NotTaken, Taking};
use larder_types::{BucketName, Home, HomeScope, HomeState, RegionId};
use tokio::time::{sleep, timeout};

use super::super::Shared;
use super::super::puller::link_to;
use crate::limits::{
    REGION_HOME_AGAIN_MS, REGION_HOME_ANSWER_MS, REGION_HOME_LEVEL_MS, REGION_HOME_RUNS_MAX,
};
use crate::proxy::RegionReach;

/// An event for the machine; with it the reason why a region did not answer.
type Answered = (Event, Option<String>);

/// Begins to make this region the home of a bucket, unless that is under way, or as many are as may be.
pub(super) fn begin<R: RegionReach>(shared: &Arc<Shared<R>>, bucket: BucketName, scope: HomeScope) {
    {
        let mut running = shared.homes.running.lock();
        if running.len() >= REGION_HOME_RUNS_MAX || !running.insert(bucket.clone()) {
            return;
        }
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut run = Run::of(&shared, bucket.clone(), scope);
        match run.take().await {
            Ok(()) => {
                shared.homes.reasons.lock().remove(&bucket);
                shared.homes.counters.taken.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%bucket, "this region is the home of a bucket now");
            }
            Err(why) => {
                shared.homes.reason(&bucket, run.reason(why));
                sleep(Duration::from_millis(REGION_HOME_AGAIN_MS)).await;
            }
        }
        shared.homes.running.lock().remove(&bucket);
    });
}

/// A machine, and what it asks for.
struct Run<R> {
    shared: Arc<Shared<R>>,
    bucket: BucketName,
    scope: HomeScope,
    others: BTreeSet<RegionId>,
    asking: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The last reason for having no answer.
    why: Option<String>,
}

impl<R: RegionReach> Run<R> {
    fn of(shared: &Arc<Shared<R>>, bucket: BucketName, scope: HomeScope) -> Self {
        let others = shared.site.members().borrow().live().map(|peer| peer.number).collect();
        let (shared, asking) = (shared.clone(), FuturesUnordered::new());
        Self { shared, bucket, scope, others, asking, why: None }
    }

    async fn take(&mut self) -> Result<(), NotTaken> {
        let own = self.shared.shown.own();
        let record = self.shared.homed(&self.bucket).ok_or(NotTaken::Changed)?;
        let mut out = Vec::new();
        let others = self.others.iter().copied();
        let mut taking = Taking::begin(own, others, (record.home, self.scope), &mut out);
        loop {
            for effect in std::mem::take(&mut out) {
                match effect {
                    Effect::Ask(region, ask) => self.ask(region, ask),
                    Effect::Set { expected, next } => self.set(expected, next),
                    Effect::Wait => {
                        let why = "changes of other regions are on their way here";
                        self.shared.homes.note(&self.bucket, why);
                        let wait = async {
                            sleep(Duration::from_millis(REGION_HOME_LEVEL_MS)).await;
                            (Event::Waited, None)
                        };
                        self.asking.push(wait.boxed());
                    }
                    Effect::End(ended) => return ended,
                }
            }
            // While something is asked, and that is until the end, there is a next answer.
            let Some((event, why)) = self.asking.next().await else {
                return Err(NotTaken::Changed);
            };
            self.why = why.or_else(|| self.why.take());
            if let Event::Answered(from, Some(HomeAnswer::Knows(Some(home)))) = event {
                self.shared.hear_home(from, &self.bucket, home).await;
            }
            taking.step(event, &mut out);
        }
    }

    fn ask(&self, region: RegionId, ask: HomeAsk) {
        let own = self.shared.shown.own();
        let regions = self.others.iter().copied().chain([own]).collect();
        let asked = AskHome { bucket: self.bucket.clone(), ask, regions };
        let shared = self.shared.clone();
        let asking = async move {
            let asking = async { link_to(&shared, region)?.ask_home(asked).await };
            let answered = timeout(Duration::from_millis(REGION_HOME_ANSWER_MS), asking).await;
            match answered {
                Ok(Ok(answer)) if is_sound(&answer) => {
                    (Event::Answered(region, Some(answer)), None)
                }
                Ok(Ok(_)) => {
                    (Event::Answered(region, None), Some("it says what no region says".to_owned()))
                }
                Ok(Err(error)) => (Event::Answered(region, None), Some(error.to_string())),
                Err(_elapsed) => {
                    let why = format!("no answer within {REGION_HOME_ANSWER_MS} ms");
                    (Event::Answered(region, None), Some(why))
                }
            }
        };
        self.asking.push(asking.boxed());
    }

    fn set(&self, expected: Option<Home>, next: Home) {
        let (shared, bucket, others) =
            (self.shared.clone(), self.bucket.clone(), self.others.clone());
        let setting = async move {
            let members = shared.site.members().borrow().clone();
            // One that has joined since may know the bucket without its home.
            let has_joined = members.live().any(|peer| !others.contains(&peer.number));
            if has_joined && (next.is_awaited() || next.state == HomeState::Here) {
                return (Event::Set(false), None);
            }
            match shared.shown.reach().set_home(&bucket, expected, next).await {
                Ok(is_set) => (Event::Set(is_set), None),
                Err(error) => (Event::Set(false), Some(error.to_string())),
            }
        };
        self.asking.push(setting.boxed());
    }

    /// A reason for operators.
    fn reason(&self, why: NotTaken) -> String {
        let members = self.shared.site.members().borrow().clone();
        let name = |number: RegionId| {
            members.peer(number).map_or_else(|| number.to_string(), |peer| peer.name.to_string())
        };
        match why {
            NotTaken::NoAnswer(region) => {
                let why = self.why.as_deref().unwrap_or("no reason is known");
                format!("region {} does not answer: {why}", name(region))
            }
            NotTaken::Absent(region) => {
                format!("region {} does not have the bucket yet, or deletes it", name(region))
            }
            NotTaken::OtherRegions(region) => {
                format!("region {} knows other regions than this one", name(region))
            }
            NotTaken::Refused(region) => {
                format!("region {} says that another one is to be the home", name(region))
            }
            NotTaken::Changed => match &self.why {
                Some(why) => format!("the bucket's record is not set: {why}"),
                None => "the home has changed meanwhile, or another region has joined".to_owned(),
            },
        }
    }
}

/// True if no record in the answer has a count that no region reaches.
fn is_sound(answer: &HomeAnswer) -> bool {
    match answer {
        HomeAnswer::Knows(home) => home.is_none_or(|home| home.is_sound()),
        HomeAnswer::Yours { home, .. } => home.is_sound(),
        HomeAnswer::Behind | HomeAnswer::Absent | HomeAnswer::OtherRegions => true,
    }
}
