//! A client's socket: bounds heads, has a least rate for answers, and lingers when it closes.
//!
//! A socket that closes while its client still sends is reset, and the client may lose the answer that it has not read yet.
//! So a connection that closes behind an answer ([`ConnectionActivity::lingers`]) shuts its sending side, then reads and drops.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::activity::ConnectionActivity;
use super::send_deadline::SendDeadline;
use crate::limits::{HEAD_BYTES_MAX, LINGER_BYTES_MAX, LINGER_TIMEOUT};

/// Bytes dropped at once.
const DROPPED_BYTES: usize = 16 * 1024;

pub(crate) struct Wire<S = TcpStream> {
    stream: S,
    activity: Arc<ConnectionActivity>,
    head: Head,
    send_deadline: SendDeadline,
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

impl<S> Wire<S> {
    pub(crate) fn new(stream: S, activity: Arc<ConnectionActivity>) -> Self {
        let (head, send_deadline) = (Head::default(), SendDeadline::default());
        Self { stream, activity, head, send_deadline, is_shut: false, lingering: None }
    }

    /// Gives up a client that takes its answer too slowly.
    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => self.send_deadline.took(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                ready!(self.send_deadline.poll_late(cx));
                let why = "the client takes its answer too slowly";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
        }
        written
    }

    /// # Errors
    /// If more has been read than a head may have, and the head is not complete.
    fn check_head(&mut self) -> io::Result<()> {
        let number = self.activity.heads();
        if number != self.head.number || self.activity.is_busy() {
            self.head = Head { number, bytes: 0 };
        }
        match self.head.bytes < HEAD_BYTES_MAX as u64 + self.activity.unread() {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the request's head is too large"))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes the socket once it has written all that it had.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.is_shut = true;
        }
        if !this.activity.lingers() {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::limits::{ANSWER_RATE_MIN, ANSWER_WAIT_MAX};

    /// Far beyond the time that any answer here may take.
    const AT_LAST: Duration = Duration::from_secs(24 * 3600);

    /// Writes an answer to a client that takes so many bytes every so often; how that ends, and after how long.
    async fn answered(bytes: usize, taken: usize, pause: Duration) -> (io::Result<()>, Duration) {
        let (ours, theirs) = duplex(1024);
        let client = tokio::spawn(takes(theirs, taken, pause));
        let mut wire = Wire::new(ours, Arc::default());
        let begun = Instant::now();
        let written = timeout(AT_LAST, wire.write_all(&vec![7; bytes])).await;
        client.abort();
        (written.expect("the answer ends some time"), begun.elapsed())
    }

    async fn takes(mut stream: DuplexStream, bytes: usize, pause: Duration) {
        let mut taken = vec![0; bytes];
        loop {
            tokio::time::sleep(pause).await;
            if stream.read_exact(&mut taken).await.is_err() {
                return;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_trickles_its_answer_is_given_up() {
        let second = Duration::from_secs(1);
        let (written, took) = answered(64 * 1024 * 1024, 1024, second).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(took >= ANSWER_WAIT_MAX && took < ANSWER_WAIT_MAX * 2, "{took:?}");
        let (written, took) = answered(64 * 1024 * 1024, 1, AT_LAST).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(took.as_secs(), ANSWER_WAIT_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_what_it_must_gets_all_of_its_answer() {
        let bytes = 16 * 1024 * 1024;
        let (written, took) =
            answered(bytes, ANSWER_RATE_MIN as usize, Duration::from_secs(1)).await;
        assert!(written.is_ok() && took > ANSWER_WAIT_MAX * 10, "{written:?} after {took:?}");
    }

    /// Time that an answer took to be made is no fault of the client's, and an answer that went quickly buys none for the
    /// next.
    #[tokio::test(start_paused = true)]
    async fn only_time_in_which_the_client_takes_nothing_counts() {
        let (ours, mut theirs) = duplex(1024);
        let mut wire = Wire::new(ours, Arc::default());
        let mut taken = [0; 1024];
        for _ in 0..100 {
            wire.write_all(&[7; 1024]).await.unwrap();
            theirs.read_exact(&mut taken).await.unwrap();
            tokio::time::sleep(ANSWER_WAIT_MAX).await;
        }
        let begun = Instant::now();
        let written = timeout(AT_LAST, wire.write_all(&[7; 2048])).await.expect("it ends");
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), ANSWER_WAIT_MAX.as_secs());
    }
}
