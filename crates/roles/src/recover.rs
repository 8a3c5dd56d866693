//! Managers made anew, from the maps that the other servers keep, when too many managers' directories are lost to agree on
//! anything ([ADR 62](../../../docs/adr/0062-servers-keep-the-map-and-managers-are-made-anew-from-it.md)).
//!
//! ```text
//!  cluster-map of each meta and data server ──▶ make ──▶ a recovery ──▶ take, on each machine ──▶ start
//!  (all processes are stopped)                          (a file, 0600)
//! ```
//!
//! # Why it is enough
//!
//! A server takes up views, volumes and disks only by maps that its directory has. So if a server's map was
//! given, nothing of that kind that it did is missing in the latest of the maps. The managers may go on
//! from there as if they had stopped at it. Only servers that are lost heard of anything that they agreed
//! on later.
//!
//! # Invariants
//!
//! 1. The map is the latest of those given, and has all that the others have.
//! 2. All meta and data servers of it were asked, or are lost; fewer meta servers are lost than acknowledge a put, unless that is
//!    accepted. So a view that began later had a member that was asked.
//! 3. Neither the authority nor the timeline of the managers before is used again: they are heard by nobody, should they return. Ids
//!    that they may have given are skipped.
//! 4. A directory takes a recovery only while its own map has nothing more, and a manager's log only once. Its map is not replaced:
//!    until the cluster goes on, another recovery may be made and taken.

mod make;
mod source;
mod take;
mod v1;

pub use make::{Loss, MadeRecovery, NotMade, Source, make};
pub use source::{NoSource, read};
pub use take::{RecoveredDirectory, RecoveryRefused, check, take};
pub use v1::{BadRecovery, Recovery};

#[cfg(test)]
mod tests;
