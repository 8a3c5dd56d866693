//! The limits of the index, with their units, and how they relate.

use larder_types::limits::{KEY_BYTES_MAX, OP_BYTES_MAX};

/// Bytes of a row's key: an object key with every byte escaped, and room for what surrounds it.
pub const ROW_KEY_BYTES_MAX: usize = 4096;
/// Bytes of a row's value, checksum excluded.
pub const ROW_VALUE_BYTES_MAX: usize = 2 * OP_BYTES_MAX;
/// Bytes of all rows of one batch.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Unflushed bytes above which a caller should flush.
pub const FLUSH_BYTES: u64 = 32 * 1024 * 1024;
/// Default bytes of the cache of blocks read from disk.
pub const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Open table files kept.
pub const OPEN_TABLES_MAX: usize = 512;
/// Bytes of one table file. The engine syncs the last table of a compaction while readers and applies
/// wait: this bounds how long.
pub const TABLE_BYTES: u64 = 8 * 1024 * 1024;
/// Tables of the top level at which it is merged down.
pub const TOP_TABLES: u8 = 4;
/// Bytes that must be free beside those of the rows that a flush writes.
pub const FLUSH_SPACE_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes that must be free before a step of compaction begins, or as many as the whole index has.
pub const COMPACTION_SPACE_BYTES: u64 = 512 * 1024 * 1024;
/// Bits of bloom filter per key.
pub const FILTER_BITS_PER_KEY: f32 = 10.0;

const _: () = assert!(ROW_KEY_BYTES_MAX >= 2 * KEY_BYTES_MAX + 1024, "an escaped key fits");
const _: () = assert!(ROW_KEY_BYTES_MAX <= u16::MAX as usize, "the engine's keys are that long");
const _: () = assert!(ROW_VALUE_BYTES_MAX > OP_BYTES_MAX, "what fits the log fits the index");
const _: () = assert!(
    BATCH_BYTES_MAX > 8 * (ROW_KEY_BYTES_MAX + ROW_VALUE_BYTES_MAX),
    "the rows of several of the largest ops fit one batch"
);
const _: () = assert!(
    COMPACTION_SPACE_BYTES > 2 * (FLUSH_BYTES + FLUSH_SPACE_BYTES),
    "a compaction that fits leaves room for a flush in an index of some size"
);
const _: () = assert!(BATCH_BYTES_MAX < u32::MAX as usize, "offsets inside a batch are u32");
