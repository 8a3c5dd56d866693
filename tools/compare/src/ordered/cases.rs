//! The delays, the variants, and the least time that a put can take by them.

use serde::{Deserialize, Serialize};

/// The delays of network and disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delays {
    /// Microseconds that a question to another server and its answer are on their way.
    pub(super) network_us: u64,
    /// Microseconds that a sync takes at least.
    pub(super) sync_us: u64,
}

/// The ways to put that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Variant {
    /// As it is.
    Parallel,
    /// Data is written after METAX was persisted.
    Ordered,
    /// METAX is three writes, each durable before the next.
    SeparateMetax,
    /// Each object's data is a file, synced, in a folder that is synced.
    PlainFiles,
}

/// A put on so many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    /// Bytes of an object.
    pub(super) size: u64,
    /// Connections, each with one put under way.
    pub(super) connections: u64,
}

/// The network and the sync at which most is measured.
pub(super) const USUAL: Delays = Delays { network_us: 200, sync_us: 1000 };

/// All delays: both together, and each by itself around the usual.
pub(super) const DELAYS: [Delays; 7] = [
    Delays { network_us: 50, sync_us: 30 },
    Delays { network_us: 200, sync_us: 30 },
    Delays { network_us: 50, sync_us: 1000 },
    USUAL,
    Delays { network_us: 500, sync_us: 1000 },
    Delays { network_us: 200, sync_us: 5000 },
    Delays { network_us: 500, sync_us: 5000 },
];

/// Delays at which the other variants are measured.
pub(super) const ABLATED: [Delays; 2] = [DELAYS[0], USUAL];

/// Sizes of objects, in bytes.
pub(super) const SIZES: [u64; 3] = [8 << 10, 64 << 10, 512 << 10];
/// Connections of a put whose latency is asked for.
pub(super) const ALONE: u64 = 1;
/// Connections where throughput is: few, so that delays bound it and not the cores.
pub(super) const TOGETHER: u64 = 8;

impl Delays {
    /// The least microseconds of a put on an idle cluster: round trips and syncs that wait for one another.
    ///
    /// In parallel the data goes out with the grant, after one round trip, and is durable and answered after another
    /// and a sync. METAX takes as long by way of the backups: half a round trip to the primary, half to a backup, a
    /// sync, and both ways back. In order the data's round trip and sync begin when METAX's have ended.
    pub(super) fn bound_us(self, variant: Variant) -> f64 {
        let (trips, syncs) = match variant {
            Variant::Parallel => (2, 1),
            Variant::Ordered => (3, 2),
            Variant::SeparateMetax => (2, 3),
            Variant::PlainFiles => (2, 2),
        };
        (trips * self.network_us + syncs * self.sync_us) as f64
    }

    /// As in tables.
    pub(super) fn title(self) -> String {
        format!("{}, {}", micros(self.network_us), micros(self.sync_us))
    }
}

/// A time in its usual unit.
pub(super) fn micros(us: u64) -> String {
    match us {
        1000.. if us.is_multiple_of(1000) => format!("{} ms", us / 1000),
        _ => format!("{us} µs"),
    }
}

impl Variant {
    /// As in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Ordered => "ordered",
            Self::SeparateMetax => "METAX as three writes",
            Self::PlainFiles => "data in plain files",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_round_trips_and_syncs_that_wait_for_one_another() {
        let bounds =
            [Variant::Parallel, Variant::Ordered, Variant::SeparateMetax, Variant::PlainFiles]
                .map(|variant| USUAL.bound_us(variant));
        assert_eq!(bounds, [1400.0, 2600.0, 3400.0, 2400.0]);
    }

    #[test]
    fn delays_are_titled_in_their_usual_units() {
        assert_eq!(USUAL.title(), "200 µs, 1 ms");
        assert_eq!(DELAYS[0].title(), "50 µs, 30 µs");
    }

    #[test]
    fn the_other_variants_are_measured_where_parallel_ones_are() {
        assert!(ABLATED.iter().all(|delays| DELAYS.contains(delays)));
    }
}
