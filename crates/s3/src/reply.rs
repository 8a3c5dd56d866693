//! The body of an answer: what the library made of it, with what the request holds until its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::admission::Turn;
use crate::gate::Gate;
use crate::ids::RequestId;
use crate::pulse::{Pulse, Working};
use crate::server::ServerHooks;

/// Counts one request and reports it when it ends, however it ends.
pub(crate) struct Tally<H: ServerHooks> {
    pub(crate) hooks: Arc<H>,
    pub(crate) id: RequestId,
    pub(crate) op: &'static str,
    pub(crate) status: u16,
    pub(crate) started: Instant,
    pub(crate) gate: Arc<Gate>,
    pub(crate) bytes_out: u64,
}

impl<H: ServerHooks> Drop for Tally<H> {
    fn drop(&mut self) {
        let micros = self.started.elapsed().as_micros() as u64;
        self.hooks.done(self.op, self.status, micros, self.gate.received(), self.bytes_out);
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
        let pulse = working.pulse();
        Self { inner, tally: Some(tally), pulse, _turn: turn }
    }

    /// A body of a request that nobody counts.
    pub(crate) fn uncounted(inner: s3s::Body, working: &Working) -> Self {
        Self { inner, tally: None, pulse: working.pulse(), _turn: None }
    }
}

impl<H: ServerHooks> Drop for ReplyBody<H> {
    fn drop(&mut self) {
        self.pulse.answered();
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
