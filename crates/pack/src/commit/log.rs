//! The worker's log: a record for each change, synced group by group. The metadata log's segments, chain and
//! recovery serve as they are; all records are of one PG.
//!
//! # Invariant
//!
//! A record is in the log only if the body that it names is synced in the spool.

use larder_metalog::{Appender, Batch, LogError, Lsn, Record, Writer};
use larder_types::codec::encode_into;
use larder_types::{BucketName, OpSeq, PgId, View};
use serde::{Deserialize, Serialize};

use crate::format::entry::Entry;
use crate::format::rows::BlobRow;
use crate::ids::WorkerId;

/// Directory of the segments.
pub(crate) const DIR: &str = "log";

/// A record of the log. One that is written only refers to its entry and bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogRecord<E = Box<Entry>, B = BucketName> {
    /// A change, which belongs to this blob of the worker.
    Changed {
        blob: u64,
        /// Name of its bucket, for the blob's footer.
        bucket: B,
        entry: E,
    },
    /// A blob is in the backend.
    Uploaded { blob: u64, row: BlobRow },
    /// As `Changed`, about no bucket.
    Noted { blob: u64, entry: E },
}

/// A record as it is written.
pub(crate) type LogRecordRef<'a> = LogRecord<&'a Entry, &'a BucketName>;

/// The log, of which one thread has both halves.
pub(crate) struct PackLog {
    appender: Appender,
    writer: Writer,
    batch: Batch,
    worker: WorkerId,
    /// The last record that is durable.
    durable: OpSeq,
    scratch: Vec<u8>,
    /// Nothing durable follows the last commit that would tell its damage from a torn tail.
    uncommitted_mark: bool,
}

impl PackLog {
    pub(crate) fn new(
        appender: Appender,
        writer: Writer,
        worker: WorkerId,
        durable: OpSeq,
    ) -> Self {
        let (batch, scratch) = (Batch::default(), Vec::new());
        Self { appender, writer, batch, worker, durable, scratch, uncommitted_mark: true }
    }

    /// Takes a record; gives its end. It is durable after [`PackLog::commit`].
    ///
    /// # Errors
    /// [`LogError::Full`]: nothing was taken. [`LogError::Broken`].
    pub(crate) fn append(
        &mut self,
        seq: OpSeq,
        record: &LogRecordRef<'_>,
    ) -> Result<Lsn, LogError> {
        self.scratch.clear();
        let mut payload = std::mem::take(&mut self.scratch);
        encode_into(record, &mut payload);
        let record = Record {
            pg: PgId(0),
            view: View(self.worker.0),
            seq,
            commit: self.durable,
            payload: &payload,
        };
        let taken = match self.appender.append(&record) {
            // Records that wait are written first, and the next segment is made.
            Err(LogError::Busy) => {
                let written = self.write();
                let ready = written.and_then(|()| self.prepare());
                ready.and_then(|()| self.appender.append(&record))
            }
            taken => taken,
        };
        self.scratch = payload;
        taken
    }

    /// Makes everything taken durable; `seq` is the last of it.
    ///
    /// # Errors
    /// [`LogError::Broken`], for ever.
    pub(crate) fn commit(&mut self, seq: OpSeq) -> Result<(), LogError> {
        self.write()?;
        self.durable = seq;
        self.uncommitted_mark = true;
        Ok(())
    }

    /// Prepares space for the next records while no request waits.
    ///
    /// # Errors
    /// [`LogError::Broken`], for ever.
    pub(crate) fn prepare(&mut self) -> Result<(), LogError> {
        let progress = self.writer.prepare()?;
        self.appender.note(progress);
        Ok(())
    }

    /// Returns true if [`PackLog::write_commit_mark`] has something to do.
    pub(crate) fn lacks_commit_mark(&self) -> bool {
        self.uncommitted_mark
    }

    /// Says behind the last record that it is synced. For a log that falls idle.
    ///
    /// # Errors
    /// [`LogError::Broken`], for ever.
    pub(crate) fn write_commit_mark(&mut self) -> Result<(), LogError> {
        self.uncommitted_mark = false;
        match self.appender.mark() {
            Ok(_) => self.write(),
            Err(LogError::Busy | LogError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Where the next record begins, or behind.
    pub(crate) fn end(&self) -> Lsn {
        self.appender.end()
    }

    /// Returns true if only changes that end something should be taken: the disk has no room for
    /// another segment.
    pub(crate) fn is_full(&self) -> bool {
        self.appender.is_full()
    }

    /// Gives up what lies below `lsn`.
    ///
    /// # Errors
    /// [`LogError::Broken`], for ever.
    pub(crate) fn free_below(&mut self, lsn: Lsn) -> Result<(), LogError> {
        self.writer.free_below(lsn)
    }

    fn write(&mut self) -> Result<(), LogError> {
        if self.appender.take_batch(&mut self.batch) {
            let progress = self.writer.commit(&mut self.batch)?;
            self.appender.note(progress);
        }
        Ok(())
    }
}
