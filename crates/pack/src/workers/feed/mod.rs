//! What a worker tells the others of itself before it is in the bucket: its changes, and bodies that only its spool has.
//!
//! ```text
//!  follower ── GET /larder/v3/changes?worker&blob&from ──────▶ the entries of that blob from that byte on, as its
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
//! 2. Whoever asks proves that it knows the bucket's secret, and for which request; nothing else is answered.
//! 3. A worker answers for its own claim only: who was superseded is not taken for its heir.
//!
//! Bodies and entries travel in the clear. Bodies are verified by their sums, entries are trusted.

mod client;
mod server;
pub(crate) mod wire;

pub(crate) use client::{Caller, Held, Link};
pub(crate) use server::{Feed, serve};
pub(crate) use wire::{Heard, Secret};
