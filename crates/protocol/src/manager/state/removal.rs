//! Removes servers and disks for good, unless that would lose data or stop a group or the managers.
//!
//! # Invariants
//!
//! 1. Other servers have everything that the removed one has: a member that may lead each of its PGs, and a current replica of
//!    each of its LVs.
//! 2. A PG keeps enough members for a view. With fewer it could begin none, and only by a new view can a new server become a
//!    member.
//! 3. The managers that stay have a majority that is up: without one nothing could be agreed on any more.

use std::collections::BTreeSet;

use larder_types::{DiskId, LvId, PgId, ServerId};

use super::command::{Applied, Outcome, Refusal};
use super::map::{DiskState, LvRecord, ReplicaRecord, ServerRole, ServerState, Topology};
use crate::lv::ReplicaState;

/// The loss that the removal of a server or a disk would cause.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loss {
    /// LVs with a replica there.
    pub lvs: Vec<LvId>,
    /// Volumes of these without another current replica: a reason to refuse.
    pub lvs_last: Vec<LvId>,
    /// PGs with a member there.
    pub pgs: Vec<PgId>,
    /// Groups of these that no other member may lead: a reason to refuse.
    pub pgs_last: Vec<PgId>,
    /// Groups of these that would have too few members: a reason to refuse.
    pub pgs_short: Vec<PgId>,
    /// True if the managers that stay and are up are no majority of all managers, the removed one included: the quorum could
    /// not decide without its vote. A reason to refuse.
    pub no_majority: bool,
}

impl Loss {
    /// The reason to refuse the removal, if there is one.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        if !self.lvs_last.is_empty() || !self.pgs_last.is_empty() {
            Some(Refusal::LastCopy)
        } else if !self.pgs_short.is_empty() {
            Some(Refusal::TooFewMembers)
        } else {
            self.no_majority.then_some(Refusal::NoMajority)
        }
    }
}

impl Topology {
    /// The loss that the removal of a server would cause.
    #[must_use]
    pub fn loss_of_server(&self, server: ServerId) -> Loss {
        let disks = self.servers.get(&server).into_iter().flat_map(|record| record.disks.keys());
        let disks: BTreeSet<DiskId> = disks.copied().collect();
        let mut loss = self.loss_of_disks(&disks);
        let min_members = self.founded.map_or(0, |(_, settings)| usize::from(settings.min_members));
        let only = BTreeSet::from([server]);
        for (id, pg) in
            (0..).map(PgId).zip(&self.pgs).filter(|(_, pg)| pg.members.contains(&server))
        {
            loss.pgs.push(id);
            if pg.qualified == only {
                loss.pgs_last.push(id);
            }
            let stay = pg.members.iter().filter(|it| **it != server && self.is_there(**it)).count();
            if stay < min_members {
                loss.pgs_short.push(id);
            }
        }
        loss.no_majority = self.leaves_no_majority(server);
        loss
    }

    /// The loss that the removal of a disk would cause.
    #[must_use]
    pub fn loss_of_disk(&self, disk: DiskId) -> Loss {
        self.loss_of_disks(&BTreeSet::from([disk]))
    }

    fn loss_of_disks(&self, disks: &BTreeSet<DiskId>) -> Loss {
        let mut loss = Loss::default();
        let holds = |r: &ReplicaRecord| r.state == ReplicaState::Current && self.exists(r);
        let stays = |lv: &LvRecord| {
            lv.present().any(|(_, replica)| holds(replica) && !disks.contains(&replica.disk))
        };
        for (id, lv) in (0..).map(LvId).zip(&self.lvs) {
            if lv
                .present()
                .any(|(_, replica)| disks.contains(&replica.disk) && self.exists(replica))
            {
                loss.lvs.push(id);
                if !stays(lv) {
                    loss.lvs_last.push(id);
                }
            }
        }
        loss
    }

    fn leaves_no_majority(&self, server: ServerId) -> bool {
        if !self.has_role(server, ServerRole::Manager) {
            return false;
        }
        let others = self.servers.iter().filter(|(id, record)| {
            **id != server
                && record.state != ServerState::Removed
                && record.roles.contains(&ServerRole::Manager)
        });
        let (all, up) = others.fold((0, 0), |(all, up), (_, record)| {
            (all + 1, up + usize::from(record.state == ServerState::Up))
        });
        // The removed manager counts in the quorum until that has changed, and may answer no more.
        2 * up <= all + 1
    }

    fn is_there(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|record| record.state != ServerState::Removed)
    }

    pub(super) fn remove_server(&mut self, server: ServerId) -> Applied {
        self.server_mut(server)?;
        if let Some(refusal) = self.loss_of_server(server).refusal() {
            return Err(refusal);
        }
        for pg in &mut self.pgs {
            pg.qualified.remove(&server);
            pg.learners.remove(&server);
        }
        let ended = self.sessions.iter().filter(|(_, s)| s.server == server);
        for session in ended.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.close_session(session);
        }
        let record = self.server_mut(server)?;
        record.state = ServerState::Removed;
        record.disks.values_mut().for_each(|disk| disk.state = DiskState::Removed);
        Ok(Outcome::Done)
    }

    pub(super) fn remove_disk(&mut self, server: ServerId, disk: DiskId) -> Applied {
        if let Some(refusal) = self.loss_of_disk(disk).refusal() {
            return Err(refusal);
        }
        self.set_disk(server, disk, DiskState::Removed)
    }
}
