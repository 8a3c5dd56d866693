//! The choice of pieces to coalesce in an object that was appended to (ADR 65).
//!
//! Sizes go by tiers, as in a tiered compaction: pieces are coalesced with pieces of about their size, and those of
//! [`COALESCED_BYTES_MIN`] never again.
//!
//! # Invariants
//!
//! 1. A window has two pieces at least, fits a chunk, and no piece of it is as large as [`COALESCED_BYTES_MIN`].
//! 2. A byte is written again into a piece that has [`COALESCE_GROWTH_MIN`] times the bytes of the one that had it, or as
//!    many as [`COALESCED_BYTES_MIN`]. It is written once more where large pieces stand on both sides. It is also written
//!    again where a window has the most pieces, if it is not the largest of them with many on one side.
//! 3. Where no window is found, no two pieces below [`COALESCED_BYTES_MIN`] stand side by side, but for fewer than a window
//!    has at the end. So an object has two pieces for each of so many bytes, and these.

use std::ops::Range;

use larder_types::limits::{CHUNK_BYTES_MAX, COALESCED_BYTES_MIN};

use crate::limits::COALESCE_GROWTH_MIN;

/// Numbers of pieces in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Fewer are not worth it, unless they make a large one; at least 2.
    pub(crate) min: usize,
    /// The most.
    pub(crate) max: usize,
}

/// Pieces to be coalesced, of adjacent ones that have so many bytes each; and the first piece that may be in a later window.
/// The next to come stands behind all of these.
pub(crate) fn window(lens: &[u64], pieces: Pieces) -> (Option<Range<usize>>, usize) {
    let mut settled = 0;
    let mut at = 0;
    while at < lens.len() {
        let end = run_end(lens, at, pieces.max);
        if end == at {
            // It is large enough, and ends what is before it.
            at += 1;
            settled = at;
            continue;
        }
        let all = at..end;
        if let Some(found) = worth_within(lens, all.clone(), pieces.min) {
            return (Some(found), settled);
        }
        // Nothing will come between these and the next, which is large; or there is no room for more.
        let is_closed = lens.get(end).is_some_and(|next| *next >= COALESCED_BYTES_MIN);
        if is_closed && all.len() >= 2 {
            return (Some(all), settled);
        }
        if all.len() == pieces.max {
            return (Some(without_largest(lens, all, pieces.min)), settled);
        }
        at = end;
    }
    (None, settled)
}

/// The end of the pieces from one on that fit a window.
fn run_end(lens: &[u64], at: usize, pieces_max: usize) -> usize {
    let mut bytes = 0;
    let mut fits = |len: &u64| {
        bytes += len;
        *len < COALESCED_BYTES_MIN && bytes <= u64::from(CHUNK_BYTES_MAX)
    };
    at + lens[at..].iter().take(pieces_max).take_while(|len| fits(len)).count()
}

/// The first pieces of these that are worth it. Those that a large one among them spoils are looked at without it.
fn worth_within(lens: &[u64], all: Range<usize>, pieces_min: usize) -> Option<Range<usize>> {
    let mut left = vec![all];
    while let Some(range) = left.pop() {
        let pieces = &lens[range.clone()];
        if is_worth(pieces, pieces_min) {
            return Some(range);
        }
        if pieces.len() <= pieces_min {
            continue;
        }
        let largest = range.clone().max_by_key(|at| lens[*at])?;
        left.push(largest + 1..range.end);
        left.push(range.start..largest);
    }
    None
}

/// The longer run on one side of the largest of these pieces, if that are enough; else all.
fn without_largest(lens: &[u64], all: Range<usize>, pieces_min: usize) -> Range<usize> {
    let largest = all.clone().max_by_key(|at| lens[*at]).unwrap_or(all.start);
    let sides = [all.start..largest, largest + 1..all.end];
    let longer = sides.into_iter().max_by_key(Range::len).filter(|side| side.len() >= pieces_min);
    longer.unwrap_or(all)
}

fn is_worth(pieces: &[u64], pieces_min: usize) -> bool {
    let bytes: u64 = pieces.iter().sum();
    let largest = pieces.iter().max().copied().unwrap_or(0);
    // As many pieces of one length grow by more than that.
    let growth_min = COALESCE_GROWTH_MIN.min(pieces_min as u64 - 1);
    let grows = bytes >= growth_min * largest;
    pieces.len() >= 2 && (bytes >= COALESCED_BYTES_MIN || pieces.len() >= pieces_min && grows)
}

#[cfg(test)]
mod tests;
