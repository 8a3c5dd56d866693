//! A connection that ends when the other end takes nothing for too long.
//!
//! Reads have no limit here: a connection may be idle, and each reader has a limit of its own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::limits::{STALL_COMPRESSED_MAX, STALL_MAX};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct WriteTimeout<S> {
    stream: S,
    until: Pin<Box<Sleep>>,
    is_waiting: bool,
    /// True once answers are compressed: the other end may take long to store a few bytes.
    is_compressed: Arc<AtomicBool>,
}

impl<S> WriteTimeout<S> {
    /// Wraps a connection.
    pub(crate) fn new(stream: S) -> Self {
        Self::of(stream, Arc::default())
    }

    /// Wraps a connection over which what is sent may come to be compressed.
    pub(crate) fn of(stream: S, is_compressed: Arc<AtomicBool>) -> Self {
        Self { stream, until: Box::pin(sleep(STALL_MAX)), is_waiting: false, is_compressed }
    }

    fn max_wait(&self) -> Duration {
        match self.is_compressed.load(Ordering::Relaxed) {
            true => STALL_COMPRESSED_MAX,
            false => STALL_MAX,
        }
    }

    /// The result of a write: an error if it has waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            let until = Instant::now() + self.max_wait();
            self.until.as_mut().reset(until);
        }
        ready!(self.until.as_mut().poll(context));
        let why = format!("the other end took nothing for {} s", self.max_wait().as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, closed)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
