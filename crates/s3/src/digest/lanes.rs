//! The two digests of a body that are one long chain of steps each: its MD5 and, where it is signed or announced,
//! its SHA-256. A processor that could do several steps at once waits in both of them, so that they share it:
//!
//! - Alone, a body's two digests take turns, block by block. The steps of one fill the gaps of the other.
//! - In company, pieces of bodies that arrive at the same moment have their MD5 computed in the lanes of one batch,
//!   and two at a time their SHA-256.
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
//! 3. Both digests have taken the same bytes whenever nobody is inside an update, so that blocks of one are blocks of
//!    the other.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use larder_md5::{BLOCK_BYTES, Job, LANES_MAX, Md5, State};
use sha2::{Digest as _, Sha256};

use crate::limits::{LANE_BYTES_MAX, LANE_BYTES_MIN, LANES_MIN};

/// Where all requests of the process meet.
static WAITING: Lanes = Lanes { waiting: Mutex::new(Vec::new()) };

/// MD5 and, where somebody asks for it, SHA-256 over the same bytes.
#[derive(Default)]
pub(crate) struct Chained {
    md5: Md5,
    sha256: Option<Sha256>,
}

impl Chained {
    /// Has the SHA-256 computed, too. Nothing has been digested yet.
    pub(crate) fn with_sha256(self) -> Self {
        Self { sha256: Some(Sha256::new()), ..self }
    }

    /// Takes a piece without company.
    pub(crate) fn update(&mut self, piece: &[u8]) {
        let blocks = self.md5.begin(piece);
        let (head, tail) = (&piece[..blocks.start], &piece[blocks.end..]);
        self.update_sha256(head);
        by_turns(self.md5.state(), self.sha256.as_mut(), &piece[blocks]);
        self.update_sha256(tail);
    }

    /// Takes a piece in the company of other requests' pieces.
    pub(crate) async fn update_in_company(&mut self, piece: &Bytes) {
        if piece.len() < LANE_BYTES_MIN {
            return self.update(piece);
        }
        let blocks = self.md5.begin(piece);
        self.update_sha256(&piece[..blocks.start]);
        for from in blocks.clone().step_by(LANE_BYTES_MAX) {
            let part = piece.slice(from..blocks.end.min(from + LANE_BYTES_MAX));
            let chains = Chains { md5: *self.md5.state(), sha256: self.sha256.take() };
            let after = WAITING.digest(chains, part).await;
            *self.md5.state() = after.md5;
            self.sha256 = after.sha256;
        }
        self.update_sha256(&piece[blocks.end..]);
    }

    fn update_sha256(&mut self, bytes: &[u8]) {
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// The MD5, and the SHA-256 if it was asked for.
    pub(crate) fn finish(self) -> ([u8; 16], Option<[u8; 32]>) {
        (self.md5.finish(), self.sha256.map(|sha256| sha256.finalize().into()))
    }
}

/// Feeds whole blocks to both, one block to each in turn.
fn by_turns(md5: &mut State, sha256: Option<&mut Sha256>, blocks: &[u8]) {
    let Some(sha256) = sha256 else { return md5.update(blocks) };
    for block in blocks.chunks_exact(BLOCK_BYTES) {
        sha256.update(block);
        md5.update(block);
    }
}

struct Lanes {
    waiting: Mutex<Vec<Arc<Piece>>>,
}

/// The chaining values between two blocks.
struct Chains {
    md5: State,
    sha256: Option<Sha256>,
}

/// A piece on its way through a batch.
struct Piece {
    blocks: Bytes,
    slot: Mutex<Slot>,
}

struct Slot {
    /// Not here while a batch has them, and once the piece's task has what came of them.
    chains: Option<Chains>,
    is_done: bool,
    /// The task that is to be woken, if it has looked.
    waker: Option<Waker>,
}

impl Lanes {
    async fn digest(&self, chains: Chains, blocks: Bytes) -> Chains {
        let slot = Slot { chains: Some(chains), is_done: false, waker: None };
        let piece = Arc::new(Piece { blocks, slot: Mutex::new(slot) });
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
        let chains = poll_fn(|context| {
            let mut slot = lock(&piece.slot);
            if slot.is_done
                && let Some(chains) = slot.chains.take()
            {
                return Poll::Ready(chains);
            }
            slot.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        drop(guard);
        chains
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
    let mut taken: Vec<(&Arc<Piece>, Chains)> =
        batch.iter().filter_map(|piece| Some((piece, lock(&piece.slot).chains.take()?))).collect();
    if taken.len() < LANES_MIN {
        for (piece, chains) in &mut taken {
            by_turns(&mut chains.md5, chains.sha256.as_mut(), &piece.blocks);
        }
    } else {
        in_lanes(&mut taken);
    }
    for (piece, chains) in taken {
        let waker = {
            let mut slot = lock(&piece.slot);
            (slot.chains, slot.is_done) = (Some(chains), true);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Computes the MD5 of all pieces at once, and the SHA-256 of each two.
fn in_lanes(pieces: &mut [(&Arc<Piece>, Chains)]) {
    let mut jobs: Vec<Job<'_>> =
        pieces.iter().map(|(piece, chains)| Job::new(chains.md5, &piece.blocks)).collect();
    larder_md5::digest_all(&mut jobs);
    let after: Vec<State> = jobs.iter().map(|job| job.state).collect();
    for ((_, chains), md5) in pieces.iter_mut().zip(after) {
        chains.md5 = md5;
    }
    let mut signed: Vec<(&mut Sha256, &[u8])> = pieces
        .iter_mut()
        .filter_map(|(piece, chains)| Some((chains.sha256.as_mut()?, &piece.blocks[..])))
        .collect();
    signed.chunks_mut(2).for_each(in_pairs);
}

/// Computes two SHA-256 by turns, as far as both have blocks: each fills the gaps of the other.
fn in_pairs(pieces: &mut [(&mut Sha256, &[u8])]) {
    let both = pieces.iter().map(|(_, blocks)| blocks.len()).min().unwrap_or_default();
    for at in (0..both).step_by(BLOCK_BYTES) {
        for (sha256, blocks) in &mut *pieces {
            sha256.update(&blocks[at..at + BLOCK_BYTES]);
        }
    }
    for (sha256, blocks) in pieces {
        sha256.update(&blocks[both..]);
    }
}

/// Takes a piece out of the line when its task goes away.
struct InLine<'a> {
    lanes: &'a Lanes,
    piece: &'a Arc<Piece>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if !lock(&self.piece.slot).is_done {
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

    /// Every second message has its SHA-256 computed, too.
    fn digests(seed: usize) -> Chained {
        let digests = Chained::default();
        if seed.is_multiple_of(2) { digests.with_sha256() } else { digests }
    }

    fn expected(seed: usize, message: &[u8]) -> ([u8; 16], Option<[u8; 32]>) {
        let mut md5 = Md5::default();
        md5.update(message);
        (md5.finish(), seed.is_multiple_of(2).then(|| Sha256::digest(message).into()))
    }

    async fn in_company(seed: usize) -> ([u8; 16], Option<[u8; 32]>) {
        let (mut digests, message) = (digests(seed), message(seed));
        for piece in [message.slice(..100), message.slice(100..5000), message.slice(5000..)] {
            digests.update_in_company(&piece).await;
        }
        digests.finish()
    }

    fn chains() -> Chains {
        Chains { md5: State::default(), sha256: Some(Sha256::new()) }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn pieces_of_any_length_give_the_digests_of_the_whole() {
        for seed in 0..4 {
            let message = message(seed);
            for cut in [0, 1, 63, 64, 65, 127, 128, 1000] {
                let mut digests = digests(seed);
                for piece in [&message[..cut], &message[cut..cut + 70], &message[cut + 70..]] {
                    digests.update(piece);
                }
                assert_eq!(digests.finish(), expected(seed, &message), "cut at {cut}");
            }
        }
    }

    #[tokio::test]
    async fn one_that_is_alone_gets_its_digests() {
        assert_eq!(in_company(0).await, expected(0, &message(0)));
    }

    #[tokio::test]
    async fn many_at_once_get_their_own_digests() {
        let tasks: Vec<_> = (0..50).map(|n| tokio::spawn(in_company(n))).collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), expected(n, &message(n)), "message {n}");
        }
    }

    #[tokio::test]
    async fn a_task_that_goes_away_takes_its_piece_along() {
        let lanes = Lanes { waiting: Mutex::new(Vec::new()) };
        let blocks = Bytes::from(vec![7; LANE_BYTES_MIN]);
        {
            let mut gone = std::pin::pin!(lanes.digest(chains(), blocks.clone()));
            assert!(poll(gone.as_mut()).is_pending());
            assert_eq!(lock(&lanes.waiting).len(), 1);
        }
        assert_eq!(lock(&lanes.waiting).len(), 0);
        let mut left = State::default();
        left.update(&blocks);
        assert_eq!(lanes.digest(chains(), blocks.clone()).await.md5, left);
    }

    #[tokio::test]
    async fn a_full_batch_does_not_yield() {
        let lanes = Lanes { waiting: Mutex::new(Vec::new()) };
        let blocks = Bytes::from(vec![7; LANE_BYTES_MIN]);
        let mut others: Vec<_> =
            (1..LANES_MAX).map(|_| Box::pin(lanes.digest(chains(), blocks.clone()))).collect();
        for other in &mut others {
            assert!(poll(other.as_mut()).is_pending());
        }
        let mut last = std::pin::pin!(lanes.digest(chains(), blocks.clone()));
        assert!(poll(last.as_mut()).is_ready());
        assert_eq!(lock(&lanes.waiting).len(), 0);
    }
}
