//! An index of volumes by group, so that no step searches all volumes of the cluster.
//!
//! # Invariants
//!
//! 1. It comes from the map alone, and is stored nowhere. Volumes are only added to a map, and belong to one group for ever.
//! 2. After [`VolumesByGroup::follow`] it has each volume of the map once, in the order of ids.

use larder_types::{LvId, PgId};

use crate::manager::state::Topology;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct VolumesByGroup {
    groups: Vec<Vec<LvId>>,
    /// Volumes that are in it: the first ones of the map.
    count: usize,
    /// Volumes that were passed over so far.
    #[cfg(test)]
    passed: std::cell::Cell<u64>,
}

impl VolumesByGroup {
    /// Takes in the volumes that the map has got since.
    pub(super) fn follow(&mut self, map: &Topology) {
        if map.lvs.len() < self.count || map.pgs.len() != self.groups.len() {
            *self = Self { groups: vec![Vec::new(); map.pgs.len()], ..Self::default() };
        }
        for (id, lv) in (self.count as u32..).map(LvId).zip(&map.lvs[self.count..]) {
            if let Some(group) = self.groups.get_mut(lv.pg.0 as usize) {
                group.push(id);
            }
        }
        self.count = map.lvs.len();
    }

    /// Volumes of a group.
    pub(super) fn of(&self, pg: PgId) -> &[LvId] {
        let lvs = self.groups.get(pg.0 as usize).map_or(&[][..], Vec::as_slice);
        #[cfg(test)]
        self.passed.set(self.passed.get() + lvs.len() as u64);
        lvs
    }

    #[cfg(test)]
    pub(super) fn passed(&self) -> u64 {
        self.passed.get()
    }
}
