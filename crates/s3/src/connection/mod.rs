//! One client's connection: its place among all, its bytes, and the time that it may take. Nothing here knows of a request.
//!
//! | file | what |
//! |---|---|
//! | `connections.rs` | those that are open, and which of them makes room for another |
//! | `pulse.rs` | what a connection is doing |
//! | `wire.rs` | its bytes, and the bounds of a head |
//! | `patience.rs` | the time that an answer waits for its client |
//! | `clearing.rs` | a body that nobody reads is taken off it |

pub(crate) mod clearing;
pub(crate) mod connections;
pub(crate) mod patience;
pub(crate) mod pulse;
pub(crate) mod wire;
