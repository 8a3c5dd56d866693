//! Three workers over one bucket under one seed: puts and deletes of the same few keys at each, blobs with bundles or
//! without, as each start's policy says, and footers, changes that are told before they are uploaded, reads of what the
//! others have, sweeps and repacking; processes are killed, directories lost and taken over.
//!
//! # What must hold
//!
//! 1. A worker that answers never goes back: of a key it shows what it showed before, or newer; what it showed deleted
//!    stays so until a newer put. Only what is lost with a directory may be missed.
//! 2. A put or delete counts at once where it was answered, over all that was shown there before.
//! 3. What a worker shows of another it reads from where it is, in the bucket or in that worker's spool: every byte, or
//!    nothing if only a lost directory had it.
//! 4. In the end all workers show the same: of each key the newest that was answered and not lost, every byte of it; and
//!    nothing else is left of it anywhere, neither a version nor a grave.

mod machine;
mod reads;
mod tests;
mod world;
