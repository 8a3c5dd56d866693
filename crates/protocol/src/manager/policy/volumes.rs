//! LVs: allocated when a primary asks for one, created on their data servers, and moved when disks drain or fail.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId, PgId, PvId, ServerId, View};

use super::message::{HAS_MOST, ManagerMessage};
use super::{Leading, StepContext, Subject};
use crate::limits::{
    DISK_FULL_MS, LOST_MS, LV_MOVES_MAX, LV_PLAN_MS, LVS_UNMADE_MAX, MISTAKEN_MS_MAX,
    TOO_FEW_SERVERS_VERSION, UNMADE_KEPT_MS, UNMADE_MS_MAX,
};
use crate::manager::balance::{StableDisks, copies_of, disks_of, made};
use crate::manager::state::{Command, LvRecord, LvState, MapVersion, ReplicaRecord, ReplicaState};
use crate::placement::{
    CopyRules, DiskInfo, LvCopy, LvMove, PlacementState, Room, filling, place_lv, plan_moves_beside,
};

impl StepContext<'_> {
    /// Volumes of a group.
    pub(super) fn lvs_of(&self, pg: PgId) -> impl Iterator<Item = (LvId, &LvRecord)> {
        let lvs = self.leading.of_groups.of(pg).iter();
        lvs.filter_map(|id| self.map.lv(*id).map(|lv| (*id, lv)))
    }

    pub(super) fn copy_rules(&self) -> CopyRules {
        let settings = self.map.settings();
        CopyRules {
            copies: usize::from(settings.copies),
            min_copies: usize::from(settings.min_copies),
        }
    }

    /// Disks that are not gone.
    pub(super) fn disks(&self) -> Vec<DiskInfo> {
        disks_of(self.map, |server| self.placement_state(server), |disk| self.room(disk))
    }

    /// Room on a disk, as its server said last, and as volumes could be made there.
    fn room(&self, disk: DiskId) -> Room {
        let since = |of: &BTreeMap<DiskId, u64>| {
            of.get(&disk).map(|said_ms| self.now_ms.saturating_sub(*said_ms))
        };
        match (since(&self.leading.no_room), since(&self.leading.unmade_on)) {
            (Some(0..DISK_FULL_MS), _) => Room::None,
            (_, Some(0..UNMADE_KEPT_MS)) => Room::Unmade,
            (Some(0..LOST_MS), _) | (_, Some(0..LOST_MS)) => Room::Doubtful,
            _ => Room::Some,
        }
    }

    /// A disk on which a PV could not be made for long takes no others for a while.
    fn note_unmade(&mut self, lvs: &[(LvId, Vec<LvCopy>)]) {
        let mut unmade = BTreeMap::new();
        for (lv, copies) in lvs {
            for copy in copies.iter().filter(|copy| !copy.current) {
                let at = (*lv, copy.replica as u8);
                let is_made = self.leading.created.get(lv).is_some_and(|it| it.contains(&at.1));
                let record = self.map.lv(*lv).and_then(|it| it.replicas.get(copy.replica));
                if is_made || !record.is_some_and(|it| self.map.is_up(it.server)) {
                    continue;
                }
                let known = self.leading.unmade_since_ms.get(&at);
                let since_ms = known.copied().unwrap_or(self.now_ms);
                unmade.insert(at, since_ms);
                if self.now_ms.saturating_sub(since_ms) >= UNMADE_MS_MAX {
                    self.leading.unmade_on.insert(copy.disk, self.now_ms);
                }
            }
        }
        self.leading.unmade_since_ms = unmade;
    }

    /// Notes since when new volumes are being made by servers that are up. A disk that could not make several takes no
    /// others for a while. Where one was not made its record of one place may be damaged, and nobody else is given that.
    fn note_making(&mut self) {
        let known = std::mem::take(&mut self.leading.making_since_ms);
        let lvs = (0..).map(LvId).zip(&self.map.lvs).filter(|(_, lv)| self.is_making(lv));
        let since_ms = |id: &LvId| known.get(id).copied().unwrap_or(self.now_ms);
        let making: BTreeMap<LvId, u64> = lvs.map(|(id, _)| (id, since_ms(&id))).collect();
        let mut unmade_on: BTreeMap<DiskId, usize> = BTreeMap::new();
        for (id, _) in making.iter().filter(|(_, since_ms)| self.is_long(**since_ms)) {
            let made = self.leading.created.get(id);
            let is_unmade = |index: usize| made.is_none_or(|made| !made.contains(&(index as u8)));
            let present = self.map.lv(*id).into_iter().flat_map(LvRecord::present);
            for (_, replica) in present.filter(|(index, _)| is_unmade(*index)) {
                *unmade_on.entry(replica.disk).or_default() += 1;
            }
        }
        let takes_none = unmade_on.into_iter().filter(|(_, count)| *count >= LVS_UNMADE_MAX);
        self.leading.unmade_on.extend(takes_none.map(|(disk, _)| (disk, self.now_ms)));
        self.leading.making_since_ms = making;
    }

    fn is_long(&self, since_ms: u64) -> bool {
        self.now_ms.saturating_sub(since_ms) >= UNMADE_MS_MAX
    }

    /// True if nothing but its servers, which are up with its disks, keeps a new volume from being made.
    fn is_making(&self, lv: &LvRecord) -> bool {
        let is_there = |r: &ReplicaRecord| self.map.is_up(r.server) && self.map.exists(r);
        lv.state == LvState::Creating && lv.present().all(|(_, replica)| is_there(replica))
    }

    pub(super) fn need_lv(&mut self, pg: PgId, primary: ServerId, has: u32) {
        let (has, has_most) = (has & !HAS_MOST, has & HAS_MOST != 0);
        let there = self.lvs_of(pg).filter(|(_, lv)| lv.state != LvState::Creating).count();
        if there > has as usize {
            self.send_volumes(pg);
            return;
        }
        self.leading.wants_lv.insert(pg, primary);
        // One whose servers have gone while it was made waits for them; the PG does not. Nor for one that lies where a disk makes
        // none.
        let making = || self.lvs_of(pg).filter(|(_, lv)| self.is_making(lv));
        let since_ms = |id: &LvId| self.leading.making_since_ms.get(id);
        let is_unmade = |id: &LvId| since_ms(id).is_some_and(|since_ms| self.is_long(*since_ms));
        let unmade = making().filter(|(id, _)| is_unmade(id)).count();
        let is_coming = making().count() > unmade || unmade >= LVS_UNMADE_MAX;
        if is_coming || self.is_under_way(Subject::NewLv(pg)) {
            return;
        }
        let disks = self.disks();
        let (id, rules) = (LvId(self.map.lvs.len() as u32), self.copy_rules());
        // A server that has just returned, and may go again, is better than none, for a group that has no volume to write to. Else
        // each return would take a volume from the pool.
        let placed = place_lv(id, &disks, rules).or_else(|| {
            let returned = counting_away(&disks, |disk| disk.up);
            place_lv(id, &returned, rules).filter(|_| !self.has_volume(pg))
        });
        let lacks_servers = placed.is_none() && lacks_servers(id, &disks, rules);
        // Else each time that a server is away each group would take volumes from the pool, for ever.
        let Some(placed) = placed.filter(|placed| !(placed.narrow && has_most)) else {
            self.leading.wants_lv.remove(&pg);
            let Some(boot) = self.map.servers.get(&primary).map(|server| server.boot) else {
                return;
            };
            let is_known = self.map.cluster_version >= TOO_FEW_SERVERS_VERSION;
            self.tell(
                primary,
                match lacks_servers && is_known {
                    true => ManagerMessage::TooFewServers(boot, pg),
                    false => ManagerMessage::PoolEmpty(boot, pg),
                },
            );
            return;
        };
        let server = |disk| disks.iter().find(|info| info.disk == disk).map(|info| info.server);
        let places = placed.disks.iter().filter_map(|disk| Some((server(*disk)?, *disk)));
        let command = Command::CreateLv(pg, places.collect());
        self.propose(Subject::NewLv(pg), command);
    }

    /// True if a group has a volume that takes writes as soon as its primary has heard of all servers that are up.
    fn has_volume(&self, pg: PgId) -> bool {
        let is_up = |(_, replica): &(usize, &ReplicaRecord)| self.map.is_up(replica.server);
        let least = usize::from(self.map.settings().min_copies);
        let mut made = self.lvs_of(pg).filter(|(_, lv)| lv.state == LvState::Open);
        made.any(|(_, lv)| lv.present().filter(is_up).count() >= least)
    }

    /// Has the PVs of an LV made that are not known to be there.
    pub(super) fn make_pvs(&mut self, id: LvId) {
        let Some(lv) = self.map.lv(id) else { return };
        let waits = |replica: &ReplicaRecord| {
            lv.state == LvState::Creating || replica.state == ReplicaState::Rebuilding
        };
        let created = self.leading.created.entry(id).or_default().clone();
        for (index, replica) in lv.present().filter(|(_, replica)| waits(replica)) {
            if !created.contains(&(index as u8)) && self.map.is_up(replica.server) {
                let message = ManagerMessage::CreatePv {
                    lv: id,
                    pg: lv.pg,
                    replica: index as u8,
                    disk: replica.disk,
                    pv: replica.pv,
                    blocks: lv.blocks,
                    map: self.map.version,
                };
                self.tell(replica.server, message);
            }
        }
    }

    pub(super) fn make_missing_pvs(&mut self) {
        for (id, lv) in (0..).map(LvId).zip(&self.map.lvs) {
            let rebuilds = |replica: &ReplicaRecord| replica.state == ReplicaState::Rebuilding;
            if lv.state == LvState::Creating || lv.present().any(|(_, replica)| rebuilds(replica)) {
                self.make_pvs(id);
                self.made_all(id);
            }
        }
    }

    /// A PV is there. A replica that was given up in another place meanwhile is not this one, though its index is.
    pub(super) fn pv_created(&mut self, id: LvId, index: u8, place: (ServerId, DiskId, PvId)) {
        let Some(lv) = self.map.lv(id) else { return };
        let is_it = |replica: &ReplicaRecord| (replica.server, replica.disk, replica.pv) == place;
        // It may be about to be dropped, as no record has it. Else it is requested again.
        if self.leading.unmade.contains(&(id, index)) && self.is_under_way(Subject::Lv(id)) {
            return;
        }
        if lv.present().any(|(at, replica)| at == usize::from(index) && is_it(replica)) {
            let fresh = self.leading.created.entry(id).or_default().insert(index);
            self.leading.unmade.remove(&(id, index));
            self.made_all(id);
            if fresh && lv.state != LvState::Creating {
                self.send_volumes(lv.pg);
            }
        }
    }

    /// A primary says that a replica has everything.
    pub(super) fn rebuilt(&mut self, server: ServerId, id: LvId, index: u8, disk: DiskId) {
        let replica = self.map.lv(id).and_then(|lv| lv.replicas.get(usize::from(index)));
        let fills = |it: &ReplicaRecord| it.state == ReplicaState::Rebuilding && it.disk == disk;
        if !self.leads_lv(server, id) {
            return;
        }
        if replica.is_some_and(fills) {
            self.propose(Subject::Lv(id), Command::ReplicaCurrent(id, index));
        } else if let Some(pg) = self.map.lv(id).map(|lv| lv.pg) {
            // It has not heard what has become of it.
            self.send_volumes(pg);
        }
    }

    /// A primary says, in a view, that nothing names a replica any more.
    pub(super) fn vacated(
        &mut self,
        server: ServerId,
        (id, index): (LvId, u8),
        view: View,
        order: MapVersion,
    ) {
        let Some(lv) = self.map.lv(id) else { return };
        let pg = lv.pg;
        if !self.leads(server, pg, view) {
            return;
        }
        let at = (id, index);
        let is_there = lv.present().any(|(at, _)| at == usize::from(index));
        if !is_there || self.is_mistaken(at, order) {
            self.send_volumes(pg);
            return;
        }
        // It has no copies in this view, and never will: whatever was planned since, it goes before any other does.
        self.leading.emptied.insert(at, view);
        if self.map.is_needed(lv, usize::from(index)) {
            // It may not be dropped yet: it is replaced first.
            self.leading.planned_lvs_ms = self.now_ms.saturating_sub(LV_PLAN_MS);
            return;
        }
        let known = *self.leading.vacates.entry(at).or_insert(self.map.version);
        match known == order {
            true => self.propose(Subject::Lv(id), Command::DropVacated(id, index, view)),
            // The message was of an earlier order, perhaps to a replica that had this index before.
            false => self.tell(server, ManagerMessage::Vacate(id, index, known)),
        }
    }

    /// True if a report about a replica is about an earlier one with the same index. A late message comes once. A PG
    /// that took the order for the present replica has emptied it, and reports that at each of its walks.
    fn is_mistaken(&mut self, at: (LvId, u8), order: MapVersion) -> bool {
        if self.leading.added.get(&at).is_none_or(|since| order >= *since) {
            return false;
        }
        let since = self.leading.mistaken.entry(at).or_insert((order, self.now_ms));
        if since.0 != order {
            *since = (order, self.now_ms);
        }
        self.now_ms.saturating_sub(since.1) < MISTAKEN_MS_MAX
    }

    fn made_all(&mut self, id: LvId) {
        let Some(lv) = self.map.lv(id).filter(|lv| lv.state == LvState::Creating) else { return };
        let created = self.leading.created.entry(id).or_default();
        if lv.present().all(|(index, _)| created.contains(&(index as u8))) {
            self.propose(Subject::Lv(id), Command::LvCreated(id));
        }
    }

    /// A command about an LV is through.
    pub(super) fn lv_changed(&mut self, id: LvId) {
        let Some(lv) = self.map.lv(id) else { return };
        // The replica that takes the index of one that is gone has to be made as well.
        let rebuilding = |replica: &ReplicaRecord| replica.state == ReplicaState::Rebuilding;
        let made = lv.present().filter(|(_, replica)| rebuilding(replica));
        let made: BTreeSet<u8> = made.map(|(index, _)| index as u8).collect();
        if let Some(created) = self.leading.created.get_mut(&id) {
            created.retain(|index| made.contains(index));
        }
        self.leading.unmade.retain(|(of, index)| *of != id || made.contains(index));
        self.leading.wants_lv.remove(&lv.pg);
        let is_there = |replica: u8| lv.present().any(|(at, _)| at == usize::from(replica));
        self.leading.vacates.retain(|(of, replica), _| *of != id || is_there(*replica));
        self.leading.emptied.retain(|(of, replica), _| *of != id || is_there(*replica));
        self.leading.added.retain(|(of, replica), _| *of != id || is_there(*replica));
        self.leading.mistaken.retain(|(of, replica), _| *of != id || is_there(*replica));
        self.make_pvs(id);
        self.send_volumes(lv.pg);
        // Its next need does not wait for the next look.
        self.leading.planned_lvs_ms = self.now_ms.saturating_sub(LV_PLAN_MS);
    }

    /// Tells a primary of its LVs; a replica whose PV is not there yet is not among them.
    pub(super) fn send_volumes(&mut self, pg: PgId) {
        let Some(record) = self.map.pg(pg) else { return };
        let Some(&primary) = record.members.first() else { return };
        let Some(to) = self.map.servers.get(&primary) else { return };
        let there = self.lvs_of(pg).filter(|(_, lv)| lv.state != LvState::Creating);
        let lvs: Vec<_> = there.map(|(id, lv)| (id, self.with_pvs(id, lv))).collect();
        let servers =
            lvs.iter().flat_map(|(_, lv)| lv.present().map(|(_, replica)| replica.server));
        let servers: BTreeSet<ServerId> = servers.collect();
        let boot = |server: &ServerId| self.map.servers.get(server).map(|s| (*server, s.boot));
        let message = ManagerMessage::Volumes {
            pg,
            view: record.view,
            boot: to.boot,
            version: self.map.version,
            boots: servers.iter().filter_map(boot).collect(),
            lvs,
            sessions: self.map.sessions.keys().copied().collect(),
        };
        self.tell(primary, message);
    }

    /// An LV as it is sent to its primary: a replica to be filled is included once its PV exists. The primary may have
    /// learned of replicas added before this manager led. Such a replica may have the only copy of an acknowledged put,
    /// and is never reported as removed.
    fn with_pvs(&self, id: LvId, lv: &LvRecord) -> LvRecord {
        let mut lv = lv.clone();
        // One that moves is wider for a while, and is not to be so.
        lv.width = lv.width.min(self.copy_rules().copies as u8);
        for (index, replica) in (0u8..).zip(&mut lv.replicas) {
            if replica.state == ReplicaState::Rebuilding
                && self.leading.unmade.contains(&(id, index))
            {
                replica.state = ReplicaState::Gone;
            }
        }
        lv
    }

    /// Volumes that are made, with their copies, but for those of which all is as it should be: of many nearly all are.
    fn unsettled(&self, disks: &[DiskInfo]) -> Vec<(LvId, Vec<LvCopy>)> {
        let (steady, copies) = (StableDisks::new(disks), self.copy_rules().copies);
        let Leading { emptied, vacates, .. } = &*self.leading;
        let leaving: BTreeSet<LvId> = emptied.keys().chain(vacates.keys()).map(|at| at.0).collect();
        let is_one =
            |(id, lv): &(LvId, &LvRecord)| !steady.keeps(lv, copies) || leaving.contains(id);
        self.copies(made(self.map).filter(is_one))
    }

    /// Volumes with their copies.
    pub(super) fn copies<'b>(
        &self,
        lvs: impl Iterator<Item = (LvId, &'b LvRecord)>,
    ) -> Vec<(LvId, Vec<LvCopy>)> {
        let Leading { emptied, vacates, created, .. } = &*self.leading;
        let is_made =
            |(lv, index): (LvId, u8)| created.get(&lv).is_some_and(|it| it.contains(&index));
        let (is_emptied, is_ordered) =
            (|copy| emptied.contains_key(&copy), |copy| vacates.contains_key(&copy));
        copies_of(lvs, is_emptied, is_ordered, is_made)
    }

    /// Proposes the next moves of replicas, within the bound of those that are under way.
    pub(super) fn plan_lvs(&mut self) {
        let map = self.map;
        self.leading.emptied.retain(|(lv, replica), view| {
            let is_there = |lv: &LvRecord| lv.present().any(|(at, _)| at == usize::from(*replica));
            let lv = map.lv(*lv).filter(|lv| is_there(lv));
            // A report of one view does not count in the next.
            lv.and_then(|lv| map.pg(lv.pg)).is_some_and(|pg| pg.view == *view)
        });
        let disks = self.disks();
        let lvs = self.unsettled(&disks);
        // An order that was said may have been lost.
        let changing = lvs.iter().filter(|(_, copies)| copies.iter().any(|copy| !copy.current));
        let pgs = changing.filter_map(|(lv, _)| self.map.lv(*lv)).map(|lv| lv.pg);
        for pg in pgs.collect::<BTreeSet<PgId>>() {
            self.send_volumes(pg);
        }
        self.note_unmade(&lvs);
        self.note_making();
        let filling = filling(&lvs, &disks);
        let moves = plan_moves_beside(&lvs, &disks, self.copy_rules(), LV_MOVES_MAX, &filling);
        #[cfg(test)]
        {
            let (all, rules) = (self.copies(made(map)), self.copy_rules());
            let of_all = plan_moves_beside(&all, &disks, rules, LV_MOVES_MAX, &filling);
            assert_eq!(moves, of_all, "nothing is due for the other volumes");
        }
        // Lost copies go at once, beside all that is planned: that costs nobody a copy, and puts in doubt there wait for it.
        let is_lost = |(lv, replica): (LvId, u8)| {
            let record = map.lv(lv).and_then(|lv| lv.replicas.get(usize::from(replica)));
            record.is_some_and(|it| it.state != ReplicaState::Gone && !map.exists(it))
        };
        let Leading { emptied, vacates, unmade, .. } = &mut *self.leading;
        vacates.retain(|at, _| {
            let goes = LvMove::Drop(at.0, usize::from(at.1));
            is_lost(*at) || emptied.contains_key(at) || moves.contains(&goes)
        });
        for (lv, copies) in &lvs {
            let all = copies.iter().map(|copy| (*lv, copy.replica as u8));
            for lost in all.filter(|at| is_lost(*at) && !unmade.contains(at)) {
                vacates.entry(lost).or_insert(map.version);
            }
        }
        self.balance_lvs(&lvs, &disks, &moves);
        for step in moves {
            match step {
                LvMove::Add(lv, disk) => {
                    let server =
                        disks.iter().find(|info| info.disk == disk).map(|info| info.server);
                    if let Some(server) = server {
                        let command = Command::AddReplica(lv, server, disk);
                        self.propose(Subject::Lv(lv), command);
                    }
                }
                // No primary was told of it: there is nothing to empty.
                LvMove::Drop(lv, replica) if self.leading.unmade.contains(&(lv, replica as u8)) => {
                    self.propose(Subject::Lv(lv), Command::DropReplica(lv, replica as u8));
                }
                LvMove::Drop(lv, replica) => {
                    let at = (lv, replica as u8);
                    self.leading.vacates.entry(at).or_insert(map.version);
                }
            }
        }
        for ((lv, replica), order) in self.leading.vacates.clone() {
            let pg = map.lv(lv).and_then(|lv| map.pg(lv.pg));
            if let Some(&primary) = pg.and_then(|pg| pg.members.first()) {
                self.tell(primary, ManagerMessage::Vacate(lv, replica, order));
            }
        }
    }
}

/// Disks, of which some that are away for now, and have room, count as those that are not.
fn counting_away(disks: &[DiskInfo], counts: impl Fn(&DiskInfo) -> bool) -> Vec<DiskInfo> {
    let is_one = |disk: &DiskInfo| {
        disk.placement_state == PlacementState::Away && !disk.room.takes_none() && counts(disk)
    };
    let as_counted = |disk: &DiskInfo| match is_one(disk) {
        true => DiskInfo { placement_state: PlacementState::In, ..*disk },
        false => *disk,
    };
    disks.iter().map(as_counted).collect()
}

/// True if another LV has no place because servers are missing. With those that are away it had one, or room on the disks
/// that are there would give it none. A server that has not started yet is not awaited: it may never come.
fn lacks_servers(id: LvId, disks: &[DiskInfo], rules: CopyRules) -> bool {
    let with_free_space = |disk: &DiskInfo| match disk.placement_state {
        PlacementState::Away if disk.up && disk.room.takes_none() => roomy(disk),
        PlacementState::In => roomy(disk),
        PlacementState::Away | PlacementState::Out => *disk,
    };
    let would_do = || {
        let disks: Vec<DiskInfo> = disks.iter().map(with_free_space).collect();
        place_lv(id, &disks, rules).is_some()
    };
    place_lv(id, &counting_away(disks, |_| true), rules).is_some() || !would_do()
}

/// A disk as if it had a place for another PV.
fn roomy(disk: &DiskInfo) -> DiskInfo {
    let (pv_count, pv_free) = (disk.pv_count.max(1), disk.pv_free.max(1));
    DiskInfo { placement_state: PlacementState::In, pv_count, pv_free, ..*disk }
}
