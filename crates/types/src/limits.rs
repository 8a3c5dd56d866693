//! The limits that all parts share, with their units, and how they relate.

/// Bytes in a block, the unit of allocation.
pub const BLOCK_BYTES: u32 = 4096;
/// Bytes covered by one checksum.
pub const SUM_BYTES: u32 = 64 * 1024;
/// Most bytes of one chunk: what one grant covers and one proxy buffer holds.
pub const CHUNK_BYTES_MAX: u32 = 8 * 1024 * 1024;
/// Blocks of the largest chunk.
pub const CHUNK_BLOCKS_MAX: u32 = CHUNK_BYTES_MAX / BLOCK_BYTES;
/// Objects up to this many bytes live inside METAX.
pub const INLINE_BYTES_MAX: u32 = 2048;
/// Most extents of one chunk; an allocator that would need more tries another LV.
pub const CHUNK_EXTENTS_MAX: usize = 64;
/// Bytes of a key (S3).
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of all user metadata names and values of an object (S3).
pub const USER_METADATA_BYTES_MAX: usize = 2048;
/// Bytes of all attributes of an object: content headers, user metadata and tags.
pub const ATTRIBUTE_BYTES_MAX: usize = 16 * 1024;
/// Part numbers run from 1 to this (S3).
pub const PART_NUMBER_MAX: u16 = 10_000;
/// Least bytes of a part other than the last (S3).
pub const PART_BYTES_MIN: u64 = 5 * 1024 * 1024;
/// Most bytes of one part or of one put (S3).
pub const PUT_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024;
/// Most bytes of one object (S3).
pub const OBJECT_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024 * 1024;
/// Most pieces of an object at one time: what it was before the first append, and one for each append since that was not
/// coalesced with others yet (ADR 65). The largest object has two for each of [`COALESCED_BYTES_MIN`].
pub const PIECES_MAX: u32 = 16 * 1024 * 1024;
/// The same where not all servers of a cluster know of coalescing, parts of an upload counted (S3 Express).
pub const PIECES_UNCOALESCED_MAX: u32 = 10_000;
/// Pieces of so many bytes are never coalesced: each byte is written again a few times at most, and the rows of an object are
/// few for its bytes.
pub const COALESCED_BYTES_MIN: u64 = 1024 * 1024;
/// Most bytes of one record: one chunk, so that it has one grant.
pub const RECORD_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64;
/// Keys, or keys and common prefixes, on one page of a list (S3).
pub const LIST_PAGE_MAX: usize = 1000;
/// Replicas of one LV.
pub const REPLICAS_MAX: usize = 16;
/// Bytes of one op as it is stored in the log, without the record's header.
pub const OP_BYTES_MAX: usize = 1024 * 1024;
/// Buckets of a cluster.
pub const BUCKETS_MAX: usize = 10_000;
/// CORS rules of a bucket (S3).
pub const CORS_RULES_MAX: usize = 100;
/// Most bytes of a bucket's CORS rules, as a document (S3) and as they are stored.
pub const CORS_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of the CORS rules of all buckets together. The map has them: every server holds them in memory, and gets them
/// with each change of the map.
pub const CORS_ALL_BYTES_MAX: usize = 1024 * 1024;
/// Characters of the name of a CORS rule (S3).
pub const CORS_ID_CHARS_MAX: usize = 255;
/// Most seconds for which a browser may keep the answer to a preflight (S3 has a signed number of 32 bits).
pub const CORS_MAX_AGE_S_MAX: u32 = i32::MAX as u32;
/// Most PGs of a cluster.
pub const PG_COUNT_MAX: u32 = 65_536;

/// Milliseconds between two lines about events of one kind that strangers can cause at will.
pub const LINE_INTERVAL_MS: u64 = 10_000;

const _: () = assert!(CORS_BYTES_MAX <= CORS_ALL_BYTES_MAX, "a bucket can have the most");
const _: () = assert!(BUCKETS_MAX * 100 <= CORS_ALL_BYTES_MAX, "each bucket can have a short rule");
const _: () = assert!(SUM_BYTES.is_multiple_of(BLOCK_BYTES), "a checksum covers whole blocks");
const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(SUM_BYTES), "a full chunk has whole sums");
const _: () = assert!(INLINE_BYTES_MAX <= BLOCK_BYTES, "larger objects waste less than a block");
const _: () = assert!(
    // Checksums and extents of a full chunk, attributes, key and part table must fit one op.
    (CHUNK_BYTES_MAX / SUM_BYTES) as usize * 10
        + CHUNK_EXTENTS_MAX * 10
        + ATTRIBUTE_BYTES_MAX
        + KEY_BYTES_MAX
        + PART_NUMBER_MAX as usize * 64
        <= OP_BYTES_MAX,
    "the largest op fits a log record"
);
const _: () = assert!(
    PIECES_UNCOALESCED_MAX >= PART_NUMBER_MAX as u32,
    "an upload of the most parts is no object with too many"
);
const _: () = assert!(
    PIECES_MAX as u64 > OBJECT_BYTES_MAX / COALESCED_BYTES_MIN * 3,
    "the largest object is appended to until it is full, with pieces left over for those that are not coalesced yet"
);
const _: () = assert!(COALESCED_BYTES_MIN < CHUNK_BYTES_MAX as u64, "what is coalesced is a chunk");
const _: () = assert!(
    (PUT_BYTES_MAX / CHUNK_BYTES_MAX as u64) < u32::MAX as u64,
    "a stream's chunks are numbered by u32"
);
