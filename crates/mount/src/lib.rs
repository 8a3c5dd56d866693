//! A mount: a bucket of a store as a directory, for programs that know only files.
//!
//! ```text
//!  program ──▶ kernel ──▶ session threads ──▶ task ──▶ Tree ──▶ Objects
//!                            (driver.rs)               │
//!                                                      ├── nodes    numbers that the kernel knows
//!                                                      ├── handles  what is open
//!                                                      └── drafts   what is being written, on the worker's disk
//! ```
//!
//! # Invariants
//!
//! 1. Files are written once: what a program writes gathers in a draft, and closing or syncing it puts it as one object. Until
//!    then no other client sees any of it; a close that succeeded is as durable as a put that was answered.
//! 2. A file that was deleted or replaced stays so, even while a program has it open.
//! 3. A node is one version of an object: bytes of two versions never meet in one file.
//! 4. Everything that is held is bounded: nodes, handles, requests under way, bytes of drafts (`limits.rs`).
//!
//! # Not here
//!
//! Hard links, devices, owners, extended attributes, and locks between machines; several mounts that know of each other.

#![deny(unsafe_code)]

mod counters;
mod draft;
mod driver;
mod handles;
pub mod limits;
mod listing;
mod nodes;
mod path;
mod refusal;
mod session;
mod stamp;
mod tree;

pub use counters::{Counters, MountGauges, Request};
pub use session::{MountConfig, MountError, Mounted, check, mount};
pub use tree::Tree;
