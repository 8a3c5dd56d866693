//! Limits of managers' observations of their cluster, and of reports of these.

/// Most issues that a manager keeps, and tells.
pub const ISSUES_REPORTED_MAX: usize = 8192;
/// Most places of which it keeps looks: disks, their servers and the cluster.
pub const FILLS_REPORTED_MAX: usize = 16_384;
/// Bytes of all that it tells, encoded: an answer that is longer is not decoded.
pub const OBSERVED_REPORT_BYTES_MAX: usize = 1024 * 1024;
/// Milliseconds between two looks at what a place has taken.
pub const FILL_PAUSE_MS: u64 = 6 * 3_600_000;
/// Looks that are kept of a place: of a week.
pub const FILL_SAMPLES_MAX: usize = 7 * 4;
/// Seconds from which on something is foretold.
pub const FILL_TREND_S_MIN: u64 = 3600;
const _: () = assert!(
    ISSUES_REPORTED_MAX * 30 + FILLS_REPORTED_MAX * 28 + 16 <= OBSERVED_REPORT_BYTES_MAX
        && OBSERVED_REPORT_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX,
    "all that a manager may tell fits an answer"
);
