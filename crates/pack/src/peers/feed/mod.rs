//! The feed by which a worker tells the others what is not in the bucket yet: its changes, and
//! bodies that only its spool has.
//!
//! ```text
//!  follower ── GET /larder/v3/changes?worker&blob&from&… ────▶ the entries of that blob from that byte on, as its
//!                                                              footer will have them; waits a while for the next
//!  reader   ── GET /larder/v3/body?worker&blob&lot&from&to ──▶ bytes of bodies in the blob, or in one of its bundles;
//!                                                              or that they are uploaded
//!  any      ── a client's request of an upload, as it came ──▶ the face's answer (`handed.rs`)
//! ```
//!
//! It is served from the [spool](crate::commit::spool), which has both until the blob is in the backend.
//! The feed keeps nothing of its own. A follower that was away goes on where it is, here or in the
//! bucket.
//!
//! # Invariants
//!
//! 1. Only what is durable in the worker's directory is told.
//! 2. A caller proves that it knows the bucket's secret, and for which request; nothing else is
//!    answered. The worker that answers proves the same, and for which answer to which request.
//! 3. A worker answers for its own claim only: one that was superseded is not taken for its heir. A
//!    process that knows of a later one, on a copy of its directory, answers nothing.
//! 4. A process goes on only behind an entry that it has itself (`ends.rs`). So all that a follower
//!    heard of a blob before it is in the bucket is from one process, even if two ran on copies of
//!    a directory.
//!
//! All of it travels in the clear. No proof but the client's signature covers the streams of a
//! request that was handed on, and of its answer.

mod client;
mod ends;
mod handed;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub(crate) use client::{Caller, Link};
pub(crate) use handed::Handed;
pub use handed::{Answering, BodyBroken, HandedBody};
pub(crate) use server::{Feed, serve};
pub(crate) use wire::{Asked, Heard, Secret};
