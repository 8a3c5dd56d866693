//! Commands about disks and LVs.

use std::collections::BTreeSet;

use larder_types::limits::REPLICAS_MAX;
use larder_types::{DiskId, Holders, LvId, PgId, PvId, ServerId, View};

use super::command::{Applied, Outcome, Refusal, changed};
use super::map::{
    DiskRecord, DiskState, LvRecord, LvState, ReplicaRecord, ServerRole, ServerState, Topology,
};
use crate::limits::{DISKS_MAX, LVS_MAX};
use crate::lv::ReplicaState;
use crate::placement::Weight;

impl Topology {
    pub(super) fn add_disk(&mut self, server: ServerId, weight: Weight, pvs: u32) -> Applied {
        let disk = self.next.disk;
        let is_data = self.has_role(server, ServerRole::Data);
        let record = self.server_mut(server)?;
        if !is_data {
            return Err(Refusal::NoSuchServer);
        }
        if record.disks.len() >= DISKS_MAX {
            return Err(Refusal::TooMany);
        }
        let state = DiskState::In;
        let made =
            DiskRecord { weight, pv_count: pvs, next_pv: PvId(0), freed: BTreeSet::new(), state };
        record.disks.insert(disk, made);
        self.next.disk = DiskId(disk.0 + 1);
        Ok(Outcome::Disk(disk))
    }

    pub(super) fn set_disk(&mut self, server: ServerId, disk: DiskId, to: DiskState) -> Applied {
        let record = self.server_mut(server)?;
        let disk = record.disks.get_mut(&disk).ok_or(Refusal::NoSuchDisk)?;
        if disk.state == DiskState::Removed {
            return Err(Refusal::NoSuchDisk);
        }
        changed(std::mem::replace(&mut disk.state, to) != to)
    }

    /// Returns true if a replica's disk was not removed.
    #[must_use]
    pub fn exists(&self, replica: &ReplicaRecord) -> bool {
        let disk = self.servers.get(&replica.server).and_then(|s| s.disks.get(&replica.disk));
        disk.is_some_and(|disk| disk.state != DiskState::Removed)
    }

    /// Checks that a disk takes PVs and has a free one.
    fn check_capacity(&self, server: ServerId, disk: DiskId) -> Result<(), Refusal> {
        if !self.has_role(server, ServerRole::Data) {
            return Err(Refusal::NoSuchServer);
        }
        let record = self.servers.get(&server).ok_or(Refusal::NoSuchServer)?;
        let takes = record.state == ServerState::Up && !record.draining;
        let disk = record.disks.get(&disk).ok_or(Refusal::NoSuchDisk)?;
        if !takes || disk.state != DiskState::In || disk.pv_free() == 0 {
            return Err(Refusal::DiskFull);
        }
        Ok(())
    }

    /// Takes a free PV of a disk whose room was checked.
    fn take_pv(&mut self, server: ServerId, disk: DiskId) -> PvId {
        let record = self.servers.get_mut(&server).and_then(|s| s.disks.get_mut(&disk));
        let disk = record.expect("the disk's room was checked");
        assert!(disk.pv_free() > 0, "the disk's room was checked");
        disk.freed.pop_first().unwrap_or_else(|| {
            let pv = disk.next_pv;
            disk.next_pv = PvId(pv.0 + 1);
            pv
        })
    }

    fn return_pv(&mut self, replica: ReplicaRecord) {
        let server = self.servers.get_mut(&replica.server);
        let disk = server.and_then(|s| s.disks.get_mut(&replica.disk));
        if let Some(disk) = disk.filter(|disk| disk.state != DiskState::Removed) {
            assert!(disk.freed.insert(replica.pv), "a PV is freed once");
        }
    }

    pub(super) fn create_lv(&mut self, pg: PgId, disks: &[(ServerId, DiskId)]) -> Applied {
        let settings = self.settings();
        let _exists = self.pg(pg).ok_or(Refusal::NoSuchPg)?;
        let distinct: BTreeSet<&DiskId> = disks.iter().map(|(_, disk)| disk).collect();
        let widths = usize::from(settings.min_copies)..=usize::from(settings.copies);
        if distinct.len() != disks.len() || !widths.contains(&disks.len()) {
            return Err(Refusal::BadReplicas);
        }
        if self.lvs.len() >= LVS_MAX {
            return Err(Refusal::TooMany);
        }
        disks.iter().try_for_each(|(server, disk)| self.check_capacity(*server, *disk))?;
        let replicas: Vec<ReplicaRecord> = disks
            .iter()
            .map(|&(server, disk)| {
                let pv = self.take_pv(server, disk);
                ReplicaRecord { server, disk, pv, state: ReplicaState::Current }
            })
            .collect();
        let lv = LvId(self.lvs.len() as u32);
        let (blocks, width) = (settings.lv_blocks, replicas.len() as u8);
        self.lvs.push(LvRecord { pg, blocks, width, replicas, state: LvState::Creating });
        Ok(Outcome::Lv(lv))
    }

    fn lv_mut(&mut self, lv: LvId) -> Result<&mut LvRecord, Refusal> {
        self.lvs.get_mut(lv.0 as usize).ok_or(Refusal::NoSuchLv)
    }

    /// An LV's record; `None` if there is no such LV.
    #[must_use]
    pub fn lv(&self, lv: LvId) -> Option<&LvRecord> {
        self.lvs.get(lv.0 as usize)
    }

    pub(super) fn lv_created(&mut self, lv: LvId) -> Applied {
        let lv = self.lv_mut(lv)?;
        let created = lv.state == LvState::Creating;
        if created {
            lv.state = LvState::Open;
        }
        changed(created)
    }

    pub(super) fn set_lv_read_only(&mut self, lv: LvId, read_only: bool) -> Applied {
        let lv = self.lv_mut(lv)?;
        let to = if read_only { LvState::ReadOnly } else { LvState::Open };
        match lv.state {
            LvState::Creating => Err(Refusal::NoSuchLv),
            before => {
                lv.state = to;
                changed(before != to)
            }
        }
    }

    pub(super) fn add_replica(&mut self, id: LvId, server: ServerId, disk: DiskId) -> Applied {
        let lv = self.lv(id).ok_or(Refusal::NoSuchLv)?;
        let free = lv.replicas.iter().position(|r| r.state == ReplicaState::Gone);
        let index = free.unwrap_or(lv.replicas.len());
        if lv.state == LvState::Creating
            || index >= REPLICAS_MAX
            || lv.present().any(|(_, replica)| replica.disk == disk)
        {
            return Err(Refusal::BadReplicas);
        }
        self.check_capacity(server, disk)?;
        let pv = self.take_pv(server, disk);
        let lv = self.lv_mut(id)?;
        let replica = ReplicaRecord { server, disk, pv, state: ReplicaState::Rebuilding };
        match lv.replicas.get_mut(index) {
            Some(place) => *place = replica,
            None => lv.replicas.push(replica),
        }
        Ok(Outcome::Replica(id, index as u8))
    }

    pub(super) fn replica_current(&mut self, lv: LvId, index: u8) -> Applied {
        let lv = self.lv_mut(lv)?;
        let replica = lv.replicas.get_mut(usize::from(index)).ok_or(Refusal::NoSuchLv)?;
        match replica.state {
            ReplicaState::Gone => return Err(Refusal::NoSuchLv),
            ReplicaState::Current => return Ok(Outcome::Already),
            ReplicaState::Rebuilding => replica.state = ReplicaState::Current,
        }
        let current = lv.present().filter(|(_, r)| r.state == ReplicaState::Current).count();
        lv.width = lv.width.max(current as u8);
        Ok(Outcome::Done)
    }

    pub(super) fn drop_replica(&mut self, id: LvId, index: u8) -> Applied {
        let lv = self.lv(id).ok_or(Refusal::NoSuchLv)?;
        let at = usize::from(index);
        let replica = *lv.replicas.get(at).ok_or(Refusal::NoSuchLv)?;
        if replica.state == ReplicaState::Gone || lv.state == LvState::Creating {
            return Err(Refusal::NoSuchLv);
        }
        if self.is_needed(lv, at) {
            return Err(Refusal::LastCopy);
        }
        self.lv_mut(id)?.replicas[at].state = ReplicaState::Gone;
        self.return_pv(replica);
        Ok(Outcome::Done)
    }

    /// Returns true if the LV would have too few current replicas without this one.
    pub(in crate::manager) fn is_needed(&self, lv: &LvRecord, replica: usize) -> bool {
        let holds = |r: &ReplicaRecord| r.state == ReplicaState::Current && self.exists(r);
        let is_current = |at: usize| lv.replicas.get(at).is_some_and(holds);
        let is_there = lv.present().any(|(at, _)| at == replica);
        let others = lv.present().filter(|(at, r)| *at != replica && holds(r)).count();
        let min_copies = usize::from(self.settings().min_copies);
        is_there && (others == 0 || is_current(replica) && others < min_copies)
    }

    /// Pauses moves for balance, or lets them begin. A pause that is set again keeps its time.
    pub(super) fn pause_balance(&mut self, paused_ms: Option<u64>) -> Applied {
        if self.balance_paused_ms.is_some() == paused_ms.is_some() {
            return Ok(Outcome::Already);
        }
        self.balance_paused_ms = paused_ms;
        Ok(Outcome::Done)
    }

    pub(super) fn drop_vacated(&mut self, lv: LvId, index: u8, view: View) -> Applied {
        let pg = self.lv(lv).ok_or(Refusal::NoSuchLv)?.pg;
        if self.pg(pg).ok_or(Refusal::NoSuchPg)?.view != view {
            return Err(Refusal::OtherView);
        }
        self.drop_replica(lv, index)
    }

    /// Replicas of an LV whose servers do not answer, or whose disks were removed.
    #[must_use]
    pub fn away(&self, lv: &LvRecord) -> Holders {
        let is_there = |it: &ReplicaRecord| self.is_up(it.server) && self.exists(it);
        let away = lv.present().filter(|(_, replica)| !is_there(replica));
        away.fold(Holders::default(), |all, (index, _)| all.with(index))
    }

    /// Returns true if a server answers.
    #[must_use]
    pub fn is_up(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|record| record.state == ServerState::Up)
    }
}
