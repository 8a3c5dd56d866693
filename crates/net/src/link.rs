//! The caller's end of the connection to one peer: calls and messages that wait, and the task that connects, sends and
//! receives.
//!
//! ```text
//!            traffic               breaks, or cannot be made
//!   Idle ──────────────▶ Running ────────────────────────────▶ Paused
//!                           ▲                                    │
//!                           └── traffic after the pause ─────────┘
//! ```
//!
//! # Invariants
//!
//! 1. There is a task exactly while the phase is `Running`. When it ends, all callers have their outcome and the queue is
//!    empty: no frame outlives its connection, so none is sent twice.
//! 2. Frames leave in the order in which they were queued. A call that its caller gave up while it was queued does not
//!    leave at all.
//! 3. A connection is made for traffic alone, and not before the pause after the last failure is over. Pauses are exponential
//!    backoff with jitter, between half and all of each, so that callers do not all return to a server at once.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::calls::{Calls, Cancelled, Ended, Outcome, Waiting};
use crate::connection::{Broken, End, LastSeen, Queue, Wire, run};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Denied, NotSent, Refused, SendError, Side, Unknown};
use crate::frame::{Frame, FrameError, Header, Kind, Outgoing, Status};
use crate::hello::decode_goodbye;
use crate::limits::{
    BACKOFF_MAX, BACKOFF_MIN, PROTOCOL_CANCELS, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, TICK,
    UNTOLD_FAILURES,
};
use crate::metrics::{Metrics, Opened};
use crate::target::Target;
use crate::transmit::Batch;

/// The reason why the last connection could not be made, or broke.
#[derive(Debug, Clone)]
enum Failure {
    Unreachable(Arc<str>),
    Denied(Denied),
}

impl Failure {
    fn of(broken: &Broken) -> Self {
        match broken {
            Broken::Denied(denied) => Self::Denied(denied.clone()),
            other => Self::Unreachable(other.to_string().into()),
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(why) => Self::NotSent(NotSent::Unreachable(why)),
            Failure::Denied(denied) => Self::Denied(denied),
        }
    }
}

#[derive(Debug)]
enum Phase {
    Idle,
    Running,
    Paused { until: Instant, failure: Failure },
}

#[derive(Debug)]
struct State {
    phase: Phase,
    calls: Calls,
    queue: Queue,
    failures: u32,
    /// The reason for which the last attempt was refused, if it was.
    denied: Option<Refused>,
    /// Nobody can call any more.
    unused: bool,
}

/// The calls and messages that wait for one peer.
pub(crate) struct Link {
    endpoint: Arc<Endpoint>,
    target: Target,
    state: Mutex<State>,
}

impl Link {
    pub(crate) fn new(endpoint: Arc<Endpoint>, target: Target) -> Arc<Self> {
        let state = State {
            phase: Phase::Idle,
            calls: Calls::default(),
            queue: Queue::default(),
            failures: 0,
            denied: None,
            unused: false,
        };
        Arc::new(Self { endpoint, target, state: Mutex::new(state) })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.endpoint.metrics()
    }

    /// Queues a request. Returns its number, which [`cancel`](Self::cancel) takes, and the receiver of its outcome.
    pub(crate) fn call(
        self: &Arc<Self>,
        frame: Outgoing,
        deadline: Instant,
    ) -> Result<(u64, oneshot::Receiver<Outcome>), CallError> {
        let since = Instant::now();
        if deadline <= since {
            return Err(CallError::NotSent(NotSent::Late));
        }
        let mut state = self.state.lock();
        self.begin(&mut state)?;
        let (answer, receiver) = oneshot::channel();
        let number = match state.queue.takes(&frame) {
            true => state.calls.enter(Waiting { answer, deadline, since }),
            false => None,
        };
        let Some(number) = number else {
            drop(state);
            self.metrics().busy.add(1);
            return Err(CallError::Busy(Side::Here));
        };
        self.metrics().in_flight.add(1);
        let sleeper = state.queue.push(frame.numbered(number));
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        Ok((number, receiver))
    }

    /// Cancels a request whose caller no longer waits. A request whose frame is not being sent yet is never sent. Otherwise
    /// the peer is told, if its version has cancels and the queue has room. A cancel may be lost: it only saves the peer
    /// work.
    pub(crate) fn cancel(&self, number: u64) {
        let mut state = self.state.lock();
        let frame = Outgoing::bare(Kind::Cancel, Status::Done).numbered(number);
        let sleeper = match state.calls.cancel(number) {
            Cancelled::Before => {
                drop(state);
                return self.metrics().in_flight.sub(1);
            }
            Cancelled::UnderWay if state.queue.takes(&frame) => state.queue.push(frame),
            Cancelled::UnderWay | Cancelled::Over => None,
        };
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Queues a message.
    pub(crate) fn send(self: &Arc<Self>, frame: Outgoing) -> Result<(), SendError> {
        let mut state = self.state.lock();
        let begun = self.begin(&mut state).map_err(|failure| match failure {
            Failure::Unreachable(why) => SendError::Unreachable(why),
            Failure::Denied(denied) => SendError::Denied(denied),
        });
        let taken = begun.and_then(|()| match state.queue.takes(&frame) {
            true => Ok(()),
            false => Err(SendError::Busy),
        });
        if taken.is_err() {
            drop(state);
            self.metrics().dropped.add(1);
            return taken;
        }
        let sleeper = state.queue.push(frame);
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        Ok(())
    }

    /// Closes the connection, as the last [`Peer`](crate::Peer) of this link is gone.
    pub(crate) fn unused(&self) {
        let mut state = self.state.lock();
        state.unused = true;
        let sleeper = state.queue.sleeper();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Makes sure that a task runs; fails during the pause after a failure.
    fn begin(self: &Arc<Self>, state: &mut State) -> Result<(), Failure> {
        match &state.phase {
            Phase::Running => return Ok(()),
            Phase::Paused { until, failure } if Instant::now() < *until => {
                return Err(failure.clone());
            }
            Phase::Idle | Phase::Paused { .. } => {}
        }
        assert!(state.queue.len() == 0 && state.calls.len() == 0, "nothing waits without a task");
        state.phase = Phase::Running;
        drop(self.endpoint.runtime().spawn(self.clone().serve()));
        Ok(())
    }

    /// Runs the task, for one connection.
    async fn serve(self: Arc<Self>) {
        match self.connect().await {
            Ok(mut wire) => {
                let broken = self.work(&mut wire).await;
                let why = broken.to_string().into();
                self.end(&broken, &CallError::NotSent(NotSent::Broken(why)));
            }
            Err(broken) => {
                self.log_failure(&broken);
                let not_sent = Failure::of(&broken).into();
                self.end(&broken, &not_sent);
            }
        }
    }

    /// Sends and receives until the connection breaks.
    async fn work(&self, wire: &mut Wire) -> Broken {
        let since = Instant::now();
        self.metrics().connected.add(1);
        self.state.lock().denied = None;
        let open = Opened::new(self.metrics());
        let version = wire.version();
        let mut calling = Calling::new(self, version);
        let broken = tokio::select! {
            biased;
            denied = self.endpoint.removal(self.target.server) => Broken::Denied(denied),
            denied = std::future::poll_fn(|_| self.endpoint.outdated(version)) => Broken::Denied(denied),
            broken = run(wire, &mut calling) => broken,
        };
        drop(open);
        if !matches!(broken, Broken::Unused) {
            self.metrics().broken.add(1);
            let (server, role) = (self.target.server, self.target.role);
            tracing::info!(%server, %role, %broken, "a connection broke");
        }
        if since.elapsed() >= BACKOFF_MAX {
            self.state.lock().failures = 0;
        }
        broken
    }

    fn log_failure(&self, broken: &Broken) {
        let (server, role, address) = (self.target.server, self.target.role, &self.target.address);
        match broken {
            Broken::Denied(denied) => {
                self.metrics().refuse(denied.reason);
                let before = self.state.lock().denied.replace(denied.reason);
                // Attempts go on, and what refused one refuses them all until somebody mends it.
                match before == Some(denied.reason) {
                    false => {
                        tracing::warn!(%server, %role, %address, %denied, "a connection was refused");
                    }
                    true => {
                        tracing::debug!(%server, %role, %address, %denied, "a connection was refused");
                    }
                }
            }
            Broken::Unused => {}
            broken => {
                self.metrics().unreachable.add(1);
                // Servers that are started one after the other cause such failures, and so does one that is away until it
                // is back: one line is enough.
                match self.state.lock().failures {
                    UNTOLD_FAILURES => {
                        tracing::info!(%server, %role, %address, %broken, "cannot connect")
                    }
                    _ => tracing::debug!(%server, %role, %address, %broken, "cannot connect"),
                }
            }
        }
    }

    /// Connects, and meanwhile ends calls whose deadline passes.
    async fn connect(&self) -> Result<Wire, Broken> {
        let connecting = self.endpoint.connect(&self.target);
        let mut connecting = std::pin::pin!(connecting);
        let mut tick = tokio::time::interval(TICK);
        std::future::poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {
                let _due = self.expire(Instant::now());
            }
            let mut state = self.state.lock();
            if state.unused {
                return Poll::Ready(Err(Broken::Unused));
            }
            state.queue.wake_later(cx.waker());
            drop(state);
            connecting.as_mut().poll(cx)
        })
        .await
    }

    /// Ends calls whose deadline has passed. Returns the next deadline.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut ended = Vec::new();
        let mut state = self.state.lock();
        state.calls.expire(now, &mut ended);
        let due = state.calls.due();
        drop(state);
        self.tell(ended);
        due
    }

    /// Ends all calls, drops queued frames, and begins the pause, as the connection broke or could not be made.
    fn end(&self, broken: &Broken, not_sent: &CallError) {
        let mut ended = Vec::new();
        let failure = Failure::of(broken);
        let unknown = Unknown::Broken(broken.to_string().into());
        let mut state = self.state.lock();
        state.calls.fail(not_sent, unknown, &mut ended);
        let dropped = state.queue.clear();
        let until = Instant::now() + pause(state.failures, || self.endpoint.draw());
        state.failures = state.failures.saturating_add(1);
        state.phase = Phase::Paused { until, failure };
        drop(state);
        self.metrics().dropped.add(dropped as u64);
        self.tell(ended);
    }

    fn tell(&self, ended: Ended) {
        self.metrics().in_flight.sub(ended.len() as u64);
        for (waiting, outcome) in ended {
            // It fails if the caller no longer waits.
            drop(waiting.answer.send(outcome));
        }
    }
}

/// The pause after a failure, by the number of failures in a row before it: none after the first.
fn pause(failures: u32, draw: impl FnOnce() -> Option<u16>) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let longest =
        BACKOFF_MIN.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(BACKOFF_MAX);
    // Without randomness the pause is half as long: randomness only spreads the attempts.
    let Some(drawn) = draw() else { return longest / 2 };
    let part = f64::from(drawn) / f64::from(u16::MAX);
    longest.mul_f64(0.5 + part / 2.0)
}

/// The caller's end of an open connection.
struct Calling<'a> {
    link: &'a Link,
    version: u8,
    /// Answers received in this turn.
    answers: Vec<Frame>,
    answered: Vec<(Waiting, Frame)>,
    due: Option<Instant>,
    ping_at: Instant,
    pings: u64,
}

impl<'a> Calling<'a> {
    fn new(link: &'a Link, version: u8) -> Self {
        Self {
            link,
            version,
            answers: Vec::new(),
            answered: Vec::new(),
            due: None,
            ping_at: link.endpoint.ping_schedule().next(Instant::now()),
            pings: 0,
        }
    }
}

impl End for Calling<'_> {
    fn awake(&mut self) -> Result<(), Broken> {
        let mut state = self.link.state.lock();
        drop(state.queue.sleeper());
        if state.unused { Err(Broken::Unused) } else { Ok(()) }
    }

    fn receive(&mut self, frame: Frame, _batch: &mut Batch) -> Result<(), Broken> {
        match frame.header.kind {
            Kind::Answer => self.answers.push(frame),
            Kind::Pong => {}
            Kind::Goodbye => return Err(decode_goodbye(&frame)),
            Kind::Hello | Kind::Request | Kind::Message | Kind::Ping | Kind::Cancel => {
                return Err(Broken::Frame(FrameError::NotDue));
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let mut state = self.link.state.lock();
        for frame in self.answers.drain(..) {
            // An answer that came too late, or to a call that was cancelled, has no caller.
            if let Some(waiting) = state.calls.leave(frame.header.number) {
                self.answered.push((waiting, frame));
            }
        }
        drop(state);
        let metrics = self.link.metrics();
        metrics.in_flight.sub(self.answered.len() as u64);
        let now = Instant::now();
        for (waiting, frame) in self.answered.drain(..) {
            if frame.header.status == Status::Busy {
                metrics.busy.add(1);
            }
            metrics.round_trips(self.link.target.role).took(now - waiting.since);
            drop(waiting.answer.send(Ok(frame)));
        }
    }

    fn accepts(&self, _batch: &Batch) -> bool {
        true
    }

    fn fill(&mut self, batch: &mut Batch, waker: &Waker) {
        let mut guard = self.link.state.lock();
        let State { calls, queue, .. } = &mut *guard;
        let tells = self.version >= PROTOCOL_CANCELS;
        let wanted = |header: &Header| match header.kind {
            Kind::Request => {
                let is_wanted = calls.wanted(header.number);
                if is_wanted {
                    calls.begun(header.number);
                }
                is_wanted
            }
            // A cancel of a call that was answered meanwhile is not sent.
            Kind::Cancel => tells && calls.waits(header.number),
            _ => true,
        };
        queue.fill(batch, self.version, waker, wanted);
        self.due = calls.due();
    }

    fn sent(&mut self, header: &Header) {
        if header.kind == Kind::Request {
            self.link.state.lock().calls.sent(header.number);
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn tick(&mut self, now: Instant, seen: LastSeen, batch: &mut Batch) -> Result<Instant, Broken> {
        self.due = self.link.expire(now);
        if seen.is_silent(now) {
            return Err(Broken::Silent);
        }
        let is_due = now >= self.ping_at;
        if is_due {
            self.ping_at = self.link.endpoint.ping_schedule().next(now);
        }
        if is_due && !seen.is_lively(now) {
            self.pings += 1;
            let mut ping = Outgoing::bare(Kind::Ping, Status::Done).numbered(self.pings);
            ping.address(self.version);
            batch.push_first(ping);
        }
        Ok(self.ping_at)
    }
}

impl Queue {
    /// Returns true if there is room for the frame.
    fn takes(&self, frame: &Outgoing) -> bool {
        self.len() < QUEUE_MESSAGES_MAX && self.bytes() + frame.len() <= QUEUE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
