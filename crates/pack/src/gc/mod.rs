//! Garbage collection: half-dead blobs are repacked, and what nothing needs any more is removed from the backend.
//!
//! | file | it has |
//! |---|---|
//! | `repack/` | moves what lives in a blob, tells anew what only the blob told, and retires it |
//! | `removal.rs` | deletes retired blobs after a grace time, and what nothing names |
//! | `leftovers.rs` | removes what killed processes left of uploads |
//! | `maintenance.rs` | gives all of this, and backups, their turns |
//!
//! It changes what the store says only by commands to the committer, as clients do.

pub(crate) mod leftovers;
pub(crate) mod maintenance;
pub(crate) mod removal;
pub(crate) mod repack;
