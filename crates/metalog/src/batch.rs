//! The types that the appending half of the log and its writing half exchange: batches of records on their way to the disk, and
//! how far these have come.

use crate::v1::Lsn;

/// Records on their way to the disk: what one commit writes.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// Contiguous pieces; each lies within one segment, and no segment has two.
    pub(crate) runs: Vec<Run>,
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
}

/// A contiguous piece of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// Where it goes.
    pub(crate) at: Lsn,
    /// Where it begins in the batch; it ends with the next one.
    pub(crate) from: usize,
}

impl Batch {
    /// True if there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The pieces with their places.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Lsn, &[u8])> {
        self.runs.iter().enumerate().map(|(index, run)| {
            let end = self.runs.get(index + 1).map_or(self.bytes.len(), |next| next.from);
            (run.at, &self.bytes[run.from..end])
        })
    }

    /// Empties it; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
    }
}

/// The writer's progress, for the [`crate::Appender`] to note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The log is durable up to here.
    pub synced: Lsn,
    /// The log has segments up to here.
    pub ready: Lsn,
    /// The disk has no room for another segment.
    pub full: bool,
    /// Grows from answer to answer.
    pub(crate) turn: u64,
}
