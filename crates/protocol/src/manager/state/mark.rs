//! Marks of maps: numbers that never fall from a map of a cluster to a later one.
//!
//! A server keeps those of the latest map that it has heard of. Managers that were put back from an older copy give volumes,
//! ids and views away a second time, and what was acknowledged since is overwritten. Such managers are known by them.

use larder_types::codec::{self, CodecError};
use larder_types::{MapVersion, View};
use serde::{Deserialize, Serialize};

use super::map::{ClusterId, NextIds, Topology};

/// See the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMark {
    /// The cluster.
    pub cluster: ClusterId,
    /// Version of the map.
    pub version: MapVersion,
    /// Ids not given out yet.
    pub next: NextIds,
    /// Volumes that were ever drawn.
    pub volumes: u32,
    /// The highest view of a placement group.
    pub view: View,
}

impl MapMark {
    /// True if a map of the same cluster lacks nothing that this one knew of, as far as these numbers tell.
    #[must_use]
    pub fn is_reached_by(&self, other: &Self) -> bool {
        let (own, others) = (self.next, other.next);
        self.cluster == other.cluster
            && self.version <= other.version
            && own.server <= others.server
            && own.disk <= others.disk
            && own.bucket <= others.bucket
            && own.token <= others.token
            && self.volumes <= other.volumes
            && self.view <= other.view
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`MapMark::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode("the mark of a map", bytes)
    }
}

impl Topology {
    /// Its mark; `None` before the cluster is founded.
    #[must_use]
    pub fn map_mark(&self) -> Option<MapMark> {
        let (cluster, _) = self.founded?;
        Some(MapMark {
            cluster,
            version: self.version,
            next: self.next,
            volumes: self.lvs.len() as u32,
            view: self.pgs.iter().map(|pg| pg.view).max().unwrap_or_default(),
        })
    }
}
