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
//! | `port.rs`, `listener.rs`, `house.rs`, `serving.rs`, `service.rs`, `outlet.rs` | the answering end |
//! | `stream.rs` | streams of bytes beside calls, for other protocols |
//! | `transport.rs`, `local.rs`, `simulated.rs` | what the bytes go through: TCP, memory between servers of one process, a simulated network |
//! | `handshake.rs`, `join.rs`, `knock.rs` | how each connection begins, how servers join over one, how machines find each other before they are a cluster |
//!
//! `larder-identity` has the keys and certificates by which servers know each other.

mod calls;
mod connection;
mod endpoint;
mod error;
mod frame;
mod handshake;
mod hello;
mod house;
mod join;
mod knock;
pub mod limits;
mod link;
mod listener;
mod local;
mod metrics;
mod outlet;
mod peer;
mod port;
mod receive;
mod service;
mod serving;
#[cfg(feature = "simulated")]
pub mod simulated;
mod stream;
mod target;
mod transmit;
mod transport;

pub use connection::{Duplex, wrap_sockets};
pub use endpoint::Endpoint;
pub use error::{
    CallError, Decider, Denied, JoinError, KnockError, NotSent, Refused, Rejected, SendError, Side,
    Unknown,
};
pub use frame::FrameError;
pub use house::Services;
pub use join::{join, renew};
pub use knock::{Doorkeeper, Reply, knock};
pub use listener::Listener;
pub use metrics::{Metrics, RoundTrips, Stands, Traffic};
pub use peer::Peer;
pub use port::{Ear, Port};
pub use service::{Handler, PeerIdentity, Responder, Service};
pub use stream::{Stream, StreamHandler, Streaming};

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
