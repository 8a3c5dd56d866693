//! The faults of a run, and their times.

use larder_env::SeededRng;
use larder_kv::FlushFault;

use crate::clock::MS;
use crate::links::Cut;
use crate::servers::{Part, Server};

/// A fault, at the start of the client call of a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) at_op: u32,
    pub(crate) kind: FaultKind,
}

/// Families of kinds of faults.
pub(crate) const FAMILIES: usize = 11;

/// The disk of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskOf {
    Node(usize),
    Store(usize),
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FaultKind {
    /// Processes are killed; what they wrote stays in the page cache.
    Kill(Part),
    /// A machine loses power.
    PowerLoss(usize),
    /// A process is killed, and then the power goes.
    KillThenPowerLoss(usize),
    /// Every machine loses power.
    AllPowerLoss,
    /// The power goes during the n-th next operation of a disk.
    PowerLossAt(DiskOf, u64),
    /// The next sync of a disk fails.
    FailedSync(DiskOf),
    /// The n-th next operation of a disk fails.
    FailedOperation(DiskOf, u64),
    /// A disk is full for a while.
    DiskFull(DiskOf),
    /// A bit of a stored object rots.
    Rot,
    /// A row changes in one member's index, and its checksum with it.
    IndexRot,
    /// A machine's clock jumps.
    ClockJump(usize, i64),
    /// The network is bad for a while.
    Storm,
    /// A server does not hear the managers for some seconds, nor they it: others lead its PGs, or the quorum.
    CutOff(Server),
    /// Servers do not reach others for seconds or minutes.
    Cut(Cut),
    /// A meta or data server drains for some seconds.
    Draining(Server),
    /// A server hears the managers late, though they hear it at once.
    Laggard(Server),
    /// A manager is gone for some seconds.
    ManagerAway(usize),
    /// A data server is gone for some seconds.
    StoreAway(usize),
    /// A meta server is gone for some seconds.
    Away(usize),
    /// A meta server loses its disk, and is gone for some seconds.
    Wiped(usize),
    /// The next flush of an index does this.
    Flush(usize, FlushFault),
}

impl FaultKind {
    /// Kinds that a seed has or leaves out together, below [`FAMILIES`].
    pub(crate) fn family(self) -> usize {
        match self {
            Self::Kill(_) => 0,
            Self::PowerLoss(_)
            | Self::KillThenPowerLoss(_)
            | Self::AllPowerLoss
            | Self::PowerLossAt(..) => 1,
            Self::FailedSync(_) | Self::FailedOperation(..) | Self::Flush(..) => 2,
            Self::DiskFull(_) => 3,
            Self::Rot | Self::IndexRot => 4,
            Self::ClockJump(..) => 5,
            Self::Storm | Self::Laggard(_) => 6,
            Self::CutOff(_) | Self::Cut(_) => 7,
            Self::StoreAway(_) | Self::Away(_) | Self::ManagerAway(_) => 8,
            Self::Wiped(_) => 9,
            Self::Draining(_) => 10,
        }
    }

    /// Its name in the counts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill(Part::Machine(_)) => "machine killed",
            Self::Kill(Part::Node(_)) => "meta server killed",
            Self::Kill(Part::Store(_)) => "data server killed",
            Self::Kill(Part::Proxy(_)) => "proxy killed",
            Self::Kill(Part::Manager(_)) => "manager killed",
            Self::PowerLoss(_) => "power lost",
            Self::KillThenPowerLoss(_) => "killed, then power lost",
            Self::AllPowerLoss => "all power lost",
            Self::PowerLossAt(..) => "power lost within an operation",
            Self::FailedSync(_) => "sync failed",
            Self::FailedOperation(..) => "disk operation failed",
            Self::DiskFull(_) => "disk full",
            Self::Rot => "bit rot of data",
            Self::IndexRot => "rot of an index that its checksum does not show",
            Self::ClockJump(..) => "clock jumped",
            Self::Storm => "network storm",
            Self::CutOff(Server::Manager(_)) => "manager cut off from the others",
            Self::CutOff(_) => "server cut off from the managers",
            Self::Cut(cut) => cut.between,
            Self::Draining(Server::Store(_)) => "data server drains",
            Self::Draining(_) => "meta server drains",
            Self::Laggard(_) => "server that hears the managers late",
            Self::ManagerAway(_) => "manager away",
            Self::StoreAway(_) => "data server away",
            Self::Away(_) => "meta server away",
            Self::Wiped(_) => "meta server wiped",
            Self::Flush(..) => "index flush failed",
        }
    }

    /// Microseconds after which it is over; 0 if it has no end.
    pub(crate) fn lasts_us(self, rng: &mut SeededRng) -> u64 {
        match self {
            Self::DiskFull(_) | Self::Storm => 50 * MS + rng.below(800 * MS),
            Self::Draining(Server::Store(_)) => 3_000 * MS + rng.below(30_000 * MS),
            Self::Cut(_) => Cut::lasts_us(rng),
            Self::CutOff(_) | Self::Draining(_) | Self::Laggard(_) => {
                500 * MS + rng.below(12_000 * MS)
            }
            _ => 0,
        }
    }
}
