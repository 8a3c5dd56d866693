//! Connections over a longer way, to measure what the design gains there.
//!
//! What arrives is handed on a fixed time later, in order. Each end of a connection does so with what it hears: a
//! question and its answer take twice that time longer. How much goes through at once is not limited.
//!
//! The runtime's own timers are a millisecond coarse. So a thread of its own wakes tasks; where the kernel allows its
//! timers to be precise ([`super::install`]), some 10 us late.
//!
//! # Invariants
//!
//! 1. Bytes leave in the order in which they came, none is lost, and none leaves before it is due.
//! 2. A connection waits for one moment at a time: the timer has no more entries than there are connections.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use larder_net::limits::READ_BYTES;

/// Most bytes of one connection that are on their way; what comes behind them waits in the socket.
const UNDERWAY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes that arrived, and when they are due. The last is the end: without bytes, or an error.
struct Arrived {
    due: Instant,
    bytes: io::Result<Bytes>,
}

/// A socket at the end of such a way.
pub(super) struct Delayed<S> {
    socket: S,
    delay: Duration,
    underway: VecDeque<Arrived>,
    underway_bytes: usize,
    ended: bool,
    /// The time at which the timer wakes us.
    armed: Option<Instant>,
    room: Vec<u8>,
}

impl<S: AsyncRead + Unpin> Delayed<S> {
    pub(super) fn new(socket: S, delay: Duration) -> Self {
        Self {
            socket,
            delay,
            underway: VecDeque::new(),
            underway_bytes: 0,
            ended: false,
            armed: None,
            room: vec![0; READ_BYTES],
        }
    }

    /// Takes what has arrived; its way begins now.
    fn take_up(&mut self, cx: &mut Context<'_>) {
        while !self.ended && self.underway_bytes < UNDERWAY_BYTES_MAX {
            let mut read = ReadBuf::new(&mut self.room);
            let bytes = match Pin::new(&mut self.socket).poll_read(cx, &mut read) {
                Poll::Ready(done) => done.map(|()| Bytes::copy_from_slice(read.filled())),
                Poll::Pending => return,
            };
            let len = bytes.as_ref().map_or(0, Bytes::len);
            self.ended = len == 0;
            self.underway_bytes += len;
            self.underway.push_back(Arrived { due: Instant::now() + self.delay, bytes });
        }
    }

    /// Hands on what is due and finds room; ready if that is anything, or the end.
    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (now, before) = (Instant::now(), buf.filled().len());
        while let Some(mut first) = self.underway.pop_front_if(|first| first.due <= now) {
            let handed = buf.filled().len() > before;
            match &mut first.bytes {
                Ok(bytes) if !bytes.is_empty() => {
                    let part = bytes.split_to(bytes.len().min(buf.remaining()));
                    buf.put_slice(&part);
                    self.underway_bytes -= part.len();
                    if bytes.is_empty() {
                        continue;
                    }
                }
                Ok(_end) if !handed => return Poll::Ready(Ok(())),
                Err(_) if !handed => return Poll::Ready(first.bytes.map(drop)),
                _ => {}
            }
            // The rest, or the end, is for the next read.
            self.underway.push_front(first);
            return Poll::Ready(Ok(()));
        }
        let is_over = self.ended && self.underway.is_empty();
        if buf.filled().len() > before || is_over { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Delayed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.take_up(cx);
        let handed = self.hand_on(buf);
        if handed.is_pending()
            && let Some(due) = self.underway.front().map(|first| first.due)
            && self.armed.is_none_or(|armed| armed != due)
        {
            self.armed = Some(due);
            timer().wake_at(due, cx.waker().clone());
        }
        handed
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Delayed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Wakes tasks at moments.
#[derive(Default)]
struct Timer {
    waiting: Mutex<BinaryHeap<Reverse<Alarm>>>,
    sooner: Condvar,
}

struct Alarm {
    at: Instant,
    waker: Waker,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

fn timer() -> &'static Timer {
    static TIMER: OnceLock<&Timer> = OnceLock::new();
    TIMER.get_or_init(|| {
        let timer: &'static Timer = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("way".to_owned());
        thread.spawn(|| timer.run()).expect("the system gives a thread");
        timer
    })
}

impl Timer {
    fn wake_at(&self, at: Instant, waker: Waker) {
        let mut waiting = self.waiting.lock();
        let is_first = waiting.peek().is_none_or(|Reverse(first)| at < first.at);
        waiting.push(Reverse(Alarm { at, waker }));
        drop(waiting);
        if is_first {
            self.sooner.notify_one();
        }
    }

    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            let Some(Reverse(first)) = waiting.peek() else {
                self.sooner.wait(&mut waiting);
                continue;
            };
            let at = first.at;
            if at > Instant::now() {
                self.sooner.wait_until(&mut waiting, at);
            } else if let Some(Reverse(alarm)) = waiting.pop() {
                parking_lot::MutexGuard::unlocked(&mut waiting, || alarm.waker.wake());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const DELAY: Duration = Duration::from_millis(20);

    /// Gives out what it was made with.
    struct Script(VecDeque<Result<&'static [u8], io::ErrorKind>>);

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                Some(Ok(bytes)) => {
                    buf.put_slice(bytes);
                    Poll::Ready(Ok(()))
                }
                Some(Err(kind)) => Poll::Ready(Err(kind.into())),
                None => Poll::Pending,
            }
        }
    }

    impl AsyncWrite for Script {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_arrives_is_handed_on_in_order_and_not_before_it_is_due() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = Delayed::new(near, DELAY);
        let sent: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let begun = Instant::now();
        far.write_all(&sent).await.unwrap();
        let mut first = [0; 7];
        near.read_exact(&mut first).await.unwrap();
        assert!(begun.elapsed() >= DELAY);
        assert_eq!(first, sent[..7]);
        drop(far);
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, sent[7..]);
    }

    #[tokio::test]
    async fn an_answer_comes_before_the_error_that_follows_it() {
        let socket = Script([Ok(&b"answer"[..]), Err(io::ErrorKind::UnexpectedEof)].into());
        let mut near = Delayed::new(socket, DELAY);
        let mut answer = [0; 6];
        near.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        let error = near.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_comes_while_something_is_on_its_way_begins_its_own() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = Delayed::new(near, DELAY);
        far.write_all(b"a").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'a');
        let begun = Instant::now();
        far.write_all(b"b").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'b');
        assert!(begun.elapsed() >= DELAY);
    }

    #[tokio::test]
    async fn many_connections_wait_at_once() {
        let ways = (0..50).map(|number| async move {
            let (near, mut far) = tokio::io::duplex(64);
            let mut near = Delayed::new(near, DELAY);
            far.write_u8(number).await.unwrap();
            assert_eq!(near.read_u8().await.unwrap(), number);
        });
        let begun = Instant::now();
        let mut all = tokio::task::JoinSet::new();
        ways.for_each(|way| drop(all.spawn(way)));
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
        assert!(begun.elapsed() >= DELAY);
    }
}
