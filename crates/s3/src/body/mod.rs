//! A request's body on its way from the client to the store.
//!
//! ```text
//!  client ──▶ inbound.rs ──▶ guard.rs, if aws-chunked ──▶ the protocol library ──▶ pulled.rs ──▶ the store
//! ```
//!
//! | file | what |
//! |---|---|
//! | `inbound.rs` | as it comes: bounded in time, and shut before its gate is open |
//! | `watched.rs` | a body that is looked at as it passes |
//! | `guard.rs` | the watch that bounds aws-chunks |
//! | `pulled.rs` | as the store pulls it: digested, and verified at its end |

pub(crate) mod guard;
pub(crate) mod inbound;
pub(crate) mod pulled;
pub(crate) mod watched;
