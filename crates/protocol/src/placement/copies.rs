//! Disks, and copies of volumes on them, as planners see them: those that place and move volumes ([`super::volumes`]), that
//! keep copies apart ([`super::apart`]), and that even disks ([`super::balance`]).

use larder_types::{DiskId, ServerId};

use super::domains::{FailureDomains, Leaf};
use super::members::PlacementState;
use super::straw::Weight;

/// A disk of a data server. One that is gone for good is not among the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskInfo {
    /// The disk.
    pub disk: DiskId,
    /// Its server.
    pub server: ServerId,
    /// Where the server is.
    pub domains: FailureDomains,
    /// Its share.
    pub weight: Weight,
    /// PVs it has.
    pub pv_count: u32,
    /// PVs without an LV.
    pub pv_free: u32,
    /// The extent to which it counts; that of its server if that is worse.
    pub placement_state: PlacementState,
    /// True if its server is up.
    pub up: bool,
    /// True if it has room for what it would be given.
    pub room: Room,
}

/// Room on a disk for a volume, beside the PVs that the map gives it: others may have taken it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Nothing else was said.
    Some,
    /// It had none some time ago.
    Doubtful,
    /// A volume could not be made there of late. What is there already is filled.
    Unmade,
    /// It has none.
    None,
}

impl Room {
    /// True if no new volume finds any.
    #[must_use]
    pub fn takes_none(self) -> bool {
        matches!(self, Self::Unmade | Self::None)
    }
}

/// The number of replicas of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRules {
    /// Replicas that each LV is to have.
    pub copies: usize,
    /// Least replicas that a new LV may have; at most `copies`.
    pub min_copies: usize,
}

/// A replica of an LV, for the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LvCopy {
    /// Its index in the LV.
    pub replica: usize,
    /// Its disk.
    pub disk: DiskId,
    /// True if it has everything that the LV holds.
    pub current: bool,
    /// True if its primary said that it is empty: it is to go, and counts for nothing.
    pub emptied: bool,
    /// True if its primary was told to empty it: no other one of the volume is to go before it.
    pub ordered: bool,
    /// True if its PV is known to be there.
    pub made: bool,
}

impl LvCopy {
    /// One that has everything.
    pub(super) fn whole(replica: usize, disk: DiskId) -> Self {
        Self { replica, disk, current: true, emptied: false, ordered: false, made: true }
    }
}

/// Candidates weigh as much as they have room, so that disks fill up together.
pub(super) fn leaf(disk: &DiskInfo) -> Leaf {
    // A server says what its disk weighs and holds: all numbers are possible.
    let room = u128::from(disk.weight.0) * 1024 * u128::from(disk.pv_free);
    let room = room.checked_div(u128::from(disk.pv_count)).unwrap_or(0);
    let least = u128::from(disk.weight > Weight(0) && disk.pv_free > 0);
    let weight = Weight(u32::try_from(room.max(least)).unwrap_or(u32::MAX));
    Leaf { id: disk.disk.0, domains: disk.domains, weight }
}
