//! The limits of the connections between roles, with their units, and how they relate.

use std::time::Duration;

use larder_types::limits::{CHUNK_BYTES_MAX, OP_BYTES_MAX, REPLICAS_MAX};

/// Oldest version of the protocol that this release speaks. Versions 1 and 2 have the same frames, and other calls and
/// answers between proxies and meta servers in them, which must not be taken for these.
pub const PROTOCOL_MIN: u8 = 3;
/// Newest version of the protocol that this release speaks.
pub const PROTOCOL_MAX: u8 = 29;
/// Oldest version in which callers cancel calls.
pub const PROTOCOL_CANCELS: u8 = 4;
/// Oldest version in which a caller gets an error for a response longer than a frame may be. In older ones it gets no
/// response.
pub const PROTOCOL_TOO_LONG: u8 = 26;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 40;
/// Most bytes of a frame's body, which is decoded: one request, answer or message.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a frame's payload, which is passed on undecoded: a chunk, and room beside it.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX as usize + 64 * 1024;
/// Most bytes of the body of a hello or goodbye, and of every frame before the hello: those of joining and discovery.
pub const HELLO_BYTES_MAX: usize = 4096;

/// Bytes of one read of the socket. A payload keeps the whole buffer of its read in memory.
pub const READ_BYTES: usize = 64 * 1024;
/// Bytes of room left in a buffer below which the next read gets a new one.
pub const READ_BUFFER_BYTES_MIN: usize = 16 * 1024;
/// Frames with a payload and up to this long are copied out of the buffer of their read, so that a small payload does not
/// keep [`READ_BYTES`] in memory.
pub const COPIED_FRAME_BYTES_MAX: usize = 1024;
/// Bytes buffered in each direction of a connection between servers of one process.
pub const PIPE_BYTES: usize = 256 * 1024;
/// Bytes moved from the queue to the socket's batch at a time; a larger frame moves alone.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Slices of one vectored write: two for each frame with a payload.
pub const SLICES_MAX: usize = 128;
/// Frames received before their answers are sent.
pub const RECEIVED_PER_TURN_MAX: usize = 256;
/// Turns of a connection's task before it yields to other tasks.
pub const TURNS_MAX: usize = 8;

/// Requests of one connection that wait for an answer.
pub const REQUESTS_MAX: usize = 1024;
/// Requests and messages of one connection that wait to be written.
pub const QUEUE_MESSAGES_MAX: usize = 4096;
/// Bytes of these requests and messages: beyond it a caller gets `Busy`.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of payloads of one connection's requests that its handlers have not answered: beyond it the
/// caller gets `Busy`.
pub const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of answers that wait to be written, beyond which nothing more is read.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Connections of one listener.
pub const CONNECTIONS_MAX: usize = 4096;
/// Handshakes of one listener that are under way; a further one evicts another. When a server of a large cluster
/// starts, all others connect to it at once.
pub const HANDSHAKES_MAX: usize = 256;
/// Longest from the connection to the client's hello, which does not depend on an answer. A lost packet costs one second.
pub const HELLO_TIME_MAX: Duration = Duration::from_secs(3);
/// Longest from a connection's first packet to the last hello. Three round trips and four signatures take milliseconds; the
/// seconds allow for a lost packet or two.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause of a listener after the system failed to accept a connection, as when it is out of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The precision of deadlines. One look at all calls of a connection is cheaper than a timer for each, and deadlines are tens
/// of milliseconds and more.
pub const TICK: Duration = Duration::from_millis(10);
/// Interval of a connection's pings. All connections of an endpoint are pinged together, but those over which bytes
/// have just gone both ways.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a connection is given up. A ping may have to wait behind the largest frame and the
/// kernel's buffers, about 13 MiB: 1.1 s at 100 Mbit/s. A connection survives two lost pings.
pub const SILENCE_MAX: Duration = Duration::from_secs(4);
/// First pause after a failed attempt to connect.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Failed attempts to connect in a row before the one that is logged at the default level: servers that start together cause some.
pub const UNTOLD_FAILURES: u32 = 5;
/// Longest pause between attempts. A connection that held this long resets the pause.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(PROTOCOL_MIN <= PROTOCOL_MAX, "a release speaks something");
const _: () = assert!(PROTOCOL_TOO_LONG <= PROTOCOL_MAX, "it is said in a version that is spoken");
const _: () = assert!(PAYLOAD_BYTES_MAX >= OP_BYTES_MAX, "the largest op fits a payload");
const _: () = assert!(
    BODY_BYTES_MAX + PAYLOAD_BYTES_MAX + HEADER_BYTES < u32::MAX as usize,
    "lengths in a header are u32"
);
const _: () = assert!(HELLO_BYTES_MAX <= BODY_BYTES_MAX, "a hello is a small frame");
const _: () = assert!(READ_BUFFER_BYTES_MIN > HEADER_BYTES, "a header fits a read");
const _: () = assert!(READ_BUFFER_BYTES_MIN < READ_BYTES, "a new buffer has room");
const _: () = assert!(COPIED_FRAME_BYTES_MAX < READ_BYTES, "most payloads are not copied");
const _: () = assert!(SLICES_MAX <= 1024, "the system takes that many slices at once");
const _: () = assert!(
    QUEUE_BYTES_MAX > REPLICAS_MAX / 4 * PAYLOAD_BYTES_MAX && QUEUE_BYTES_MAX > BATCH_BYTES_MAX,
    "several of the largest frames fit the queue"
);
const _: () = assert!(HELD_BYTES_MAX >= PAYLOAD_BYTES_MAX, "the largest payload can be held");
const _: () = assert!(QUEUE_MESSAGES_MAX > REQUESTS_MAX, "messages find room beside requests");
const _: () = assert!(REQUESTS_MAX <= 1 << 16, "a request's place is 16 bits of its number");
const _: () = assert!(
    SILENCE_MAX.as_millis() > 3 * PING_INTERVAL.as_millis(),
    "two pings may be lost before a connection is"
);
const _: () = assert!(TICK.as_millis() < PING_INTERVAL.as_millis(), "pings are sent at ticks");
const _: () = assert!(BACKOFF_MIN.as_millis() < BACKOFF_MAX.as_millis(), "pauses grow");
