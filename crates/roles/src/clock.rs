//! The machine's clock, for clocks of versions and ages of grants; never for the safety of writes.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 on a machine whose clock is before that.
#[must_use]
pub fn now_ms() -> u64 {
    since_1970_ms(SystemTime::now())
}

/// Milliseconds from 1970 to this time; 0 if it is before that.
#[must_use]
pub(crate) fn since_1970_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
