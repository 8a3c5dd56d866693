//! Taking servers and disks out for good: what goes with them, and when that is too much.
//!
//! # Invariants
//!
//! 1. Something else has, and may lead or give, whatever the one that goes has: its PGs' ops and its LVs' content.
//! 2. A PG keeps members enough for a view: with fewer it could begin none, and a new server can become a member only
//!    through one.
//! 3. The managers that stay have a majority that is up, or nothing could be agreed on any more.

use std::collections::BTreeSet;

use larder_types::{DiskId, LvId, PgId, ServerId};

use super::command::{Applied, Outcome, Refusal};
use super::map::{DiskState, LvRecord, ReplicaRecord, ServerRole, ServerState, Topology};
use crate::lv::ReplicaState;

/// The loss that would come with the removal of a server or a disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loss {
    /// LVs with a replica there that holds something.
    pub lvs: Vec<LvId>,
    /// Of these, those without another current replica: a reason to refuse.
    pub lvs_last: Vec<LvId>,
    /// PGs with a member there.
    pub pgs: Vec<PgId>,
    /// Of these, those that nobody else may lead: a reason to refuse.
    pub pgs_last: Vec<PgId>,
    /// Of these, those that would have too few members: a reason to refuse.
    pub pgs_short: Vec<PgId>,
    /// True if those that stay and are up are no majority of all managers there are, the one that goes included: nothing
    /// could be decided without its vote. A reason to refuse.
    pub no_majority: bool,
}

impl Loss {
    /// Returns the reason for which it is too much, if it is.
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
    /// Returns the loss that would come with the removal of a server.
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

    /// Returns the loss that would come with the removal of a disk.
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
        // The one that goes votes until it is gone, and is not asked any more.
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
