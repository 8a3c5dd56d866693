//! Limits of work and messages of an idle cluster.

use larder_protocol::limits::{
    HEARTBEAT_MS, LEASE_GRANTED_MS, PRESENCE_BEAT_MS, SERVER_BEAT_MS, START_AFTER_VERSION,
};

use super::{MANAGER_TICK_MS, PROTOCOL_ROOM, TICK_MS};

/// Oldest version of the protocol in which a meta server tells managers that the servers of its process go on.
pub const PROTOCOL_BEATS: u8 = 27;
/// Servers of one process for which its meta server speaks: a machine has four roles.
pub const COLOCATED_MAX: usize = 8;
/// Groups of a server in a cluster that are ticked for one look at the clock, which takes as long as the tick of an idle one.
pub const TICKS_PER_CHECK: u32 = 16;
/// Milliseconds after which a server of a process, of which nothing is known since, is not spoken for any more.
pub const PROXIED_BEAT_MS_MAX: u64 = 2 * PRESENCE_BEAT_MS;
/// Milliseconds between two looks of an idle data server at its free space.
pub const FREE_SPACE_CHECK_MS: u64 = 3 * TICK_MS;
/// Milliseconds by which a manager's look at what is due may come early, if it is awake for another reason.
pub const MANAGER_TICK_EARLY_MS: u64 = 15;

const _: () = assert!(MANAGER_TICK_EARLY_MS < MANAGER_TICK_MS, "a look is not due at once");
const _: () = assert!(
    PROTOCOL_ROOM < PROTOCOL_BEATS
        && PROTOCOL_BEATS < START_AFTER_VERSION
        && START_AFTER_VERSION <= larder_net::limits::PROTOCOL_MAX,
    "beats and starts are for managers of a version that is spoken"
);
const _: () = assert!(
    2 * SERVER_BEAT_MS + 2 * MANAGER_TICK_MS + HEARTBEAT_MS < LEASE_GRANTED_MS,
    "a beat waits for a look of the leader and another that asks the quorum, and the one before it may be lost"
);
const _: () = assert!(
    SERVER_BEAT_MS <= PRESENCE_BEAT_MS,
    "a server for which another speaks is heard as often as one that speaks for itself"
);
