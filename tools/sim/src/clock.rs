//! The time of a run, and the clocks that servers have of it.

use larder_env::SeededRng;
use larder_protocol::limits::{LEASE_DRIFT_MS, LEASE_GRANTED_MS};

/// Microseconds in a millisecond.
pub(crate) const MS: u64 = 1000;

/// Slowest clock, in thousandths of true time; the fastest is as much too fast. Two such clocks drift apart by less
/// than a lease allows.
const SLOWEST_PER_MILLE: u64 = 960;
const _: () = assert!(
    LEASE_GRANTED_MS * (2000 - SLOWEST_PER_MILLE)
        < (LEASE_GRANTED_MS + LEASE_DRIFT_MS) * SLOWEST_PER_MILLE,
    "the managers wait out a lease whichever clocks are the fast and the slow one"
);

/// A clock that never jumps, but runs too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) offset_ms: u64,
    pub(crate) per_mille: u64,
}

impl Clock {
    pub(crate) fn draw(rng: &mut SeededRng) -> Self {
        let range = 2 * (1000 - SLOWEST_PER_MILLE) + 1;
        Self { offset_ms: rng.below(1 << 40), per_mille: SLOWEST_PER_MILLE + rng.below(range) }
    }
}
