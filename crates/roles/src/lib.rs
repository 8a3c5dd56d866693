//! The roles and their drivers: manager, meta, data, proxy.
//!
//! One crate, because in one process they call each other directly; each is a module that knows the
//! others only through the calls shown here.

#![deny(unsafe_code)]

#[cfg(feature = "ablation")]
pub mod ablation;
mod blocking;
pub mod breakdown;
mod clock;
pub mod data;
mod directory;
pub mod fill;
pub mod identity;
mod inbox;
pub mod inspect;
pub mod keys;
pub mod limits;
pub mod manager;
pub mod managers;
pub mod meta;
pub mod news;
pub mod node;
pub mod peers;
mod planted;
pub mod progress;
pub mod proxy;
pub mod recover;
pub mod regions;
pub mod renewal;
mod requests;
pub mod store;
mod ticket;
pub mod wire;

pub use data::node as data_node;
pub use larder_protocol::SpaceUse;
pub use manager::quorum;
pub use meta::{BackgroundConfig, Meta, MetaConfig, MetaServer, OpenError};
pub use proxy::Proxy;
pub use store::{Store, StoreConfig, StoreError};
