//! Bodies that are looked at on their way to the protocol library.
//!
//! The library reads some bodies by itself, before an operation sees them, and passes on an error's text only. What is found
//! is kept where the answer is made.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Looks at a body that passes, and ends it in an error where something is wrong with it.
pub(crate) trait Watch: Unpin {
    type Fault: Error + Copy + Send + Sync + 'static;

    /// Looks at a piece before it goes on.
    fn look(&mut self, piece: &[u8]) -> Result<(), Self::Fault>;

    /// Looks at the whole, of which nothing more comes.
    fn end(&mut self) -> Result<(), Self::Fault>;

    /// False while the whole is still to be looked at: the reader must come for the end.
    fn has_ended(&self) -> bool {
        true
    }
}

/// The fault, once one was found.
pub(crate) type Found<Fault> = Arc<OnceLock<Fault>>;

/// A body under watch.
pub(crate) struct Watched<B, W: Watch> {
    inner: B,
    watch: W,
    found: Found<W::Fault>,
}

impl<B, W: Watch> Watched<B, W> {
    pub(crate) fn new(inner: B, watch: W, found: Found<W::Fault>) -> Self {
        Self { inner, watch, found }
    }

    fn refuse(&self, fault: W::Fault) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        Poll::Ready(Some(Err((*self.found.get_or_init(|| fault)).into())))
    }
}

impl<B: Body<Data = Bytes> + Unpin, W: Watch> Body for Watched<B, W>
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
        if let Some(fault) = this.found.get() {
            return this.refuse(*fault);
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        let looked = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(Ok(()), |piece| this.watch.look(piece)),
            Some(Err(_)) => Ok(()),
            None => this.watch.end(),
        };
        match looked {
            Ok(()) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Err(fault) => this.refuse(fault),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.watch.has_ended() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
