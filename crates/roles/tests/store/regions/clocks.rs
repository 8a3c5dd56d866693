//! A region whose machine's clock is ahead of another one's: which is a stand-in that tells any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::UNIX_EPOCH;

use larder_link::{
    AskHome, Change, ChangeAnswer, CloseBucket, Declined, EndClosed, FetchRequest, FetchSink,
    Hello, IdsQuery, IdsReply, Keys, KeysReply, List, ListAnswer, Listener, RegionList, Report,
    Source, TellHomes, Walk, WalkAnswer,
};
use larder_protocol::limits::CLOCK_AHEAD_MS_MAX;
use larder_protocol::region::deletion::CloseAnswer;
use larder_protocol::region::home::HomeAnswer;

use super::*;

const HOUR_MS: i64 = 3_600_000;

fn wall_ms() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// A region that tells its clock, and nothing else.
struct Telling {
    number: RegionId,
    /// Milliseconds by which its clock is ahead of the true time.
    skew_ms: AtomicI64,
    /// True if it does not answer at all.
    hangs: bool,
    report: AtomicU64,
}

impl Source for Telling {
    async fn hello(&self, _: RegionId) -> Result<Hello, Declined> {
        if self.hangs {
            return std::future::pending().await;
        }
        self.report.fetch_add(1, Ordering::SeqCst);
        let now_ms = wall_ms().saturating_add_signed(self.skew_ms.load(Ordering::SeqCst));
        Ok(Hello { number: self.number, pg_count: 256, now_ms })
    }

    async fn last_met(&self) -> Result<RegionId, Declined> {
        Ok(RegionId::OWN)
    }

    async fn query_ids(&self, _: RegionId, _: IdsQuery) -> Result<IdsReply, Declined> {
        Err(Declined::NotReady)
    }

    async fn reported(&self, _: RegionId, _: Report) -> Result<(), Declined> {
        Err(Declined::NotReady)
    }

    async fn close_bucket(&self, _: RegionId, _: CloseBucket) -> Result<CloseAnswer, Declined> {
        Err(Declined::NotReady)
    }

    async fn end_closed(&self, _: RegionId, _: EndClosed) -> Result<bool, Declined> {
        Err(Declined::NotReady)
    }

    async fn ask_home(&self, _: RegionId, _: AskHome) -> Result<HomeAnswer, Declined> {
        Err(Declined::NotReady)
    }

    async fn tell_homes(&self, _: RegionId, _: TellHomes) -> Result<(), Declined> {
        Err(Declined::NotReady)
    }

    async fn change(&self, _: RegionId, _: Change) -> Result<ChangeAnswer, Declined> {
        Err(Declined::NotReady)
    }

    async fn walk(&self, _: RegionId, _: Walk) -> Result<WalkAnswer, Declined> {
        Err(Declined::NotReady)
    }

    async fn list(&self, _: RegionId, _: List) -> Result<ListAnswer, Declined> {
        Err(Declined::NotReady)
    }

    async fn keys(&self, _: RegionId, _: Keys) -> Result<KeysReply, Declined> {
        Err(Declined::NotReady)
    }

    async fn fetch(&self, _: RegionId, _: FetchRequest, _: FetchSink) -> Result<(), Declined> {
        Err(Declined::NotReady)
    }

    async fn keep(&self, _: RegionList) -> Result<(), Declined> {
        Ok(())
    }
}

/// A region that runs, and a stand-in that has joined it.
struct Pair {
    one: Region,
    telling: Arc<Telling>,
    _two: Region,
    _listening: Listener,
}

async fn with_stand_in(skew_ms: i64, hangs: bool) -> Pair {
    let (mut one, mut two) = (Region::alone(), Region::alone());
    one.start().await;
    one.proxy().create_bucket(&bucket(), None).await.unwrap();
    one.stop();
    one.found().await;
    one.start().await;
    two.join(&one, "two").await;
    one.stop();
    let site = RegionEndpoint::open(two.dir.path()).unwrap().unwrap();
    let socket = TcpListener::bind(&two.address).await.unwrap();
    let (skew_ms, report) = (AtomicI64::new(skew_ms), AtomicU64::new(0));
    let telling = Arc::new(Telling { number: site.number(), skew_ms, hangs, report });
    let listening = site.listen(socket, telling.clone()).unwrap();
    one.start().await;
    Pair { one, telling, _two: two, _listening: listening }
}

impl Pair {
    fn regions(&self) -> &Regions {
        self.one.regions.as_ref().expect("it runs")
    }

    /// Puts an object; its date, and the time before it was put.
    async fn dated(&self, name: &str) -> (u64, u64) {
        let before_ms = wall_ms();
        put(self.one.proxy(), name, &content(7, 100)).await;
        (described(&self.one, name).await.clock.ms(), before_ms)
    }

    /// Waits until the operator is told this of the other region's clock, or nothing.
    async fn shows(&self, alarm: Option<&str>) {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let shown = self.regions().status().peers[0].alarm.clone();
            let is_so = match alarm {
                None => shown.is_none(),
                Some(part) => shown.as_ref().is_some_and(|shown| shown.contains(part)),
            };
            if is_so {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{shown:?} is shown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_starts_with_its_clock_ahead_dates_no_change_by_it_and_a_cure_leaves_nothing()
{
    let pair = with_stand_in(-HOUR_MS, false).await;
    pair.regions().clocks_are_known().await;
    let (dated_ms, _) = pair.dated("held back").await;
    let other_ms = wall_ms() - HOUR_MS as u64;
    assert!(dated_ms <= other_ms + CLOCK_AHEAD_MS_MAX + 10_000, "{dated_ms} for {other_ms}");
    assert!(dated_ms + 60_000 >= other_ms, "{dated_ms} for {other_ms}");
    pair.shows(Some("this region's clock is 3")).await;
    assert!(pair.regions().counters().clock_ahead_seconds() > 3_500.0);
    // Somebody sets the clock.
    pair.telling.skew_ms.store(0, Ordering::SeqCst);
    pair.shows(None).await;
    let (dated_ms, before_ms) = pair.dated("right").await;
    assert!(dated_ms >= before_ms && dated_ms <= wall_ms(), "{dated_ms} for {before_ms}");
    assert!(pair.regions().counters().clock_ahead_seconds() < 1.0);
    assert!(pair.telling.report.load(Ordering::SeqCst) >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_behind_or_shows_an_impossible_time_holds_nothing_back_but_is_shown() {
    let pair = with_stand_in(HOUR_MS, false).await;
    pair.regions().clocks_are_known().await;
    pair.shows(Some("s ahead of this region's")).await;
    let (dated_ms, before_ms) = pair.dated("behind").await;
    assert!(dated_ms >= before_ms && dated_ms <= wall_ms(), "{dated_ms} for {before_ms}");
    drop(pair);
    let pair = with_stand_in(i64::MIN, false).await;
    pair.regions().clocks_are_known().await;
    pair.shows(Some("s behind this region's")).await;
    let (dated_ms, before_ms) = pair.dated("impossible").await;
    assert!(dated_ms >= before_ms && dated_ms <= wall_ms(), "{dated_ms} for {before_ms}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_does_not_wait_for_a_region_that_hangs() {
    let pair = with_stand_in(0, true).await;
    let limit = Duration::from_secs(8);
    let known = tokio::time::timeout(limit, pair.regions().clocks_are_known()).await;
    assert!(known.is_ok(), "a start waits for a region that does not answer");
    let (dated_ms, before_ms) = pair.dated("alone").await;
    assert!(dated_ms >= before_ms && dated_ms <= wall_ms(), "{dated_ms} for {before_ms}");
}
