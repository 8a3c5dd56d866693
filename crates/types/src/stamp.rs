//! The identity of a version: when it came to be, and where (ADR 40).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{OpId, PgId, RegionId};
use crate::metax::HybridClock;

/// The identity of a version, the same in every region. The greater one is the newer version: regions never tie, and a
/// region's own clock grows with every version of a PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Its clock, above 0 in a version that exists.
    pub clock: HybridClock,
    /// The region that took it. Decides between equal clocks.
    pub region: RegionId,
}

impl Stamp {
    /// As every region knows it, where a store tells it that has the number `own`: what it took before it had a number
    /// says [`RegionId::OWN`].
    ///
    /// # Panics
    /// If `own` is no number.
    #[must_use]
    pub fn qualified_by(self, own: RegionId) -> Self {
        assert_ne!(own, RegionId::OWN, "a store that tells its versions has a number");
        let region = if self.region == RegionId::OWN { own } else { self.region };
        Self { clock: self.clock, region }
    }

    /// Returns true if it names one version among all regions: it has a clock, and the region's number.
    #[must_use]
    pub fn is_qualified(self) -> bool {
        self.clock.0 > 0 && self.region != RegionId::OWN
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:04x}", self.clock.0, self.region.0)
    }
}

/// The op of a region's log that made a change: the same wherever the change is told, and by whomever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The region; in what a store keeps, [`RegionId::OWN`] as in stamps.
    pub region: RegionId,
    /// The PG, among those of that region.
    pub pg: PgId,
    /// The op.
    pub op: OpId,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(clock: u64, region: u16) -> Stamp {
        Stamp { clock: HybridClock(clock), region: RegionId(region) }
    }

    #[test]
    fn the_clock_decides_and_the_region_between_equal_clocks() {
        assert!(stamp(2, 1) > stamp(1, 9));
        assert!(stamp(2, 9) > stamp(2, 1));
    }

    #[test]
    fn a_store_puts_its_number_in_place_of_its_own() {
        assert_eq!(stamp(5, 0).qualified_by(RegionId(3)), stamp(5, 3));
        assert_eq!(stamp(5, 4).qualified_by(RegionId(3)), stamp(5, 4));
        assert!(
            stamp(5, 3).is_qualified()
                && !stamp(5, 0).is_qualified()
                && !stamp(0, 3).is_qualified()
        );
    }
}
