//! Checks of what other servers send, before machines step it: machines take for granted what is checked here.
//!
//! # Invariants
//!
//! 1. Whatever decodes is judged with an answer, never with a panic.
//! 2. What this release sends is sound.

use larder_protocol::{Call, Content, LogEntry, PeerMessage};
use larder_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, INLINE_BYTES_MAX, SUM_BYTES};
use larder_types::{Chunk, OpId};

/// Checks that what a put or an append holds is as long as it says, and as it may be.
pub(super) fn is_sound_call(call: &Call) -> bool {
    match call {
        Call::Put(put) => is_sound_content(&put.content, put.description.size),
        Call::Append(append) => {
            let size = append.description.size;
            let is_chunk = matches!(append.content, Content::Data { .. });
            size > 0 && !is_chunk && is_sound_content(&append.content, size)
        }
        _ => true,
    }
}

fn is_sound_content(content: &Content, size: u64) -> bool {
    match content {
        Content::Inline(bytes) => {
            bytes.len() <= INLINE_BYTES_MAX as usize && size == bytes.len() as u64
        }
        Content::Data { len, sums, .. } => {
            (1..=CHUNK_BYTES_MAX).contains(len)
                && size == u64::from(*len)
                && sums.len() == len.div_ceil(SUM_BYTES) as usize
        }
        Content::Stream { chunks, chunk_bytes, .. } => {
            let full = u64::from(*chunk_bytes);
            let Some(before) = chunks.checked_sub(1).map(|chunks| u64::from(chunks) * full) else {
                return false;
            };
            (1..=CHUNK_BYTES_MAX).contains(chunk_bytes)
                && size.checked_sub(before).is_some_and(|last| (1..=full).contains(&last))
        }
    }
}

/// Checks that the ops of a member's message follow each other without a gap, in views that never go back.
pub(super) fn is_sound_message(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Append { view, prev, entries, .. } => {
            follow(*prev, entries) && entries.last().is_none_or(|last| last.id.view <= *view)
        }
        PeerMessage::Report { report, .. } => {
            let last = report.entries.last().map_or(report.prev, |entry| entry.id);
            !report.is_whole || follow(report.prev, &report.entries) && last == report.last
        }
        _ => true,
    }
}

fn follow(prev: OpId, entries: &[LogEntry]) -> bool {
    let mut before = prev;
    entries.iter().all(|entry| {
        let next = before.seq.0.checked_add(1) == Some(entry.id.seq.0);
        let goes_on = next && before.view <= entry.id.view;
        before = entry.id;
        goes_on
    })
}

/// Checks that a chunk has the sums and at least the blocks that its length needs.
pub(crate) fn is_sound_chunk(chunk: &Chunk) -> bool {
    let blocks = chunk.extents.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
    (1..=CHUNK_BYTES_MAX).contains(&chunk.len)
        && chunk.sums.len() == chunk.len.div_ceil(SUM_BYTES) as usize
        && blocks >= u64::from(chunk.len.div_ceil(BLOCK_BYTES))
}

#[cfg(test)]
mod tests;
