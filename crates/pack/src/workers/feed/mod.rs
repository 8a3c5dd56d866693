//! What a worker tells the others of itself before it is in the bucket: its changes, and bodies that only its spool has.
//!
//! ```text
//!  follower ── GET /larder/v3/changes?worker&blob&from&… ────▶ the entries of that blob from that byte on, as its
//!                                                              footer will have them; waits a while for the next
//!  reader   ── GET /larder/v3/body?worker&blob&lot&from&to ──▶ bytes of bodies in the blob, or in one of its bundles;
//!                                                              or that they are uploaded
//!  any      ── a client's request of an upload, as it came ──▶ the face's answer (`uploads.rs`)
//! ```
//!
//! It is served from the [spool](crate::spool), which has both until the blob is in the backend: the feed keeps nothing of
//! its own, and a follower that was away goes on where it is, here or in the bucket.
//!
//! # Invariants
//!
//! 1. Only what is durable in the worker's directory is told.
//! 2. Whoever asks proves that it knows the bucket's secret, and for which request; nothing else is answered. Whoever
//!    answers proves the same, and for which answer to which request.
//! 3. A worker answers for its own claim only: who was superseded is not taken for its heir. A process that knows of a
//!    later one, on a copy of its directory, answers nothing.
//! 4. A process goes on only behind an entry that it has itself (`ends.rs`): whatever a follower heard of a blob before it is
//!    in the bucket is from one process, also if two ran on copies of a directory.
//!
//! All of it travels in the clear. What of a request that was handed on, and of its answer, is a stream, no proof covers
//! but the client's signature.

mod client;
mod ends;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub(crate) use client::{Caller, Held, Link};
pub(crate) use server::{Feed, serve};
pub(crate) use wire::{Asked, Heard, Secret};
