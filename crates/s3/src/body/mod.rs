//! A request's body on its way from the client to the store.
//!
//! ```text
//!  client ──▶ inbound.rs ──▶ unframed.rs, if aws-chunked ──▶ pulled.rs ──▶ the store, or a reader of XML
//! ```
//!
//! | file | what |
//! |---|---|
//! | `inbound.rs` | as it comes: bounded in time, and shut before its gate is open |
//! | `unframed.rs` | without the framing of aws-chunks, whose signatures are verified |
//! | `pulled.rs` | as the store pulls it: digested, and verified at its end |

pub(crate) mod inbound;
pub(crate) mod pulled;
pub(crate) mod unframed;
