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
//!    its bundles too (`format/upload_unit.rs`), the objects with the bodies of one group each, which are in the backend before it.
//! 5. Index and log can be lost: the footers of all blobs, in the order of their names, are the same changes.
//! 6. Bytes are verified against their sums before they leave.
//! 7. One worker owns a backend, or its place in one that several share, at a time, and one process
//!    that worker. A process that was superseded learns of it within a bound, and then answers
//!    nothing. All that it acknowledged as uploaded is there for its heir (`owner/ownership.rs`,
//!    `owner/numbering.rs`, `upload/uploader.rs`). One place decides which blobs count (`owner/counting.rs`).
//! 8. A blob is removed only when others tell all that it told and is still true, and nobody reads it: see
//!    `gc/repack/mod.rs` and `gc/removal.rs`.
//!
//! # Rooms
//!
//! Each is a folder, and can be read alone: its head says what it is for. A room uses only what stands above it here.
//!
//! | room | it has | it uses |
//! |---|---|---|
//! | the files beside the rooms | numbers of workers and blobs, errors, limits, clocks, counters, kinds and prices of requests, planted bugs | one another |
//! | `format` | what a change is; the bytes of blobs, bundles and rows | |
//! | `backend` | somebody else's object store, and the request scheduler before it | |
//! | `index` | all that is true, in rows, and who has which bytes | `format` |
//! | `commit` | commands and what becomes of them: queue, committer, log, spool | `format`, `index` |
//! | `owner` | who owns a place in the backend: names, claims, numbers, takeover fences, the fence before each answer | `format`, `backend`, `commit` |
//! | `read` | bodies on their way out: spool, cache, shared requests | `format`, `backend`, `index`, `commit` |
//! | `upload` | bodies on their way to the backend: blobs, bundles, large objects | `format`, `backend`, `commit`, `owner` |
//! | `backup` | copies of the index in the backend | `format` to `owner` |
//! | `start` | index, log and spool of a process that starts; the rebuild of an index | `format` to `owner`, `backup` |
//! | `gc` | repacking, removal, and the turns of work in the background | `format` to `read`, `backup` |
//! | `peers` | other workers of the bucket: what they have, what they are told, what is given up for theirs | `format` to `read`, `backup`, `start` |
//! | `packer` | all of them together, with their threads; settings and status | all above |
//! | `objects` | the store as a face sees it | all above |
//! | `embed` | the same, as programs see it | `packer`, `objects` |
//!
//! A room that needs something of a later one is handed it. Committing asks the trait of `commit/neighbours.rs` about
//! other workers, and reading asks its `Holder`: `peers` implements both. The backend knows nothing of the objects that
//! it keeps.
//!
//! # Not here
//!
//! HTTP and S3: the face does that.

#![deny(unsafe_code)]

pub mod backend;
mod backup;
mod blocking;
mod bugs;
mod class;
mod clock;
mod commit;
mod counters;
mod embed;
mod error;
mod format;
mod gc;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
mod ids;
mod index;
pub mod limits;
mod objects;
mod owner;
mod packer;
mod peers;
mod read;
#[cfg(test)]
mod sim;
mod start;
mod upload;

pub use backend::Backend;
pub use class::{PerClass, Prices, RequestClass, Requests};
pub use commit::policy::{Packing, PackingRule, SizeClass};
pub use counters::Counters;
pub use embed::{EmbedError, KeyPage, PackedBucket};
pub use error::PackError;
pub use format::blob;
pub use format::entry::{Change, Container, Content, Entry, Place};
pub use format::upload_unit::UploadUnit;
pub use gc::maintenance::MaintenanceReport;
pub use ids::{BackupId, BlobId, ProcessId, Run, StandaloneId, WorkerId};
pub use owner::name::WorkerName;
pub use owner::ownership::OwnerStatus;
pub use packer::Packer;
pub use packer::config::{Acknowledge, PackConfig};
pub use packer::status::{Moment, Status, Totals};
pub use peers::feed::{Answering, BodyBroken, HandedBody};
pub use peers::{OtherStatus, Sharing, WorkersStatus};
