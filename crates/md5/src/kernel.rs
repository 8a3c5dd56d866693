//! The kernels, and which of them a batch gets.

#[cfg(target_arch = "x86_64")]
mod vector;

use crate::rounds::rounds;
use crate::{BLOCK_BYTES, Job, State};

/// One message alone.
pub(crate) fn one(state: &mut State, blocks: &[u8]) {
    for block in blocks.chunks_exact(BLOCK_BYTES) {
        let word = |at: usize| {
            u32::from_le_bytes([
                block[at * 4],
                block[at * 4 + 1],
                block[at * 4 + 2],
                block[at * 4 + 3],
            ])
        };
        let [mut a, mut b, mut c, mut d] = state.0;
        macro_rules! function {
            (F $b:ident $c:ident $d:ident) => {
                $d ^ ($b & ($c ^ $d))
            };
            (G $b:ident $c:ident $d:ident) => {
                $c ^ ($d & ($b ^ $c))
            };
            (H $b:ident $c:ident $d:ident) => {
                $b ^ $c ^ $d
            };
            (I $b:ident $c:ident $d:ident) => {
                $c ^ ($b | !$d)
            };
        }
        macro_rules! step {
            ($round:ident $a:ident $b:ident $c:ident $d:ident $word:literal $turn:literal $k:literal) => {
                $a = $a
                    .wrapping_add($k)
                    .wrapping_add(word($word))
                    .wrapping_add(function!($round $b $c $d))
                    .rotate_left($turn)
                    .wrapping_add($b);
            };
        }
        rounds!(step a b c d);
        for (before, turned) in state.0.iter_mut().zip([a, b, c, d]) {
            *before = before.wrapping_add(turned);
        }
    }
}

pub(crate) fn digest_all(jobs: &mut [Job<'_>]) {
    #[cfg(target_arch = "x86_64")]
    let jobs = vector::digest_batches(jobs);
    for job in jobs.iter_mut() {
        one(&mut job.state, job.blocks);
    }
}
