//! The body of an HTML form, which carries its signature in itself.
//!
//! The protocol library parses all of a form's head again with each piece that it gets. This body stands in front of it and
//! hands it few pieces, whatever the client sends.
//!
//! # Invariants
//!
//! 1. Before the signature is verified, the library gets [`FORM_HEAD_BYTES_MAX`] bytes at most.
//! 2. It gets more only after a turn and memory for the file were taken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::admission::Overloaded;
use crate::gate::{Cut, Gate};
use crate::limits::{FORM_HEAD_BYTES_MAX, FORM_PIECE_BYTES_MAX, FORM_PIECE_BYTES_MIN};

type Opening = Pin<Box<dyn Future<Output = Result<(), Overloaded>> + Send + Sync>>;

/// A form's body, in pieces of a size that the library reads in linear time.
pub(crate) struct FormBody<B> {
    inner: B,
    gate: Arc<Gate>,
    opening: Option<Opening>,
    ready: BytesMut,
    handed: usize,
    ended: bool,
}

impl<B> FormBody<B> {
    pub(crate) fn new(inner: B, gate: Arc<Gate>) -> Self {
        Self { inner, gate, opening: None, ready: BytesMut::new(), handed: 0, ended: false }
    }

    /// Bytes of the next piece, if the body has so many. Of a head, none when the limit is reached.
    fn piece_bytes(&self) -> usize {
        let doubled = self.handed.clamp(FORM_PIECE_BYTES_MIN, FORM_PIECE_BYTES_MAX);
        match self.gate.is_open() {
            true => doubled,
            false => doubled.min(FORM_HEAD_BYTES_MAX.saturating_sub(self.handed)),
        }
    }

    /// Opens the gate if the library reads on after it has asked for the key: the signature is good.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        if self.gate.is_open() || !self.gate.key_was_asked() {
            return Poll::Ready(Ok(()));
        }
        let gate = &self.gate;
        let opening = self.opening.get_or_insert_with(|| {
            let gate = Arc::clone(gate);
            Box::pin(async move { gate.open().await })
        });
        let opened = ready!(opening.as_mut().poll(cx));
        self.opening = None;
        Poll::Ready(opened.map_err(|Overloaded| Cut::Overloaded))
    }
}

impl<B: Body<Data = Bytes, Error = s3s::StdError> + Unpin> Body for FormBody<B> {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let this = &mut *self;
        if let Err(cut) = ready!(this.poll_open(cx)) {
            return Poll::Ready(Some(Err(this.gate.cut_off(cut).into())));
        }
        let wanted = this.piece_bytes();
        while this.ready.len() < wanted && !this.ended {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        this.ready.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => this.ended = true,
            }
        }
        if this.ready.is_empty() && this.ended {
            return Poll::Ready(None);
        }
        if wanted == 0 {
            return Poll::Ready(Some(Err(this.gate.cut_off(Cut::Unverified).into())));
        }
        let piece = this.ready.split_to(wanted.min(this.ready.len()));
        this.handed += piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && (self.ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::admission::Admission;

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::new(Arc::new(Admission::new(1, 100, 1)), 10, true))
    }

    fn byte_by_byte(
        bytes: usize,
    ) -> StreamBody<impl futures::Stream<Item = Result<Frame<Bytes>, s3s::StdError>> + Unpin> {
        let one = |_| Ok(Frame::data(Bytes::from_static(b"x")));
        StreamBody::new(stream::iter((0..bytes).map(one)))
    }

    /// The bytes of all pieces, and what the library reads of a head if it begins anew with each.
    async fn read(
        form: &mut (impl Body<Data = Bytes, Error = s3s::StdError> + Unpin),
    ) -> (Vec<usize>, usize) {
        let (mut pieces, mut parsed) = (Vec::new(), 0);
        while let Some(Ok(frame)) = form.frame().await {
            pieces.push(frame.data_ref().unwrap().len());
            parsed += pieces.iter().sum::<usize>();
        }
        (pieces, parsed)
    }

    #[tokio::test]
    async fn a_head_that_comes_byte_by_byte_is_parsed_in_linear_time() {
        let mut form = FormBody::new(byte_by_byte(15_000), gate());
        let (pieces, parsed) = read(&mut form).await;
        assert_eq!(pieces.iter().sum::<usize>(), 15_000);
        assert!(pieces.len() <= 4 && parsed <= 3 * 15_000, "{pieces:?}: {parsed}");
    }

    #[tokio::test]
    async fn an_unverified_form_is_cut_at_the_limit() {
        let gate = gate();
        let mut form = FormBody::new(byte_by_byte(FORM_HEAD_BYTES_MAX + 1), Arc::clone(&gate));
        let (pieces, parsed) = read(&mut form).await;
        assert_eq!(pieces.iter().sum::<usize>(), FORM_HEAD_BYTES_MAX);
        assert!(parsed <= 3 * FORM_HEAD_BYTES_MAX, "{pieces:?}: {parsed}");
        assert_eq!(gate.was_cut(), Some(Cut::Unverified));
    }

    #[tokio::test]
    async fn a_verified_form_goes_on_in_few_pieces_with_memory_of_its_own() {
        let gate = gate();
        gate.enter_forms().unwrap();
        let mut form = FormBody::new(byte_by_byte(1_200_000), Arc::clone(&gate));
        assert!(form.frame().await.unwrap().is_ok());
        assert!(!gate.is_open());
        gate.ask_key();
        let (pieces, _) = read(&mut form).await;
        assert!(gate.is_open());
        assert_eq!(pieces.iter().sum::<usize>() + FORM_PIECE_BYTES_MIN, 1_200_000);
        assert!(pieces.len() <= 1_200_000 / FORM_PIECE_BYTES_MAX + 4, "{}", pieces.len());
        assert!(gate.finish().is_some());
    }
}
