//! MD5 of up to sixteen messages at once: what an S3 entity tag costs when puts are concurrent.
//!
//! MD5 is one long chain of dependent steps, so a processor that could do sixteen times as much waits.
//! Vectors have room for a message in each of their lanes: a batch takes about the time of one
//! message.
//!
//! # Invariants
//!
//! 1. A batch gives what each message gives alone, whatever the lengths: lanes never meet.
//! 2. Kernels are chosen by what the processor says it has, once; without any, messages go one by one.
//!
//! Must not: wait for company. Who batches, and for how long, is the caller's matter.

mod kernel;
mod rounds;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 64;
/// Most messages that one pass of the widest kernel takes.
pub const LANES_MAX: usize = 16;

/// The chaining value between two blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub(crate) [u32; 4]);

impl Default for State {
    fn default() -> Self {
        Self([0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476])
    }
}

impl State {
    /// Takes whole blocks without company.
    ///
    /// # Panics
    /// If `blocks` is not a multiple of [`BLOCK_BYTES`] long.
    pub fn update(&mut self, blocks: &[u8]) {
        assert!(blocks.len().is_multiple_of(BLOCK_BYTES), "a state takes whole blocks");
        kernel::one(self, blocks);
    }
}

/// Whole blocks that go into a state.
#[derive(Debug)]
pub struct Job<'a> {
    /// Before the batch the state so far, after it the result.
    pub state: State,
    blocks: &'a [u8],
}

impl<'a> Job<'a> {
    /// A job.
    ///
    /// # Panics
    /// If `blocks` is not a multiple of [`BLOCK_BYTES`] long.
    #[must_use]
    pub fn new(state: State, blocks: &'a [u8]) -> Self {
        assert!(blocks.len().is_multiple_of(BLOCK_BYTES), "a job has whole blocks");
        Self { state, blocks }
    }
}

/// Does all jobs of a batch, as many at a time as the processor has lanes for.
pub fn digest_all(jobs: &mut [Job<'_>]) {
    kernel::digest_all(jobs);
}

/// A message on its way.
#[derive(Debug, Clone)]
pub struct Md5 {
    state: State,
    /// Bytes that do not fill a block yet.
    tail: [u8; BLOCK_BYTES],
    tail_len: usize,
    /// Bytes of the message so far.
    len: u64,
}

impl Default for Md5 {
    fn default() -> Self {
        Self { state: State::default(), tail: [0; BLOCK_BYTES], tail_len: 0, len: 0 }
    }
}

impl Md5 {
    /// Takes the bytes in front of and behind a piece's whole blocks, and returns the place of those
    /// blocks. The caller feeds them to [`Md5::state`], in a batch or not, and puts the result back.
    /// It does so before it does anything else with this.
    pub fn begin(&mut self, piece: &[u8]) -> std::ops::Range<usize> {
        self.len += piece.len() as u64;
        let head = if self.tail_len == 0 { 0 } else { BLOCK_BYTES - self.tail_len };
        let head = head.min(piece.len());
        self.tail[self.tail_len..self.tail_len + head].copy_from_slice(&piece[..head]);
        self.tail_len += head;
        if self.tail_len == BLOCK_BYTES {
            kernel::one(&mut self.state, &self.tail);
            self.tail_len = 0;
        }
        let end = head + (piece.len() - head) / BLOCK_BYTES * BLOCK_BYTES;
        let rest = &piece[end..];
        self.tail[self.tail_len..self.tail_len + rest.len()].copy_from_slice(rest);
        self.tail_len += rest.len();
        head..end
    }

    /// The chaining value that the blocks named by [`Md5::begin`] go into.
    pub fn state(&mut self) -> &mut State {
        &mut self.state
    }

    /// Takes a piece without company.
    pub fn update(&mut self, piece: &[u8]) {
        let blocks = self.begin(piece);
        kernel::one(&mut self.state, &piece[blocks]);
    }

    /// The digest.
    #[must_use]
    pub fn finish(mut self) -> [u8; 16] {
        let mut last = [0; 2 * BLOCK_BYTES];
        last[..self.tail_len].copy_from_slice(&self.tail[..self.tail_len]);
        last[self.tail_len] = 0x80;
        let end = if self.tail_len < BLOCK_BYTES - 8 { BLOCK_BYTES } else { 2 * BLOCK_BYTES };
        last[end - 8..end].copy_from_slice(&self.len.wrapping_mul(8).to_le_bytes());
        kernel::one(&mut self.state, &last[..end]);
        let mut digest = [0; 16];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

#[cfg(test)]
mod tests;
