//! A queue of PGs for a thread.

use larder_env::threads::Condvar;
use larder_types::PgId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::planted::{Bug, has};

/// PGs that have work for another thread; each is queued at most once.
pub(super) struct PgQueue {
    state: Mutex<PgQueueState>,
    ready: Condvar,
}

struct PgQueueState {
    waiting: Vec<PgId>,
    marked: Vec<bool>,
    stopped: bool,
}

impl PgQueue {
    pub(super) fn new(pg_count: usize) -> Self {
        let state =
            PgQueueState { waiting: Vec::new(), marked: vec![false; pg_count], stopped: false };
        Self { state: Mutex::new(state), ready: Condvar::new() }
    }

    pub(super) fn push(&self, pg: PgId) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.marked[pg.0 as usize], true) {
            state.waiting.push(pg);
            if state.waiting.len() == 1 {
                self.ready.notify_one();
            }
        }
    }

    /// Takes all queued PGs; blocks until there are some. `None` once stopped.
    pub(super) fn take(&self, into: &mut Vec<PgId>) -> Option<()> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            if state.stopped {
                return None;
            }
            self.ready.wait(&mut state);
        }
        std::mem::swap(&mut state.waiting, into);
        let let_in = if has(Bug::LosesPushes) { 1 } else { usize::MAX };
        for pg in into.iter().take(let_in) {
            state.marked[pg.0 as usize] = false;
        }
        Some(())
    }

    /// Waits until a PG is queued, or until `due`, or until stopped.
    pub(super) fn wait_until(&self, due: Instant) {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.stopped {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.ready.wait_for(&mut state, left);
        }
    }

    /// Takes all queued PGs, without blocking.
    pub(super) fn take_now(&self, into: &mut Vec<PgId>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.waiting, into);
        for pg in into.iter() {
            state.marked[pg.0 as usize] = false;
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.ready.notify_all();
    }
}
