//! Limits of what a manager examines in one step and keeps in memory, however large the cluster is.

use super::{DISKS_MAX, SERVERS_MAX};

/// Straws that the leading manager draws for targets in one look, one for each group and server: some milliseconds.
pub const TARGET_DRAWS_MAX: usize = 32 * 1024;
/// Disks, by id, of which a plan knows without a search that they are well. Volumes of others are looked at closely: a
/// cluster that large has had each disk replaced.
pub const STEADY_DISKS_MAX: usize = 2 * SERVERS_MAX * DISKS_MAX;
/// Records of the map that changed lately, of which a manager remembers that they did: with more of them a server that is
/// behind gets all.
pub const RECENT_PLACES_MAX: usize = 64 * 1024;

const _: () = assert!(TARGET_DRAWS_MAX >= SERVERS_MAX, "one look does for one group at least");
