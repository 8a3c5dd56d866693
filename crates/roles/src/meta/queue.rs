//! A queue of PGs for a thread.
//!
//! # Invariants
//!
//! 1. The thread is woken for each PG that is queued while it waits, at the latest when the queue is held no more.

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
    /// Threads that hold the queue: they are about to queue more.
    holders: u32,
    stopped: bool,
}

/// Holds a queue. Dropped, it wakes the thread if PGs wait.
pub(super) struct Held<'a>(&'a PgQueue);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.holders -= 1;
        let wakes = state.holders == 0 && !state.waiting.is_empty();
        drop(state);
        if wakes {
            self.0.ready.notify_one();
        }
    }
}

impl PgQueue {
    pub(super) fn new(pg_count: usize) -> Self {
        let (waiting, marked) = (Vec::new(), vec![false; pg_count]);
        let state = PgQueueState { waiting, marked, holders: 0, stopped: false };
        Self { state: Mutex::new(state), ready: Condvar::new() }
    }

    pub(super) fn push(&self, pg: PgId) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.marked[pg.0 as usize], true) {
            state.waiting.push(pg);
            if state.waiting.len() == 1 && state.holders == 0 {
                drop(state);
                self.ready.notify_one();
            }
        }
    }

    /// Has the thread sleep on while the caller queues several PGs one after the other. Each time that it wakes it would wait
    /// for the lock of the PG that the caller steps just then.
    pub(super) fn hold(&self) -> Held<'_> {
        self.state.lock().holders += 1;
        Held(self)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_waits_is_woken_when_the_queue_is_held_no_more() {
        let queue = Arc::new(PgQueue::new(3));
        let (takes, (taken_in, taken)) = (queue.clone(), channel());
        let thread = std::thread::spawn(move || {
            let mut pgs = Vec::new();
            while takes.take(&mut pgs).is_some() {
                pgs.drain(..).for_each(|pg| taken_in.send(pg).unwrap());
            }
        });
        for _ in 0..1000 {
            let (held, again) = (queue.hold(), queue.hold());
            queue.push(PgId(1));
            drop(again);
            queue.push(PgId(2));
            drop(held);
            let mut pgs = [(); 2].map(|()| taken.recv_timeout(Duration::from_secs(60)).unwrap());
            pgs.sort();
            assert_eq!(pgs, [PgId(1), PgId(2)]);
        }
        queue.stop();
        thread.join().unwrap();
    }
}
