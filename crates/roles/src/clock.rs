//! The machine's clocks: that of the wall for the dates of versions, a steady one for ages of grants; neither is for
//! the safety of writes.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use larder_env::clock::uptime_ms;
use larder_protocol::EventTime;
use larder_protocol::clock_offsets::ClockBound;

/// The time by which a store dates changes, and the one by which it judges the dates of others. Each is that of the wall, held
/// back to a bound that other machines' clocks set.
#[derive(Debug)]
pub struct StoreClock {
    dates: AtomicI64,
    judges: AtomicI64,
}

impl Default for StoreClock {
    fn default() -> Self {
        let unbounded = || AtomicI64::new(ClockBound::default().to_raw());
        Self { dates: unbounded(), judges: unbounded() }
    }
}

impl StoreClock {
    /// The time by which changes are dated, by both clocks.
    pub(crate) fn now(&self) -> EventTime {
        ClockBound::from_raw(self.dates.load(Ordering::Relaxed)).hold_back(now())
    }

    /// The time by which others' changes are judged to be ahead, by both clocks.
    pub(crate) fn judging_now(&self) -> EventTime {
        ClockBound::from_raw(self.judges.load(Ordering::Relaxed)).hold_back(now())
    }

    /// Sets both bounds: each is read by itself, and nothing else is read with it.
    pub(crate) fn set_bounds(&self, dates: ClockBound, judges: ClockBound) {
        self.dates.store(dates.to_raw(), Ordering::Relaxed);
        self.judges.store(judges.to_raw(), Ordering::Relaxed);
    }
}

/// The time by both clocks of the machine.
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
