use proptest::prelude::*;

use super::*;
use crate::limits::{COALESCE_PIECES_MAX, COALESCE_PIECES_MIN};

const MAX: Pieces = Pieces { min: COALESCE_PIECES_MIN, max: COALESCE_PIECES_MAX };

fn found(lens: &[u64]) -> Option<Range<usize>> {
    window(lens, MAX).0
}

#[test]
fn few_small_pieces_are_left_alone() {
    assert_eq!(window(&[], MAX), (None, 0));
    assert_eq!(window(&[100; COALESCE_PIECES_MIN - 1], MAX), (None, 0));
    assert_eq!(found(&[100; COALESCE_PIECES_MIN]), Some(0..COALESCE_PIECES_MIN));
    assert_eq!(found(&[100; 1000]), Some(0..COALESCE_PIECES_MAX));
}

#[test]
fn a_few_pieces_that_make_a_large_one_are_coalesced() {
    let half = COALESCED_BYTES_MIN / 2;
    assert_eq!(found(&[half, half]), Some(0..2));
    assert_eq!(found(&[half, half - 1]), None);
    // As many as fit a chunk.
    assert_eq!(found(&[COALESCED_BYTES_MIN - 1; 20]), Some(0..8));
}

#[test]
fn large_pieces_are_passed_and_end_what_is_before_them() {
    let large = COALESCED_BYTES_MIN;
    assert_eq!(window(&[large, 10, large, 10, 10], MAX), (None, 3));
    // Nothing comes between them any more.
    assert_eq!(window(&[large, 10, 10, large, 10, 10], MAX), (Some(1..3), 1));
    let behind = [&[large, large][..], &[7; 64]].concat();
    assert_eq!(window(&behind, MAX), (Some(2..66), 2));
}

#[test]
fn a_piece_much_larger_than_its_neighbours_is_not_written_again_for_them() {
    let lens = [&[100_000][..], &[100; 100], &[100_000], &[100; 30]].concat();
    assert_eq!(found(&lens), Some(1..101));
}

/// The outcome of appends.
struct Appended {
    /// Most pieces that could be coalesced.
    most: usize,
    /// Times that each byte was written again.
    again: f64,
    /// Pieces in the end.
    left: u64,
}

/// Appends with a look after every so many, as proxies do it.
fn appended(lens: impl Iterator<Item = u64>, each: usize) -> Appended {
    let (mut pieces, mut most, mut rewritten, mut bytes, mut settled) = (Vec::new(), 0, 0, 0, 0);
    for (number, len) in lens.enumerate() {
        pieces.push(len);
        bytes += len;
        most = most.max(pieces.len() - settled);
        if (number + 1) % each > 0 {
            continue;
        }
        loop {
            let (found, passed) = window(&pieces[settled..], MAX);
            let from = settled;
            settled += passed;
            let Some(found) = found else { break };
            let found = from + found.start..from + found.end;
            let sum: u64 = pieces[found.clone()].iter().sum();
            rewritten += sum;
            pieces.splice(found, [sum]);
        }
    }
    Appended { most, again: rewritten as f64 / bytes as f64, left: pieces.len() as u64 }
}

#[test]
fn records_of_any_size_are_written_again_a_few_times() {
    for len in [1, 100, 1000, 8 * 1024, 100_000, 900_000] {
        let count = if len < 1000 { 400_000 } else { 20_000 };
        let Appended { most: rows, again, .. } = appended(std::iter::repeat_n(len, count), 128);
        assert!(rows < 512, "records of {len} bytes have {rows} rows that may be coalesced");
        assert!(again < 4.0, "records of {len} bytes are written {again} times again");
    }
    // Sizes from 1 byte to 128 KiB, as many of each power of two.
    // Checkpoints among small records, below and above what is large.
    for (one_in, checkpoint) in
        [(64, 1 << 20), (64, 1 << 16), (32, 1 << 16), (64, 2000), (16, 5000), (2, 1 << 20)]
    {
        let lens = (0..80_000).map(|n| if n % one_in == 0 { checkpoint } else { 100 });
        let bytes: u64 = lens.clone().sum();
        let Appended { most: rows, again, left } = appended(lens, 128);
        assert!(rows < 512, "one in {one_in} of {checkpoint}: {rows} rows may be coalesced");
        assert!(again < 5.0, "one in {one_in} of {checkpoint}: written {again} times again");
        assert!(left <= 2 * bytes / COALESCED_BYTES_MIN + 512, "{left} pieces of {bytes} bytes");
    }
    let mixed = (0..200_000_u64).map(|n| 1 << ((n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 18));
    let Appended { most: rows, again, .. } = appended(mixed, 128);
    assert!(rows < 512 && again < 4.0, "{rows} rows, written {again} times again");
}

proptest! {
    #[test]
    fn windows_keep_the_invariants(
        lens in prop::collection::vec(1_u64..2_000_000, 0..300),
        small in prop::collection::vec(1_u64..5_000, 0..300),
        pieces_max in 2_usize..200,
    ) {
        let lens = [lens, small].concat();
        let (found, settled) = window(&lens, Pieces { max: pieces_max, ..MAX });
        prop_assert!(settled <= lens.len());
        prop_assert!(settled == 0 || lens[settled - 1] >= COALESCED_BYTES_MIN);
        if let Some(found) = found {
            let pieces = &lens[found.clone()];
            let bytes: u64 = pieces.iter().sum();
            let largest = pieces.iter().max().copied().unwrap_or(0);
            prop_assert!(found.start >= settled);
            prop_assert!((2..=pieces_max).contains(&pieces.len()));
            prop_assert!(bytes <= u64::from(CHUNK_BYTES_MAX) && largest < COALESCED_BYTES_MIN);
            let is_closed = lens.get(found.end).is_some_and(|next| *next >= COALESCED_BYTES_MIN);
            let grows = bytes >= COALESCED_BYTES_MIN || bytes >= COALESCE_GROWTH_MIN * largest;
            let is_full = pieces.len() == pieces_max || pieces.len() >= COALESCE_PIECES_MIN;
            prop_assert!(grows || is_closed || is_full);
        }
    }
}
