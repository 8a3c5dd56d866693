//! One client's connection: its place among all, its bytes, and the time that it may take. Nothing here knows of a request.
//!
//! | file | what |
//! |---|---|
//! | `connections.rs` | those that are open, and which of them makes room for another |
//! | `activity.rs` | what a connection is doing |
//! | `wire.rs` | its bytes, and the bounds of a head |
//! | `send_deadline.rs` | the time that an answer waits for its client |
//! | `clearing.rs` | a body that nobody reads is taken off it |

pub(crate) mod activity;
pub(crate) mod clearing;
pub(crate) mod connections;
pub(crate) mod send_deadline;
pub(crate) mod wire;
