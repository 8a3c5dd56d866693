//! The half of the log that is used under a lock: it copies records into memory and does no I/O.
//!
//! # Invariants
//!
//! 1. Places are given out once, in order and without gaps except at the end of a segment.
//! 2. No place is given out in a segment that does not exist durably at its full size.
//! 3. What a record says of the synced position is no more than what a commit has answered.
//!
//! Appending allocates only while the buffers grow to the size that they keep.

use larder_types::PgId;
use larder_types::limits::PG_COUNT_MAX;

use crate::Record;
use crate::batch::{Batch, Progress, Run};
use crate::error::LogError;
use crate::limits::{BUFFER_BYTES_MAX, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::v1::{self, Kind, Layout, Lsn, Stored};

/// The checksum of each PG's last record; 0 where none is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chains(Vec<u64>);

impl Chains {
    pub(crate) fn last(&self, pg: PgId) -> u64 {
        self.0.get(pg.0 as usize).copied().unwrap_or(0)
    }

    pub(crate) fn set_last(&mut self, pg: PgId, checksum: u64) {
        assert!(pg.0 < PG_COUNT_MAX, "there is no PG {pg}");
        let index = pg.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = checksum;
    }
}

/// Takes records and gives them their places.
#[derive(Debug)]
pub struct Appender {
    layout: Layout,
    dir: String,
    chains: Chains,
    filling: Batch,
    next: Lsn,
    progress: Progress,
}

impl Appender {
    pub(crate) fn new(layout: Layout, dir: &str, chains: Chains, progress: Progress) -> Self {
        let next = progress.synced;
        let filling = Batch { start: next, end: next, ..Batch::default() };
        Self { layout, dir: dir.to_owned(), chains, filling, next, progress }
    }

    /// Takes a record; it is durable once a commit has synced the log through the position that
    /// this returns.
    ///
    /// # Errors
    /// [`LogError::Busy`] if too much is waiting to be written, [`LogError::Full`] if the last
    /// segment that the disk has room for is used up. Nothing was appended then.
    ///
    /// # Panics
    /// If the payload is larger than an op may be.
    pub fn append(&mut self, record: &Record<'_>) -> Result<Lsn, LogError> {
        let chain = self.chains.last(record.pg);
        let stored =
            Stored { kind: Kind::Op, chain, synced: self.progress.synced, record: *record };
        let checksum = self.push(&stored)?;
        self.chains.set_last(record.pg, checksum);
        Ok(self.next)
    }

    /// Takes a record of no PG that says how far the log is synced. Append one when the log falls
    /// idle and before it is closed. Without one nothing behind the records of the last commit
    /// vouches for them, and damage to them passes for a torn tail.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn mark(&mut self) -> Result<Lsn, LogError> {
        self.push(&Stored::bare(Kind::Mark, self.progress.synced))?;
        Ok(self.next)
    }

    /// Bytes appended and not yet taken.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.filling.bytes.len() as u64
    }

    /// The position after the last record appended.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.next
    }

    /// True if the disk has no room for another segment. What is left is kept for ops that free
    /// space or end what was begun: refuse all others until it is over.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.progress.full
    }

    /// Swaps everything buffered into `batch`, which must be empty; false if there is nothing.
    ///
    /// # Panics
    /// If `batch` is not empty: its records would be lost.
    pub fn take_batch(&mut self, batch: &mut Batch) -> bool {
        assert!(batch.is_empty(), "a batch is taken again only after its commit");
        if self.filling.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.filling, batch);
        (self.filling.start, self.filling.end) = (self.next, self.next);
        true
    }

    /// Takes in what the writer answered. Answers may come in any order.
    pub fn note(&mut self, progress: Progress) {
        assert!(progress.synced <= self.filling.start, "only what was taken can be synced");
        if progress.turn > self.progress.turn {
            self.progress = progress;
        }
    }

    fn push(&mut self, stored: &Stored<'_>) -> Result<u64, LogError> {
        let size = v1::stored_bytes(stored.record.payload.len());
        let at = self.place(size)?;
        let crossed = self.layout.segment_of(at) != self.layout.segment_of(self.next);
        if crossed && self.left_in_segment() >= RECORD_HEADER_BYTES {
            self.begin_run(self.next);
            let padding = Stored::bare(Kind::Padding, self.progress.synced);
            v1::encode(&self.layout, self.next, &padding, &mut self.filling.bytes);
        }
        self.begin_run(at);
        let checksum = v1::encode(&self.layout, at, stored, &mut self.filling.bytes);
        self.next = Lsn(at.0 + size);
        self.filling.end = self.next;
        Ok(checksum)
    }

    /// Where a record of this size goes, if it may be taken now.
    fn place(&self, size: u64) -> Result<Lsn, LogError> {
        if self.buffered_bytes() + RECORD_HEADER_BYTES + size > BUFFER_BYTES_MAX {
            return Err(LogError::Busy);
        }
        let segment = self.layout.segment_of(self.next);
        let at = if self.layout.offset_of(self.next) == 0 {
            Lsn(self.next.0 + SEGMENT_HEADER_BYTES)
        } else if self.left_in_segment() < size {
            Lsn(self.layout.start_of(segment + 1).0 + SEGMENT_HEADER_BYTES)
        } else {
            self.next
        };
        if at.0 + size <= self.progress.ready.0 {
            Ok(at)
        } else if self.progress.full {
            Err(LogError::Full { dir: self.dir.clone() })
        } else {
            Err(LogError::Busy)
        }
    }

    fn left_in_segment(&self) -> u64 {
        match self.layout.offset_of(self.next) {
            0 => 0,
            offset => self.layout.segment_bytes - offset,
        }
    }

    /// Makes `at` the place of the next byte of the batch.
    fn begin_run(&mut self, at: Lsn) {
        let continues = self.filling.runs.last().is_some_and(|run| {
            run.at.0 + (self.filling.bytes.len() - run.from) as u64 == at.0
                && self.layout.segment_of(run.at) == self.layout.segment_of(at)
        });
        if !continues {
            self.filling.runs.push(Run { at, from: self.filling.bytes.len() });
        }
    }
}
