//! Packing: small objects gather in large blobs in somebody else's object store, with an index of them here.
//!
//! ```text
//!  face ──▶ Packer ──▶ queue ──▶ committer thread ──1─▶ spool file   bodies of the blob to be, synced
//!             │                        │            ──2─▶ log          one record for each change, synced
//!             │                        │            ──3─▶ index        then the caller is answered
//!             │                        ▼
//!             │                  sealed blobs ──▶ uploader ──▶ backend    bodies ‖ footer ‖ trailer
//!             └── get: index, then the spool file, the cache, or one range request
//! ```
//!
//! # Invariants
//!
//! 1. A change is answered when its record is durable in the log, and its body before that in the spool.
//! 2. The index shows durable changes only, in the order of the log.
//! 3. Blobs go up in the order of their numbers, and only durable changes are in them. So all that
//!    was uploaded is a prefix of all that was answered.
//! 4. A blob is never changed once it is named in the index. Uploading it again writes the same bytes. That holds for
//!    its bundles too (`lot.rs`), the objects with the bodies of one group each, which are in the backend before it.
//! 5. Index and log can be lost: the footers of all blobs, in the order of their names, are the same changes.
//! 6. Bytes are verified against their sums before they leave.
//! 7. One worker owns a backend, or its place in one that several share, at a time, and one process
//!    that worker. A process that was superseded learns of it within a bound, and then answers
//!    nothing. All that it acknowledged as uploaded is there for its heir (`ownership.rs`,
//!    `numbering.rs`, `uploader.rs`). One place decides which blobs count (`counting.rs`).
//! 8. A blob is removed only when others tell all that it told and is still true, and nobody reads it: see
//!    `repack/mod.rs` and `removal.rs`.
//!
//! # Not here
//!
//! HTTP and S3: the face does that.

#![deny(unsafe_code)]

mod apply;
pub mod backend;
mod backup;
pub mod blob;
mod blocking;
mod body;
mod bugs;
mod cache;
mod carry;
mod class;
mod clock;
mod committer;
mod config;
mod counters;
mod counting;
mod embed;
mod entry;
mod error;
mod fetch;
#[cfg(test)]
mod golden;
mod groups;
mod holds;
mod horizon;
#[cfg(test)]
mod hostile;
mod housekeeping;
mod identity;
mod ids;
mod index;
#[cfg(test)]
mod index_size;
pub mod limits;
mod list;
mod log;
mod lot;
mod marker;
mod multipart;
mod names;
mod numbering;
mod objects;
mod own;
mod ownership;
mod packer;
mod plan;
mod policy;
mod queue;
mod read;
mod readers;
mod rebuild;
mod recover;
mod removal;
mod repack;
mod rows;
mod sequences;
#[cfg(test)]
mod sim;
mod slot;
mod spool;
mod status;
mod sums;
mod under_way;
mod uploader;
mod wish;
mod workers;
mod writers;

pub use backend::Backend;
pub use class::{PerClass, Prices, RequestClass, Requests};
pub use config::{Acknowledge, PackConfig};
pub use counters::Counters;
pub use embed::{EmbedError, KeyPage, PackedBucket};
pub use entry::{Change, Content, Entry, Place, Within};
pub use error::PackError;
pub use housekeeping::Kept;
pub use ids::{BackupId, BlobId, OwnId, ProcessId, Run, WorkerId};
pub use lot::Lot;
pub use ownership::OwnerStatus;
pub use packer::Packer;
pub use policy::{Packing, PackingRule, SizeClass};
pub use status::{Moment, Status, Totals};
pub use workers::uploads::{Answering, BodyBroken, HandedBody};
pub use workers::{OtherStatus, Sharing, WorkerName, WorkersStatus};
