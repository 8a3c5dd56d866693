//! Makes changes durable: one thread decides every command, writes the bodies into the spool and the records into the
//! log, applies them to the index, and responds. Nothing here calls the backend.
//!
//! ```text
//!  command ──▶ queue ──▶ committer ──▶ plan, carry   what becomes of it
//!                         ├───────▶ groups        what goes together
//!                         ├───────▶ writers ──▶ spool
//!                         └───────▶ log, index
//! ```
//!
//! Of other workers of the bucket it knows what `neighbours.rs` says.

pub(crate) mod command;
pub(crate) mod committer;
pub(crate) mod flusher;
pub(crate) mod groups;
pub(crate) mod in_flight;
pub(crate) mod log;
pub(crate) mod neighbours;
pub(crate) mod peer_clock;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod queue;
pub(crate) mod relocate;
pub(crate) mod slot;
pub(crate) mod spool;
pub(crate) mod writers;
