//! The KV index of the metadata log.
//!
//! The log is the database; this is an index of it. Nothing here has a log of its own. A crash loses the batches
//! applied since the last flush; they are applied again from the metadata log. The applied position per PG is part of
//! the same batches ([`Batch::position`]).
//!
//! # Invariants
//!
//! 1. A [`Batch`] becomes visible to readers as a whole, and batches in the order of their applies. Only
//!    its positions may stay unseen until the index is opened anew, but for those who have a snapshot.
//! 2. When [`Kv::flush`] returns `Ok`, every batch applied before the call is durable.
//! 3. After a crash the index holds exactly the batches up to one boundary between batches, at or
//!    after the last flush that returned `Ok`.
//! 4. A value is given out only if its checksum, which covers its key, is right.
//!
//! # Not here
//!
//! Row formats, PGs, conditions, and the choice of when to flush or compact belong to the caller.

#![deny(unsafe_code)]

mod batch;
mod error;
pub mod limits;
mod lsm;
mod sim;
mod trailer;

use std::ops::ControlFlow;

use bytes::Bytes;

pub use batch::Batch;
pub use error::KvError;
pub use lsm::LsmKv;
pub use sim::{FlushFault, SimKv};

/// Called for each row of a scan, with key and value; says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// One consistent state of the index.
pub trait KvReader: Send + Sync {
    /// The value of a key. Costs no copy of the value.
    ///
    /// # Errors
    /// [`KvError::Damaged`] with the key, [`KvError::Broken`] or [`KvError::PoweredOff`].
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// Visits the rows with `from <= key` and, if `to` is given, `key < to`, in byte order, all of
    /// one state, until `visit` breaks.
    ///
    /// # Errors
    /// As [`KvReader::get`]; rows visited before the error were right.
    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError>;
}

/// An index: as a reader it shows the state after the latest batch.
pub trait Kv: KvReader + 'static {
    /// A reader of the state as it is now. Asked for a position, it gives that of the batches that it shows. It costs
    /// memory and disk until it is dropped.
    ///
    /// # Errors
    /// [`KvError::PoweredOff`].
    fn snapshot(&self) -> Result<Box<dyn KvReader>, KvError>;

    /// Applies a batch, in memory only.
    ///
    /// # Errors
    /// [`KvError::PoweredOff`].
    fn apply(&self, batch: &Batch) -> Result<(), KvError>;

    /// Makes every batch applied before the call durable. Others may read and apply meanwhile.
    ///
    /// # Errors
    /// After [`KvError::Full`] it may be tried again. After any other error the index takes no more
    /// flushes until it is opened anew, and what the disk has is one of the two states.
    fn flush(&self) -> Result<FlushReport, KvError>;

    /// About how many bytes of memory a flush would free. The caller flushes at a threshold, see
    /// [`limits::FLUSH_BYTES`].
    fn unflushed_bytes(&self) -> u64;

    /// Bytes that the durable part takes on disk, without what only snapshots still hold.
    fn disk_bytes(&self) -> u64;

    /// One step of compaction, bounded by a few hundred MiB read and written. Meant for a background
    /// thread: calls may run beside everything else.
    ///
    /// # Errors
    /// [`KvError::Full`] (retry later), [`KvError::Damaged`] or [`KvError::Broken`].
    fn maintain(&self) -> Result<Progress, KvError>;
}

/// The result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushReport {
    /// Bytes of keys and values made durable; 0 if everything was durable already.
    pub bytes: u64,
}

/// The result of a step of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It did some of the work: call again soon.
    Worked,
    /// Nothing: there is nothing to do until the next flush.
    Idle,
}
