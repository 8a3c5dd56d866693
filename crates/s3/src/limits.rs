//! The limits of this face, with their units, and how they relate.

use std::time::Duration;

use larder_types::limits::{CHUNK_BYTES_MAX, KEY_BYTES_MAX};

/// Connections open at once; one more takes the place of the one that is idle longest, or is answered 503.
pub const CONNECTIONS_MAX: usize = 4096;
/// Time that a connection must have been idle before another may take its place.
pub const IDLE_BEFORE_CLOSED: Duration = Duration::from_secs(1);
/// Most bytes of a request's line and headers.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Requests worked on at once; more wait.
pub const REQUESTS_MAX: usize = 1024;
/// Requests that wait for their turn or for memory at once; one more is answered `SlowDown`.
pub const WAITING_MAX: usize = 2048;
/// The time that a request waits for its turn or for memory before it is answered `SlowDown`.
pub const WAIT_MAX: Duration = Duration::from_secs(10);
/// Requests that ask for the state at once. They take no turn of the others; one more is answered `SlowDown`.
pub const STATE_CLIENTS_MAX: usize = 64;
/// The time that such a request waits for the answer before it is answered 503.
pub const STATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which the state is told again.
pub const STATE_CACHED_FOR: Duration = Duration::from_secs(5);
/// Bytes of a token that shows who may read metrics. One of MinIO's client has some 200.
pub const TOKEN_BYTES_MAX: usize = 2048;
/// Bytes of request bodies held in memory at once.
pub const BODY_BUDGET_BYTES: usize = 256 * 1024 * 1024;
/// Most bytes of the budget that one request takes: the chunk being filled and the one being written.
pub const BODY_SHARE_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX as usize;
/// Most digits of the size of an aws-chunk: it has less than 64 GiB, so that one can hold the largest body.
pub const AWS_CHUNK_DIGITS_MAX: usize = 9;
/// Most bytes of an aws-chunk's header line.
pub const AWS_CHUNK_LINE_BYTES_MAX: usize = 1024;
/// Most bytes of the trailers behind the last aws-chunk.
pub const TRAILERS_BYTES_MAX: usize = 16 * 1024;
/// Most bytes of an XML body: ten thousand parts with checksums, or a thousand keys, escaped.
pub const XML_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes of a file uploaded by an HTML form, which is held in memory as a whole.
pub const FORM_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most bytes of an HTML form up to where its file begins: what is read before its signature is verified.
pub const FORM_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Time that a client has to send them.
pub const FORM_HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// HTML forms whose signature is not verified yet, at once; one more is answered `SlowDown`.
pub const FORMS_UNVERIFIED_MAX: usize = 64;
/// The time that a client may take to send a request's head, and that a connection may be idle.
pub const CLIENT_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a client has to send the next piece of a body.
pub const BODY_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a server waits for all pieces of a body together, beside the time that [`BODY_RATE_MIN`] gives.
pub const BODY_WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes a second below which a client may not stay for longer than [`BODY_WAIT_MAX`].
pub const BODY_RATE_MIN: u64 = 4 * 1024;
/// Time that an answer waits for a client that takes nothing of it. Long enough for what the system buffers for a slow
/// client: it tells of room only when a third of that, a megabyte or so, is gone.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(120);
/// Bytes a second below which a client may not take an answer for longer than [`ANSWER_WAIT_MAX`] allows.
pub const ANSWER_RATE_MIN: u64 = 4 * 1024;
/// The time that requests have to finish after the shutdown signal.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a body that nobody reads which are read and dropped, so that its connection can be used again.
pub const UNREAD_BYTES_MAX: u64 = 256 * 1024;
/// Time that they have to come.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read and dropped of a connection that closes behind an answer, so that the client sees the answer.
pub const LINGER_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Time for which such a connection lingers.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of times that a read starts again because the object changed between its opening and
/// the read.
pub const CHANGED_RETRIES_MAX: usize = 8;
/// Pieces of bodies below this many bytes are digested at once: company costs more than it saves.
pub const LANE_BYTES_MIN: usize = 2048;
/// Pieces from which on a batch is digested in lanes. Below it, each piece's own digests by turns are quicker.
pub const LANES_MIN: usize = 3;
/// Bytes of one piece that go into one batch, so that short pieces do not wait long for long ones.
pub const LANE_BYTES_MAX: usize = 64 * 1024;
/// Seconds by which a request's date may be off.
pub const CLOCK_SKEW_MAX_S: u32 = 900;
/// Seconds that the signing of an HTML form may lie back, whatever its policy says: as for a presigned request.
pub const FORM_AGE_S_MAX: u32 = PRESIGNED_S_MAX as u32;
/// Bytes of an object's website redirect (S3).
pub const REDIRECT_BYTES_MAX: usize = 2048;
/// Most bytes of a canonical request that is told to a client whose signature is another.
pub const CANONICAL_SHOWN_BYTES_MAX: usize = 8 * 1024;
/// Bytes that every store's ids of versions have, AWS's 32. Fewer are no id.
pub const VERSION_ID_BYTES_MIN: usize = 16;
/// Most bytes of an id of a version that a client sends (S3).
pub const VERSION_ID_BYTES_MAX: usize = 1024;
/// Tags of an object (S3).
pub const TAGS_MAX: usize = 10;
/// Characters of a tag's key (S3).
pub const TAG_KEY_CHARS_MAX: usize = 128;
/// Characters of a tag's value (S3).
pub const TAG_VALUE_CHARS_MAX: usize = 256;
/// Keys of one batch delete (S3).
pub const DELETE_KEYS_MAX: usize = 1000;
/// Bytes of memory for a byte of a batch delete: its names, and an answer that has them again, of which XML may write a
/// character in six bytes.
pub const BATCH_DELETE_FACTOR: u64 = 8;
/// Deletes of one batch that run at once.
pub const DELETE_CONCURRENCY: usize = 16;

/// Headers that a preflight may ask for: more than any browser's request has. A stranger has each compared with all rules.
pub const PREFLIGHT_HEADERS_MAX: usize = 100;
/// Bytes of `X-Forwarded-For` that are told of a request: an address or a few.
pub const FORWARDED_BYTES_MAX: usize = 256;
/// Seconds for which a presigned request may be good at most (S3).
pub const PRESIGNED_S_MAX: i64 = 7 * 24 * 60 * 60;

const _: () = assert!(BODY_SHARE_BYTES_MAX <= BODY_BUDGET_BYTES, "every request can get its share");
const _: () = assert!(BODY_BUDGET_BYTES <= u32::MAX as usize, "shares are counted in u32");
const _: () = assert!(XML_BYTES_MAX <= BODY_SHARE_BYTES_MAX, "an XML body fits its share");
const _: () = assert!(
    DELETE_KEYS_MAX * (KEY_BYTES_MAX + VERSION_ID_BYTES_MAX) * (BATCH_DELETE_FACTOR as usize - 1)
        <= BODY_SHARE_BYTES_MAX,
    "the names of a batch and the answer that repeats them fit their share"
);
const _: () =
    assert!(FORM_FILE_BYTES_MAX as usize <= BODY_SHARE_BYTES_MAX, "so does a form's file");
const _: () = assert!(
    FORMS_UNVERIFIED_MAX * FORM_HEAD_BYTES_MAX <= BODY_BUDGET_BYTES / 16,
    "strangers' forms are a small part of the memory for bodies"
);
