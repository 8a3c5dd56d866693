//! Limits of managers' observations of their cluster, and of reports of these.

/// Most troubles that a manager keeps, and tells.
pub const TROUBLES_TOLD_MAX: usize = 8192;
/// Most places of which it keeps looks: disks, their servers and the cluster.
pub const FILLS_TOLD_MAX: usize = 16_384;
/// Bytes of all that it tells, encoded: an answer that is longer is not decoded.
pub const OBSERVED_TOLD_BYTES_MAX: usize = 1024 * 1024;
/// Milliseconds between two looks at what a place has taken.
pub const FILL_PAUSE_MS: u64 = 6 * 3_600_000;
/// Looks that are kept of a place: of a week.
pub const FILL_LOOKS_MAX: usize = 7 * 4;
/// Seconds from which on something is foretold.
pub const FILL_TREND_S_MIN: u64 = 3600;
const _: () = assert!(
    TROUBLES_TOLD_MAX * 30 + FILLS_TOLD_MAX * 28 + 16 <= OBSERVED_TOLD_BYTES_MAX
        && OBSERVED_TOLD_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX,
    "all that a manager may tell fits an answer"
);
