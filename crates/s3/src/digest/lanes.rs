//! MD5 in company: pieces of bodies that arrive at the same moment are digested in one batch.
//!
//! ```text
//!  piece ─▶ waiting ─▶ yield once ─▶ still waiting? ─▶ digest all that wait, wake their tasks
//!                                 └▶ taken by another? ─▶ await it
//! ```
//!
//! Nobody waits for time to pass. A task yields once, and the runtime looks at the sockets and runs
//! what became ready. The first task that comes back does the work of all. Alone, it costs one look
//! at the sockets.
//!
//! # Invariants
//!
//! 1. A task that finds its own piece waiting digests it: no piece waits for a task that went away.
//! 2. A task that goes away takes its piece along. At most one piece of each request waits.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use larder_md5::{Job, LANES_MAX, Md5, State};

use crate::limits::{LANE_BYTES_MAX, LANE_BYTES_MIN};

/// Where all requests of the process meet.
static WAITING: Lanes = Lanes { waiting: Mutex::new(Vec::new()) };

/// Feeds a piece to a digest.
pub(crate) async fn update(md5: &mut Md5, piece: &Bytes) {
    if piece.len() < LANE_BYTES_MIN {
        return md5.update(piece);
    }
    let blocks = piece.slice(md5.begin(piece));
    for from in (0..blocks.len()).step_by(LANE_BYTES_MAX) {
        let part = blocks.slice(from..blocks.len().min(from + LANE_BYTES_MAX));
        *md5.state() = WAITING.digest(*md5.state(), part).await;
    }
}

struct Lanes {
    waiting: Mutex<Vec<Arc<Piece>>>,
}

/// A piece on its way through a batch.
struct Piece {
    blocks: Bytes,
    phase: Mutex<Phase>,
}

#[derive(Debug)]
enum Phase {
    /// In line or in a batch; who is to be woken, if anybody looked.
    Before(State, Option<Waker>),
    Done(State),
}

impl Lanes {
    async fn digest(&self, state: State, blocks: Bytes) -> State {
        let piece = Arc::new(Piece { blocks, phase: Mutex::new(Phase::Before(state, None)) });
        let guard = InLine { lanes: self, piece: &piece };
        let in_line = {
            let mut waiting = lock(&self.waiting);
            waiting.push(Arc::clone(&piece));
            waiting.len()
        };
        if in_line < LANES_MAX {
            tokio::task::yield_now().await;
        }
        if let Some(batch) = self.take_with(&piece) {
            run(&batch);
        }
        let state = poll_fn(|context| match &mut *lock(&piece.phase) {
            Phase::Done(state) => Poll::Ready(*state),
            Phase::Before(_, waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await;
        drop(guard);
        state
    }

    /// A batch with this piece in it; `None` if another task has taken it.
    fn take_with(&self, piece: &Arc<Piece>) -> Option<Vec<Arc<Piece>>> {
        let mut waiting = lock(&self.waiting);
        let own = waiting.iter().position(|other| Arc::ptr_eq(other, piece))?;
        waiting.swap(0, own);
        let count = waiting.len().min(LANES_MAX);
        Some(waiting.drain(..count).collect())
    }
}

fn run(batch: &[Arc<Piece>]) {
    let mut jobs: Vec<Job<'_>> = batch
        .iter()
        .map(|piece| match *lock(&piece.phase) {
            Phase::Before(state, _) | Phase::Done(state) => Job::new(state, &piece.blocks),
        })
        .collect();
    larder_md5::digest_all(&mut jobs);
    for (piece, job) in batch.iter().zip(&jobs) {
        let before = std::mem::replace(&mut *lock(&piece.phase), Phase::Done(job.state));
        if let Phase::Before(_, Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Takes a piece out of the line when its task goes away.
struct InLine<'a> {
    lanes: &'a Lanes,
    piece: &'a Arc<Piece>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if matches!(*lock(&self.piece.phase), Phase::Before(..)) {
            lock(&self.lanes.waiting).retain(|other| !Arc::ptr_eq(other, self.piece));
        }
    }
}

/// Data behind these locks is whole at every moment: a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Context;

    use super::*;

    fn message(seed: usize) -> Bytes {
        (0..LANE_BYTES_MIN * 3 + seed * 777).map(|n| (n * (seed + 3) % 251) as u8).collect()
    }

    fn alone(message: &Bytes) -> [u8; 16] {
        let mut md5 = Md5::default();
        md5.update(message);
        md5.finish()
    }

    async fn in_company(message: Bytes) -> [u8; 16] {
        let mut md5 = Md5::default();
        for piece in [message.slice(..100), message.slice(100..5000), message.slice(5000..)] {
            update(&mut md5, &piece).await;
        }
        md5.finish()
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn many_at_once_get_their_own_digests() {
        let tasks: Vec<_> = (0..50).map(|n| tokio::spawn(in_company(message(n)))).collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), alone(&message(n)), "message {n}");
        }
    }

    #[tokio::test]
    async fn a_task_that_goes_away_takes_its_piece_along() {
        let lanes = Lanes { waiting: Mutex::new(Vec::new()) };
        let blocks = Bytes::from(vec![7; LANE_BYTES_MIN]);
        {
            let mut gone = std::pin::pin!(lanes.digest(State::default(), blocks.clone()));
            assert!(poll(gone.as_mut()).is_pending());
            assert_eq!(lock(&lanes.waiting).len(), 1);
        }
        assert_eq!(lock(&lanes.waiting).len(), 0);
        let mut left = Job::new(State::default(), &blocks);
        larder_md5::digest_all(std::slice::from_mut(&mut left));
        assert_eq!(lanes.digest(State::default(), blocks.clone()).await, left.state);
    }

    #[tokio::test]
    async fn a_full_batch_does_not_yield() {
        let lanes = Lanes { waiting: Mutex::new(Vec::new()) };
        let blocks = Bytes::from(vec![7; LANE_BYTES_MIN]);
        let mut others: Vec<_> = (1..LANES_MAX)
            .map(|_| Box::pin(lanes.digest(State::default(), blocks.clone())))
            .collect();
        for other in &mut others {
            assert!(poll(other.as_mut()).is_pending());
        }
        let mut last = std::pin::pin!(lanes.digest(State::default(), blocks.clone()));
        assert!(poll(last.as_mut()).is_ready());
        assert_eq!(lock(&lanes.waiting).len(), 0);
    }
}
