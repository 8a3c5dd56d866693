//! The body of a request as it comes from the client: bounded in time, shut before authentication, and given back unread.
//!
//! # Invariants
//!
//! 1. A body waits for its client at most [`BODY_STALL_TIMEOUT`] for a piece, and [`BODY_WAIT_MAX`] and a second for each
//!    [`BODY_RATE_MIN`] bytes for all of it. Time in which the server does not ask for more does not count.
//! 2. What nobody reads is given back when the body is dropped, so that the connection can be cleared of it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::auth::gate::{Cut, Gate};
use crate::connection::send_deadline::Alarm;
use crate::limits::{BODY_RATE_MIN, BODY_STALL_TIMEOUT, BODY_WAIT_MAX, FORM_HEAD_TIMEOUT};

/// A request's body.
pub struct Inbound<B = Incoming> {
    inner: Option<B>,
    gate: Arc<Gate>,
    left: Left<B>,
    clock: Clock,
}

/// The rest of a body that was dropped, which its client still has to send.
pub(crate) struct Left<B = Incoming>(Arc<Mutex<Option<B>>>);

impl<B> Left<B> {
    /// The rest of the body, once the body is dropped.
    pub(crate) fn take(&self) -> Option<B> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<B> Inbound<B> {
    pub(crate) fn new(inner: B, gate: Arc<Gate>) -> (Self, Left<B>) {
        let left = Arc::new(Mutex::new(None));
        let left_here = Left(Arc::clone(&left));
        let body = Self { inner: Some(inner), gate, left: left_here, clock: Clock::default() };
        (body, Left(left))
    }

    fn cut_off(&self, cut: Cut) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        Poll::Ready(Some(Err(self.gate.cut_off(cut).into())))
    }
}

impl<B> Drop for Inbound<B> {
    fn drop(&mut self) {
        *self.left.0.lock().unwrap_or_else(PoisonError::into_inner) = self.inner.take();
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Inbound<B>
where
    B::Error: Into<s3s::StdError>,
{
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let this = &mut *self;
        if let Some(cut) = this.gate.was_cut() {
            return this.cut_off(cut);
        }
        let verified = this.gate.is_open();
        if !verified && !this.gate.is_form() {
            return this.cut_off(Cut::Early);
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        match Pin::new(inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                let bytes = data.map_or(0, Bytes::len);
                this.clock.came(bytes);
                this.gate.receive(bytes);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                std::task::ready!(this.clock.poll_late(verified, cx));
                this.cut_off(if verified { Cut::Stalled } else { Cut::Unverified })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The time for which a client has kept the server waiting.
#[derive(Default)]
struct Clock {
    /// Since when the server waits for the next piece.
    waiting: Option<Instant>,
    /// Time spent waiting for those before.
    waited: Duration,
    received: u64,
    alarm: Alarm,
    /// The time at which it first waited.
    begun: Option<Instant>,
}

impl Clock {
    fn came(&mut self, bytes: usize) {
        self.received += bytes as u64;
        if let Some(since) = self.waiting.take() {
            self.waited += since.elapsed();
        }
    }

    fn deadline(&self, since: Instant, verified: bool) -> Instant {
        let earned = Duration::from_secs(self.received / BODY_RATE_MIN);
        let left = (BODY_WAIT_MAX + earned).saturating_sub(self.waited);
        let deadline = since + left.min(BODY_STALL_TIMEOUT);
        match self.begun {
            Some(begun) if !verified => deadline.min(begun + FORM_HEAD_TIMEOUT),
            _ => deadline,
        }
    }

    /// Ready when the client is too late.
    fn poll_late(&mut self, verified: bool, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        self.begun.get_or_insert(since);
        let deadline = self.deadline(since, verified);
        self.alarm.poll_at(deadline, cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::SinkExt;
    use futures::channel::mpsc::{Receiver, Sender, channel};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::auth::gate::Admission;

    type Piece = Result<Frame<Bytes>, s3s::StdError>;

    fn piped() -> (Sender<Piece>, StreamBody<Receiver<Piece>>) {
        let (sender, receiver) = channel(4);
        (sender, StreamBody::new(receiver))
    }

    fn piece(bytes: usize) -> Piece {
        Ok(Frame::data(Bytes::from(vec![b'x'; bytes])))
    }

    async fn gate(is_form: bool, open: bool) -> Arc<Gate> {
        let gate = Arc::new(Gate::new(Arc::new(Admission::new(1, 100, 1)), 10, is_form));
        if open {
            gate.open().await.unwrap();
        }
        gate
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_falls_silent_is_cut_off() {
        let (_sender, body) = piped();
        let gate = gate(false, true).await;
        let (mut body, _left) = Inbound::new(body, Arc::clone(&gate));
        let begun = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!((begun.elapsed(), gate.was_cut()), (BODY_STALL_TIMEOUT, Some(Cut::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_cut_off() {
        let (mut sender, body) = piped();
        let gate = gate(false, true).await;
        let (mut body, _left) = Inbound::new(body, Arc::clone(&gate));
        tokio::spawn(async move {
            while sender.send(piece(1)).await.is_ok() {
                tokio::time::sleep(BODY_STALL_TIMEOUT / 2).await;
            }
        });
        let begun = Instant::now();
        while body.frame().await.unwrap().is_ok() {}
        assert_eq!((begun.elapsed(), gate.was_cut()), (BODY_WAIT_MAX, Some(Cut::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_server_is_busy_does_not_count() {
        let (mut sender, body) = piped();
        let (mut body, _left) = Inbound::new(body, gate(false, true).await);
        for _ in 0..10 {
            sender.send(piece(1)).await.unwrap();
            tokio::time::sleep(BODY_WAIT_MAX).await;
            assert!(body.frame().await.unwrap().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn before_authentication_only_the_head_of_a_form_is_read_and_for_a_short_time() {
        let (_sender, body) = piped();
        let closed = gate(false, false).await;
        let (mut body, _left) = Inbound::new(body, Arc::clone(&closed));
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(closed.was_cut(), Some(Cut::Early));

        let (mut sender, body) = piped();
        let form = gate(true, false).await;
        let (mut body, _left) = Inbound::new(body, Arc::clone(&form));
        tokio::spawn(async move {
            while sender.send(piece(1000)).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        while body.frame().await.unwrap().is_ok() {}
        assert_eq!((begun.elapsed(), form.was_cut()), (FORM_HEAD_TIMEOUT, Some(Cut::Unverified)));
    }

    #[tokio::test]
    async fn what_nobody_read_is_given_back() {
        let body = http_body_util::Full::new(Bytes::from_static(b"abc"));
        let (body, left) = Inbound::new(body, gate(false, true).await);
        assert!(left.take().is_none());
        drop(body);
        assert_eq!(left.take().unwrap().collect().await.unwrap().to_bytes(), "abc");
    }
}
