//! The link between two regions: identities, joining, and messages over HTTP and mutual TLS.
//!
//! It carries what the machines of `larder-protocol`'s `region` ask and answer, and decides nothing about objects. One
//! [`Site`] for a process, a [`Link`] to each other region, a [`Source`] that answers them.
//!
//! | file | what |
//! |---|---|
//! | `message.rs`, `frame.rs` | what goes over the wire: `docs/formats/region.md` |
//! | `identity.rs`, `tls.rs` | a region's key, by which the other end knows it |
//! | `members.rs`, `name.rs`, `registry.rs`, `files.rs` | which regions there are, and where that is kept |
//! | `token.rs`, `join.rs` | how a store becomes a region |
//! | `link.rs`, `pool.rs`, `fetching.rs` | the asking end |
//! | `listener.rs`, `desk.rs`, `source.rs`, `places.rs` | the answering end |
//! | `patient.rs` | connections that do not wait for ever |
//! | `site.rs` | all of it, for a server |
//! | `status.rs`, `metrics.rs` | what operators see |

mod desk;
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
mod patient;
mod places;
mod pool;
mod registry;
mod site;
mod source;
mod status;
mod tls;
mod token;

pub use error::{Later, LinkError, Refused, TokenFault, Usage};
pub use fetching::FetchStream;
pub use identity::Fingerprint;
pub use join::join;
pub use link::Link;
pub use listener::Listening;
pub use members::{Known, Members, Own, Peer};
pub use message::{
    Ask, Declined, Fetch, Fetched, Hello, JoinRefused, KnownRegions, List, ListedIn, Told, Walk,
    Walked,
};
pub use metrics::{Counter, Metrics, PeerMetrics};
pub use name::{Address, RegionName};
pub use registry::{change, found, read};
pub use site::Site;
pub use source::{FetchSink, Source};
pub use status::{PeerStatus, RegionStatus};
pub use token::JoinToken;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
