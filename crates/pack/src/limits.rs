//! The limits of packing, with their units, and how they relate.

use std::time::Duration;

use larder_types::limits::{CHUNK_BYTES_MAX, OP_BYTES_MAX, PUT_BYTES_MAX, SUM_BYTES};

/// Bytes of bodies at which a blob is full, unless the configuration says otherwise.
pub const BLOB_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Least bytes that may be configured for a blob.
pub const BLOB_BYTES_MIN: u64 = 1024 * 1024;
/// Most bytes that may be configured for a blob.
pub const BLOB_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Age of the oldest change of a blob at which it goes up, however little is in it.
pub const FLUSH_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Bytes of bodies that may wait in the spool; puts beyond are answered `SlowDown`.
pub const SPOOL_BYTES_DEFAULT: u64 = 8 * 1024 * 1024 * 1024;
/// Most bytes of an object that is packed: such a body is held in memory as a whole. Larger ones become
/// objects of their own in the backend.
pub const PACKED_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64;
/// Bytes that one sum of an object of its own covers.
pub const OWN_SUM_BYTES: u32 = 1024 * 1024;
/// Bytes of a blob's footer at which it is full: whoever reads a footer holds it in memory.
pub const FOOTER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of the footers of all blobs that wait, which are in memory; puts beyond are answered `SlowDown`.
pub const FOOTERS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Changes that wait for the committer; more are answered `SlowDown`.
pub const QUEUE_MAX: usize = 2048;
/// Changes that share a sync.
pub const GROUP_CHANGES_MAX: usize = 1024;
/// Bytes of bodies that share a sync.
pub const GROUP_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of one part of an upload to the backend.
pub const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts of one blob under way at once.
pub const PARTS_UNDER_WAY_MAX: usize = 4;
/// Bytes read from the spool at a time.
pub const SPOOL_READ_BYTES: u64 = 512 * 1024;
/// Bytes of log that are kept before the index is flushed and the log is freed.
pub const LOG_BYTES_KEPT: u64 = 128 * 1024 * 1024;
/// Bytes of a log segment.
pub const LOG_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Rows that one batch of a bucket's removal has.
pub const REMOVED_ROWS_MAX: usize = 10_000;
/// Changes that one batch has while the index is rebuilt.
pub const REBUILD_CHANGES_MAX: usize = 1000;
/// Footers that are fetched ahead while the index is rebuilt.
pub const FOOTERS_AHEAD: usize = 2;
/// Pause after a blob could not be uploaded; doubles up to [`UPLOAD_PAUSE_MAX`].
pub const UPLOAD_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two tries to upload a blob.
pub const UPLOAD_PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long one request to the backend is repeated before it is given up.
pub const BACKEND_RETRY_MAX: Duration = Duration::from_secs(30);
/// How long the backend may be silent within one request.
pub const BACKEND_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Bytes that list or claim objects have at most; more is not a claim of ours.
pub const CLAIM_BYTES_MAX: u64 = 4096;

const _: () = assert!(PACKED_BYTES_MAX <= GROUP_BYTES_MAX, "a group has room for every body");
const _: () = assert!(FOOTERS_BYTES_MAX >= 2 * FOOTER_BYTES_MAX, "a blob fills while one goes up");
const _: () = assert!(FOOTER_BYTES_MAX > OP_BYTES_MAX, "a footer has room for every change");
const _: () = assert!(PART_BYTES >= 5 * 1024 * 1024, "S3 refuses smaller parts");
const _: () = assert!(PUT_BYTES_MAX / PART_BYTES as u64 <= 10_000, "S3 refuses more parts");
const _: () = assert!(BLOB_BYTES_MAX / PART_BYTES as u64 <= 10_000, "S3 refuses more parts");
const _: () = assert!(
    // Ten bytes a sum, beside a key and the largest attributes.
    (PUT_BYTES_MAX / OWN_SUM_BYTES as u64) as usize * 10 + 64 * 1024 <= OP_BYTES_MAX,
    "the sums of the largest put fit one record"
);
const _: () = assert!(OWN_SUM_BYTES >= SUM_BYTES, "large objects have fewer sums");
const _: () = assert!(PART_BYTES.is_multiple_of(OWN_SUM_BYTES as usize), "parts end with a sum");
