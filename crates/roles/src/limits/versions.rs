//! The versions of the protocol between processes from which on each thing holds.

/// First version in which data servers report what waits at their disks.
pub const PROTOCOL_REPORTS: u8 = 4;
/// First version whose managers all support the command `ForgetTokens`.
pub const PROTOCOL_FORGETS: u8 = 5;
/// First version whose managers all support the command `EndDeletionOf`.
pub const PROTOCOL_NAMES_ENDED: u8 = 6;
/// First version in which a cluster can be a region: all managers know the command `SetRegion`, and servers the map
/// that it makes.
pub const PROTOCOL_REGIONS: u8 = 7;
/// First version in which managers know a region's gateway.
pub const PROTOCOL_GATEWAYS: u8 = 8;
/// First version in which meta servers know how far other regions are, and managers how many a bucket waits for.
pub const PROTOCOL_POSITIONS: u8 = 9;
/// First version whose managers all support the deletion of a region's bucket.
pub const PROTOCOL_DELETIONS: u8 = 10;
/// First version in which managers and their maps know the home of a bucket.
pub const PROTOCOL_HOMES: u8 = 11;
/// First version in which managers and their maps know buckets that this region alone has.
pub const PROTOCOL_LOCAL: u8 = 12;
/// First version in which a gateway lists the keys of all regions.
pub const PROTOCOL_LISTS: u8 = 13;
/// First version whose managers all move volumes for balance: older ones would undo a move that is under way.
pub const PROTOCOL_BALANCE: u8 = 14;
/// First version in which managers and their maps know that rebalancing is paused.
pub const PROTOCOL_PAUSE: u8 = 15;
/// First version in which managers and their maps know CORS rules of buckets.
pub const PROTOCOL_CORS: u8 = 15;
/// First version in which members of a group know that garbage goes in steps.
pub const PROTOCOL_STEPS: u8 = 16;
/// First version in which managers and their maps know the cluster's version.
pub const PROTOCOL_CLUSTER_VERSION: u8 = 17;
/// First version in which a gateway reads large objects in other regions for its cluster's other proxies, and meta servers tell
/// of space.
pub const PROTOCOL_REMOTE_READS: u8 = 18;
/// First version in which members of several groups say what they have to say in one message.
pub const PROTOCOL_BATCHES: u8 = 19;
/// First version in which managers keep root's keys, and proxies take them from there.
pub const PROTOCOL_ROOT_KEYS: u8 = 20;
/// First version in which managers and their maps know timelines.
pub const PROTOCOL_TIMELINES: u8 = 21;
/// First version in which pieces of objects are coalesced.
pub const PROTOCOL_COALESCE: u8 = 22;
/// First version in which data servers take copies from one another, and managers say whose are made first.
pub const PROTOCOL_COPIES: u8 = 23;
/// First version in which servers tell their counts of requests and operations.
pub const PROTOCOL_COUNTS: u8 = 24;
/// First version in which managers tell what they have observed of their cluster.
pub const PROTOCOL_OBSERVED: u8 = 25;
/// First version in which data servers tell the room on their disks.
pub const PROTOCOL_ROOM: u8 = 26;
/// First version in which managers tell the changes of their map, and a long map in pages.
pub const PROTOCOL_MAP_CHANGES: u8 = 27;
/// First version in which managers tell the committed version of their map, and that they have no quorum.
pub const PROTOCOL_COMMITTED: u8 = 29;

const _: () = assert!(
    PROTOCOL_REPORTS <= larder_net::limits::PROTOCOL_MAX,
    "reports are for peers of a version that is spoken"
);
const _: () = assert!(
    PROTOCOL_COMMITTED <= larder_net::limits::PROTOCOL_MAX
        && PROTOCOL_MAP_CHANGES < PROTOCOL_COMMITTED
        && PROTOCOL_ROOM < PROTOCOL_MAP_CHANGES
        && PROTOCOL_OBSERVED < PROTOCOL_ROOM
        && PROTOCOL_COUNTS < PROTOCOL_OBSERVED
        && PROTOCOL_COPIES < PROTOCOL_COUNTS
        && PROTOCOL_COALESCE < PROTOCOL_COPIES
        && PROTOCOL_TIMELINES < PROTOCOL_COALESCE
        && larder_protocol::limits::TIMELINES_VERSION == PROTOCOL_TIMELINES
        && PROTOCOL_ROOT_KEYS < PROTOCOL_TIMELINES
        && larder_protocol::limits::TOO_FEW_SERVERS_VERSION == PROTOCOL_ROOT_KEYS
        && PROTOCOL_BATCHES < PROTOCOL_ROOT_KEYS
        && PROTOCOL_REMOTE_READS < PROTOCOL_BATCHES
        && PROTOCOL_CLUSTER_VERSION < PROTOCOL_REMOTE_READS
        && PROTOCOL_STEPS < PROTOCOL_CLUSTER_VERSION
        && PROTOCOL_CORS < PROTOCOL_STEPS
        && PROTOCOL_PAUSE <= PROTOCOL_CORS
        && PROTOCOL_BALANCE < PROTOCOL_PAUSE
        && PROTOCOL_LISTS < PROTOCOL_BALANCE
        && PROTOCOL_LOCAL < PROTOCOL_LISTS
        && PROTOCOL_HOMES < PROTOCOL_LOCAL
        && PROTOCOL_DELETIONS < PROTOCOL_HOMES
        && PROTOCOL_POSITIONS < PROTOCOL_DELETIONS
        && PROTOCOL_GATEWAYS < PROTOCOL_POSITIONS
        && PROTOCOL_REGIONS < PROTOCOL_GATEWAYS
        && PROTOCOL_NAMES_ENDED < PROTOCOL_REGIONS
        && PROTOCOL_FORGETS < PROTOCOL_NAMES_ENDED,
    "managers of this release say that they know its commands"
);
