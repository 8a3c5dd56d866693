//! Pieces of a read that are read ahead of what its client has taken: the sliding window of Ambry (Noghabi et al., "Ambry:
//! LinkedIn's Scalable Geo-Distributed Object Store", 2016).
//!
//! # Invariants
//!
//! 1. Pieces are given out in order, and none behind one that failed.
//! 2. The window is as large as its client is fast. It doubles when the client has waited for a piece for
//!    longer than the piece before had waited for the client, up to [`READ_WINDOW_PIECES_MAX`]. It is
//!    halved when [`READ_WINDOW_CALM_PIECES`] were given out without that. Of a slow client nothing is read
//!    before it asks.
//! 3. Each piece that is begun behind another holds a place of the proxy's [`READ_AHEAD_PIECES_MAX`], from before it is asked for until
//!    it is given out. No read waits for a place: without one it goes on piece by piece.
//! 4. What is begun goes on without its client: reads and lookups are tasks. Nothing here is due by a time that passes while
//!    nobody asks for the next piece.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{FuturesOrdered, Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::Proxy;
use super::role_access::RoleAccess;
use crate::limits::{
    READ_AHEAD_PIECES_MAX, READ_WINDOW_CALM_PIECES, READ_WINDOW_PIECES_FIRST,
    READ_WINDOW_PIECES_MAX,
};

/// A piece that is being read.
pub(super) type PieceRead<E> = Pin<Box<dyn Future<Output = Result<Bytes, E>> + Send + Sync>>;
/// The reads of an object's pieces, in order, which are begun as they are asked for here.
pub(super) type PieceReads<E> = Pin<Box<dyn Stream<Item = Result<PieceRead<E>, E>> + Send + Sync>>;

/// Places for pieces that are read ahead, of all reads of a proxy.
#[derive(Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READ_AHEAD_PIECES_MAX)))
    }
}

impl Places {
    /// Pieces that are ahead of their clients now.
    pub(super) fn taken(&self) -> usize {
        READ_AHEAD_PIECES_MAX - self.0.available_permits()
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// Pieces of large objects that were asked for before their clients had taken those before them.
    #[must_use]
    pub fn pieces_ahead(&self) -> usize {
        self.ahead.taken()
    }
}

/// A read, some pieces ahead. See the module's head.
pub(super) struct Ahead<E> {
    /// Not there once all pieces are begun.
    left: Option<PieceReads<E>>,
    /// The reason why nothing follows what is begun.
    failure: Option<E>,
    begun: FuturesOrdered<PieceRead<E>>,
    /// Of each piece that is begun, its place.
    held: VecDeque<Option<OwnedSemaphorePermit>>,
    places: Arc<Semaphore>,
    window: usize,
    /// The time at which the last piece was given out, or the read began.
    given_at: Instant,
    /// The time at which the client asked for the next piece, if it waits for it.
    requested_at: Option<Instant>,
    /// Pieces given out since the window grew.
    unwaited: usize,
}

impl<E> Ahead<E> {
    pub(super) fn new(reads: PieceReads<E>, places: &Places) -> Self {
        Self {
            left: Some(reads),
            failure: None,
            begun: FuturesOrdered::new(),
            held: VecDeque::new(),
            places: places.0.clone(),
            window: READ_WINDOW_PIECES_FIRST,
            given_at: Instant::now(),
            requested_at: None,
            unwaited: 0,
        }
    }

    /// Begins pieces until the window is full.
    fn begin(&mut self, cx: &mut Context<'_>) {
        while self.begun.len() < self.window
            && let Some(left) = &mut self.left
        {
            let place = match self.begun.is_empty() {
                true => None,
                false => match self.places.clone().try_acquire_owned() {
                    Ok(place) => Some(place),
                    Err(_all_taken) => return,
                },
            };
            match left.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(read))) => {
                    self.begun.push_back(read);
                    self.held.push_back(place);
                }
                Poll::Ready(Some(Err(failure))) => {
                    (self.left, self.failure) = (None, Some(failure));
                }
                Poll::Ready(None) => self.left = None,
                Poll::Pending => return,
            }
        }
    }

    /// A piece is given out.
    fn given(&mut self) {
        assert!(self.held.pop_front().is_some(), "each piece that is begun is counted");
        let now = Instant::now();
        let is_behind = |asked: Instant| asked - self.given_at < now - asked;
        if self.requested_at.is_some_and(is_behind) {
            self.window = (2 * self.window).min(READ_WINDOW_PIECES_MAX);
            self.unwaited = 0;
        } else {
            self.unwaited += 1;
        }
        (self.given_at, self.requested_at) = (now, None);
        if self.unwaited >= READ_WINDOW_CALM_PIECES {
            self.window = (self.window / 2).max(1);
            self.unwaited = 0;
        }
    }

    /// Ends the read: what is begun is given up.
    fn end(&mut self) {
        (self.left, self.failure) = (None, None);
        self.begun.clear();
        self.held.clear();
    }
}

impl<E: Unpin> Stream for Ahead<E> {
    type Item = Result<Bytes, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.begin(cx);
        match this.begun.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(bytes))) => {
                this.given();
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Ready(Some(Err(failure))) => {
                this.end();
                Poll::Ready(Some(Err(failure)))
            }
            Poll::Ready(None) if this.left.is_none() => Poll::Ready(this.failure.take().map(Err)),
            Poll::Ready(None) | Poll::Pending => {
                this.requested_at.get_or_insert_with(Instant::now);
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests;
