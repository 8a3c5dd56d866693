//! The server: connections become requests, and requests get answers. Nothing else in this crate knows of it.
//!
//! ```text
//!  server.rs ──▶ exchange.rs ──▶ the service
//!      └──▶ waiting.rs, while there is no store
//! ```
//!
//! | file | what |
//! |---|---|
//! | `server.rs` | accepts connections, and drains at the end |
//! | `exchange.rs` | one request and its answer |
//! | `waiting.rs` | answers while there is no store |
//! | `health.rs` | answers probes |
//! | `admin.rs` | answers who has root's keys and asks for the state |
//! | `reply.rs` | the answer's body, and the count of its request |
//! | `failures.rs` | the server's own failures, in the log |
//! | `finished_request.rs` | a request that has ended |
//! | `hooks.rs` | the program around the server |

mod admin;
mod exchange;
mod failures;
pub(crate) mod finished_request;
mod health;
pub(crate) mod hooks;
mod reply;
pub(crate) mod server;
mod waiting;
