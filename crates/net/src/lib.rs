//! Calls and messages between the roles of a cluster, each in its process, and between the workers of a bucket.
//!
//! It carries its user's types, requests with their answers and messages, and knows nothing of
//! placement groups or objects. A server has one [`Endpoint`], a [`Peer`] for each server that it calls, and a
//! [`Listener`] for those that call it.
//!
//! | file | what |
//! |---|---|
//! | `frame.rs`, `hello.rs` | frames, and the agreement on a version: `docs/formats/rpc.md` |
//! | `receive.rs`, `transmit.rs` | frames out of reads, and into vectored writes |
//! | `connection.rs` | one task for one connection, for both ends |
//! | `target.rs`, `peer.rs`, `link.rs`, `calls.rs` | the calling end |
//! | `port.rs`, `listener.rs`, `virtual_server.rs`, `serving.rs`, `service.rs`, `reply_queue.rs` | the answering end |
//! | `watched.rs` | what connections wait for that end together |
//! | `stream.rs` | streams of bytes beside calls, for other protocols |
//! | `transport.rs`, `local.rs`, `simulated.rs` | what the bytes go through: TCP, memory between servers of one process, a simulated network |
//! | `handshake.rs`, `join.rs`, `discovery.rs` | how each connection begins, how servers join over one, how machines find each other before they are a cluster |
//!
//! `larder-identity` has the keys and certificates by which servers know each other.

mod calls;
mod connection;
mod discovery;
mod endpoint;
mod error;
mod frame;
mod handshake;
mod hello;
mod join;
pub mod limits;
mod link;
mod listener;
mod local;
mod metrics;
mod peer;
mod port;
mod receive;
mod reply_queue;
mod service;
mod serving;
#[cfg(feature = "simulated")]
pub mod simulated;
mod stream;
mod target;
mod transmit;
mod transport;
mod virtual_server;
mod watched;

pub use connection::{Duplex, wrap_sockets};
pub use discovery::{DiscoveryResponder, Reply, discover};
pub use endpoint::Endpoint;
pub use error::{
    CallError, Denied, DiscoveryError, JoinError, NotSent, Refused, RefusingSide, Rejected,
    SendError, Side, Unknown,
};
pub use frame::FrameError;
pub use join::{join, renew};
pub use listener::Listener;
pub use metrics::{ConnectionSide, Metrics, RoundTrips, Traffic};
pub use peer::Peer;
pub use port::{ListenSocket, Port};
pub use service::{Handler, PeerIdentity, Responder, Service};
pub use stream::{Stream, StreamHandler, Streaming};
pub use virtual_server::Services;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
