//! The ends of the entries of pending blobs: a caller gets more only after an entry that this process has.
//!
//! Within a process the entries of a blob only grow: ends that were read stay true.

use std::collections::BTreeMap;

use larder_types::{HybridClock, OpSeq};
use parking_lot::Mutex;

use super::wire::FeedPosition;
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::entry::Entry;
use crate::limits::FEED_BYTES_MAX;

/// Ends of the entries of each blob that waits, as far as anybody asked for them.
#[derive(Default)]
pub(super) struct Ends(Mutex<BTreeMap<u64, Vec<End>>>);

/// Where an entry ends, its number and its clock.
type End = (u64, OpSeq, HybridClock);

impl Ends {
    /// Returns true if an entry of a blob that waits ends where more is asked for, and is the one
    /// that the caller has.
    pub(super) fn has(&self, spool: &Spool, asked: &FeedPosition) -> Result<bool, PackError> {
        let FeedPosition { blob, from, last } = *asked;
        if from == 0 {
            return Ok(true);
        }
        let Some(last) = last else { return Ok(false) };
        let mut all = self.0.lock();
        all.retain(|blob, _| spool.waits(*blob));
        let ends = all.entry(blob).or_default();
        let through = |ends: &[End]| ends.last().map_or(0, |(end, ..)| *end);
        while through(ends) < from {
            let begin = through(ends);
            let Some(some) = spool.entries(blob, begin, FEED_BYTES_MAX) else { return Ok(false) };
            read(&some.bytes, begin, ends)?;
            if through(ends) == begin {
                return Ok(false);
            }
        }
        let found = ends.binary_search_by_key(&from, |(end, ..)| *end);
        Ok(found.is_ok_and(|at| (ends[at].1, ends[at].2) == last))
    }
}

/// Reads where entries end; the last may be cut off.
fn read(bytes: &[u8], begin: u64, ends: &mut Vec<End>) -> Result<(), PackError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (entry, tail) = match postcard::take_from_bytes::<Entry>(rest) {
            Ok(found) => found,
            Err(postcard::Error::DeserializeUnexpectedEnd) => return Ok(()),
            Err(error) => {
                return Err(PackError::damaged("entries that wait", error.to_string()));
            }
        };
        rest = tail;
        ends.push((begin + (bytes.len() - rest.len()) as u64, entry.seq, entry.clock));
    }
    Ok(())
}
