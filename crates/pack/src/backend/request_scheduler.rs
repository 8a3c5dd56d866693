//! The request scheduler that every request to the backend passes: readers first, at the pace that the backend and the budgets
//! allow, and counted.
//!
//! # Invariants
//!
//! 1. A request that passed is counted once, and is under way until its [`Pass`] is gone.
//! 2. Readers go first. After [`READS_BEFORE_WRITE`] reads in a row an upload goes before them, if
//!    one waits and may begin.
//! 3. The number of requests that wait is bounded, and so is the time for which they wait.
//! 4. Where time alone keeps requests back, one of those that wait has a timer. A request that
//!    leaves wakes another, which takes the timer over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::adaptive_limiter::{AdaptiveLimiter, Answer, Side, Verdict};
use super::spend_limiter::SpendLimiter;
use crate::class::{Prices, RequestClass};
use crate::counters::{Counters, count};
use crate::limits::{GATE_UPLOAD_WAIT_MAX, GATE_WAIT_MAX, GATE_WAITING_MAX, READS_BEFORE_WRITE};

/// The reason for which a request was not made. It may be tried again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotMade {
    #[error("too many requests wait for the backend")]
    TooMany,
    #[error("the limit of requests to the backend is reached, and this request waited too long")]
    TooLong,
}

/// The request scheduler of one backend.
pub(super) struct RequestScheduler {
    start: Instant,
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// Wakes one of those that wait, to look when it may begin.
    looks: Notify,
}

/// A request that waits, until it leaves.
struct Waiter<'a>(&'a Notify);

struct State {
    limiter: AdaptiveLimiter,
    spend_limiter: SpendLimiter,
    reads: VecDeque<oneshot::Sender<Pass>>,
    writes: VecDeque<oneshot::Sender<Pass>>,
    reads_in_a_row: u32,
}

/// A request that is under way.
pub(super) struct Pass {
    scheduler: Arc<RequestScheduler>,
    side: Side,
    began: Duration,
    answer: Answer,
    ended: bool,
}

impl RequestScheduler {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        let state = State {
            limiter: AdaptiveLimiter::new(),
            spend_limiter: SpendLimiter::new(Prices::default(), None, Duration::ZERO),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            reads_in_a_row: 0,
        };
        Self { start: Instant::now(), counters, state: Mutex::new(state), looks: Notify::new() }
    }

    /// Sets the budgets: requests a second, and money a day at these prices.
    pub(super) fn set_budgets(&self, per_second: Option<f64>, prices: Prices, day: Option<f64>) {
        let now = self.start.elapsed();
        let mut state = self.state.lock();
        state.limiter.set_rate(per_second, now);
        state.spend_limiter = SpendLimiter::new(prices, day, now);
    }

    /// Requests that may be under way now.
    pub(super) fn limit(&self) -> u32 {
        self.state.lock().limiter.limit()
    }

    /// Requests of uploads that may be under way now.
    pub(super) fn writes_max(&self) -> u32 {
        self.state.lock().limiter.writes_max()
    }

    /// Returns true if a request of this kind would wait for money.
    pub(super) fn is_spent(&self, class: RequestClass) -> bool {
        self.state.lock().spend_limiter.waits(class, self.start.elapsed()).is_some()
    }

    /// Waits until the budget of money has something for a request of this kind. It is called
    /// before the request is signed, as it may take hours.
    pub(super) async fn afford(&self, class: RequestClass) {
        loop {
            let wait = self.state.lock().spend_limiter.waits(class, self.start.elapsed());
            let Some(wait) = wait else { return };
            count(&self.counters.budget_waits);
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts requests beside one that passed.
    pub(super) fn count(&self, class: RequestClass, much: u64) {
        self.counters.requests.count(class, much);
        self.state.lock().spend_limiter.pay(class, much, self.start.elapsed());
    }

    /// Waits until a request may begin, and counts it.
    pub(super) async fn enter(self: &Arc<Self>, class: RequestClass) -> Result<Pass, NotMade> {
        let side = if class.is_read() { Side::Read } else { Side::Write };
        let wait_max = match side {
            Side::Read => GATE_WAIT_MAX,
            // Those before it may be parts that go up slowly.
            Side::Write => GATE_UPLOAD_WAIT_MAX,
        };
        let pass = tokio::time::timeout(wait_max, self.wait(side)).await;
        let pass = pass.map_err(|_| NotMade::TooLong)??;
        self.count(class, 1);
        Ok(pass)
    }

    async fn wait(self: &Arc<Self>, side: Side) -> Result<Pass, NotMade> {
        let (reported, mut passes) = oneshot::channel();
        {
            let mut state = self.state.lock();
            let waiting = state.queue(side);
            waiting.retain(|waits| !waits.is_closed());
            if waiting.len() >= GATE_WAITING_MAX {
                return Err(NotMade::TooMany);
            }
            waiting.push_back(reported);
        }
        let _leaves = Waiter(&self.looks);
        loop {
            let at = self.let_through();
            let opens = async {
                match at {
                    Some(at) => tokio::time::sleep_until((self.start + at).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                pass = &mut passes => return pass.map_err(|_| NotMade::TooMany),
                () = opens => {}
                () = self.looks.notified() => {}
            }
        }
    }

    /// Lets those begin that may; when the next may, if time alone is in the way.
    fn let_through(self: &Arc<Self>) -> Option<Duration> {
        let mut state = self.state.lock();
        let mut opens = None;
        loop {
            let now = self.start.elapsed();
            let Some(side) = state.next_side(now, &mut opens) else { return opens };
            let Some(waits) = state.queue(side).pop_front() else { return opens };
            let pass = Pass {
                scheduler: self.clone(),
                side,
                began: now,
                answer: Answer::Unknown,
                ended: false,
            };
            if let Err(mut unwanted) = waits.send(pass) {
                // The request that waited is gone, and nothing began.
                unwanted.ended = true;
                continue;
            }
            state.limiter.begin(side);
            state.reads_in_a_row = match side {
                Side::Read => state.reads_in_a_row + 1,
                Side::Write => 0,
            };
        }
    }
}

impl State {
    fn queue(&mut self, side: Side) -> &mut VecDeque<oneshot::Sender<Pass>> {
        match side {
            Side::Read => &mut self.reads,
            Side::Write => &mut self.writes,
        }
    }

    /// Returns the side that begins next, of those that wait and may.
    fn next_side(&mut self, now: Duration, opens: &mut Option<Duration>) -> Option<Side> {
        let order = match self.reads_in_a_row >= READS_BEFORE_WRITE {
            true => [Side::Write, Side::Read],
            false => [Side::Read, Side::Write],
        };
        for side in order {
            if self.queue(side).is_empty() {
                continue;
            }
            match self.limiter.admits(side, now) {
                Verdict::Now => return Some(side),
                Verdict::At(at) => *opens = Some(opens.map_or(at, |opens| opens.min(at))),
                Verdict::WhenOneEnds => {}
            }
        }
        None
    }
}

impl Pass {
    /// The answer has begun.
    pub(super) fn answered(mut self, answer: Answer) {
        if let Answer::Throttled(_) = answer {
            count(&self.scheduler.counters.throttled);
        }
        self.answer = answer;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let now = self.scheduler.start.elapsed();
        self.scheduler.state.lock().limiter.end(self.side, self.began, self.answer, now);
        // Those that may begin are told.
        if self.scheduler.let_through().is_some() {
            self.scheduler.looks.notify_one();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BACKEND_REQUESTS_START;

    fn scheduler() -> Arc<RequestScheduler> {
        Arc::new(RequestScheduler::new(Arc::default()))
    }

    /// Fills the request scheduler; the passes.
    async fn fill(scheduler: &Arc<RequestScheduler>) -> Vec<Pass> {
        let mut passes = Vec::new();
        for _ in 0..BACKEND_REQUESTS_START {
            passes.push(scheduler.enter(RequestClass::Get).await.unwrap());
        }
        passes
    }

    /// Begins to wait: the future was polled once and is not done.
    async fn waiting(
        scheduler: &Arc<RequestScheduler>,
        class: RequestClass,
    ) -> tokio::task::JoinHandle<Result<Pass, NotMade>> {
        let side = if class.is_read() { Side::Read } else { Side::Write };
        let before = scheduler.state.lock().queue(side).len();
        let entering = scheduler.clone();
        let task = tokio::spawn(async move { entering.enter(class).await });
        while scheduler.state.lock().queue(side).len() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test]
    async fn readers_go_first_and_an_upload_gets_its_turn() {
        let scheduler = scheduler();
        let mut passes = fill(&scheduler).await;
        let upload = waiting(&scheduler, RequestClass::Part).await;
        let mut readers = Vec::new();
        for _ in 0..READS_BEFORE_WRITE {
            readers.push(waiting(&scheduler, RequestClass::Get).await);
        }
        scheduler.state.lock().reads_in_a_row = 0;
        for reader in readers {
            assert!(!upload.is_finished());
            passes.pop().unwrap().answered(Answer::Unknown);
            passes.push(reader.await.unwrap().unwrap());
        }
        let late = waiting(&scheduler, RequestClass::Get).await;
        passes.pop().unwrap().answered(Answer::Unknown);
        let _upload = upload.await.unwrap().unwrap();
        assert!(!late.is_finished());
        assert_eq!(scheduler.counters.requests.load().part, 1);
    }

    #[tokio::test]
    async fn whoever_goes_away_while_waiting_takes_no_place() {
        let scheduler = scheduler();
        let mut passes = fill(&scheduler).await;
        let gone = waiting(&scheduler, RequestClass::Get).await;
        let stays = waiting(&scheduler, RequestClass::Get).await;
        gone.abort();
        let _cancelled = gone.await;
        passes.pop();
        let pass = stays.await.unwrap().unwrap();
        drop((pass, passes));
        // All places are free again.
        let _all = fill(&scheduler).await;
    }

    #[tokio::test]
    async fn those_that_time_alone_keeps_back_do_not_wait_for_another_request() {
        let scheduler = scheduler();
        let passes = fill(&scheduler).await;
        // None has a timer: a place is what they wait for.
        let first = waiting(&scheduler, RequestClass::Get).await;
        let last = waiting(&scheduler, RequestClass::Get).await;
        let pause = Duration::from_millis(50);
        for pass in passes {
            pass.answered(Answer::Throttled(Some(pause)));
        }
        let both = async { (first.await.unwrap().unwrap(), last.await.unwrap().unwrap()) };
        let _both = tokio::time::timeout(GATE_WAIT_MAX / 4, both).await.unwrap();
    }

    #[tokio::test]
    async fn those_that_wait_are_bounded() {
        let scheduler = scheduler();
        let _passes = fill(&scheduler).await;
        let mut readers = Vec::new();
        for _ in 0..GATE_WAITING_MAX {
            readers.push(waiting(&scheduler, RequestClass::Get).await);
        }
        let refused = scheduler.enter(RequestClass::Get).await.err().unwrap();
        assert_eq!(refused, NotMade::TooMany);
        for reader in readers {
            reader.abort();
        }
    }

    #[tokio::test]
    async fn a_spent_budget_holds_uploads_and_not_reads() {
        let scheduler = scheduler();
        scheduler.set_budgets(None, Prices::default(), Some(0.01));
        scheduler.count(RequestClass::Put, 1_000_000);
        assert!(scheduler.is_spent(RequestClass::Put) && !scheduler.is_spent(RequestClass::Get));
        scheduler.afford(RequestClass::Get).await;
        let _reads = scheduler.enter(RequestClass::Get).await.unwrap();
        let upload =
            tokio::time::timeout(Duration::ZERO, scheduler.afford(RequestClass::Put)).await;
        assert!(upload.is_err(), "it waits");
        assert_eq!(scheduler.counters.budget_waits.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
