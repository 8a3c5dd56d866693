//! The times at which requests are made, and those that count.
//!
//! # Invariants
//! - **Closed loop**: each worker makes its next request when the last is answered.
//! - **Open loop**: request `n` is due at `n / rate`, whatever became of those before. Its latency
//!   counts from then. A request that was due but never sent counts with the time it had waited at
//!   the end. So a server that stalls cannot hide it by being asked less.
//! - Throughput counts the answers that arrive inside the measured window. Latencies are those of
//!   all requests answered after its begin, also of those that outlast its end.
//! - Failed requests count as errors, whenever they happen, and as nothing else.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::error::CallError;
use crate::histogram::Histogram;

/// Most kinds of errors told apart; further ones are counted together.
const ERROR_KINDS_MAX: usize = 32;
/// Pause after a failure to connect, so that a dead server is not asked in a busy loop.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Longer than any run lasts.
pub const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 86_400);

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The measured time.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Workers begin; nothing is counted yet.
    pub warm_up: Instant,
    /// From here on answers count.
    pub begin: Instant,
    /// No request is made and no answer counts after this.
    pub end: Instant,
}

impl Window {
    /// A window that begins after `warm_up` from now.
    #[must_use]
    pub fn after(warm_up: Duration, duration: Duration) -> Self {
        let now = Instant::now();
        Self { warm_up: now, begin: now + warm_up, end: now + warm_up + duration }
    }

    /// A window in which no answer counts, and so failures alone do.
    #[must_use]
    pub fn of_failures() -> Self {
        Self::after(UNLIMITED, Duration::ZERO)
    }
}

/// The moments at which an open loop's requests are due, in time since the first.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    per_second: NonZeroU32,
}

impl Pace {
    /// Spaces `per_second` requests evenly over each second.
    #[must_use]
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { per_second }
    }

    /// The time at which request `number` is due. Computed from the number, so that rounding never
    /// adds up.
    #[must_use]
    pub fn due(&self, number: u64) -> Duration {
        let nanos = (u128::from(number) * NANOS_PER_SECOND).div_ceil(self.per_second.get().into());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The number of requests due after `elapsed`; the first is due at once.
    #[must_use]
    pub fn due_after(&self, elapsed: Duration) -> u64 {
        let due = elapsed.as_nanos() * u128::from(self.per_second.get()) / NANOS_PER_SECOND + 1;
        u64::try_from(due).unwrap_or(u64::MAX)
    }
}

/// Gives out the beginnings of requests.
#[derive(Debug)]
pub struct Starts {
    window: Window,
    open: Option<OpenLoop>,
}

/// A ticket is released when a request falls due; the worker that gets one takes the next number.
#[derive(Debug)]
struct OpenLoop {
    pace: Pace,
    tickets: Semaphore,
    taken: AtomicU64,
}

impl Starts {
    /// A closed loop, or an open one if there is a pace.
    #[must_use]
    pub fn new(window: Window, pace: Option<Pace>) -> Self {
        let open = pace.map(|pace| OpenLoop {
            pace,
            tickets: Semaphore::new(0),
            taken: AtomicU64::new(0),
        });
        Self { window, open }
    }

    /// The measured time.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// Waits for the next request's beginning, from which its latency counts; `None` at the end.
    pub async fn next(&self) -> Option<Instant> {
        let Some(open) = &self.open else {
            return Some(Instant::now()).filter(|now| *now < self.window.end);
        };
        open.tickets.acquire().await.ok()?.forget();
        let number = open.taken.fetch_add(1, Ordering::Relaxed);
        Some(self.window.warm_up + open.pace.due(number))
    }

    /// Releases the open loop's requests as they fall due, until the end. Blocks: the event loop's
    /// timers are a millisecond coarse, a thread's sleep is not.
    pub fn keep_pace(&self) {
        let Some(open) = &self.open else { return };
        // Without effect where the kernel refuses: requests are then sent up to 50 us late.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
        let mut released = 0;
        loop {
            let now = Instant::now().min(self.window.end);
            let due = self.due_by(open, now);
            let more = due.saturating_sub(released).min(Semaphore::MAX_PERMITS as u64);
            open.tickets.add_permits(more as usize);
            released += more;
            if now == self.window.end {
                open.tickets.close();
                return;
            }
            let next = (self.window.warm_up + open.pace.due(released)).min(self.window.end);
            std::thread::sleep(next.saturating_duration_since(now));
        }
    }

    /// The time for which each request waited that was due before the end and never sent.
    pub fn unsent(&self) -> impl Iterator<Item = Duration> {
        let window = self.window;
        self.open.iter().flat_map(move |open| {
            let pace = open.pace;
            let due = self.due_by(open, window.end);
            (open.taken.load(Ordering::Relaxed)..due)
                .map(move |number| window.end.duration_since(window.warm_up + pace.due(number)))
        })
    }

    /// The number of requests due at `now`; one that would fall due at the end itself is outside.
    fn due_by(&self, open: &OpenLoop, now: Instant) -> u64 {
        let last = now.min(self.window.end - Duration::from_nanos(1));
        open.pace.due_after(last.duration_since(self.window.warm_up))
    }
}

/// The results of the requests of one or more workers.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests answered well inside the window.
    pub done: u64,
    /// Bytes of the objects in them.
    pub bytes: u64,
    /// Bytes of the objects in all requests answered well, whenever that was.
    pub bytes_moved: u64,
    /// Times from beginning to answer.
    pub latencies: Histogram,
    /// Failures by kind.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts a request that was begun at `begun` and ended now, with the bytes it moved.
    pub fn count(&mut self, window: &Window, begun: Instant, bytes: Result<u64, &CallError>) {
        let now = Instant::now();
        self.bytes_moved += bytes.unwrap_or(0);
        match bytes {
            Err(error) => self.count_errors(error.kind(), 1),
            Ok(_) if now < window.begin => {}
            Ok(bytes) => {
                self.latencies.record(now.duration_since(begun));
                if now < window.end {
                    self.done += 1;
                    self.bytes += bytes;
                }
            }
        }
    }

    /// The sum of several tallies.
    #[must_use]
    pub fn sum(tallies: impl IntoIterator<Item = Self>) -> Self {
        let mut total = Self::default();
        tallies.into_iter().for_each(|tally| total.merge(tally));
        total
    }

    /// Adds what another has counted.
    pub fn merge(&mut self, other: Self) {
        self.done += other.done;
        self.bytes += other.bytes;
        self.bytes_moved += other.bytes_moved;
        self.latencies.merge(&other.latencies);
        other.errors.into_iter().for_each(|(kind, count)| self.count_errors(kind, count));
    }

    fn count_errors(&mut self, kind: String, count: u64) {
        let known = self.errors.contains_key(&kind) || self.errors.len() < ERROR_KINDS_MAX;
        let kind = if known { kind } else { "other".into() };
        *self.errors.entry(kind).or_default() += count;
    }
}

/// Waits a little after an error that would repeat at once.
pub async fn pause_after(error: &CallError) {
    if matches!(error, CallError::Connect(_)) {
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
