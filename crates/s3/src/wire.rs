//! A client's socket: bounds heads, and lingers when it closes.
//!
//! A socket that closes while its client still sends is reset, and the client may lose the answer that it has not read yet.
//! So a connection that closes behind an answer ([`Pulse::lingers`]) shuts its sending side, then reads and drops.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::limits::{HEAD_BYTES_MAX, LINGER_BYTES_MAX, LINGER_TIMEOUT};
use crate::reply::Pulse;

/// Bytes dropped at once.
const DROPPED_BYTES: usize = 16 * 1024;

pub(crate) struct Wire {
    stream: TcpStream,
    pulse: Arc<Pulse>,
    head: Head,
    is_shut: bool,
    lingering: Option<Lingering>,
}

/// The part that was read of a head that is not complete.
#[derive(Default)]
struct Head {
    number: u64,
    bytes: u64,
}

struct Lingering {
    until: Pin<Box<Sleep>>,
    left: u64,
    dropped: Box<[u8]>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, pulse: Arc<Pulse>) -> Self {
        Self { stream, pulse, head: Head::default(), is_shut: false, lingering: None }
    }

    /// # Errors
    /// If more has been read than a head may have, and the head is not complete.
    fn check_head(&mut self) -> io::Result<()> {
        let number = self.pulse.heads();
        if number != self.head.number || self.pulse.is_busy() {
            self.head = Head { number, bytes: 0 };
        }
        match self.head.bytes < HEAD_BYTES_MAX as u64 + self.pulse.unread() {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the request's head is too large"))
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_head()?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.head.bytes += (buf.filled().len() - before) as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.is_shut = true;
        }
        if !this.pulse.lingers() {
            return Poll::Ready(Ok(()));
        }
        let lingering = this.lingering.get_or_insert_with(|| Lingering {
            until: Box::pin(sleep(LINGER_TIMEOUT)),
            left: LINGER_BYTES_MAX,
            dropped: vec![0; DROPPED_BYTES].into_boxed_slice(),
        });
        while lingering.left > 0 && lingering.until.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut lingering.dropped);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if buf.filled().is_empty() => break,
                Ok(()) => lingering.left = lingering.left.saturating_sub(buf.filled().len() as u64),
                Err(_its_client_is_gone) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
