//! The feed by which a worker sends others what is not in the bucket yet: its changes, and bodies that only its spool
//! has.
//!
//! ```text
//!  follower ── call Changes { worker, blob, from, … } ──▶ the entries of that blob from that byte on, as its
//!                                                         footer will have them; waits a while for the next
//!  reader   ── call Body { worker, blob, unit, … } ──────▶ bytes of bodies in the blob, or in one of its bundles;
//!                                                         or that they are uploaded
//!  any      ── stream: a client's request of an upload, as it came ──▶ the face's answer (`handed.rs`)
//! ```
//!
//! It is served from the [spool](crate::commit::spool), which has both until the blob is in the backend.
//! The feed keeps nothing of its own. A follower that was away goes on where it is, here or in the
//! bucket.
//!
//! Calls and streams are those of `larder-net`, over mutual TLS. ADR 70 says why.
//!
//! # Invariants
//!
//! 1. Only what is durable in the worker's directory is told.
//! 2. Both ends of a connection are workers of the bucket: they have certificates of the authority that follows from its
//!    secret (`identity.rs`). Nothing else is said or heard.
//! 3. A worker answers for its own claim only: one that was superseded is not taken for its heir. A
//!    process that knows of a later one, on a copy of its directory, answers nothing.
//! 4. A process goes on only behind an entry that it has itself (`ends.rs`). So all that a follower
//!    heard of a blob before it is in the bucket is from one process, even if two ran on copies of
//!    a directory.
//! 5. What the others can have under way, or in memory, is bounded, and each has a share of it (`places.rs`). One that has
//!    its share hears that the worker is busy, and keeps its connection.

mod client;
mod ends;
mod handed;
pub(crate) mod identity;
pub(crate) mod places;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub(crate) use client::{Caller, Link};
pub(crate) use handed::Handed;
pub use handed::{Answering, BodyBroken, HandedBody};
pub(crate) use server::FeedSource;
pub(crate) use wire::{FeedPosition, FeedUpdate};
