//! Three workers over one bucket under one seed, with puts and deletes of the same few keys at
//! each. There are blobs with bundles or without, as each start's policy says, and footers. Changes
//! are told before they are uploaded, and workers read what the others have. They collect old versions and repack.
//! Processes are killed, directories lost and taken over.
//!
//! # What must hold
//!
//! 1. A worker that answers never goes back: of a key it shows what it showed before, or newer; what it showed deleted
//!    stays so until a newer put. Only what is lost with a directory may be missed.
//! 2. A put or delete counts at once where it was answered, over all that was shown there before.
//! 3. A worker reads what it shows of another from where it is, in the bucket or in that worker's
//!    spool. It reads every byte, or nothing if only a lost directory had it.
//! 4. In the end all workers show the same: of each key the newest that was answered and not lost,
//!    every byte of it. Nothing else is left of a key anywhere, neither a version nor a tombstone.

mod machine;
mod reads;
mod tests;
mod world;
