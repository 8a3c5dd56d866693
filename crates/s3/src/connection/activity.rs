//! A connection as its watch sees it, and those that look for one that makes room.
//!
//! ```text
//!  idle ──── a head ────▶ busy ──── the answer's last piece is buffered ────▶ sending ──── flushed ────▶ idle
//!   └── told to close ──▶ closed      ◀─────────────── a head ──────────────────┘
//! ```
//!
//! HTTP/1 answers one request at a time, so one of each is enough.
//!
//! # Invariants
//!
//! 1. Only an idle connection is closed, and none is idle before its last answer has left.
//! 2. No request begins on a connection that was closed: one atomic step decides which of the two comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    begun: Instant,
    /// Milliseconds from `begun` until the connection became idle, or one of the marks below.
    phase: AtomicU64,
    heads: AtomicU64,
    /// Bytes that may come of a body that nobody reads, before the next head.
    unread: AtomicU64,
    lingers: AtomicBool,
}

/// A request is worked on or answered.
const BUSY: u64 = u64::MAX;
/// All of an answer is made, and a part may not have left yet.
const SENDING: u64 = u64::MAX - 1;
/// It was told to close.
const CLOSED: u64 = u64::MAX - 2;

impl Default for ConnectionActivity {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            phase: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            lingers: AtomicBool::new(false),
        }
    }
}

impl ConnectionActivity {
    /// For how long the connection has been idle. `None` while it is not.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        self.idle_since(self.phase.load(Ordering::Relaxed))
    }

    fn idle_since(&self, phase: u64) -> Option<Duration> {
        let since = (phase < CLOSED).then(|| Duration::from_millis(phase))?;
        Some(self.begun.elapsed().saturating_sub(since))
    }

    /// Closes the connection if it has been idle for so long; gives away whether it did.
    pub(crate) fn close_if_idle(&self, idle: Duration) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        self.idle_since(phase).is_some_and(|since| since >= idle) && self.turn(phase, CLOSED)
    }

    /// Notes that everything written has left. One that lingers is not idle: it does so for its client to see the answer.
    pub(crate) fn flushed(&self) {
        if self.phase.load(Ordering::Relaxed) == SENDING && !self.lingers() {
            let now = self.begun.elapsed().as_millis() as u64;
            assert!(now < CLOSED, "a time is none of the marks");
            let _only_this_task_ends_sending = self.turn(SENDING, now);
        }
    }

    /// Notes that the answer's last piece was handed over.
    pub(crate) fn answered(&self) {
        let _a_closed_one_stays_closed = self.turn(BUSY, SENDING);
    }

    fn turn(&self, from: u64, to: u64) -> bool {
        self.phase.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// True while the connection has a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == BUSY
    }

    /// Bytes of the last request's body that may still come.
    pub(crate) fn unread(&self) -> u64 {
        self.unread.load(Ordering::Relaxed)
    }

    /// The number of heads read so far.
    pub(crate) fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    /// True if the connection is to linger when it closes: its client may still be sending.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }
}

/// The connection was chosen for eviction before its request arrived: nothing of the request is done.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed for another before its request came")]
pub(crate) struct EvictedForNew;

/// A request that is worked on.
#[derive(Debug)]
pub(crate) struct Working(Arc<ConnectionActivity>);

impl Working {
    /// # Errors
    /// [`EvictedForNew`] if the connection was closed first.
    pub(crate) fn begin(activity: &Arc<ConnectionActivity>) -> Result<Self, EvictedForNew> {
        let open = |phase| (phase != CLOSED).then_some(BUSY);
        let begun = activity.phase.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open);
        begun.map_err(|_closed| EvictedForNew)?;
        activity.heads.fetch_add(1, Ordering::Relaxed);
        activity.unread.store(0, Ordering::Relaxed);
        Ok(Self(Arc::clone(activity)))
    }

    /// A request that came over no connection of this server's.
    pub(crate) fn elsewhere() -> Self {
        Self(Arc::default())
    }

    /// Records how much of the body will still arrive unread.
    pub(crate) fn leave_unread(&self, bytes: u64) {
        self.0.unread.store(bytes, Ordering::Relaxed);
    }

    /// Has the connection linger behind the answer.
    pub(crate) fn linger(&self) {
        self.0.lingers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> Arc<ConnectionActivity> {
        Arc::clone(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_only_when_its_answer_has_left() {
        let activity = Arc::<ConnectionActivity>::default();
        let _working = Working::begin(&activity).unwrap();
        activity.flushed();
        assert!(!activity.close_if_idle(Duration::ZERO), "a 100 is no answer");
        activity.answered();
        assert!(!activity.close_if_idle(Duration::ZERO) && activity.idle_for().is_none());
        activity.flushed();
        assert!(activity.close_if_idle(Duration::ZERO));
    }

    #[test]
    fn a_connection_that_lingers_is_not_closed_for_another() {
        let activity = Arc::<ConnectionActivity>::default();
        Working::begin(&activity).unwrap().linger();
        activity.answered();
        activity.flushed();
        assert!(!activity.close_if_idle(Duration::ZERO));
    }

    #[test]
    fn no_request_begins_on_a_connection_that_was_closed() {
        let activity = Arc::<ConnectionActivity>::default();
        assert!(activity.close_if_idle(Duration::ZERO) && !activity.close_if_idle(Duration::ZERO));
        assert!(Working::begin(&activity).is_err());
        activity.answered();
        activity.flushed();
        assert!(Working::begin(&activity).is_err() && activity.idle_for().is_none());
    }

    /// Of a closing and a beginning at once, exactly one happens.
    #[test]
    fn a_request_and_a_closing_exclude_each_other() {
        for _ in 0..1000 {
            let activity = Arc::<ConnectionActivity>::default();
            let barrier = std::sync::Barrier::new(2);
            let (begun, closed) = std::thread::scope(|scope| {
                let begins = scope.spawn(|| {
                    barrier.wait();
                    Working::begin(&activity).is_ok()
                });
                barrier.wait();
                let closed = activity.close_if_idle(Duration::ZERO);
                (begins.join().unwrap(), closed)
            });
            assert_ne!(begun, closed);
        }
    }
}
