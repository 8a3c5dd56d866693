//! The body of an answer, with what the request holds until its end.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};

use super::finished_request::{Caller, FinishedRequest, Target};
use super::hooks::ServerHooks;
use crate::answer::Failure;
use crate::auth::gate::{Gate, Slot};
use crate::connection::activity::{ConnectionActivity, Working};
use crate::request::bytes_moved::BytesMoved;
use crate::request::ids::RequestId;

/// Counts one request and reports it when it ends, however it ends.
pub(crate) struct Tally<H: ServerHooks> {
    pub(crate) hooks: Arc<H>,
    pub(crate) id: RequestId,
    pub(crate) op: &'static str,
    pub(crate) status: u16,
    pub(crate) started: Instant,
    pub(crate) gate: Arc<Gate>,
    pub(crate) bytes_out: u64,
    /// The answer's body has ended: it did not break off, and the client was there until then.
    pub(crate) is_sent: bool,
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// The answer to the client, if it was refused.
    pub(crate) failure: Option<Failure>,
    /// The id that the client got; that of another server, if one has answered.
    pub(crate) shown: Option<HeaderValue>,
}

impl<H: ServerHooks> Tally<H> {
    pub(crate) fn shown_id(&self) -> Cow<'_, str> {
        let shown = self.shown.as_ref().and_then(|id| id.to_str().ok());
        shown.map_or_else(|| Cow::Owned(self.id.to_string()), Cow::Borrowed)
    }
}

impl<H: ServerHooks> Drop for Tally<H> {
    fn drop(&mut self) {
        let code = self.failure.as_ref().map(|failure| failure.code.as_str());
        let get = || BytesMoved::of_get(self.op, self.status, code, self.bytes_out);
        let read = || if self.is_sent { get() } else { None };
        self.hooks.done(&FinishedRequest {
            id: self.shown_id(),
            op: self.op,
            status: self.status,
            code: code.filter(|code| !code.is_empty()),
            took: self.started.elapsed(),
            bytes_in: self.gate.received(),
            bytes_out: self.bytes_out,
            moved: self.gate.moved().or_else(read),
            user: self.gate.user(),
            caller: &self.caller,
            target: &self.target,
        });
    }
}

/// A body that is counted, and that keeps the request's turn while it is sent.
pub(crate) struct ReplyBody<H: ServerHooks> {
    inner: s3s::Body,
    /// Bytes that it announces. A connection that has them may ask for no end.
    len: Option<u64>,
    tally: Option<Tally<H>>,
    activity: Arc<ConnectionActivity>,
    _slot: Option<Slot>,
}

impl<H: ServerHooks> ReplyBody<H> {
    pub(crate) fn new(
        inner: s3s::Body,
        mut tally: Tally<H>,
        turn: Option<Slot>,
        working: &Working,
    ) -> Self {
        let (activity, len) = (working.activity(), inner.size_hint().exact());
        tally.is_sent = inner.is_end_stream();
        Self { inner, len, tally: Some(tally), activity, _slot: turn }
    }

    /// A body of a request that nobody counts.
    pub(crate) fn uncounted(inner: s3s::Body, working: &Working) -> Self {
        Self { inner, len: None, tally: None, activity: working.activity(), _slot: None }
    }
}

impl<H: ServerHooks> Drop for ReplyBody<H> {
    fn drop(&mut self) {
        self.activity.answered();
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
            tally.is_sent = this.inner.is_end_stream() || this.len == Some(tally.bytes_out);
        }
        if let (None, Some(tally)) = (&frame, &mut this.tally) {
            tally.is_sent = true;
        }
        if let (Some(Err(error)), Some(tally)) = (&frame, &this.tally) {
            let (id, op, sent) = (tally.shown_id(), tally.op, tally.bytes_out);
            let (bucket, key) = (tally.target.bucket(), tally.target.key());
            let (bucket, key) = (bucket.as_deref(), key.as_deref());
            let client = tally.caller.client.map(tracing::field::display);
            tracing::error!(request = %id, op, bucket, key, client, sent, %error, "a response ended early");
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
