//! Writes waiting frames to the socket, many in one vectored write.
//!
//! # Invariants
//!
//! 1. Frames leave in the order in which they were pushed; only pings and pongs overtake, and never into
//!    the middle of another frame.
//! 2. A frame counts as sent when the socket has taken its last byte: until then no peer can execute it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::frame::{Header, Outgoing};
use crate::limits::SLICES_MAX;

/// Frames that the socket takes next.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that the socket has taken.
    taken: usize,
    /// Bytes of all frames.
    bytes: usize,
    /// The socket may hold bytes back until it is flushed.
    unflushed: bool,
}

impl Batch {
    pub(crate) fn push(&mut self, frame: Outgoing) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Adds a ping or pong before all frames whose sending has not begun.
    pub(crate) fn push_first(&mut self, frame: Outgoing) {
        self.bytes += frame.len();
        let begun = usize::from(self.taken > 0);
        self.frames.insert(begun, frame);
    }

    /// Returns true if all frames are written and flushed.
    pub(crate) fn is_done(&self) -> bool {
        self.frames.is_empty() && !self.unflushed
    }

    /// Bytes of the frames that are not written whole.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if nothing waits to be written.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes until all is written and flushed, or the socket takes no more. Calls `sent` for each frame that is written
    /// whole. Ready with the number of bytes, also if a full socket stopped it after some: [`Batch::is_done`] is then
    /// false.
    pub(crate) fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut W,
        cx: &mut Context<'_>,
        sent: &mut dyn FnMut(&Header),
    ) -> Poll<io::Result<usize>> {
        let mut written = 0;
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let filled = self.fill(&mut slices);
            match Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..filled]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    self.unflushed = true;
                    written += bytes;
                    self.advance(bytes, sent);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if written > 0 => return Poll::Ready(Ok(written)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.unflushed {
            match Pin::new(socket).poll_flush(cx) {
                Poll::Pending if written > 0 => return Poll::Ready(Ok(written)),
                flushed => ready!(flushed)?,
            }
            self.unflushed = false;
        }
        Poll::Ready(Ok(written))
    }

    /// Fills in the slices to write next. Returns their number.
    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut filled = 0;
        let mut skip = self.taken;
        for part in self.frames.iter().flat_map(Outgoing::slices) {
            if filled == SLICES_MAX {
                break;
            }
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                slices[filled] = IoSlice::new(&part[skipped..]);
                filled += 1;
            }
        }
        filled
    }

    fn advance(&mut self, bytes: usize, sent: &mut dyn FnMut(&Header)) {
        self.taken += bytes;
        while let Some(first) = self.frames.front()
            && self.taken >= first.len()
        {
            self.taken -= first.len();
            self.bytes -= first.len();
            sent(first.header());
            self.frames.pop_front();
        }
        assert!(!self.frames.is_empty() || self.taken == 0, "no more was taken than there was");
    }
}
