//! The moves where PGs have no volumes of their own: their objects lie where they do. The replicas of an LV follow the
//! members of the PG from machine to machine, so that a PG that moves moves data. For measurement only.

use std::collections::BTreeSet;

use larder_types::{LvId, PgId, ServerId};

use super::Turn;
use crate::manager::state::Topology;
use crate::placement::{DiskInfo, LvCopy, LvMove, MachineId, Standing, plan_moves};

impl Turn<'_> {
    /// All disks, of which those count as draining that are not on a machine of a member.
    pub(super) fn disks_beside(&self, pg: PgId) -> Vec<DiskInfo> {
        let members = self.map.pg(pg).map_or(&[][..], |record| &record.members);
        let machines = machines(self.map, members);
        let mut disks = self.disks();
        let beside = |disk: &DiskInfo| machines.contains(&disk.domains.machine);
        // With fewer machines than copies some go elsewhere, as with groups.
        let count = disks.iter().filter(|disk| beside(disk)).map(|disk| disk.domains.machine);
        if count.collect::<BTreeSet<_>>().len() >= self.copy_rules().copies {
            disks.iter_mut().filter(|disk| !beside(disk)).for_each(|disk| {
                disk.standing = Standing::Out;
            });
        }
        disks
    }

    /// The next change of each LV that needs one, each with the disks that its PG may have.
    pub(super) fn moves_beside(&self, lvs: &[(LvId, Vec<LvCopy>)], limit: usize) -> Vec<LvMove> {
        let of = |lv: &(LvId, Vec<LvCopy>)| self.map.lv(lv.0).map(|record| record.pg);
        let next = |lv: &(LvId, Vec<LvCopy>)| {
            let disks = self.disks_beside(of(lv)?);
            plan_moves(std::slice::from_ref(lv), &disks, self.copy_rules(), 1).pop()
        };
        lvs.iter().filter_map(next).take(limit).collect()
    }
}

fn machines(map: &Topology, members: &[ServerId]) -> BTreeSet<MachineId> {
    let records = members.iter().filter_map(|member| map.servers.get(member));
    records.map(|record| record.domains.machine).collect()
}
