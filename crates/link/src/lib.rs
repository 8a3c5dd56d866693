//! The link between two regions: identities, joining, and messages over HTTP and mutual TLS.
//!
//! It carries requests and answers of the state machines in `larder-protocol`'s `region`, and decides nothing about
//! objects. A process has one [`RegionEndpoint`], a [`Link`] to each other region, and a [`Source`] that answers them.
//!
//! | file | what |
//! |---|---|
//! | `message.rs`, `frame.rs`, `compression.rs` | messages: `docs/formats/region.md` |
//! | `identity.rs`, `tls.rs` | a region's key, which the other end verifies |
//! | `transport.rs`, `simulated.rs` | what the bytes go through: TLS, or streams of a simulation |
//! | `members.rs`, `name.rs`, `registry.rs`, `files.rs` | the list of regions, and its file |
//! | `waiting.rs` | what a command asks of the server |
//! | `token.rs`, `join.rs` | tokens, and joining with one |
//! | `link.rs`, `pool.rs`, `fetching.rs` | the asking end |
//! | `listener.rs`, `requests.rs`, `source.rs`, `slots.rs` | the answering end |
//! | `write_timeout.rs` | connections that end when a write stalls |
//! | `region_endpoint.rs` | all of these, for a server |
//! | `status.rs`, `metrics.rs` | status and counters for operators |

mod blocking;
mod compression;
mod error;
mod fetching;
mod files;
mod frame;
mod identity;
mod join;
pub mod limits;
mod link;
mod listener;
mod members;
pub mod message;
mod metrics;
mod name;
mod pool;
mod region_endpoint;
mod registry;
mod requests;
#[cfg(feature = "simulated")]
pub mod simulated;
mod slots;
mod source;
mod status;
mod tls;
mod token;
mod transport;
mod waiting;
mod write_timeout;

pub use error::{JoinRefused, Later, LinkError, Refused, TokenFault, Usage};
pub use fetching::FetchStream;
pub use identity::Fingerprint;
pub use join::join;
pub use link::Link;
pub use listener::Listener;
pub use members::{Known, Members, OwnRegion, Peer};
pub use message::{
    AskHome, Change, ChangeAnswer, ChangeKind, CloseBucket, Declined, EndClosed, Fetch, FetchPart,
    FetchRequest, FetchSince, Fetched, Hello, IdsQuery, IdsReply, Keys, KeysReply, List,
    ListAnswer, PartNamed, RegionList, Report, TellHomes, UploadAnswer, UploadRefusal, UploadStep,
    Walk, WalkAnswer,
};
pub use metrics::{Counter, Metrics, PeerMetrics};
pub use name::{Address, RegionName};
pub use region_endpoint::RegionEndpoint;
pub use registry::{change, found, read};
pub use source::{FetchSink, Source};
pub use status::{HomeStatus, OldestChange, PeerStatus, RegionStatus};
pub use token::JoinToken;
pub use transport::ListenSocket;
pub use waiting::{
    HomeOrder, Order, Setting, SharingSetting, Waiting, asked, forget, submit_order,
};

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
