//! One end of a simulated connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::channels::Found;
use super::{Network, State};

/// One end of a simulated connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pipe {
    network: Arc<Network>,
    reads: u64,
    writes: u64,
    /// Wakes the reader when bytes arrive.
    alarm: Pin<Box<Sleep>>,
}

impl Pipe {
    pub(super) fn new(network: Arc<Network>, reads: u64, writes: u64) -> Self {
        Self { network, reads, writes, alarm: Box::pin(sleep_until(Instant::now())) }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut state = self.network.state.lock();
        let ends = state.channels.ends_of(self.writes);
        let due = Instant::now() + state.delay(ends);
        state.channels.end(self.writes, due);
        state.channels.abandon(self.reads);
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let reads = self.reads;
            let found = self.network.state.lock().channels.take(reads, buf.remaining(), cx.waker());
            match found {
                Found::Bytes(bytes) => {
                    buf.put_slice(&bytes);
                    return Poll::Ready(Ok(()));
                }
                Found::End => return Poll::Ready(Ok(())),
                Found::Reset => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Found::Nothing => return Poll::Pending,
                Found::Later(due) => {
                    if self.alarm.deadline() != due {
                        self.alarm.as_mut().reset(due);
                    }
                    if self.alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.network.state.lock();
        let room = state.channels.room(self.writes, cx.waker())?;
        let wanted = room.min(bufs.iter().map(|buf| buf.len()).sum());
        if room == 0 {
            return Poll::Pending;
        }
        let bytes = gathered(bufs, part(&mut state, wanted));
        let (len, ends) = (bytes.len(), state.channels.ends_of(self.writes));
        let due = Instant::now() + state.delay(ends);
        state.channels.send(self.writes, bytes, due);
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The number of bytes of a write that are accepted: all, or fewer where [`NetworkConditions`](super::NetworkConditions) splits the write.
fn part(state: &mut State, wanted: usize) -> usize {
    let one_in = state.conditions.split_one_in;
    if wanted > 1 && one_in > 0 && (state.draw)().is_multiple_of(one_in) {
        return 1 + (state.draw)() as usize % (wanted - 1);
    }
    wanted
}

fn gathered(bufs: &[IoSlice<'_>], len: usize) -> Bytes {
    let mut gathered = BytesMut::with_capacity(len);
    for buf in bufs {
        gathered.put_slice(&buf[..buf.len().min(len - gathered.len())]);
    }
    gathered.freeze()
}
