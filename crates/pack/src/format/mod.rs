//! The bytes that packing stores: what a change is, and how blobs, bundles and rows are written. Nothing here asks the
//! backend or the disk.
//!
//! | file | it has |
//! |---|---|
//! | `entry.rs` | changes, and the places of bytes |
//! | `sums.rs` | sums of bodies |
//! | `upload_unit.rs` | the blob and its bundles, as parts of one thing |
//! | `blob/` | names, footers and trailers of blobs |
//! | `names.rs` | names of large objects and bundles |
//! | `rows.rs` | rows of the index |
//!
//! `docs/formats/blob.md` describes the bytes; `golden.rs` holds all of them fast, and those of other rooms.

pub mod blob;
pub(crate) mod entry;
pub(crate) mod names;
pub(crate) mod rows;
pub(crate) mod sums;
pub(crate) mod upload_unit;
