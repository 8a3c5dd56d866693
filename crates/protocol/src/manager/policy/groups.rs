//! Views: chooses each group's primary and members from the servers that are up, the constraints of the previous view,
//! and the placement wanted.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BootId, PgId, ServerId, View};

use super::message::ManagerMessage;
use super::{StepContext, Subject};
use crate::limits::{LEADS_MAX, PG_MOVES_MAX};
use crate::manager::state::{Command, LvRecord, LvState, PgRecord};
use crate::placement::{
    ActingPg, GroupRules, PgStep, PlacementState, balance_primaries, next_step,
};

impl StepContext<'_> {
    pub(super) fn rules(&self) -> GroupRules {
        let settings = self.map.settings();
        GroupRules {
            members: usize::from(settings.members),
            min_members: usize::from(settings.min_members),
        }
    }

    /// Forgets moves of PGs that are through.
    pub(super) fn count_moves(&mut self) {
        let (map, under_way) = (self.map, &self.leading.under_way);
        let goes_on = |pg: &PgId| {
            under_way.contains(&Subject::Pg(*pg))
                || map.pg(*pg).is_some_and(|record| !record.learners.is_empty())
        };
        self.leading.moving.retain(goes_on);
        let learning = (0..).map(PgId).zip(&map.pgs).filter(|(_, pg)| !pg.learners.is_empty());
        self.leading.moving.extend(learning.map(|(pg, _)| pg));
    }

    /// Chooses PGs that another member should lead, while nothing else is going on.
    pub(super) fn balance(&mut self) {
        let done = |pg: &PgId, to: &ServerId| {
            self.map.pg(*pg).is_none_or(|record| record.members.first() == Some(to))
        };
        self.leading.leads.retain(|pg, to| !done(pg, to));
        let calm = |pg: &PgRecord| {
            pg.is_active()
                && pg.learners.is_empty()
                && pg.members.iter().all(|s| pg.target.contains(s))
        };
        if !self.leading.leads.is_empty() || !self.map.pgs.iter().all(calm) {
            return;
        }
        let nobody = BTreeMap::new();
        let groups: Vec<(PgId, ActingPg<'_>)> = (0..)
            .map(PgId)
            .zip(&self.map.pgs)
            .map(|(pg, record)| {
                let PgRecord { members, qualified, .. } = record;
                (pg, ActingPg { members, qualified, learners: &nobody })
            })
            .collect();
        self.leading.leads =
            balance_primaries(&groups, &self.meta_servers(), LEADS_MAX).into_iter().collect();
    }

    /// Decides the next step for a PG: a view, or a step of the planner.
    pub(super) fn decide_group(&mut self, pg: PgId) {
        let Some(record) = self.map.pg(pg) else { return };
        if self.is_under_way(Subject::Pg(pg)) {
            return;
        }
        let next = if record.view == View(0) {
            self.first_view(record)
        } else {
            self.next_view(pg, record)
        };
        let Some(members) = next else {
            self.leading.leases.withdrawn.remove(&pg);
            self.plan_group(pg);
            return;
        };
        self.begin_view(pg, members);
    }

    /// Proposes a view; with another primary only when the leases have run out.
    fn begin_view(&mut self, pg: PgId, members: Vec<ServerId>) {
        let Some(record) = self.map.pg(pg) else { return };
        let other_leads = record.members.first().is_some_and(|primary| *primary != members[0]);
        let lease_died =
            record.members.first().is_some_and(|primary| self.has_restarted(*primary, record));
        let may_answer = other_leads && !lease_died && !self.planted.waits_out_no_lease();
        if may_answer && !self.leading.leases.have_run_out(pg, record, self.now_ms) {
            self.leading.leases.withdrawn.insert(pg);
            return;
        }
        assert!(
            record.qualified.contains(&members[0]) || record.view == View(0),
            "pg {pg}: a qualified member leads"
        );
        self.propose(Subject::Pg(pg), Command::BeginView(pg, record.view, members));
    }

    /// A member says that its rows are not those of the others.
    pub(super) fn lacks(&mut self, server: ServerId, pg: PgId, view: View) {
        let Some(record) = self.map.pg(pg).filter(|record| record.view == view) else { return };
        if record.members.contains(&server) && !record.lacking.contains(&server) {
            self.propose(Subject::Pg(pg), Command::MemberLacks(pg, view, server));
        }
    }

    fn has_restarted(&self, server: ServerId, record: &PgRecord) -> bool {
        self.map.servers.get(&server).is_some_and(|server| server.started > record.begun)
    }

    /// Members of the first view: all of the target, once they are up.
    fn first_view(&self, record: &PgRecord) -> Option<Vec<ServerId>> {
        let up = record.target.iter().all(|server| self.map.is_up(*server));
        (up && record.target.len() >= self.rules().min_members).then(|| record.target.clone())
    }

    /// Members of the view that what has happened to servers makes necessary; `None` if nothing has, or too few
    /// are up.
    fn next_view(&self, pg: PgId, record: &PgRecord) -> Option<Vec<ServerId>> {
        let healths = &self.leading.healths;
        let may_lead = |s: &ServerId| record.qualified.contains(s) && self.map.is_up(*s);
        let settled = |s: &ServerId| healths.is_settled(*s, self.now_ms);
        let primary = record.members[0];
        let restarted = self.has_restarted(primary, record);
        let partition_reports = self.partition_reports(pg, record);
        let stays = may_lead(&primary)
            && (!restarted || settled(&primary))
            && !partition_reports.contains(&primary);
        let leader = if stays {
            primary
        } else {
            let others = record.members.iter().filter(|s| **s != primary && may_lead(s));
            let best = others.min_by_key(|s| (!settled(s), !record.target.contains(s)));
            // One that comes and goes is spared the lead only where another takes it.
            *best.or(Some(&primary).filter(|primary| may_lead(primary)))?
        };
        let goes_on = |s: &ServerId| self.map.is_up(*s) && !partition_reports.contains(s);
        let others = record.members.iter().filter(|s| **s != leader && goes_on(s));
        let (lacking, whole): (Vec<ServerId>, Vec<ServerId>) =
            others.copied().partition(|server| record.lacking.contains(server));
        let mut members = vec![leader];
        members.extend(whole);
        // One that lost what it had comes back as a learner; where it cannot be spared, it is levelled in the view.
        let missing = self.rules().min_members.saturating_sub(members.len());
        members.extend(lacking.into_iter().take(missing));
        if members.len() < self.rules().min_members {
            return None;
        }
        let needed = restarted
            || leader != primary
            || members.len() < record.members.len()
            || !record.lacking.is_empty()
            || self.needs_space_anew(pg, record);
        needed.then_some(members)
    }

    /// Returns true if a data server of the PG's LVs has begun a run that its primary has not opened them in. For one that
    /// comes and goes the others are not disturbed, as long as there is another LV to write to.
    fn needs_space_anew(&self, pg: PgId, record: &PgRecord) -> bool {
        if record.data_started <= record.begun {
            return false;
        }
        let takes_writes = |lv: &LvRecord| {
            let goes_on = |server| self.map.is_up(server) && !self.has_restarted(server, record);
            lv.state == LvState::Open && lv.present().all(|(_, replica)| goes_on(replica.server))
        };
        let has_other = self.lvs_of(pg).any(|(_, lv)| takes_writes(lv));
        let is_new = |server: ServerId| {
            let may_wait = has_other && !self.leading.healths.is_settled(server, self.now_ms);
            self.has_restarted(server, record) && self.map.is_up(server) && !may_wait
        };
        let mut lvs = self.lvs_of(pg);
        lvs.any(|(_, lv)| lv.present().any(|(_, replica)| is_new(replica.server)))
    }

    fn plan_group(&mut self, pg: PgId) {
        let Some(record) = self.map.pg(pg).filter(|record| record.is_active()) else { return };
        let learners: BTreeMap<ServerId, bool> = record
            .learners
            .iter()
            .map(|server| {
                let has_all = self.leading.caught_up.get(&(pg, *server)) == Some(&record.view);
                (*server, has_all)
            })
            .collect();
        let PgRecord { members, qualified, target, .. } = record;
        let acting = ActingPg { members, qualified, learners: &learners };
        let placement_state = |server| match self.leading.partition_reports.leaves_out(pg, server) {
            true => PlacementState::Away,
            false => self.placement_state(server),
        };
        let step = next_step(acting, target, placement_state, self.rules());
        let leads = self.leading.leads.get(&pg).filter(|server| members.first() != Some(server));
        let lead = leads.map(|server| PgStep::Lead(*server));
        let Some(step) = step.or(lead) else { return };
        let mut next = members.clone();
        match step {
            PgStep::AddLearner(server) => {
                // A silent server will be down soon, though the map has it up.
                let is_alive = self.leading.healths.is_alive(server, self.now_ms);
                if is_alive && self.leading.moving.len() < PG_MOVES_MAX {
                    self.leading.moving.insert(pg);
                    self.leading.caught_up.remove(&(pg, server));
                    self.propose(Subject::Pg(pg), Command::AddLearner(pg, server));
                }
                return;
            }
            PgStep::DropLearner(server) => {
                self.propose(Subject::Pg(pg), Command::DropLearner(pg, server));
                return;
            }
            PgStep::Admit(server) => next.push(server),
            PgStep::Remove(server) => next.retain(|member| *member != server),
            PgStep::Lead(server) => {
                let Some(at) = next.iter().position(|member| *member == server) else { return };
                next.swap(0, at);
            }
        }
        // A primary whose rows are not those of the others may be the only member that is up.
        if next.first().is_some_and(|leader| record.qualified.contains(leader)) {
            self.begin_view(pg, next);
        }
    }

    /// Sends the view to members and learners that have not acknowledged it in their run.
    pub(super) fn send_view(&mut self, pg: PgId) {
        let Some(record) = self.map.pg(pg).filter(|record| record.view > View(0)) else { return };
        let (view, told_members) = self.leading.told_members.entry(pg).or_default();
        if *view != record.view {
            (*view, *told_members) = (record.view, BTreeSet::new());
        }
        let told_members = told_members.clone();
        let primary = record.members[0];
        for &server in record.members.iter().chain(&record.learners) {
            let Some(boot) = self.map.servers.get(&server).map(|record| record.boot) else {
                continue;
            };
            // A primary never comes back into its view: the next one is on its way.
            let returns = server == primary && self.has_restarted(server, record);
            if returns || !self.map.is_up(server) || told_members.contains(&(server, boot)) {
                continue;
            }
            let message = ManagerMessage::NewView {
                pg,
                view: record.view,
                members: record.members.clone(),
                learners: record.learners.iter().copied().collect(),
                boot,
            };
            self.tell(server, message);
        }
    }

    pub(super) fn view_acknowledged(
        &mut self,
        server: ServerId,
        boot: BootId,
        pg: PgId,
        view: View,
    ) {
        if let Some((known, told_members)) = self.leading.told_members.get_mut(&pg)
            && *known == view
        {
            told_members.insert((server, boot));
        }
    }
}
