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
        // Each adds its function of the state to `sum`. `b` comes from the step before, so the less that waits
        // for it the sooner is the step done. The halves of G have no bit in common: they may be added one by one.
        macro_rules! add {
            (F $sum:expr, $b:ident $c:ident $d:ident) => {
                $sum.wrapping_add($d ^ ($b & ($c ^ $d)))
            };
            (G $sum:expr, $b:ident $c:ident $d:ident) => {
                $sum.wrapping_add($c & !$d).wrapping_add($b & $d)
            };
            (H $sum:expr, $b:ident $c:ident $d:ident) => {
                $sum.wrapping_add($b ^ ($c ^ $d))
            };
            (I $sum:expr, $b:ident $c:ident $d:ident) => {
                $sum.wrapping_add($c ^ ($b | !$d))
            };
        }
        macro_rules! step {
            ($round:ident $a:ident $b:ident $c:ident $d:ident $word:literal $turn:literal $k:literal) => {
                let sum = $a.wrapping_add($k).wrapping_add(word($word));
                $a = add!($round sum, $b $c $d).rotate_left($turn).wrapping_add($b);
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
