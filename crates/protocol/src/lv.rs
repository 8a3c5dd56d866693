//! A logical volume as the topology map describes it, and as the managers send it to the volume's group.

use larder_types::{BootId, DiskId, Holders, LvId, MapVersion, PvId, ServerId};
use serde::{Deserialize, Serialize};

/// The content of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaState {
    /// All that METAX says it holds.
    Current,
    /// It is being filled.
    Rebuilding,
    /// Nothing; no METAX names it. The index may be used again.
    Gone,
}

/// One replica of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Its data server.
    pub server: ServerId,
    /// The run of that server, to which an `Open` is addressed.
    pub boot: BootId,
    /// Its disk.
    pub disk: DiskId,
    /// Its PV there.
    pub pv: PvId,
    /// The state of its content.
    pub state: ReplicaState,
}

/// An LV as the topology map describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LvInfo {
    /// Its id.
    pub lv: LvId,
    /// Blocks it has.
    pub blocks: u32,
    /// Replicas that it is to have: one that moves has more for a while.
    pub copies: u8,
    /// Its replicas, by index; those that are gone are only places in the list.
    pub replicas: Vec<Replica>,
    /// The map that says so.
    pub as_of: MapVersion,
}

impl LvInfo {
    /// Returns true if another description of it changes nothing.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        self.replicas == other.replicas && self.copies == other.copies
    }

    /// Replicas that are there.
    #[must_use]
    pub fn present(&self) -> Holders {
        let there =
            self.replicas.iter().enumerate().filter(|(_, it)| it.state != ReplicaState::Gone);
        there.fold(Holders::default(), |all, (index, _)| all.with(index))
    }
}
