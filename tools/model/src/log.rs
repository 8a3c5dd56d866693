//! The log of one PG on its members ("Crashes" in `ARCHITECTURE.md`): commit point, views,
//! levelling, who may lead.
//!
//! Three servers of which a view has two or three as members; a manager that begins views whenever it
//! likes (write safety must not depend on when). Members restart and lose what they had not synced; one may
//! lose synced ops and know it. What the manager says may arrive late, and only what it says to the
//! present run counts. An op is known by the view that issued it and its position.
//!
//! | action | in the code |
//! |---|---|
//! | `NewView` | the manager: `sim/manager.rs`, `let_go`, `caught_up`, `begin_view`; no other yet |
//! | `Enter` | `protocol/pg/replicate.rs`, `begin_view` |
//! | `Level` | `protocol/pg/replicate.rs`, `report`, `level_if_reported`, `follow`; `Op::ViewStart` |
//! | `Append` | `protocol/pg/append.rs`, `append_op` |
//! | `Follow` | `protocol/pg/replicate.rs`, `append_from_primary`, `follow`, `cut` |
//! | `Sync` | `protocol/pg/commit.rs`, `made_durable` |
//! | `Commit` | `protocol/pg/commit.rs`, `primary_advance` |
//! | `ReportActive` | `protocol/pg/replicate.rs`, `view_progress`: `Effect::ViewActive` |
//! | `Restart` | `protocol/pg/state.rs`, `Recovering` |
//! | `Damage` | `metalog`: `LogError::Damaged` |
//!
//! Messages between members of one view are not modelled one by one. An `Append` that is late changes nothing that
//! following later would not. An acknowledgement that is late delays a commit, as `Commit` may be delayed. The
//! reports by which a primary levels are of one moment: a member that is in the view takes nothing from anyone
//! else meanwhile. A commit answers: what is below the commit point may have been applied and told to a client.
//! The commit point that a backup knows is not modelled; it is never ahead of the primary's. Learners and
//! snapshots are not modelled: any server may join any view with whatever log it has, which allows more than the
//! simulator's manager does.

mod variants;

pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};
use crate::ids::{Servers, View};

const MEMBERS: usize = 3;
const OPS: usize = 6;
const VIEWS: usize = 6;

/// Ops, each by the view that issued it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Log {
    views: [View; OPS],
    len: usize,
}

impl Log {
    fn ops(&self) -> &[View] {
        &self.views[..self.len]
    }

    fn push(&mut self, view: View) {
        self.views[self.len] = view;
        self.len += 1;
    }

    fn cut(&mut self, len: usize) {
        for view in &mut self.views[len..] {
            *view = View(0);
        }
        self.len = self.len.min(len);
    }

    /// Ops that both begin with.
    fn common(&self, other: &Self) -> usize {
        let pairs = self.ops().iter().zip(other.ops());
        pairs.take_while(|(mine, theirs)| mine == theirs).count()
    }

    fn begins_with(&self, other: &Self) -> bool {
        self.common(other) == other.len
    }

    /// Its last op, as logs compare.
    fn last(&self) -> (View, usize) {
        (self.ops().last().copied().unwrap_or_default(), self.len)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Role {
    #[default]
    Down,
    Backup,
    /// A primary that waits for its members' logs.
    Levelling,
    /// A primary whose log is the one that counts.
    Leading,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Member {
    view: View,
    role: Role,
    log: Log,
    durable: usize,
    /// Ops that took effect here.
    commit: usize,
    /// The manager's view when this run began.
    since: View,
    damaged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Membership {
    members: Servers,
    primary: usize,
    /// Members who may not lead yet: their logs were not levelled in an activated view.
    joiners: Servers,
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    members: [Member; MEMBERS],
    views: [Membership; VIEWS],
    latest: View,
    /// The manager heard that the latest view is active.
    active: bool,
    /// The members that may lead the next view.
    may_lead: Servers,
    /// The ops that took effect somewhere.
    answered: Log,
    /// Highest position issued, by view.
    issued: [usize; VIEWS],
    restarts: u8,
    damages: u8,
    wrong: Option<Property>,
    /// Servers that were levelled after they had been away.
    returned: Servers,
}

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// The manager begins a view: its primary and members.
    NewView(usize, Servers),
    /// A member learns of a view.
    Enter(usize, View),
    /// A primary has all members' logs: it takes the longest and appends the start of its view.
    Level(usize),
    /// It appends an op.
    Append(usize),
    /// A backup takes the next op of its primary, and cuts what differs.
    Follow(usize),
    /// So many ops of a member's log are synced: a group need not reach its end.
    Sync(usize, usize),
    /// A primary raises its commit point to this.
    Commit(usize, usize),
    /// The manager hears that the latest view is active.
    ReportActive,
    /// A member restarts with so many ops.
    Restart(usize, usize),
    /// A member restarts and finds only so many of its synced ops.
    Damage(usize, usize),
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Replication {
    /// The size of the model.
    pub bounds: Bounds,
    /// The reading to check.
    pub variant: Variant,
}

impl State {
    fn membership(&self, view: View) -> &Membership {
        &self.views[view.0 as usize]
    }

    /// The primary that a backup follows, if it has levelled.
    fn followed(&self, at: usize) -> Option<usize> {
        let member = &self.members[at];
        let primary = self.membership(member.view).primary;
        let leader = &self.members[primary];
        let follows = member.role == Role::Backup
            && leader.view == member.view
            && leader.role == Role::Leading;
        follows.then_some(primary)
    }

    fn cut(&mut self, at: usize, len: usize) {
        let member = &mut self.members[at];
        if len < member.commit {
            self.wrong.get_or_insert(Property::CommittedAgree);
            member.commit = len;
        }
        member.log.cut(len);
        member.durable = member.durable.min(len);
    }

    fn issue(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.log.push(member.view);
        let issued = &mut self.issued[member.view.0 as usize];
        if member.log.len <= *issued {
            self.wrong.get_or_insert(Property::IssuedOnce);
        }
        *issued = member.log.len.max(*issued);
    }
}

impl Replication {
    fn manager_actions(&self, state: &State, out: &mut Vec<Action>) {
        let membership = state.membership(state.latest);
        let may_lead = match self.variant {
            Variant::UnlevelledJoinerLeads => membership.members,
            Variant::RemovedMemberLeads => state.may_lead,
            _ => state.may_lead.common(membership.members),
        };
        let primary = &state.members[membership.primary];
        let received = primary.view == state.latest || primary.since == state.latest;
        if state.latest.0 < self.bounds.views && (received || !self.bounds.patient) {
            let choices = Servers::first(MEMBERS).subsets().filter(|members| {
                members.count() == 2 || members.count() > 2 && !self.bounds.pairs
            });
            for members in choices {
                let primaries = may_lead.common(members).iter();
                out.extend(primaries.map(|primary| Action::NewView(primary, members)));
            }
        }
        let leader = &state.members[membership.primary];
        let levelled = leader.view == state.latest && leader.role == Role::Leading;
        let own_op = leader.log.ops()[..leader.commit].last() == Some(&state.latest);
        if !state.active && levelled && (own_op || self.variant == Variant::LevelledBeforeActive) {
            out.push(Action::ReportActive);
        }
    }

    fn enter_actions(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let member = &state.members[at];
        for view in (1..=state.latest.0).map(View) {
            let membership = state.membership(view);
            if !membership.members.has(at) {
                continue;
            }
            let leads = membership.primary == at;
            let rejoins = member.role == Role::Down
                && view == member.view
                && (!leads || self.variant == Variant::RestartKeepsView);
            let is_said = view >= member.since || self.variant == Variant::OrdersOutliveRestart;
            // The run that was to lead the view is over: the manager begins another.
            let is_over = leads
                && member.since >= view
                && !matches!(
                    self.variant,
                    Variant::RestartKeepsView | Variant::OrdersOutliveRestart
                );
            if (view > member.view || rejoins) && is_said && !is_over {
                out.push(Action::Enter(at, view));
            }
        }
    }

    fn primary_actions(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let member = &state.members[at];
        let membership = state.membership(member.view);
        let backups = membership.members.without(at);
        match member.role {
            Role::Levelling => {
                let here = backups.iter().filter(|other| {
                    let theirs = &state.members[*other];
                    theirs.view == member.view && theirs.role == Role::Backup
                });
                let here = here.fold(Servers::NONE, Servers::with);
                if backups.within(here) || self.variant == Variant::OwnLogAlone {
                    out.push(Action::Level(at));
                }
            }
            Role::Leading => {
                let serves = member.log.ops()[..member.commit].last() == Some(&member.view);
                if serves && member.log.len < self.bounds.ops {
                    out.push(Action::Append(at));
                }
                if let Some(point) = self.commit_point(state, at)
                    && point > member.commit
                {
                    out.push(Action::Commit(at, point));
                }
            }
            Role::Down | Role::Backup => {}
        }
    }

    /// The highest op that a primary may take for committed.
    fn commit_point(&self, state: &State, at: usize) -> Option<usize> {
        let member = &state.members[at];
        let membership = state.membership(member.view);
        let mut durable: Vec<usize> = Vec::with_capacity(MEMBERS);
        for other in membership.members.iter() {
            let theirs = &state.members[other];
            let has = if self.variant == Variant::AckBeforeSync {
                theirs.log.len
            } else {
                theirs.durable
            };
            let in_view =
                theirs.view == member.view && (other == at || theirs.role == Role::Backup);
            durable.push(if in_view { has.min(theirs.log.common(&member.log)) } else { 0 });
        }
        durable.sort_unstable();
        let all = match self.variant {
            Variant::MajorityCommits => durable[durable.len() - 2],
            _ => durable[0],
        };
        let early = matches!(
            self.variant,
            Variant::CommitsBeforeOwnOp | Variant::CommitsBeforeOwnOpWithoutJoiners
        );
        let point = member.log.ops()[..all].last()?;
        (early || *point == member.view).then_some(all)
    }

    fn new_view(&self, state: &mut State, primary: usize, members: Servers) {
        state.latest = state.latest.next();
        let kept = match self.variant {
            Variant::RemovedMemberLeads => state.may_lead,
            _ => state.may_lead.common(state.membership(View(state.latest.0 - 1)).members),
        };
        let joiners = members.iter().filter(|at| !kept.has(*at));
        let joiners = joiners.fold(Servers::NONE, Servers::with);
        state.views[state.latest.0 as usize] = Membership { members, primary, joiners };
        state.active = false;
        state.may_lead = match self.variant {
            Variant::RemovedMemberLeads => kept,
            _ => kept.common(members),
        };
    }

    /// Takes the longest of its own and the other members' logs.
    fn level(&self, state: &mut State, at: usize) {
        let Membership { members, joiners, .. } = *state.membership(state.members[at].view);
        let ignored = match self.variant {
            Variant::OwnLogAlone => members,
            Variant::CommitsBeforeOwnOpWithoutJoiners => joiners,
            _ => Servers::NONE,
        };
        for from in members.without(at).iter().filter(|from| !ignored.has(*from)) {
            let theirs = state.members[from].log;
            let mine = state.members[at].log;
            let longer = match self.variant {
                Variant::LongestBySeqAlone => theirs.len > mine.len,
                _ => theirs.last() > mine.last(),
            };
            if longer {
                state.cut(at, mine.common(&theirs));
                state.members[at].log = theirs;
            }
        }
        state.members[at].role = Role::Leading;
        state.issue(at);
    }

    /// Forgets what can matter no more: views that nobody is in or may still enter.
    fn tidy(&self, state: &mut State) {
        if self.variant == Variant::OrdersOutliveRestart {
            return;
        }
        for view in (1..state.latest.0).map(View) {
            let matters = state
                .members
                .iter()
                .any(|member| member.view == view || member.view < view && member.since <= view);
            if !matters {
                state.views[view.0 as usize] = Membership::default();
                state.issued[view.0 as usize] = 0;
            }
        }
    }

    fn commit(state: &mut State, at: usize, point: usize) {
        let member = &mut state.members[at];
        member.commit = point;
        let mut log = member.log;
        log.cut(point);
        let newest = state.answered.last().0;
        if log.begins_with(&state.answered) {
            if newest > member.view && log.len > state.answered.len {
                state.wrong.get_or_insert(Property::OnePrimary);
            }
            state.answered = log;
        } else if !state.answered.begins_with(&log) {
            state.wrong.get_or_insert(Property::AnsweredStays);
        }
    }

    fn restart(&self, state: &mut State, at: usize, ops: usize, damaged: bool) {
        let (latest, keeps_lead) = (state.latest, self.variant == Variant::DamagedMemberLeads);
        let member = &mut state.members[at];
        member.log.cut(ops);
        member.durable = ops;
        member.commit = member.commit.min(ops);
        member.view = member.log.last().0;
        member.role = Role::Down;
        member.since = latest;
        if damaged {
            member.damaged = true;
            state.damages += 1;
            if !keeps_lead {
                state.may_lead = state.may_lead.without(at);
            }
        } else {
            state.restarts += 1;
        }
    }
}

impl Model for Replication {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("an op of a client is committed in a later view", |state| {
            let mut pairs = state.answered.ops().windows(2);
            pairs.any(|pair| pair[0] == pair[1] && pair[0] > View(1))
        }),
        ("an op is dropped that was not committed", |state| {
            let leader = &state.members[state.membership(state.latest).primary];
            let keeps = |log: &Log| log.ops().iter().all(|view| leader.log.ops().contains(view));
            state.active && state.members.iter().any(|member| !keeps(&member.log))
        }),
        ("an op that was open at the end of a view is committed in a later one", |state| {
            let mut pairs = state.answered.ops().windows(2);
            state.answered.ops().get(1) == Some(&View(1))
                && pairs.any(|pair| pair == [View(1), View(2)])
        }),
        ("a server that joined leads a later view", |state| {
            let leader = state.membership(state.latest).primary;
            state.active && state.returned.has(leader)
        }),
        ("a primary that restarted leads again", |state| {
            let leader = &state.members[state.membership(state.latest).primary];
            state.active && state.latest > View(1) && leader.since > View(0)
        }),
    ];

    fn initial(&self) -> State {
        let mut log = Log::default();
        log.push(View(1));
        let everyone = Servers::first(MEMBERS);
        let member = Member {
            view: View(1),
            role: Role::Backup,
            log,
            durable: 1,
            commit: 1,
            since: View(0),
            damaged: false,
        };
        let mut state = State {
            members: [member; MEMBERS],
            views: [Membership::default(); VIEWS],
            latest: View(1),
            active: true,
            may_lead: everyone,
            answered: log,
            issued: [0; VIEWS],
            restarts: 0,
            damages: 0,
            wrong: None,
            returned: Servers::NONE,
        };
        state.members[0].role = Role::Leading;
        state.views[1] = Membership { members: everyone, primary: 0, joiners: Servers::NONE };
        state.issued[1] = 1;
        state
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.manager_actions(state, out);
        for (at, member) in state.members.iter().enumerate() {
            self.enter_actions(state, at, out);
            self.primary_actions(state, at, out);
            if member.durable < member.log.len && member.role != Role::Down {
                out.extend((member.durable + 1..=member.log.len).map(|ops| Action::Sync(at, ops)));
            }
            if let Some(primary) = state.followed(at) {
                let leader = &state.members[primary];
                let common = member.log.common(&leader.log);
                if common < member.log.len || common < leader.log.len {
                    out.push(Action::Follow(at));
                }
            }
            if state.restarts < self.bounds.restarts {
                let kept = member.durable..=member.log.len;
                out.extend(kept.map(|ops| Action::Restart(at, ops)));
            }
            if state.damages < self.bounds.damages {
                out.extend((0..member.durable).map(|ops| Action::Damage(at, ops)));
            }
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::NewView(primary, members) => self.new_view(state, primary, members),
            Action::Enter(at, view) => {
                let leads = state.membership(view).primary == at;
                let member = &mut state.members[at];
                member.view = view;
                member.role = if leads { Role::Levelling } else { Role::Backup };
            }
            Action::Level(at) => self.level(state, at),
            Action::Append(at) => state.issue(at),
            Action::Follow(at) => {
                let Some(primary) = state.followed(at) else { return };
                let log = state.members[primary].log;
                let common = state.members[at].log.common(&log);
                state.cut(at, common);
                if common < log.len {
                    state.members[at].log.push(log.views[common]);
                }
            }
            Action::Sync(at, ops) => state.members[at].durable = ops,
            Action::Commit(at, point) => Self::commit(state, at, point),
            Action::ReportActive => {
                state.active = true;
                let Membership { members, joiners, .. } = *state.membership(state.latest);
                state.returned = state.returned.union(joiners);
                let mut levelled = Servers::NONE;
                for at in members.iter() {
                    let member = &mut state.members[at];
                    // This view did not level the loss of a run that began in it.
                    member.damaged &= member.since == state.latest;
                    if !member.damaged || self.variant == Variant::DamagedMemberLeads {
                        levelled = levelled.with(at);
                    }
                }
                state.may_lead = match self.variant {
                    Variant::RemovedMemberLeads => state.may_lead.union(levelled),
                    _ => levelled,
                };
            }
            Action::Restart(at, ops) => self.restart(state, at, ops, false),
            Action::Damage(at, ops) => self.restart(state, at, ops, true),
        }
        self.tidy(state);
    }

    fn broken(&self, state: &State) -> Option<Property> {
        if state.wrong.is_some() {
            return state.wrong;
        }
        let leader = &state.members[state.membership(state.latest).primary];
        if leader.view == state.latest
            && leader.role == Role::Leading
            && !leader.log.begins_with(&state.answered)
        {
            return Some(Property::AnsweredStays);
        }
        let members = &state.members;
        let apart = members.iter().enumerate().any(|(at, one)| {
            members[..at].iter().any(|other| {
                let both = one.commit.min(other.commit);
                one.log.common(&other.log) < both
            })
        });
        apart.then_some(Property::CommittedAgree)
    }
}
