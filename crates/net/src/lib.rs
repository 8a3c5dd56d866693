//! Calls and messages between the roles of a cluster, each in its process.
//!
//! It carries what its user gives it, typed requests with their answers and messages, and knows nothing of
//! placement groups or objects. One [`Endpoint`] for a process, a [`Peer`] for each server that is called, a
//! [`Listener`] for those who call.
//!
//! | file | what |
//! |---|---|
//! | `frame.rs`, `hello.rs` | what goes over the wire: `docs/formats/rpc.md` |
//! | `receive.rs`, `transmit.rs` | frames out of reads, and into vectored writes |
//! | `connection.rs` | one task for one connection, for both ends |
//! | `peer.rs`, `link.rs`, `calls.rs` | the calling end |
//! | `port.rs`, `listener.rs`, `serving.rs`, `service.rs`, `outlet.rs` | the answering end |
//! | `transport.rs`, `local.rs`, `simulated.rs` | what the bytes go through: TCP, memory between servers of one process, a simulated network |
//! | `identity.rs`, `certificate.rs`, `authority.rs`, `tls.rs` | who is who |
//! | `token.rs`, `join.rs` | how a server becomes a member, and stays one |
//! | `secret.rs`, `knock.rs` | how machines find each other before they are a cluster |

#[cfg(feature = "ablation")]
pub mod ablation;
mod authority;
mod calls;
mod certificate;
mod connection;
mod endpoint;
mod error;
mod frame;
mod hello;
mod identity;
mod join;
mod keyfile;
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
mod secret;
mod service;
mod serving;
#[cfg(feature = "simulated")]
pub mod simulated;
mod tls;
mod token;
mod transmit;
mod transport;

pub use authority::{Authority, Fingerprint, PublicKey};
pub use certificate::{Identity, IdentityRequest};
pub use endpoint::Endpoint;
pub use error::{
    CallError, Decider, Denied, IdentityError, JoinError, KnockError, NotSent, Refusal, Refused,
    Rejected, SecretError, SendError, Side, TokenError, Unknown,
};
pub use frame::FrameError;
pub use identity::{PeerIdentity, Role, Roles, Subject};
pub use join::{Admission, AuthorityCell, Enrolment, join, renew};
pub use knock::{Doorkeeper, Reply, knock};
pub use listener::{Listener, Services};
pub use metrics::{Counter, Metrics, RoundTrips, Stands, Traffic};
pub use peer::Peer;
pub use port::{Ear, Port};
pub use secret::PeerSecret;
pub use service::{Handler, Responder, Service};
pub use tls::Credentials;
pub use token::{JoinToken, TokenId, TokenRecord};

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
