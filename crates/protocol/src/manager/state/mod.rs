//! The topology map as a deterministic state machine: equal commands in equal order make equal maps.
//!
//! # Invariants
//!
//! 1. A command that is refused changes nothing but `applied`; one that changes something makes `version` grow
//!    by one.
//! 2. A PG's view grows by one per change. Members are distinct. The primary of a new view is *qualified*: a
//!    member of every view since one that was activated with it, which has lost nothing since. All members of a PG's first
//!    view are qualified: empty logs are level.
//! 3. Ids of servers, disks, LVs, buckets and tokens are never used twice. An LV belongs to one PG for ever.
//! 4. A removed server or disk stays removed. The last one that has the content of a PG or LV is never removed.
//! 5. Two replicas never share a PV.
//! 6. Servers, PGs and LVs are never removed from a map.

mod apply;
mod changes;
mod command;
mod groups;
mod map;
mod mark;
mod names;
mod pages;
mod removal;
mod root;
mod rotation;
mod timeline;
mod volumes;

pub use crate::lv::ReplicaState;
pub use changes::{BadChanges, MapChanges, MapPlace, MapStep, RecentChanges};
pub use command::{Applied, Command, NewServer, Outcome, Refusal};
pub use larder_types::MapVersion;
pub use map::{
    ClusterId, DiskRecord, DiskState, GatewayRecord, LvRecord, LvState, NextIds, PgRecord,
    RegionRecord, ReplicaRecord, ServerRecord, ServerRole, ServerState, SessionRecord, Settings,
    Timeline, TokenId, TokenRecord, Topology,
};
pub use mark::MapMark;
pub use pages::{MapGathering, MapPage};
pub use removal::Loss;
pub use root::{Keep, KeyPair, RootRecord};

#[cfg(test)]
mod tests;
