//! Locks: keys of a bucket that has a home, each made once however many regions try, while the home moves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_link::{HomeOrder, Order};
use larder_objects::{ObjectError, Objects, PutOptions};
use larder_types::limits::INLINE_BYTES_MAX;
use larder_types::{BucketName, BucketRecord, Condition, EtagList, HomeScope, HomeState};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::QUIESCENCE_TIME;
use super::clients::{Body, CALL_MAX, Client, Log, Sum, key_of, sum_of};
use super::region::{PROXIES_OF_EACH, Region};

const LOCKS: usize = 8;
/// Tries of one client.
const TRIES: u64 = 8;

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Made,
    /// Another was there.
    Unmet,
    Unknown,
}

/// See the module's head.
pub(super) struct Locks {
    bucket: BucketName,
    log: Arc<Mutex<Log>>,
    tries: Mutex<Vec<(usize, Sum, Outcome)>>,
}

impl Locks {
    /// Makes the bucket and its home, and waits until all regions know both.
    pub(super) async fn begin(regions: &[Arc<Region>]) -> Arc<Self> {
        let bucket = BucketName::new("locks").expect("it is a name");
        let locks = Arc::new(Self { bucket, log: Arc::default(), tries: Mutex::default() });
        let deadline = Instant::now() + QUIESCENCE_TIME;
        locks.client(&regions[0], 0).make_bucket().await;
        locks.order(&regions[0]);
        for region in regions {
            for at in 0..PROXIES_OF_EACH {
                let has_home = |it: &BucketRecord| it.home.is_some_and(is_settled);
                while !locks.client(region, at).sees_that(has_home).await {
                    assert!(Instant::now() < deadline, "a home is told in time");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        locks
    }

    pub(super) fn bucket(&self) -> &BucketName {
        &self.bucket
    }

    pub(super) fn client(&self, region: &Arc<Region>, at: usize) -> Client {
        let (bucket, log) = (self.bucket.clone(), self.log.clone());
        let (makes, removes, others) = (false, false, Vec::new());
        Client { region: region.clone(), at, bucket, log, makes, removes, others }
    }

    pub(super) fn order(&self, region: &Region) {
        let of_all = region.sim_rng.one_in(3);
        let scope = if of_all { HomeScope::Writes } else { HomeScope::Conditions };
        let order = Order::Here(scope);
        let ordered = larder_link::submit_order(
            region.dir(),
            HomeOrder { bucket: self.bucket.clone(), order },
        );
        ordered.expect("the order is written");
    }

    /// Has a proxy of a region asked for locks.
    pub(super) async fn run_client(self: Arc<Self>, region: Arc<Region>, at: usize) {
        let client = self.client(&region, at);
        for _ in 0..TRIES {
            let sim_rng = &region.sim_rng;
            sleep(sim_rng.ms(if sim_rng.one_in(3) { 8000 } else { 600 })).await;
            let lock = sim_rng.below(LOCKS as u64) as usize;
            self.make(&client, lock, client.draw_content()).await;
        }
    }

    /// Makes a lock if it is not there.
    async fn make(&self, client: &Client, lock: usize, (sum, bytes): (Sum, Bytes)) {
        let condition = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
        let options = PutOptions { condition, ..PutOptions::default() };
        let body = Body { bytes: Some(bytes), sum };
        let put =
            client.at(async |proxy| proxy.put(&self.bucket, &key_of(lock), options, body).await);
        let outcome = match timeout(CALL_MAX, put).await {
            Ok(Some(Ok(_))) => Outcome::Made,
            Ok(Some(Err(ObjectError::PreconditionFailed))) => Outcome::Unmet,
            Ok(_) => Outcome::Unknown,
            Err(_) => {
                client.violated("a change with a condition does not end");
                Outcome::Unknown
            }
        };
        tracing::info!(region = %client.region.number, lock, ?outcome, "a lock is asked for");
        self.tries.lock().push((lock, sum, outcome));
    }

    /// Has clients of the home ask for each lock, with data, while that moves to another region, whose clients ask for all once it is
    /// there. Data servers of the first are slow, so that puts are open when it moves.
    pub(super) async fn race(self: Arc<Self>, from: &Arc<Region>, to: &Arc<Region>) {
        let mut asking = JoinSet::new();
        let ask = |region: &Arc<Region>, lock, longest_ms| {
            let (locks, client) = (self.clone(), self.client(region, 0));
            let content = std::iter::repeat_with(move || client.draw_content());
            let client = self.client(region, 0);
            async move {
                sleep(client.region.sim_rng.ms(longest_ms)).await;
                let has_data = |(_, bytes): &(Sum, Bytes)| bytes.len() > INLINE_BYTES_MAX as usize;
                let content = { content }.find(has_data).expect("it is drawn on and on");
                locks.make(&client, lock, content).await;
            }
        };
        from.world.slow_down(true);
        self.order(to);
        (0..LOCKS).for_each(|lock| drop(asking.spawn(ask(from, lock, 3000))));
        let is_here = |it: &BucketRecord| it.home.is_some_and(|it| it.state == HomeState::Here);
        let deadline = Instant::now() + QUIESCENCE_TIME;
        while !self.client(to, 0).sees_that(is_here).await {
            assert!(Instant::now() < deadline, "the home moves in time");
            sleep(Duration::from_millis(20)).await;
        }
        (0..LOCKS).for_each(|lock| drop(asking.spawn(ask(to, lock, 1))));
        while let Some(ended) = asking.join_next().await {
            ended.expect("a client ends");
        }
        from.world.slow_down(false);
    }

    /// Orders now and then that another region becomes the home.
    pub(super) async fn move_about(self: Arc<Self>, regions: Vec<Arc<Region>>) {
        let sim_rng = regions[0].sim_rng.clone();
        for _ in 0..sim_rng.below(4) {
            sleep(sim_rng.ms(12_000)).await;
            let to = &regions[sim_rng.below(regions.len() as u64) as usize];
            tracing::info!(region = %to.number, "it is ordered to become the home");
            self.order(to);
        }
    }

    /// Says which locks were made twice, or are not what was answered.
    pub(super) async fn judge(&self, regions: &[Arc<Region>]) {
        let tries = self.tries.lock().clone();
        for lock in 0..LOCKS {
            let of_lock = || tries.iter().filter(move |it| it.0 == lock);
            let made: Vec<_> = of_lock().filter(|it| it.2 == Outcome::Made).collect();
            if made.len() > 1 {
                regions[0].world.violated(format!("lock {lock} was made twice: {made:?}"));
            }
            let must_be = !made.is_empty() || of_lock().any(|it| it.2 == Outcome::Unmet);
            for region in regions {
                let found = self.client(region, 0).get(lock).await.flatten();
                let sum = found.map(|metax| sum_of(&metax.etag));
                let is_right = match made.first() {
                    Some((_, made, _)) => sum == Some(*made),
                    None => sum.is_some() || !must_be,
                };
                if !is_right {
                    let what = format!("lock {lock} in {} is {sum:?}: {made:?}", region.number);
                    region.world.violated(what);
                }
            }
        }
    }

    /// Locks that were made, and tries that came to nothing as another was there.
    pub(super) fn counts(&self) -> (u64, u64) {
        let tries = self.tries.lock();
        let count = |outcome| tries.iter().filter(|it| it.2 == outcome).count() as u64;
        (count(Outcome::Made), count(Outcome::Unmet))
    }
}

/// True of a home that decides, or that another region is.
fn is_settled(home: larder_types::Home) -> bool {
    matches!(home.state, HomeState::Here | HomeState::Elsewhere)
}
