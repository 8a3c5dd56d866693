//! The listener's end of a connection: hands requests to their handler and sends its answers.
//!
//! # Invariants
//!
//! 1. Requests that handlers have not answered are bounded in number and in bytes of payload; beyond that they
//!    are answered `Busy` at once.
//! 2. While many bytes of answers wait to be written nothing more is read: a caller that does not read is
//!    not read either. One that takes nothing for long is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::connection::{Beats, Broken, End, Queue, Seen};
use crate::frame::{Frame, FrameError, Header, Kind, Outgoing, Status};
use crate::identity::PeerIdentity;
use crate::limits::{
    ANSWER_BYTES_MAX, HELD_BYTES_MAX, PROTOCOL_CANCELS, REQUESTS_MAX, SILENCE_MAX,
};
use crate::metrics::Metrics;
use crate::service::{Reply, Serve, Unwanted};
use crate::transmit::Batch;

/// Where answers go, from whichever thread.
pub(crate) struct Outlet {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    queue: Queue,
    handling: usize,
    held_bytes: usize,
    ended: bool,
    /// Cancel handlers by request number, of requests without an answer: at most as many as are handled.
    unwanted: BTreeMap<u64, Unwanted>,
}

impl Outlet {
    /// Takes an answer, and what its request held.
    pub(crate) fn reply(&self, frame: Outgoing, held: usize) {
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

    /// Keeps what runs when a request is cancelled; runs it at once if the connection has ended.
    pub(crate) fn when_unwanted(&self, number: u64, then: Unwanted) {
        let mut state = self.state.lock();
        if state.ended {
            drop(state);
            return then();
        }
        state.unwanted.insert(number, then);
    }

    /// The caller has cancelled this request, or one that was answered already.
    fn cancel(&self, number: u64) {
        let unwanted = self.state.lock().unwanted.remove(&number);
        if let Some(then) = unwanted {
            then();
        }
    }

    /// Counts a request; `false` if there are too many.
    fn admit(&self, held: usize) -> bool {
        let mut state = self.state.lock();
        let full = state.handling == REQUESTS_MAX || state.held_bytes + held > HELD_BYTES_MAX;
        if !full {
            state.handling += 1;
            state.held_bytes += held;
        }
        !full
    }
}

/// One connection that was accepted.
pub(crate) struct Serving {
    from: PeerIdentity,
    /// The server whose removal from the cluster ends the connection.
    ends_with: Option<ServerId>,
    service: Arc<dyn Serve>,
    outlet: Arc<Outlet>,
    version: u8,
    metrics: Arc<Metrics>,
    beats: Beats,
    not_understood: bool,
}

impl Serving {
    pub(crate) fn new(
        (from, ends_with): (PeerIdentity, Option<ServerId>),
        service: Arc<dyn Serve>,
        (metrics, beats): (Arc<Metrics>, Beats),
    ) -> Self {
        let version = from.version;
        let state = Mutex::new(State::default());
        let outlet = Arc::new(Outlet { state, metrics: metrics.clone() });
        Self { from, ends_with, service, outlet, version, metrics, beats, not_understood: false }
    }

    /// The server whose removal from the cluster ends the connection.
    pub(crate) fn ends_with(&self) -> Option<ServerId> {
        self.ends_with
    }

    fn request(&self, frame: Frame, batch: &mut Batch) {
        let (number, held) = (frame.header.number, frame.header.payload_len as usize);
        if self.outlet.admit(held) {
            self.metrics.handling.add(1);
            let reply = Reply::new(self.outlet.clone(), (number, self.version), held);
            self.service.request(&self.from, frame, reply);
        } else {
            self.metrics.busy.add(1);
            let mut busy = Outgoing::bare(Kind::Answer, Status::Busy).numbered(number);
            busy.address(self.version);
            batch.push(busy);
        }
    }

    fn message(&mut self, frame: Frame) {
        if self.service.message(&self.from, frame).is_err() {
            self.metrics.dropped.add(1);
            if !std::mem::replace(&mut self.not_understood, true) {
                tracing::warn!(from = %self.from, "a message is not understood: use one release");
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut state = self.outlet.state.lock();
        state.ended = true;
        state.queue.clear();
        let unwanted = std::mem::take(&mut state.unwanted);
        drop(state);
        unwanted.into_values().for_each(|then| then());
    }
}

impl End for Serving {
    fn awake(&mut self) -> Result<(), Broken> {
        drop(self.outlet.state.lock().queue.sleeper());
        Ok(())
    }

    fn receive(&mut self, frame: Frame, batch: &mut Batch) -> Result<(), Broken> {
        match frame.header.kind {
            Kind::Request => self.request(frame, batch),
            Kind::Message => self.message(frame),
            Kind::Ping => {
                let mut pong =
                    Outgoing::bare(Kind::Pong, Status::Done).numbered(frame.header.number);
                pong.address(self.version);
                batch.push_first(pong);
            }
            Kind::Cancel if self.version >= PROTOCOL_CANCELS => {
                self.outlet.cancel(frame.header.number);
            }
            Kind::Cancel | Kind::Hello | Kind::Answer | Kind::Pong | Kind::Goodbye => {
                return Err(Broken::Frame(FrameError::NotDue));
            }
        }
        Ok(())
    }

    fn settle(&mut self) {}

    fn accepts(&self, batch: &Batch) -> bool {
        batch.bytes() + self.outlet.state.lock().queue.bytes() < ANSWER_BYTES_MAX
    }

    fn fill(&mut self, batch: &mut Batch, waker: &Waker) {
        self.outlet.state.lock().queue.fill(batch, self.version, waker, |_| true);
    }

    fn sent(&mut self, _header: &Header) {}

    fn due(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, now: Instant, seen: Seen, batch: &mut Batch) -> Result<Instant, Broken> {
        if seen.is_silent(now) {
            return Err(Broken::Silent);
        }
        if !batch.is_done() && now - seen.wrote >= SILENCE_MAX {
            return Err(Broken::Stalled);
        }
        Ok(self.beats.next(now))
    }
}

#[cfg(test)]
mod tests;
