//! The body of an HTML form behind its head, as the protocol library reads it.
//!
//! # Invariants
//!
//! 1. The library gets the head in one piece, and the file in pieces that do not depend on how it came.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::limits::FORM_PIECE_BYTES;

/// A form's body.
pub(crate) struct FormBody<B> {
    head: Option<Bytes>,
    inner: B,
    ready: BytesMut,
    ended: bool,
}

impl<B> FormBody<B> {
    /// A body of a head, what came with it, and the rest.
    pub(crate) fn new(head: Bytes, ready: BytesMut, inner: B) -> Self {
        Self { head: Some(head), inner, ready, ended: false }
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

    #[tokio::test]
    async fn a_file_that_comes_byte_by_byte_goes_on_in_few_pieces() {
        let bytes = 1_200_000;
        let one = |_| Ok::<_, s3s::StdError>(Frame::data(Bytes::from_static(b"x")));
        let file = StreamBody::new(stream::iter((1..bytes).map(one)));
        let came = BytesMut::from(&b"x"[..]);
        let mut form = FormBody::new(Bytes::from_static(b"head"), came, file);
        assert_eq!(form.frame().await.unwrap().unwrap().into_data().unwrap(), &b"head"[..]);
        let mut pieces = Vec::new();
        while let Some(frame) = form.frame().await {
            pieces.push(frame.unwrap().data_ref().unwrap().len());
        }
        assert_eq!(pieces.iter().sum::<usize>(), bytes);
        assert!(pieces.len() <= bytes / FORM_PIECE_BYTES + 1, "{}", pieces.len());
    }
}
