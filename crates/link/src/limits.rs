//! Limits of the link, with their units, and how they relate.

use std::time::Duration;

use larder_protocol::limits::REGION_ANSWER_MS;
use larder_types::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};

/// Regions at a time, this one too.
pub const REGIONS_MAX: usize = 8;
/// Most settings of buckets that wait for the server.
pub const WAITING_MAX: usize = 256;
/// Most region numbers that are ever assigned: removed regions stay in the list, so that no number is reused.
pub const NUMBERS_MAX: u16 = 256;
/// Characters of a region's name.
pub const NAME_BYTES_MAX: usize = 32;
/// Bytes of an address: a host's name, a colon, a port.
pub const ADDRESS_BYTES_MAX: usize = 253 + 1 + 5;
/// Tokens at a time that are neither used nor expired.
pub const TOKENS_MAX: usize = 8;
/// Life of a token.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Bytes of a file in DIR/region.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Connections to a region.
pub const CONNECTIONS_MAX: usize = 28;
/// Connections of a region that are answered. One more takes the place of its oldest, which it has most likely lost.
pub const CONNECTIONS_OF_PEER_MAX: usize = 2 * CONNECTIONS_MAX;
/// Connections of all callers that are no region, together. One more takes the place of the oldest.
pub const CONNECTIONS_OF_STRANGERS_MAX: usize = 8;
/// Handshakes under way. One more takes the place of the oldest.
pub const HANDSHAKES_MAX: usize = 32;
/// Longest from the connection's first packet to the end of its handshake.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Idle time after which the calling end closes a connection.
pub const IDLE_MAX: Duration = Duration::from_secs(30);
/// Idle time after which the answering end closes one. The caller is first, so that it does not
/// send into a connection that is being closed.
pub const IDLE_ANSWERING_MAX: Duration = Duration::from_secs(60);
/// The same for a caller that is no region.
pub const IDLE_STRANGER_MAX: Duration = Duration::from_secs(10);
/// Longest from a request to its answer, or to the beginning of the answer to a fetch.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(REGION_ANSWER_MS);
/// Longest time in which a connection takes nothing that is sent, or brings nothing of an answer that has begun.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// The same where what is sent is compressed. What waits in the sockets may become 255 times as much, which the other end stores
/// before it takes more.
pub const STALL_COMPRESSED_MAX: Duration = Duration::from_secs(160);
/// Bytes a second that an answer which has begun brings at least: slower, and waiting for it uses up [`STALL_MAX`].
pub const PACE_BYTES_PER_S: f64 = 4096.0;
/// Pause after the system refused to accept a connection, as it does without free descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request of a caller that is no region, and of the head of a change.
pub const REQUEST_BYTES_MAX: usize = 256 * 1024;
/// Bytes of an object that one region puts in another, where the bucket's home is. They are in memory at both ends.
pub const CHANGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of all else of a change: headers, metadata, tags, condition.
pub const CHANGE_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of an entity tag, or of a checksum, with which a client names a part.
pub const NAMED_BYTES_MAX: usize = 128;
/// Longest wait of a change for its turn.
pub const CHANGE_PLACE_TIME_MAX: Duration = Duration::from_secs(2);
/// Changes that are under way to a region: other requests have connections, too.
pub const CHANGES_MAX: usize = 8;
/// Requests for keys of lists that are under way to a region.
pub const KEYS_MAX: usize = 4;
/// Longest wait of such a request for its turn.
pub const KEYS_PLACE_TIME_MAX: Duration = Duration::from_secs(2);
/// Fetches of keys that clients read and that are not here, under way to a region, and as many reads of large ones.
pub const MISSES_MAX: usize = 4;
/// Homes of buckets that are told with one request.
pub const HOMES_REPORTED_MAX: usize = 1024;
/// Longest from a client's change that is sent to its answer: that region waits for its primaries, and for other regions.
pub const CHANGE_TIME_MAX: Duration = Duration::from_secs(20);
/// Bytes of an answer that is kept in memory.
pub const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of an entry in the answer to a fetch, without its content.
pub const FETCHED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of content that are handed to a connection at a time.
pub const PIECE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of small entries that leave together: what is gathered is copied once more.
pub const GATHERED_BYTES_MAX: usize = 64 * 1024;
/// Pieces that wait for a connection.
pub const PIECES_WAITING_MAX: usize = 4;

/// Pause between two looks for changes that commands made to the list of regions.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two exchanges of lists with a region.
pub const MEMBERS_INTERVAL: Duration = Duration::from_secs(10);
/// Age from which on a status counts as old: the server writes it every second.
pub const STATUS_AGE_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(
    CHANGES_MAX + KEYS_MAX + 2 * MISSES_MAX + larder_protocol::limits::REGION_FETCHES_MAX + 4
        <= CONNECTIONS_MAX,
    "changes, lists, misses and long fetches leave connections to others"
);
const _: () = assert!(REGIONS_MAX <= NUMBERS_MAX as usize, "each region has a number");
const _: () = assert!(
    larder_types::limits::PART_NUMBER_MAX as usize * 2 * (NAMED_BYTES_MAX + 8) < CHANGE_BYTES_MAX,
    "the parts of an upload are named in one change"
);
const _: () = assert!(GATHERED_BYTES_MAX <= PIECE_BYTES_MAX, "what is gathered is a piece");
const _: () = assert!(
    CONNECTIONS_MAX < CONNECTIONS_OF_PEER_MAX,
    "a region that lost its connections has a place for others"
);
const _: () = assert!(
    IDLE_MAX.as_millis() < IDLE_ANSWERING_MAX.as_millis(),
    "a caller that would use a connection closes it"
);
const _: () = assert!(
    larder_protocol::limits::REGION_FETCH_IDS_MAX * (KEY_BYTES_MAX + 64) < REQUEST_BYTES_MAX,
    "the largest fetch is a request"
);
const _: () = assert!(
    2 * (LIST_PAGE_MAX + 1) * (KEY_BYTES_MAX + 512) < ANSWER_BYTES_MAX,
    "the keys of a list are an answer"
);
const _: () = assert!(
    larder_protocol::limits::REGION_REQUEST_IDS_MAX * (KEY_BYTES_MAX + 128) < ANSWER_BYTES_MAX
        && larder_protocol::limits::REGION_RUNS_MAX * (4 * KEY_BYTES_MAX + 128) < ANSWER_BYTES_MAX,
    "ids and sums are answers"
);
