//! The body of an answer: what the library made of it, with what the request holds until its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::admission::Turn;
use crate::ids::RequestId;
use crate::server::ServerHooks;

/// Counts one request and reports it when it ends, however it ends.
pub(crate) struct Tally<H: ServerHooks> {
    pub(crate) hooks: Arc<H>,
    pub(crate) id: RequestId,
    pub(crate) op: &'static str,
    pub(crate) status: u16,
    pub(crate) started: Instant,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl<H: ServerHooks> Drop for Tally<H> {
    fn drop(&mut self) {
        let micros = self.started.elapsed().as_micros() as u64;
        self.hooks.done(self.op, self.status, micros, self.bytes_in, self.bytes_out);
    }
}

/// What a connection's watch looks at. HTTP/1 answers one request at a time, so one of each is enough.
#[derive(Debug)]
pub(crate) struct Pulse {
    begun: tokio::time::Instant,
    /// Milliseconds from `begun` until the connection became idle, or [`BUSY`].
    idle_since: AtomicU64,
    heads: AtomicU64,
    /// Bytes that may come of a body that nobody reads, before the next head.
    unread: AtomicU64,
    lingers: AtomicBool,
}

/// A request is worked on or answered.
const BUSY: u64 = u64::MAX;

impl Default for Pulse {
    fn default() -> Self {
        Self {
            begun: tokio::time::Instant::now(),
            idle_since: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            lingers: AtomicBool::new(false),
        }
    }
}

impl Pulse {
    /// For how long the connection has had no request. `None` while it has one.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let since = self.idle_since.load(Ordering::Relaxed);
        (since != BUSY).then(|| self.begun.elapsed().saturating_sub(Duration::from_millis(since)))
    }

    /// True while the connection has a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.idle_since.load(Ordering::Relaxed) == BUSY
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

/// A request that is worked on.
#[derive(Debug)]
pub(crate) struct Working(Arc<Pulse>);

impl Working {
    pub(crate) fn begin(pulse: &Arc<Pulse>) -> Self {
        pulse.heads.fetch_add(1, Ordering::Relaxed);
        pulse.unread.store(0, Ordering::Relaxed);
        pulse.idle_since.store(BUSY, Ordering::Relaxed);
        Self(Arc::clone(pulse))
    }

    /// Notes how much of the body still comes, though nobody reads it.
    pub(crate) fn leave_unread(&self, bytes: u64) {
        self.0.unread.store(bytes, Ordering::Relaxed);
    }

    /// Has the connection linger behind the answer.
    pub(crate) fn linger(&self) {
        self.0.lingers.store(true, Ordering::Relaxed);
    }
}

/// A body that is counted, and that keeps the request's turn while it is sent.
pub(crate) struct ReplyBody<H: ServerHooks> {
    inner: s3s::Body,
    tally: Option<Tally<H>>,
    pulse: Arc<Pulse>,
    _turn: Option<Turn>,
}

impl<H: ServerHooks> ReplyBody<H> {
    pub(crate) fn new(
        inner: s3s::Body,
        tally: Tally<H>,
        turn: Option<Turn>,
        working: &Working,
    ) -> Self {
        let pulse = Arc::clone(&working.0);
        Self { inner, tally: Some(tally), pulse, _turn: turn }
    }

    /// A body of a request that nobody counts.
    pub(crate) fn uncounted(inner: s3s::Body, working: &Working) -> Self {
        Self { inner, tally: None, pulse: Arc::clone(&working.0), _turn: None }
    }
}

impl<H: ServerHooks> Drop for ReplyBody<H> {
    fn drop(&mut self) {
        let now = self.pulse.begun.elapsed().as_millis() as u64;
        self.pulse.idle_since.store(now, Ordering::Relaxed);
    }
}

impl<H: ServerHooks> Body for ReplyBody<H> {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let this = &mut *self;
        let frame = std::task::ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let (Some(Ok(frame)), Some(tally)) = (&frame, &mut this.tally) {
            tally.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        if let (Some(Err(error)), Some(tally)) = (&frame, &this.tally) {
            let (id, op, sent) = (tally.id, tally.op, tally.bytes_out);
            tracing::error!(request = %id, op, sent, %error, "an answer broke off");
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
