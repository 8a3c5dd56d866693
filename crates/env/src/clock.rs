//! The machine's steady clock, for leases.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, with those for which it was suspended: a lease runs on while
/// its holder sleeps. Nobody sets this clock.
#[must_use]
pub fn uptime_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
