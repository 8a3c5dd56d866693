//! Copies that the volumes of a cluster have, by the managers' map, and those that they lack.

use larder_protocol::manager::state::{LvRecord, LvState, ReplicaState, Topology};
use serde::Serialize;

/// All volumes, counted.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Volumes {
    pub(crate) total: usize,
    pub(crate) creating: usize,
    pub(crate) open: usize,
    pub(crate) read_only: usize,
    /// Volumes with fewer current replicas than wanted.
    pub(crate) degraded: usize,
    pub(crate) replicas_wanted: usize,
    pub(crate) replicas_current: usize,
    pub(crate) replicas_rebuilding: usize,
    /// Volumes of which a replica is not current, or on a server that is away.
    pub(crate) unclean: Vec<Volume>,
}

/// A volume, with what became of its copies.
#[derive(Debug, Serialize)]
pub(crate) struct Volume {
    pub(crate) id: u32,
    pub(crate) pg: u32,
    /// Replicas that hold all that they should, on servers that are up.
    pub(crate) current: usize,
    /// The same, on servers that are not.
    pub(crate) away: usize,
    pub(crate) rebuilding: usize,
    /// Replicas that went with their disk or server, and are still named.
    pub(crate) gone: usize,
}

impl Volumes {
    /// Counts the volumes of a map.
    pub(crate) fn of(map: &Topology) -> Self {
        let Some((_, settings)) = map.founded else { return Self::default() };
        let mut volumes = Self { total: map.lvs.len(), ..Self::default() };
        let copies = usize::from(settings.copies);
        for (id, lv) in (0..).zip(&map.lvs) {
            match lv.state {
                LvState::Creating => {
                    volumes.creating += 1;
                    continue;
                }
                LvState::Open => volumes.open += 1,
                LvState::ReadOnly => volumes.read_only += 1,
            }
            let volume = volume(map, id, lv);
            let current = volume.current + volume.away;
            volumes.replicas_wanted += copies;
            volumes.replicas_current += current.min(copies);
            volumes.replicas_rebuilding += volume.rebuilding;
            volumes.degraded += usize::from(current < copies);
            if volume.current < copies || volume.rebuilding + volume.gone > 0 {
                volumes.unclean.push(volume);
            }
        }
        volumes
    }
}

/// Replicas of volumes that are wanted and are current on no server, up or down.
pub(crate) fn replicas_missing(map: &Topology) -> usize {
    let volumes = Volumes::of(map);
    volumes.replicas_wanted - volumes.replicas_current
}

fn volume(map: &Topology, id: u32, lv: &LvRecord) -> Volume {
    let mut volume = Volume { id, pg: lv.pg.0, current: 0, away: 0, rebuilding: 0, gone: 0 };
    for (_, replica) in lv.present() {
        match replica.state {
            _ if !map.exists(replica) => volume.gone += 1,
            ReplicaState::Rebuilding => volume.rebuilding += 1,
            _ if map.is_up(replica.server) => volume.current += 1,
            _ => volume.away += 1,
        }
    }
    volume
}
