//! Where things belong: keys to PGs, PGs to meta servers, LVs to disks. Pure functions.
//!
//! ```text
//!  key ──keys──▶ PG ──members──▶ meta servers (target) ──next_step──▶ one step of the acting members
//!                ├───volumes──▶ disks of a new LV, and where replicas go that have to move
//!                └───balance──▶ replicas that move so that LVs lie apart and disks are evenly used
//! ```
//!
//! # Invariants
//!
//! 1. Integers only: the same arguments give the same answer on every machine and in every release. The draws
//!    are pinned by golden values, because a change of them would move data all over a cluster.
//! 2. Nothing here decides what *is*: acting members and LVs are in the topology map. These functions say what
//!    ought to be, and the next single step towards it.
//! 3. A larger weight or a new candidate only attracts: no pick moves between candidates that did not change. Balance
//!    alone moves between any disks, from above their ideal use to below it.

mod apart;
mod balance;
mod copies;
mod domains;
mod drain;
mod keys;
mod members;
mod straw;
mod volumes;

pub use balance::{Balance, CopyMove, Planned, plan_balance};
pub use copies::{CopyRules, DiskInfo, LvCopy, Room};
#[cfg(test)]
pub(crate) use domains::CHOICES;
pub use domains::{Choice, FailureDomains, Leaf, Level, MachineId, RackId, choose, spread, widest};
pub use drain::{DrainOutcome, leaving};
pub use keys::pg_of;
pub use members::{
    ActingPg, GroupRules, MetaServer, PgStep, PlacementState, balance_primaries, next_step,
    target_members,
};
pub(crate) use straw::hash;
pub use straw::{Weight, draw, shorter};
pub use volumes::{
    Filling, LvMove, LvPlacement, Shares, filling, place_lv, place_lv_of_shares, plan_moves,
    plan_moves_beside, plan_moves_of_shares, repairs, wider,
};

#[cfg(test)]
mod tests;
