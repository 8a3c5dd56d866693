//! The states of the disks, and the load.

use serde::{Deserialize, Serialize};

use crate::ports::{Ports, Sections};

/// Microseconds of a read, as a hard disk takes them with a queue that it sorts.
pub(super) const READ_US: u64 = 4_000;
/// Reads that a disk serves at once: with these, 1,000 a second.
pub(super) const READ_LANES: u16 = 4;
/// Factor by which reads of the slow disk take longer.
pub(super) const SLOW_TIMES: u64 = 10;
/// Milliseconds for which the disk stands still that does, of every [`STALL_EVERY_MS`].
pub(super) const STALL_MS: u64 = 500;
/// See [`STALL_MS`].
pub(super) const STALL_EVERY_MS: u64 = 5_000;

/// The node whose disk is worse, and through whose proxy is read: its own disk is the one that it would take among equals.
pub(super) const WORSE_NODE: usize = 3;

/// Bytes of an object.
pub(super) const SIZE: u64 = 64 << 10;
/// Objects.
pub(super) const OBJECTS: u64 = 1_000;
/// Reads a second: two fifths of what one disk serves, and four times as many as the slow one does.
pub(super) const RATE: u32 = 400;
/// Most reads under way.
pub(super) const CONNECTIONS: u64 = 256;

/// State of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Disks {
    /// All are well.
    Healthy,
    /// One of three takes [`SLOW_TIMES`] as long.
    Slow,
    /// One of three stands still now and then.
    Stalls,
}

impl Disks {
    pub(super) const ALL: [Self; 3] = [Self::Healthy, Self::Slow, Self::Stalls];

    /// As in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Healthy => "all disks well",
            Self::Slow => "one of three disks ten times slower",
            Self::Stalls => "one of three disks stands still for 500 ms of every 5 s",
        }
    }

    /// The disks of all nodes, and that of the worse one.
    pub(super) fn sections(self) -> Sections {
        let all = Ports { read_us: READ_US, read_lanes: READ_LANES, ..Ports::default() };
        let worse = match self {
            Self::Healthy => all,
            Self::Slow => Ports { read_us: SLOW_TIMES * READ_US, ..all },
            Self::Stalls => Ports { stall_ms: STALL_MS, stall_every_ms: STALL_EVERY_MS, ..all },
        };
        Sections::all(all).with_node(WORSE_NODE, worse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disk_could_serve_the_load_and_the_slow_one_could_not() {
        let per_s = u64::from(READ_LANES) * 1_000_000 / READ_US;
        assert!(u64::from(RATE) < per_s && u64::from(RATE) > per_s / SLOW_TIMES);
    }

    #[test]
    fn titles_say_what_the_sections_do() {
        assert!(Disks::Slow.title().contains("ten times") && SLOW_TIMES == 10);
        assert!(Disks::Stalls.title().contains("500 ms of every 5 s"));
        assert_eq!((STALL_MS, STALL_EVERY_MS), (500, 5_000));
    }
}
