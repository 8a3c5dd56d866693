//! The body of an HTML form behind its head, as the protocol library reads it.
//!
//! # Invariants
//!
//! 1. Before the signature is verified, the library gets the head and nothing else.
//! 2. It gets the file only after a turn and memory for it were taken, in pieces that do not depend on how it came.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::admission::Overloaded;
use crate::auth::gate::{Cut, Gate};
use crate::limits::FORM_PIECE_BYTES;

type Opening = Pin<Box<dyn Future<Output = Result<(), Overloaded>> + Send + Sync>>;

/// A form's body.
pub(crate) struct FormBody<B> {
    head: Option<Bytes>,
    inner: B,
    gate: Arc<Gate>,
    opening: Option<Opening>,
    ready: BytesMut,
    ended: bool,
}

impl<B> FormBody<B> {
    /// A body of a head, what came with it, and the rest.
    pub(crate) fn new(head: Bytes, ready: BytesMut, inner: B, gate: Arc<Gate>) -> Self {
        Self { head: Some(head), inner, gate, opening: None, ready, ended: false }
    }

    /// Opens the gate if the library reads on after it has asked for the key: the signature is good.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        if self.gate.is_open() {
            return Poll::Ready(Ok(()));
        }
        if !self.gate.key_was_asked() {
            return Poll::Ready(Err(Cut::Early));
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
        if let Some(head) = this.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if let Err(cut) = ready!(this.poll_open(cx)) {
            return Poll::Ready(Some(Err(this.gate.cut_off(cut).into())));
        }
        while this.ready.len() < FORM_PIECE_BYTES && !this.ended {
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
        if this.ready.is_empty() {
            return Poll::Ready(None);
        }
        let piece = this.ready.split_to(FORM_PIECE_BYTES.min(this.ready.len()));
        Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.ready.is_empty() && (self.ended || self.inner.is_end_stream())
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

    const HEAD: &[u8] = b"head";

    /// A form whose file comes byte by byte, and its gate.
    fn form(
        bytes: usize,
    ) -> (FormBody<impl Body<Data = Bytes, Error = s3s::StdError> + Unpin>, Arc<Gate>) {
        let gate = Arc::new(Gate::new(Arc::new(Admission::new(1, 100, 1)), 10, true));
        gate.enter_forms().unwrap();
        let one = |_| Ok(Frame::data(Bytes::from_static(b"x")));
        let file = StreamBody::new(stream::iter((1..bytes).map(one)));
        let came = BytesMut::from(&b"x"[..]);
        (FormBody::new(Bytes::from_static(HEAD), came, file, Arc::clone(&gate)), gate)
    }

    #[tokio::test]
    async fn nothing_behind_the_head_is_read_before_the_signature_is_verified() {
        let (mut form, gate) = form(1000);
        assert_eq!(form.frame().await.unwrap().unwrap().into_data().unwrap(), HEAD);
        assert!(form.frame().await.unwrap().is_err());
        assert_eq!((gate.was_cut(), gate.is_open()), (Some(Cut::Early), false));
    }

    #[tokio::test]
    async fn a_verified_form_goes_on_in_few_pieces_with_memory_of_its_own() {
        let (mut form, gate) = form(1_200_000);
        assert_eq!(form.frame().await.unwrap().unwrap().into_data().unwrap(), HEAD);
        gate.ask_key();
        let mut pieces = Vec::new();
        while let Some(frame) = form.frame().await {
            pieces.push(frame.unwrap().data_ref().unwrap().len());
        }
        assert!(gate.is_open());
        assert_eq!(pieces.iter().sum::<usize>(), 1_200_000);
        assert!(pieces.len() <= 1_200_000 / FORM_PIECE_BYTES + 1, "{}", pieces.len());
        assert!(gate.finish().is_some());
    }
}
