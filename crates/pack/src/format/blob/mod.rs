//! The blob: bodies, then a footer that names them, then a trailer that finds the footer.
//!
//! A blob is read with nothing else at hand. `docs/formats/blob.md` gives the format byte by byte.

mod file;
mod name;
mod v1;

pub use file::{BlobFile, Extracted};
pub use name::BlobName;
pub use v1::{FooterHead, TRAILER_BYTES, Trailer};

pub(crate) use name::{PREFIX, PROCESS_DIGITS, process_field};
pub(crate) use v1::{FooterReader, encode_footer};
