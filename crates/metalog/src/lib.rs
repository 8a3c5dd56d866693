//! The metadata log: one segmented, preallocated, append-only log per meta server, for all its PGs.
//!
//! ```text
//!   many threads, under one lock        one thread
//!   Appender::append ──▶ Batch ──▶ Writer::commit ──▶ segment files
//!        ▲                              │
//!        └────── Appender::note ◀── Progress
//! ```
//!
//! # Invariants
//!
//! 1. A record is durable when [`Writer::commit`] of its batch returned `Ok`, and not before.
//! 2. [`recover`] gives back every durable record, in order, and nothing that follows a hole. Whatever
//!    it gives back is durable when it returns, and whatever it cut can never come back.
//! 3. A bad record below a position that a later record knows to be synced is damage, never a torn
//!    tail, and is never skipped. So is a record that does not follow its PG's record before.
//! 4. A failed write or sync ends the writer: nothing is retried and then called durable.
//! 5. A record is accepted only if the segments it needs exist durably and at their full size. So a
//!    full disk refuses records before they are written and never tears one.
//!
//! # What it must not do
//!
//! Know what payloads mean, read a clock, draw randomness, start threads, or keep an index.
//!
//! The format is described in `docs/formats/metadata-log.md`.

mod appender;
mod batch;
#[cfg(feature = "planted-bugs")]
mod bugs;
mod config;
mod error;
pub mod limits;
mod recover;
mod segments;
mod v1;
mod walk;
mod writer;

pub use appender::Appender;
pub use batch::{Batch, Progress};
#[cfg(feature = "planted-bugs")]
pub use bugs::Bugs;
pub use config::LogConfig;
pub use error::{Damage, DamageKind, LogError};
pub use recover::{Recovery, ScanReport, recover, scan};
pub use v1::Lsn;
pub use walk::Recovered;
pub use writer::Writer;

use larder_types::{OpSeq, PgId, View};

/// A record to append: one op of one PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The PG whose op it is.
    pub pg: PgId,
    /// View in which it was issued.
    pub view: View,
    /// Its position in the PG's log.
    pub seq: OpSeq,
    /// The PG's commit point as known when it was appended.
    pub commit: OpSeq,
    /// The op, at most [`larder_types::limits::OP_BYTES_MAX`] bytes; of no meaning here.
    pub payload: &'a [u8],
}
