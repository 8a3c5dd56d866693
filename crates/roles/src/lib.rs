//! The roles and their drivers: manager, meta, data, proxy.
//!
//! One crate, because in one process they call each other directly. Each module uses only those below it:
//!
//! | rooms, from the lowest | what |
//! |---|---|
//! | `limits`, `directory`, `keys`, `wire` | sizes, files' names, and what the roles say to each other |
//! | `clock`, `blocking`, `inbox`, `notifier`, `peers`, `requests`, `ticket` | what drivers are made of |
//! | `progress`, `breakdown`, `observed` | what a role tells operators, what it counts and what it observes for them |
//! | `planted` | faults for simulations to find |
//! | `managers` | the managers, as any server sees them |
//! | `identity`, `renewal` | who a server is, and how it stays that |
//! | `manager` | owns the map |
//! | `data` | owns blocks |
//! | `meta` | owns metadata, and asks `data` for what it names |
//! | `proxy` | serves gateways by asking `meta` and `data` |
//! | `regions` | keeps several stores alike, by way of a `proxy` |
//! | `node` | machines that find each other, each with all four roles |
//! | `store` | a single node: all four roles in one process |
//! | `recover`, `inspect`, `fill` | for roles that stand still: managers made anew, what is on disk checked, rows written |

#![deny(unsafe_code)]

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
pub mod node;
pub mod notifier;
pub mod observed;
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

pub use larder_protocol::SpaceUse;
pub use manager::quorum;
pub use meta::{BackgroundConfig, Meta, MetaConfig, MetaServer, OpenError};
pub use proxy::Proxy;
pub use store::{Store, StoreConfig, StoreError};
