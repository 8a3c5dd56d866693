//! Commands about PGs: targets, learners, views.

use std::collections::BTreeSet;

use larder_types::{PgId, ServerId, View};

use super::command::{Applied, Outcome, Refusal, changed};
use super::map::{PgRecord, ServerRole, ServerState, Topology};
use crate::limits::{PG_LEARNERS_MAX, PG_MEMBERS_MAX};

impl Topology {
    pub(super) fn pg_mut(&mut self, pg: PgId) -> Result<&mut PgRecord, Refusal> {
        self.pgs.get_mut(pg.0 as usize).ok_or(Refusal::NoSuchPg)
    }

    /// A PG's record; `None` if there is no such PG.
    #[must_use]
    pub fn pg(&self, pg: PgId) -> Option<&PgRecord> {
        self.pgs.get(pg.0 as usize)
    }

    pub(super) fn retarget(&mut self, targets: Vec<(PgId, Vec<ServerId>)>) -> Applied {
        for (pg, target) in &targets {
            let _exists = self.pg(*pg).ok_or(Refusal::NoSuchPg)?;
            self.check_members(target)?;
        }
        let mut any = false;
        for (pg, target) in targets {
            let record = self.pg_mut(pg)?;
            any |= record.target != target;
            record.target = target;
        }
        changed(any)
    }

    /// Checks that these are distinct servers with the meta role that were not removed.
    fn check_members(&self, members: &[ServerId]) -> Result<(), Refusal> {
        let distinct: BTreeSet<&ServerId> = members.iter().collect();
        let known = members.iter().all(|server| self.has_role(*server, ServerRole::Meta));
        if !known || distinct.len() != members.len() || members.len() > PG_MEMBERS_MAX {
            return Err(Refusal::BadMembers);
        }
        Ok(())
    }

    pub(super) fn add_learner(&mut self, pg: PgId, server: ServerId) -> Applied {
        self.check_members(&[server])?;
        let record = self.servers.get(&server).ok_or(Refusal::NoSuchServer)?;
        let takes = record.state == ServerState::Up && !record.draining;
        let pg = self.pg_mut(pg)?;
        if pg.learners.contains(&server) {
            return Ok(Outcome::Already);
        }
        if !takes || pg.view == View(0) || pg.members.contains(&server) {
            return Err(Refusal::BadMembers);
        }
        if pg.learners.len() >= PG_LEARNERS_MAX {
            return Err(Refusal::TooMany);
        }
        pg.learners.insert(server);
        Ok(Outcome::Done)
    }

    pub(super) fn begin_view(&mut self, id: PgId, from: View, members: Vec<ServerId>) -> Applied {
        let (version, settings) = (self.next_version(), self.settings());
        let before = self.pg(id).ok_or(Refusal::NoSuchPg)?;
        if before.view != from {
            return Err(Refusal::OtherView);
        }
        self.check_members(&members)?;
        let first = from == View(0);
        let comes_from_view =
            |s: &ServerId| before.members.contains(s) || before.learners.contains(s);
        if members.len() < usize::from(settings.min_members)
            || !first && !members.iter().all(comes_from_view)
        {
            return Err(Refusal::BadMembers);
        }
        let primary = members[0];
        if !first && !before.qualified.contains(&primary) {
            return Err(Refusal::NotQualified);
        }
        let pg = self.pg_mut(id)?;
        pg.qualified = match first {
            true => members.iter().copied().collect(),
            false => members.iter().filter(|s| pg.qualified.contains(s)).copied().collect(),
        };
        pg.learners.retain(|server| !members.contains(server));
        pg.view = View(from.0 + 1);
        pg.begun = version;
        pg.lacking.clear();
        pg.members = members;
        assert!(pg.qualified.contains(&primary), "pg {id}: a qualified member leads");
        Ok(Outcome::View(id, pg.view))
    }

    pub(super) fn view_activated(&mut self, pg: PgId, view: View) -> Applied {
        let gone: BTreeSet<ServerId> = self
            .servers
            .iter()
            .filter(|(_, record)| record.state == ServerState::Removed)
            .map(|(server, _)| *server)
            .collect();
        let pg = self.pg_mut(pg)?;
        if pg.view != view || view == View(0) {
            return Err(Refusal::OtherView);
        }
        if pg.is_active() {
            return Ok(Outcome::Already);
        }
        pg.activated = view;
        // A member may have lost data since the view was activated.
        let has = |member: &&ServerId| !gone.contains(member) && !pg.lacking.contains(member);
        pg.qualified = pg.members.iter().filter(has).copied().collect();
        Ok(Outcome::Done)
    }

    /// Ends the right to lead of a member whose rows differ from those of the others. It refuses that for the last member that
    /// may lead: no other has the group's content.
    pub(super) fn member_lacks(&mut self, id: PgId, view: View, server: ServerId) -> Applied {
        let pg = self.pg_mut(id)?;
        if pg.view != view {
            return Err(Refusal::OtherView);
        }
        if !pg.members.contains(&server) {
            return Err(Refusal::BadMembers);
        }
        if pg.lacking.contains(&server) {
            return Ok(Outcome::Already);
        }
        if pg.qualified.iter().all(|member| *member == server) {
            return Err(Refusal::LastCopy);
        }
        pg.qualified.remove(&server);
        pg.lacking.insert(server);
        Ok(Outcome::Done)
    }

    /// Ends a server's right to lead PGs of which it lacks ops when it begins a run. Every op from the activated view's start
    /// on was durable on all its members. Of a PG that the server does not name it has nothing.
    pub(super) fn disqualify(&mut self, server: ServerId, has: &[(PgId, Option<View>)]) {
        for (id, pg) in (0..).map(PgId).zip(&mut self.pgs) {
            if !pg.members.contains(&server) || pg.activated == View(0) {
                continue;
            }
            let last = has.iter().find(|(pg, _)| *pg == id).and_then(|(_, view)| *view);
            if last.is_none_or(|last| last < pg.activated) {
                pg.qualified.remove(&server);
                pg.lacking.insert(server);
            }
        }
    }
}
