//! Intervals of heartbeats, of servers and of idle groups.

use super::{HEARTBEAT_MS, LEASE_GRANTED_MS, SILENT_TICKS_MAX};

/// Milliseconds between two messages of a meta server, which renews its leases, to the leading manager.
pub const SERVER_BEAT_MS: u64 = 300;
/// Milliseconds between two messages of a server that has no leases.
pub const PRESENCE_BEAT_MS: u64 = 450;
/// Ticks between two messages of a primary to a follower that has everything and was told so. They are few enough that
/// several may be lost before either takes the other for silent.
pub const IDLE_TICKS: u64 = 4;
/// The cluster's version from which on a run begins only after the run that its server's map names.
pub const START_AFTER_VERSION: u8 = 28;

const _: () = assert!(2 * SERVER_BEAT_MS < LEASE_GRANTED_MS, "one lost renewal costs no lease");
const _: () = assert!(
    LEASE_GRANTED_MS >= 2 * SERVER_BEAT_MS + HEARTBEAT_MS,
    "a renewal may wait for the next question to the quorum, and the one before it may be lost"
);
const _: () = assert!(
    3 * IDLE_TICKS < SILENT_TICKS_MAX as u64,
    "two messages of an idle primary may be lost"
);
