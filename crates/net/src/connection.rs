//! One connection: reads, writes and timers of one of its ends, in one task.
//!
//! One task for both directions, so that requests which arrive together are answered together. A read of many
//! requests ends in one vectored write of their answers, and no other task is woken in between.
//!
//! A connection is directed. Requests and messages go from the end that opened it, answers come back, and two
//! servers that both call have two connections. So the opener can always read, however much it has to write. A
//! listener that reads nothing until its answers have left therefore never deadlocks with its caller.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use larder_identity::Role;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream};
use tokio::time::{Instant, Sleep};

use crate::error::Denied;
use crate::frame::{Bounds, Frame, FrameError, Header, Outgoing};
use crate::limits::{
    BATCH_BYTES_MAX, PING_INTERVAL, RECEIVED_PER_TURN_MAX, SILENCE_MAX, TICK, TURNS_MAX,
};
use crate::metrics::{ConnectionSide, Metrics};
use crate::receive::Receiver;
use crate::transmit::Batch;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("{}", io_reason(.0))]
    Io(#[from] io::Error),
    #[error("the peer sent {0}")]
    Frame(FrameError),
    #[error("the peer closed it")]
    Closed,
    #[error("the peer was silent")]
    Silent,
    #[error("the peer reads nothing")]
    Stalled,
    #[error("it is not used any more")]
    Unused,
    #[error("the server that is meant is not here, or not yet")]
    Absent,
    #[error("{0}")]
    Denied(Denied),
}

/// Names the reason of a failed read or write. A process that dies sends no end of its TLS stream: it closed the connection.
fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Broken::Closed.to_string(),
        _ => error.to_string(),
    }
}

/// The stream that a connection's bytes go through.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Replaces the stream that was opened by the one to use.
type Wrap = dyn Fn(Box<dyn Duplex>) -> Box<dyn Duplex> + Send + Sync;

static WRAP: OnceLock<Box<Wrap>> = OnceLock::new();

/// From now on has `wrap` replace the stream of each new connection of this process that goes through a socket: a seam for
/// measurements, such as over a longer way. No configuration reaches it, and the shipped program puts nothing there.
///
/// # Panics
/// If it is called twice.
pub fn wrap_sockets(wrap: impl Fn(Box<dyn Duplex>) -> Box<dyn Duplex> + Send + Sync + 'static) {
    assert!(WRAP.set(Box::new(wrap)).is_ok(), "the sockets of a process are wrapped once");
}

/// A socket with the frames that go in and out of it.
pub(crate) struct Wire {
    socket: Box<dyn Duplex>,
    receiver: Receiver,
    batch: Batch,
    metrics: Arc<Metrics>,
    /// The service to which its bytes count, and this end of it, once these are agreed on.
    carries: Option<(Role, ConnectionSide)>,
    seen: LastSeen,
}

/// The times at which the peer last showed that it lives, and this end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastSeen {
    /// The last time at which bytes came, or this end began to read again.
    pub(crate) received: Instant,
    /// The last time at which the socket took bytes, or first had some to take.
    pub(crate) wrote: Instant,
    /// The peer is in this process: its end closes when it dies, so no ping is needed.
    pub(crate) is_local: bool,
}

impl LastSeen {
    /// Returns true if bytes went both ways within the last quarter of a [`PING_INTERVAL`], so that each end knows that
    /// the other lives.
    pub(crate) fn is_lively(&self, now: Instant) -> bool {
        let lately = |at: Instant| now.saturating_duration_since(at) < PING_INTERVAL / 4;
        self.is_local || lately(self.received) && lately(self.wrote)
    }

    /// Returns true if the peer has been silent for so long that the connection is given up.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        !self.is_local && now - self.received >= SILENCE_MAX
    }
}

impl Wire {
    pub(crate) fn new(socket: Box<dyn Duplex>, metrics: Arc<Metrics>) -> Self {
        let socket = match WRAP.get() {
            Some(wrap) => wrap(socket),
            None => socket,
        };
        Self::through(socket, metrics, false)
    }

    fn through(socket: Box<dyn Duplex>, metrics: Arc<Metrics>, is_local: bool) -> Self {
        let now = Instant::now();
        let seen = LastSeen { received: now, wrote: now, is_local };
        let (receiver, batch) = (Receiver::new(), Batch::default());
        Self { socket, receiver, batch, metrics, carries: None, seen }
    }

    /// One end of a connection within the process.
    pub(crate) fn local(pipe: DuplexStream, metrics: Arc<Metrics>) -> Self {
        Self::through(Box::new(pipe), metrics, true)
    }

    /// Accepts frames of this version alone from now on.
    pub(crate) fn agreed(&mut self, version: u8) {
        self.receiver.agreed(Bounds::agreed(version));
    }

    /// Its bytes count as those of a service from now on.
    pub(crate) fn carries(&mut self, service: Option<Role>, stands: ConnectionSide) {
        self.carries = service.map(|service| (service, stands));
    }

    pub(crate) fn version(&self) -> u8 {
        self.receiver.version()
    }

    /// Returns the socket, of which nothing was read that is not a frame.
    ///
    /// # Errors
    /// If the peer has said something behind its last frame.
    pub(crate) fn into_stream(self) -> Result<Box<dyn Duplex>, FrameError> {
        assert!(self.batch.is_done(), "frames that were said have left");
        if self.receiver.is_empty() { Ok(self.socket) } else { Err(FrameError::NotDue) }
    }

    /// Returns the socket that carries the frames.
    #[cfg(test)]
    pub(crate) fn into_socket(self) -> Box<dyn Duplex> {
        self.socket
    }

    /// Sends one frame.
    pub(crate) async fn send_frame(&mut self, frame: Outgoing) -> Result<(), Broken> {
        self.batch.push(frame);
        while !self.batch.is_done() {
            poll_fn(|cx| self.poll_transmit(cx, &mut |_| {})).await?;
        }
        Ok(())
    }

    /// Receives one frame.
    pub(crate) async fn receive_frame(&mut self) -> Result<Frame, Broken> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Broken>> {
        loop {
            if let Some(frame) = self.receiver.frame().map_err(Broken::Frame)? {
                self.metrics.received.add(1);
                return Poll::Ready(Ok(frame));
            }
            let read = pin!(self.socket.read_buf(self.receiver.room()));
            let bytes = ready!(read.poll(cx))?;
            if bytes == 0 {
                return Poll::Ready(Err(Broken::Closed));
            }
            self.metrics.traffic_of(self.carries).received.add(bytes as u64);
            self.seen.received = Instant::now();
        }
    }

    fn poll_transmit(
        &mut self,
        cx: &mut Context<'_>,
        sent: &mut dyn FnMut(&Header),
    ) -> Poll<Result<(), Broken>> {
        let metrics = &self.metrics;
        let written = ready!(self.batch.poll_write(&mut self.socket, cx, &mut |header| {
            metrics.sent.add(1);
            sent(header);
        }))?;
        self.metrics.traffic_of(self.carries).sent.add(written as u64);
        self.seen.wrote = Instant::now();
        Poll::Ready(Ok(()))
    }
}

/// The times at which all connections of an endpoint are checked and pinged. They are the same for all, and for all
/// endpoints of a process, so that an idle machine wakes once for all of its connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PingSchedule {
    since: Instant,
}

impl PingSchedule {
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now() }
    }

    /// Those of all endpoints of this process. Simulations, of which each repeats, have their own.
    pub(crate) fn of_process() -> Self {
        static BEATS: OnceLock<PingSchedule> = OnceLock::new();
        *BEATS.get_or_init(Self::begin)
    }

    /// The first beat after `now`, a [`PING_INTERVAL`] later at most.
    pub(crate) fn next(self, now: Instant) -> Instant {
        // A paused clock may be ahead of that of a runtime that begins later.
        let ahead = self.since.saturating_duration_since(now).as_nanos();
        if ahead > 0 {
            let left = (ahead - 1) % PING_INTERVAL.as_nanos() + 1;
            return now + Duration::from_nanos(left as u64);
        }
        let passed = now.saturating_duration_since(self.since).as_nanos();
        let ping_schedule = passed / PING_INTERVAL.as_nanos() + 1;
        self.since + PING_INTERVAL.saturating_mul(u32::try_from(ping_schedule).unwrap_or(u32::MAX))
    }
}

/// The part that one end of a connection does; [`run`] does the rest.
pub(crate) trait End {
    /// The task begins to run: a caller that queues a frame from now on need not wake it.
    fn awake(&mut self) -> Result<(), Broken>;
    /// Takes a frame. Replies that must leave before all else go into the batch.
    fn receive(&mut self, frame: Frame, batch: &mut Batch) -> Result<(), Broken>;
    /// Ends a turn's receiving: acts on the frames that it received.
    fn settle(&mut self);
    /// Returns true if the connection may read on while this batch waits to be sent.
    fn accepts(&self, batch: &Batch) -> bool;
    /// Moves frames that wait into the batch. If none does, keeps the waker, to wake the task when one comes.
    fn fill(&mut self, batch: &mut Batch, waker: &Waker);
    /// Notes that a frame was sent whole.
    fn sent(&mut self, header: &Header);
    /// The earliest deadline. [`End::tick`] runs within a tick after it.
    fn due(&self) -> Option<Instant>;
    /// Acts on deadlines, silence and pings; returns the latest time of the next look.
    fn tick(&mut self, now: Instant, seen: LastSeen, batch: &mut Batch) -> Result<Instant, Broken>;
}

/// Runs one end until the connection breaks.
pub(crate) async fn run<E: End>(wire: &mut Wire, end: &mut E) -> Broken {
    let now = Instant::now();
    let sleep = pin!(tokio::time::sleep_until(now));
    let mut clock = Clock { sleep, reading: true };
    poll_fn(|cx| match poll(wire, end, &mut clock, cx) {
        Ok(()) => Poll::Pending,
        Err(broken) => Poll::Ready(broken),
    })
    .await
}

struct Clock<'a> {
    sleep: Pin<&'a mut Sleep>,
    reading: bool,
}

fn poll<E: End>(
    wire: &mut Wire,
    end: &mut E,
    clock: &mut Clock<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Broken> {
    end.awake()?;
    let mut rests = false;
    for _ in 0..TURNS_MAX {
        let received_all = receive(wire, end, clock, cx)?;
        end.settle();
        let sent_all = transmit(wire, end, cx)?;
        // A full socket wakes the task; after that there may be room to read more.
        rests = received_all || (!clock.reading && !sent_all);
        if rests {
            break;
        }
    }
    if !rests {
        cx.waker().wake_by_ref();
    }
    check_clock(wire, end, clock, cx)
}

/// Receives frames that have arrived, up to a bound. Returns true if those were all.
fn receive<E: End>(
    wire: &mut Wire,
    end: &mut E,
    clock: &mut Clock<'_>,
    cx: &mut Context<'_>,
) -> Result<bool, Broken> {
    for _ in 0..RECEIVED_PER_TURN_MAX {
        let reads = end.accepts(&wire.batch);
        if reads && !clock.reading {
            wire.seen.received = Instant::now();
        }
        clock.reading = reads;
        if !reads {
            return Ok(false);
        }
        match wire.poll_receive(cx) {
            Poll::Ready(frame) => end.receive(frame?, &mut wire.batch)?,
            Poll::Pending => return Ok(true),
        }
    }
    Ok(false)
}

/// Sends frames that wait. Returns true if the socket took them all.
fn transmit<E: End>(wire: &mut Wire, end: &mut E, cx: &mut Context<'_>) -> Result<bool, Broken> {
    loop {
        if wire.batch.is_empty() {
            let rested = wire.batch.is_done();
            end.fill(&mut wire.batch, cx.waker());
            if wire.batch.is_done() {
                return Ok(true);
            }
            if rested {
                wire.seen.wrote = Instant::now();
            }
        }
        match wire.poll_transmit(cx, &mut |header| end.sent(header)) {
            Poll::Ready(written) => written?,
            Poll::Pending => return Ok(false),
        }
        if !wire.batch.is_done() {
            return Ok(false);
        }
    }
}

fn check_clock<E: End>(
    wire: &mut Wire,
    end: &mut E,
    clock: &mut Clock<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Broken> {
    // A call may have come with an earlier deadline than all others.
    let planned = clock.sleep.deadline();
    if end.due().is_some_and(|due| due + TICK < planned || !wire.batch.is_done()) {
        clock.sleep.as_mut().reset(next_check(wire, end, planned));
    }
    while clock.sleep.as_mut().poll(cx).is_ready() {
        let now = Instant::now();
        if !clock.reading {
            wire.seen.received = now;
        }
        let next = end.tick(now, wire.seen, &mut wire.batch)?;
        transmit(wire, end, cx)?;
        clock.sleep.as_mut().reset(next_check(wire, end, next));
    }
    Ok(())
}

/// The time of the next check of the clock. While the socket is blocked, new calls do not wake the task, so it checks
/// for late ones at each tick.
fn next_check<E: End>(wire: &Wire, end: &E, latest: Instant) -> Instant {
    let next_tick = Instant::now() + TICK;
    match end.due() {
        Some(_) if !wire.batch.is_done() => latest.min(next_tick),
        Some(due) => latest.min(next_tick.max(due)),
        None => latest,
    }
}

/// Frames that wait for a connection's task, which sleeps while there are none.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    frames: VecDeque<Outgoing>,
    bytes: usize,
    sleeper: Option<Waker>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a frame. Returns the waker of the task if that sleeps; call it once no lock is held.
    #[must_use]
    pub(crate) fn push(&mut self, frame: Outgoing) -> Option<Waker> {
        self.bytes += frame.len();
        self.frames.push_back(frame);
        self.sleeper.take()
    }

    /// Moves up to a batch of frames that are still wanted; keeps the waker if there is none.
    pub(crate) fn fill(
        &mut self,
        batch: &mut Batch,
        version: u8,
        waker: &Waker,
        mut wanted: impl FnMut(&Header) -> bool,
    ) {
        while batch.bytes() < BATCH_BYTES_MAX
            && let Some(mut frame) = self.frames.pop_front()
        {
            self.bytes -= frame.len();
            if wanted(frame.header()) {
                frame.address(version);
                batch.push(frame);
            }
        }
        if batch.is_empty() {
            self.wake_later(waker);
        }
    }

    pub(crate) fn wake_later(&mut self, waker: &Waker) {
        if !self.sleeper.as_ref().is_some_and(|sleeper| sleeper.will_wake(waker)) {
            self.sleeper = Some(waker.clone());
        }
    }

    /// Takes the waker of a task that sleeps: the task is awake now, or the caller wakes it for another reason than a frame.
    pub(crate) fn sleeper(&mut self) -> Option<Waker> {
        self.sleeper.take()
    }

    /// Drops all frames. Returns the number of messages among them.
    pub(crate) fn clear(&mut self) -> usize {
        self.bytes = 0;
        let messages = self.frames.iter().filter(|frame| frame.is_message()).count();
        self.frames.clear();
        messages
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    thread_local! {
        /// The hook is there for all tests of this program: it changes the sockets of a thread that says so.
        static IS_WRAPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    #[tokio::test]
    async fn a_connection_goes_through_what_the_hook_makes_of_its_socket() {
        wrap_sockets(|socket| match IS_WRAPPED.get() {
            // It ends at once.
            true => Box::new(duplex(1).0),
            false => socket,
        });
        let ((near, _far), (here, there)) = (duplex(64), duplex(64));
        IS_WRAPPED.set(true);
        let mut wire = Wire::new(Box::new(near), Arc::default());
        let mut local = Wire::local(here, Arc::default());
        IS_WRAPPED.set(false);
        let recorded = timeout(Duration::from_secs(60), wire.receive_frame()).await.unwrap();
        assert!(matches!(recorded, Err(Broken::Closed)));
        let recorded = timeout(Duration::from_millis(10), local.receive_frame()).await;
        assert!(recorded.is_err(), "one within the process is left as it is");
        drop(there);
        assert!(matches!(local.receive_frame().await, Err(Broken::Closed)));
    }

    #[test]
    fn a_stream_that_ends_without_notice_reads_as_closed_by_the_peer() {
        let error = |kind, text: &str| Broken::from(io::Error::new(kind, text)).to_string();
        assert_eq!(error(io::ErrorKind::UnexpectedEof, "no close_notify"), "the peer closed it");
        assert_eq!(error(io::ErrorKind::ConnectionReset, "reset by the peer"), "reset by the peer");
    }

    /// One that waits for something, and says nothing.
    struct Waits {
        due: Instant,
        looks: u32,
        /// The time of the look at what is late, once there was one.
        late: Option<Instant>,
    }

    impl End for Waits {
        fn awake(&mut self) -> Result<(), Broken> {
            Ok(())
        }

        fn receive(&mut self, _: Frame, _: &mut Batch) -> Result<(), Broken> {
            Ok(())
        }

        fn settle(&mut self) {}

        fn accepts(&self, _: &Batch) -> bool {
            true
        }

        fn fill(&mut self, _: &mut Batch, _: &Waker) {}

        fn sent(&mut self, _: &Header) {}

        fn due(&self) -> Option<Instant> {
            self.late.is_none().then_some(self.due)
        }

        fn tick(&mut self, now: Instant, _: LastSeen, _: &mut Batch) -> Result<Instant, Broken> {
            self.looks += 1;
            if now >= self.due {
                self.late = self.late.or(Some(now));
            }
            Ok(now + PING_INTERVAL)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn beats_of_an_endpoint_are_one_interval_apart_whenever_one_asks() {
        let ping_schedule = PingSchedule::begin();
        let begun = Instant::now();
        let after = |ms| ping_schedule.next(begun + Duration::from_millis(ms)) - begun;
        assert_eq!(after(0), PING_INTERVAL);
        assert_eq!((after(999), after(1000), after(1001)), (after(0), after(0) * 2, after(0) * 2));
        assert_eq!(ping_schedule.next(begun - Duration::from_millis(5)), begun);
        assert_eq!(ping_schedule.next(begun - PING_INTERVAL), begun);
        let earlier = begun - PING_INTERVAL - Duration::from_millis(5);
        assert_eq!(ping_schedule.next(earlier), begun - PING_INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_long_is_looked_at_seldom_and_in_time_when_it_is_late() {
        let (ours, _theirs) = duplex(1024);
        let mut wire = Wire::new(Box::new(ours), Arc::default());
        let due = Instant::now() + Duration::from_millis(7_345);
        let mut end = Waits { due, looks: 0, late: None };
        let runs = timeout(Duration::from_secs(10), run(&mut wire, &mut end)).await;
        assert!(runs.is_err(), "it goes on");
        let late = end.late.expect("it was late");
        assert!((due..=due + 2 * TICK).contains(&late), "{:?} later", late - due);
        assert!(end.looks <= 14, "{} looks in ten seconds", end.looks);
    }
}
