//! Limits of servers' reports of counts.

/// Most counts that a server tells, and bytes of a name in them: they fit an answer.
pub const COUNTS_REPORTED_MAX: usize = 1024;
/// See [`COUNTS_REPORTED_MAX`].
pub const COUNT_NAME_BYTES_MAX: usize = 64;
/// Bytes of all that it tells, encoded: an answer that is longer is not decoded.
pub const COUNTS_REPORT_BYTES_MAX: usize = 256 * 1024;
/// Kinds, and sizes, of a table that are not of this release and get names of their own. Those beyond are counted together.
pub const FOREIGN_COUNTS_MAX: usize = 16;
const _: () = assert!(
    COUNTS_REPORTED_MAX * (3 * (COUNT_NAME_BYTES_MAX + 1) + 4 * 10) + 16 <= COUNTS_REPORT_BYTES_MAX,
    "the longest counts that a server may tell are heard"
);
