//! The machine's clocks: a steady one for leases, and that of the wall.

use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, with those for which it was suspended: a lease runs on while
/// its holder sleeps. Nobody sets this clock.
#[must_use]
pub fn uptime_ms() -> u64 {
    #[cfg(feature = "simulated")]
    if let Some(since) = crate::simulated::elapsed() {
        return since.as_millis() as u64;
    }
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// The time by the clock on the wall, which somebody may set.
#[must_use]
pub fn wall() -> SystemTime {
    #[cfg(feature = "simulated")]
    if let Some(since) = crate::simulated::elapsed() {
        return SystemTime::UNIX_EPOCH + crate::simulated::BEGINS + since;
    }
    SystemTime::now()
}
