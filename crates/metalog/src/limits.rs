//! Limits of the log, with their units, and how they relate.

use larder_types::limits::OP_BYTES_MAX;

/// Bytes of a segment file unless the configuration says otherwise.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Least bytes of a segment file.
pub const SEGMENT_BYTES_MIN: u64 = 2 * 1024 * 1024;
/// Most bytes of a segment file: recovery holds one in memory.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes before the first record of a segment.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: u64 = 64;
/// Records begin at multiples of this many bytes.
pub const RECORD_ALIGN_BYTES: u64 = 8;
/// Writes end at multiples of this many bytes, filled with zeros. So the page cache never reads a
/// page of a recycled segment in order to write a part of it.
pub const WRITE_ALIGN_BYTES: u64 = 4096;
/// Most bytes appended and not yet taken for writing; appends beyond it are refused as busy.
pub const BUFFER_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most freed segment files kept for later use.
pub const SPARES_MAX: usize = 2;
/// Most PGs that one message names.
pub const PGS_NAMED_MAX: usize = 16;
/// Bytes of zeros written ahead of the records in a new segment, at a time.
pub const ZERO_AHEAD_BYTES: u64 = 512 * 1024;
/// Bytes that must stay free on the disk beside a new segment.
pub const FREE_BYTES_MIN: u64 = 1024 * 1024;
/// Most pages of a segment that a start goes on without because the device cannot read them. A device that fails at more
/// fails as a whole.
pub const UNREADABLE_PAGES_MAX: usize = 256;
/// Most damaged places that one scan names.
pub const DAMAGES_NAMED_MAX: usize = 64;

/// Bytes of the largest record.
pub const RECORD_BYTES_MAX: u64 =
    RECORD_HEADER_BYTES + (OP_BYTES_MAX as u64).next_multiple_of(RECORD_ALIGN_BYTES);

const _: () = assert!(
    SEGMENT_HEADER_BYTES + RECORD_BYTES_MAX <= SEGMENT_BYTES_MIN,
    "the largest record fits the smallest segment"
);
const _: () = assert!(
    RECORD_BYTES_MAX + RECORD_HEADER_BYTES <= BUFFER_BYTES_MAX,
    "an empty buffer takes the largest record and a padding record before it"
);
const _: () = assert!(
    SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT && SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX,
    "the default is allowed"
);
const _: () = assert!(
    ZERO_AHEAD_BYTES.is_multiple_of(WRITE_ALIGN_BYTES) && ZERO_AHEAD_BYTES <= SEGMENT_BYTES_MIN,
    "zeros are written in whole pages"
);
const _: () = assert!(
    SEGMENT_HEADER_BYTES.is_multiple_of(WRITE_ALIGN_BYTES)
        && WRITE_ALIGN_BYTES.is_multiple_of(RECORD_ALIGN_BYTES),
    "a write's zeros end within the segment"
);
