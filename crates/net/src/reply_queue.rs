//! The answers of one accepted connection: requests that handlers have not answered yet, and answers that wait to be sent.
//!
//! # Invariants
//!
//! 1. Requests that handlers have not answered are bounded in number and in bytes of payload: beyond that none is
//!    admitted.
//! 2. Each request that was admitted gets exactly one reply; [`Status::NoAnswer`] if its handler drops it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::connection::Queue;
use crate::frame::{Kind, Outgoing, Status};
use crate::limits::{HELD_BYTES_MAX, REQUESTS_MAX};
use crate::metrics::Metrics;
use crate::transmit::Batch;

/// Runs when a request is cancelled.
pub(crate) type Unwanted = Box<dyn FnOnce() + Send>;

/// The queue of answers, which handlers fill from any thread.
pub(crate) struct ReplyQueue {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    queue: Queue,
    handling: usize,
    held_bytes: usize,
    ended: bool,
    /// Cancel handlers of unanswered requests, by request number: at most as many as `handling`.
    unwanted: BTreeMap<u64, Unwanted>,
}

impl ReplyQueue {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), metrics })
    }

    /// Queues an answer, and frees the `held` bytes of its request.
    fn reply(&self, frame: Outgoing, held: usize) {
        let mut state = self.state.lock();
        state.handling -= 1;
        state.held_bytes -= held;
        let answered = state.unwanted.remove(&frame.header().number);
        let sleeper = if state.ended { None } else { state.queue.push(frame) };
        drop(state);
        drop(answered);
        self.metrics.handling.sub(1);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Keeps `then` for when the request is cancelled; runs it at once if the connection has ended.
    fn when_unwanted(&self, number: u64, then: Unwanted) {
        let mut state = self.state.lock();
        if state.ended {
            drop(state);
            return then();
        }
        state.unwanted.insert(number, then);
    }

    /// Runs the cancel handler of a request, if it is unanswered and has one.
    pub(crate) fn cancel(&self, number: u64) {
        let unwanted = self.state.lock().unwanted.remove(&number);
        if let Some(then) = unwanted {
            then();
        }
    }

    /// Counts a request. Returns false if too many requests, or too many bytes of them, are unanswered.
    pub(crate) fn admit(&self, held: usize) -> bool {
        let mut state = self.state.lock();
        let full = state.handling == REQUESTS_MAX || state.held_bytes + held > HELD_BYTES_MAX;
        if !full {
            state.handling += 1;
            state.held_bytes += held;
        }
        !full
    }

    /// Notes that the connection's task runs: an answer that is queued from now on need not wake it.
    pub(crate) fn awake(&self) {
        drop(self.state.lock().queue.sleeper());
    }

    /// Bytes of answers that wait to be sent.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().queue.bytes()
    }

    /// Moves answers that wait into the batch. If there is none, keeps the waker, to wake the task when one comes.
    pub(crate) fn fill(&self, batch: &mut Batch, version: u8, waker: &Waker) {
        self.state.lock().queue.fill(batch, version, waker, |_| true);
    }

    /// Ends with the connection: drops answers, and runs the cancel handlers of unanswered requests.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.queue.clear();
        let unwanted = std::mem::take(&mut state.unwanted);
        drop(state);
        unwanted.into_values().for_each(|then| then());
    }
}

/// The duty to reply to one request: dropped, it replies that there is no answer.
pub(crate) struct Reply {
    reply_queue: Arc<ReplyQueue>,
    number: u64,
    version: u8,
    /// Bytes of payload that were counted as held.
    held: usize,
    owed: bool,
}

impl Reply {
    pub(crate) fn new(
        reply_queue: Arc<ReplyQueue>,
        (number, version): (u64, u8),
        held: usize,
    ) -> Self {
        Self { reply_queue, number, version, held, owed: true }
    }

    /// Number of the request.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Version of the protocol that is spoken with the caller.
    pub(crate) fn version(&self) -> u8 {
        self.version
    }

    /// Runs `then` when the request is cancelled, or at once if the connection has ended.
    pub(crate) fn when_unwanted(&self, then: Unwanted) {
        self.reply_queue.when_unwanted(self.number, then);
    }

    pub(crate) fn send(&mut self, frame: Outgoing) {
        self.owed = false;
        self.reply_queue.reply(frame.numbered(self.number), self.held);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.owed {
            self.send(Outgoing::bare(Kind::Answer, Status::NoAnswer));
        }
    }
}
