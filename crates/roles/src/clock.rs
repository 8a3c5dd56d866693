//! The machine's clocks: that of the wall for the dates of versions, a steady one for ages of grants; neither is for
//! the safety of writes.

use std::time::{SystemTime, UNIX_EPOCH};

use larder_env::clock::uptime_ms;
use larder_protocol::EventTime;

/// The time by both clocks.
pub(crate) fn now() -> EventTime {
    EventTime { steady_ms: uptime_ms(), wall_ms: now_ms() }
}

/// Milliseconds since 1970; 0 on a machine whose clock is before that.
#[must_use]
pub fn now_ms() -> u64 {
    since_1970_ms(larder_env::clock::wall())
}

/// Milliseconds from 1970 to this time; 0 if it is before that.
#[must_use]
pub(crate) fn since_1970_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
