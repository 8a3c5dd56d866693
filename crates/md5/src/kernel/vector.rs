//! Kernels with a message in each lane of a vector: 16 with AVX-512, 8 with AVX2.
//!
//! # Invariants
//!
//! 1. A kernel runs only where the processor has said that it has its instructions.
//! 2. Every pointer of a pass has `blocks * stride` readable bytes from its place on: lanes without a
//!    message read the same zeros over and over.

#![allow(unsafe_code, reason = "vector loads, and calls of kernels that were asked for")]

use std::arch::x86_64::*;

use crate::rounds::rounds;
use crate::{BLOCK_BYTES, Job, State};

static IDLE: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Where a lane reads, and how far it moves from block to block.
#[derive(Clone, Copy)]
struct Source {
    at: *const u8,
    stride: usize,
}

/// Takes `blocks` blocks of every lane into its state.
type Kernel<const LANES: usize> =
    unsafe fn(states: &mut [[u32; LANES]; 4], sources: [Source; LANES], blocks: usize);

/// Does the jobs that gain by company; returns those left to be done alone.
pub(super) fn digest_batches<'j, 'b>(jobs: &'j mut [Job<'b>]) -> &'j mut [Job<'b>] {
    if jobs.len() > 1 && is_x86_feature_detected!("avx512f") {
        return with(jobs, avx512::kernel);
    }
    if jobs.len() > 1 && is_x86_feature_detected!("avx2") {
        return with(jobs, avx2::kernel);
    }
    jobs
}

fn with<'j, 'b, const LANES: usize>(
    jobs: &'j mut [Job<'b>],
    kernel: Kernel<LANES>,
) -> &'j mut [Job<'b>] {
    for batch in jobs.chunks_mut(LANES) {
        pass(batch, kernel);
    }
    &mut []
}

/// Runs the kernel until no job of the batch has blocks left, each time as far as the shortest goes.
fn pass<const LANES: usize>(batch: &mut [Job<'_>], kernel: Kernel<LANES>) {
    assert!(batch.len() <= LANES, "a lane for each job");
    let mut states = [[0; LANES]; 4];
    let mut rest = [IDLE.as_slice(); LANES];
    let mut stride = [0; LANES];
    for (lane, job) in batch.iter().enumerate() {
        for (words, word) in states.iter_mut().zip(job.state.0) {
            words[lane] = word;
        }
        if !job.blocks.is_empty() {
            rest[lane] = job.blocks;
            stride[lane] = BLOCK_BYTES;
        }
    }
    loop {
        let busy = rest.iter().zip(stride).filter(|(_, stride)| *stride > 0);
        let Some(shortest) = busy.map(|(rest, _)| rest.len()).min() else { return };
        let sources =
            std::array::from_fn(|lane| Source { at: rest[lane].as_ptr(), stride: stride[lane] });
        // SAFETY: the caller has asked the processor; a busy lane has `shortest` bytes or more, an
        // idle one has a block and stays on it.
        unsafe { kernel(&mut states, sources, shortest / BLOCK_BYTES) };
        for (lane, job) in batch.iter_mut().enumerate() {
            if stride[lane] == 0 {
                continue;
            }
            rest[lane] = &rest[lane][shortest..];
            if rest[lane].is_empty() {
                job.state = State(states.map(|words| words[lane]));
                (rest[lane], stride[lane]) = (&IDLE, 0);
            }
        }
    }
}

/// A kernel of vectors of `$lanes` words, from what such vectors can do.
macro_rules! kernel {
    ($feature:literal $lanes:literal $vector:ty, $transposed:ident, $function:ident, $turn:ident,
     $add:ident, $splat:ident, $load:ident, $store:ident) => {
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn kernel(
            states: &mut [[u32; $lanes]; 4],
            mut sources: [Source; $lanes],
            blocks: usize,
        ) {
            // SAFETY: a state has as many bytes as the vector.
            let mut state: [$vector; 4] =
                std::array::from_fn(|at| unsafe { $load(states[at].as_ptr().cast()) });
            for _ in 0..blocks {
                // SAFETY: the caller vouches for the sources.
                let words = unsafe { $transposed(&sources) };
                let [mut a, mut b, mut c, mut d] = state;
                macro_rules! step {
                    ($round:ident $a:ident $b:ident $c:ident $d:ident $word:literal $by:literal $k:literal) => {
                        let sum = $add($add($a, words[$word]), $splat(u32::cast_signed($k)));
                        $a = $add($turn!($add(sum, $function!($round $b $c $d)), $by), $b);
                    };
                }
                rounds!(step a b c d);
                for (before, turned) in state.iter_mut().zip([a, b, c, d]) {
                    *before = $add(*before, turned);
                }
                for source in &mut sources {
                    source.at = source.at.wrapping_add(source.stride);
                }
            }
            for (words, vector) in states.iter_mut().zip(state) {
                // SAFETY: a state has as many bytes as the vector.
                unsafe { $store(words.as_mut_ptr().cast(), vector) };
            }
        }
    };
}

mod avx512 {
    use super::*;

    macro_rules! function {
        (F $b:ident $c:ident $d:ident) => {
            _mm512_ternarylogic_epi32::<0xca>($b, $c, $d)
        };
        (G $b:ident $c:ident $d:ident) => {
            _mm512_ternarylogic_epi32::<0xca>($d, $b, $c)
        };
        (H $b:ident $c:ident $d:ident) => {
            _mm512_ternarylogic_epi32::<0x96>($b, $c, $d)
        };
        (I $b:ident $c:ident $d:ident) => {
            _mm512_ternarylogic_epi32::<0x39>($b, $c, $d)
        };
    }

    macro_rules! turn {
        ($vector:expr, $by:literal) => {
            _mm512_rol_epi32::<$by>($vector)
        };
    }

    kernel!("avx512f" 16 __m512i, transposed, function, turn, _mm512_add_epi32,
        _mm512_set1_epi32, _mm512_loadu_si512, _mm512_storeu_si512);

    /// Word *i* of every lane's block in vector *i*.
    #[target_feature(enable = "avx512f")]
    unsafe fn transposed(sources: &[Source; 16]) -> [__m512i; 16] {
        // SAFETY: each lane has a block at its place.
        let rows: [__m512i; 16] =
            std::array::from_fn(|lane| unsafe { _mm512_loadu_si512(sources[lane].at.cast()) });
        // In quarter *q* of `fours[g][j]`: word 4q + j of lanes 4g to 4g + 3.
        let fours: [[__m512i; 4]; 4] = std::array::from_fn(|group| {
            let [a, b, c, d] = std::array::from_fn(|row| rows[group * 4 + row]);
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        });
        let mut words = rows;
        for j in 0..4 {
            let [x, y, z, w] = std::array::from_fn(|group| fours[group][j]);
            // Quarters 0 and 2, then 1 and 3, of lanes 0 to 7 and 8 to 15.
            let (even, even_high) =
                (_mm512_shuffle_i32x4::<0x88>(x, y), _mm512_shuffle_i32x4::<0x88>(z, w));
            let (odd, odd_high) =
                (_mm512_shuffle_i32x4::<0xdd>(x, y), _mm512_shuffle_i32x4::<0xdd>(z, w));
            words[j] = _mm512_shuffle_i32x4::<0x88>(even, even_high);
            words[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd_high);
            words[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even_high);
            words[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_high);
        }
        words
    }
}

mod avx2 {
    use super::*;

    macro_rules! function {
        (F $b:ident $c:ident $d:ident) => {
            _mm256_xor_si256($d, _mm256_and_si256($b, _mm256_xor_si256($c, $d)))
        };
        (G $b:ident $c:ident $d:ident) => {
            _mm256_xor_si256($c, _mm256_and_si256($d, _mm256_xor_si256($b, $c)))
        };
        (H $b:ident $c:ident $d:ident) => {
            _mm256_xor_si256($b, _mm256_xor_si256($c, $d))
        };
        (I $b:ident $c:ident $d:ident) => {{
            let not = _mm256_xor_si256($d, _mm256_set1_epi32(-1));
            _mm256_xor_si256($c, _mm256_or_si256($b, not))
        }};
    }

    macro_rules! turn {
        ($vector:expr, $by:literal) => {{
            let vector = $vector;
            _mm256_or_si256(
                _mm256_slli_epi32::<$by>(vector),
                _mm256_srli_epi32::<{ 32 - $by }>(vector),
            )
        }};
    }

    kernel!("avx2" 8 __m256i, transposed, function, turn, _mm256_add_epi32,
        _mm256_set1_epi32, _mm256_loadu_si256, _mm256_storeu_si256);

    /// Word *i* of every lane's block in vector *i*.
    #[target_feature(enable = "avx2")]
    unsafe fn transposed(sources: &[Source; 8]) -> [__m256i; 16] {
        let mut words = [_mm256_setzero_si256(); 16];
        for half in 0..2 {
            // SAFETY: each lane has a block at its place.
            let rows: [__m256i; 8] = std::array::from_fn(|lane| unsafe {
                _mm256_loadu_si256(sources[lane].at.add(half * 32).cast())
            });
            // In half *h* of `fours[g][j]`: word 4h + j of lanes 4g to 4g + 3.
            let fours: [[__m256i; 4]; 2] = std::array::from_fn(|group| {
                let [a, b, c, d] = std::array::from_fn(|row| rows[group * 4 + row]);
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                [
                    _mm256_unpacklo_epi64(ab, cd),
                    _mm256_unpackhi_epi64(ab, cd),
                    _mm256_unpacklo_epi64(ab_high, cd_high),
                    _mm256_unpackhi_epi64(ab_high, cd_high),
                ]
            });
            for j in 0..4 {
                let (low, high) = (fours[0][j], fours[1][j]);
                words[half * 8 + j] = _mm256_permute2x128_si256::<0x20>(low, high);
                words[half * 8 + 4 + j] = _mm256_permute2x128_si256::<0x31>(low, high);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_this_processor_gives_what_a_message_gives_alone() {
        let mut kernels = 0;
        let bytes: Vec<u8> =
            (0..40_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let lengths =
            [640, 64, 0, 8192, 64, 128, 6400, 8192, 8192, 0, 192, 64, 1024, 2048, 64, 6400];
        let jobs = |count: usize| -> Vec<Job<'_>> {
            (0..count)
                .map(|n| Job::new(State([n as u32; 4]), &bytes[n * 7..][..lengths[n]]))
                .collect()
        };
        let mut check = |mut batch: Vec<Job<'_>>, run: &dyn Fn(&mut [Job<'_>])| {
            let mut alone: Vec<State> = batch.iter().map(|job| job.state).collect();
            for (state, job) in alone.iter_mut().zip(&batch) {
                super::super::one(state, job.blocks);
            }
            run(&mut batch);
            assert_eq!(batch.iter().map(|job| job.state).collect::<Vec<_>>(), alone);
            kernels += 1;
        };
        if is_x86_feature_detected!("avx2") {
            (1..=8).for_each(|count| check(jobs(count), &|batch| pass(batch, avx2::kernel)));
        }
        if is_x86_feature_detected!("avx512f") {
            (1..=16).for_each(|count| check(jobs(count), &|batch| pass(batch, avx512::kernel)));
        }
        assert!(
            kernels > 0 || !is_x86_feature_detected!("avx2"),
            "a kernel that is there was tried"
        );
    }
}
