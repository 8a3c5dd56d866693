//! Checksums and digests of 8 KiB.

use std::hint::black_box;

use larder_md5::{Job, LANES_MAX, Md5, State};
use larder_types::checksum::sum_blocks;

use crate::Outcome;

const BODY: [u8; 8192] = [7; 8192];

pub(crate) fn sums(count: u64) -> Outcome {
    for seed in 0..count {
        black_box(sum_blocks(seed, std::iter::once(black_box(&BODY[..]))));
    }
    Ok(())
}

pub(crate) fn md5(count: u64) -> Outcome {
    for _ in 0..count {
        let mut md5 = Md5::default();
        md5.update(black_box(&BODY));
        black_box(md5.finish());
    }
    Ok(())
}

pub(crate) fn md5_batch(count: u64) -> Outcome {
    for _ in 0..count / LANES_MAX as u64 {
        let mut jobs: Vec<Job<'_>> =
            (0..LANES_MAX).map(|_| Job::new(State::default(), black_box(&BODY))).collect();
        larder_md5::digest_all(&mut jobs);
        black_box(&jobs);
    }
    Ok(())
}
