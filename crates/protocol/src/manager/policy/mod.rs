//! The work that only the leading manager does: it watches servers, grants leases, begins views, draws LVs and moves
//! things towards where they belong. All it decides goes through the quorum as commands.
//!
//! ```text
//!  From(server, message) ─┐                       ┌─▶ Tell(server, message)
//!  Tick ──────────────────┼─▶ Policy (+ the map) ─┼─▶ Propose(ticket, command) ──▶ Decided
//!  Elected, Deposed ──────┘                       └─▶ Confirm(ticket) ──▶ Confirmed
//! ```
//!
//! # Invariants
//!
//! 1. A lease is told only after a majority said, later than its renewal came, that it follows this manager. A manager
//!    elected afterwards waits out a whole lease before it gives a PG another primary, so it waits out this one.
//!    Without the confirmation an old leader that nobody told could go on granting.
//! 2. A view with another primary is proposed only after every lease granted in the view before has run out, with a
//!    margin for clocks that drift. The other case is that the primary has begun another run, and its lease died with
//!    the old one.
//! 3. One proposal is under way per PG, LV, server, session and bucket; the map decides again when it is through.
//! 4. Nobody is taken for down, and no session closed, while the quorum does not answer. A leader that hears nobody may
//!    still be heard, and its successor commits what it proposed.
//! 5. A mark of a bucket is lifted only under the bucket's id and the mark's epoch: a deletion that ended, or began anew,
//!    in the meantime is left alone. When that is matters for nothing but how long puts into the bucket are refused.
//! 6. The cluster's version is proposed only as high as every server spoke that is in the map. One that joins later, or was
//!    not heard, is not met by what is new.
//! 7. A run is named only by a message that names the run before it (`StartedAfter`), as long as the map does too. A run that
//!    the map never named, or that a map made anew has forgotten, ends none that followed.
//! 8. Nothing here must survive: a new leader starts with what the map says.

mod balance;
mod copies;
mod groups;
mod health;
mod leases;
mod marks;
mod message;
mod partitions;
mod quiescence;
mod targets;
mod versions;
mod volumes;
mod volumes_by_group;

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BootId, BucketId, DiskId, LvId, PgId, ServerId, SessionId, View};

use crate::limits::{LV_PLAN_MS, POLICY_PROPOSALS_MAX, SESSION_KEPT_MS, START_AFTER_VERSION};
use crate::manager::quorum::Ticket;
use crate::manager::state::{
    Applied, Command, MapVersion, Outcome, PgRecord, ServerRecord, ServerRole, ServerState,
    Topology,
};
use crate::placement::PlacementState;
use crate::planted::Planted;
use copies::Copies;
use health::{FollowerHeartbeats, Healths};
use leases::Leases;
#[cfg(test)]
pub(in crate::manager) use leases::inherited_until_ms;
use marks::Marks;
pub use message::{HAS_MOST, ManagerMessage, RunStart, ServerMessage};
use partitions::PartitionReports;
use quiescence::{Quiescence, ends_quiescence};
use targets::Targets;
use versions::ReportedVersions;
use volumes_by_group::VolumesByGroup;

/// An event for the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyEvent {
    /// This manager leads.
    Elected {
        /// As [`QuorumEffect::Elected`](crate::manager::quorum::QuorumEffect::Elected) says.
        shortened_since_ms: Option<u64>,
    },
    /// It does not any more.
    Deposed,
    /// A server says something.
    From(ServerId, ServerMessage),
    /// A server said something to this manager, which does not lead.
    FollowerHeartbeats(ServerId),
    /// The next renewal is of a server that was not granted the one before: it does not wait for a question that is due.
    NotGranted,
    /// This run of a server spoke with this manager in this version of the protocol, the newest that both know.
    VersionReported(ServerId, BootId, u8),
    /// The result of a proposal; `None` if that is not known or it was not taken.
    Decided(Ticket, Option<Applied>),
    /// This manager led after the question.
    Confirmed(Ticket),
    /// Time passed.
    Tick,
}

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyEffect {
    /// Have the quorum agree.
    Propose(Ticket, Command),
    /// Ask whether this manager leads.
    Confirm(Ticket),
    /// Send.
    Tell(ServerId, ManagerMessage),
}

/// The subject of a proposal; one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Server(ServerId),
    Pg(PgId),
    NewLv(PgId),
    Lv(LvId),
    Session(SessionId),
    Bucket(BucketId),
    Targets,
    ClusterVersion,
}

/// The state of a leader.
#[derive(Debug)]
struct Leading {
    healths: Healths,
    leases: Leases,
    proposals: BTreeMap<Ticket, Subject>,
    under_way: BTreeSet<Subject>,
    /// Members and learners that have heard of their PG's view, in their run.
    told_members: BTreeMap<PgId, (View, BTreeSet<(ServerId, larder_types::BootId)>)>,
    /// Learners that have everything that the members of this view have.
    caught_up: BTreeMap<(PgId, ServerId), View>,
    /// PGs with a learner, or about to have one.
    moving: BTreeSet<PgId>,
    /// PGs that another member is to lead, for balance.
    leads: BTreeMap<PgId, ServerId>,
    targets: Targets,
    of_groups: VolumesByGroup,
    /// Primaries that wait for an LV.
    wants_lv: BTreeMap<PgId, ServerId>,
    /// Replicas that are being made, by index, of which the PV is there.
    created: BTreeMap<LvId, BTreeSet<u8>>,
    /// Replicas added while this manager leads, whose PV does not exist yet: no server has been notified of them.
    unmade: BTreeSet<(LvId, u8)>,
    /// Replicas whose PV is not known to be there though their server is up, each since it was first so.
    unmade_since_ms: BTreeMap<(LvId, u8), u64>,
    /// New volumes that are being made on servers which are all up, each since it was first so.
    making_since_ms: BTreeMap<LvId, u64>,
    /// Replicas that were added while this manager leads, each in this map: no earlier order was for them.
    added: BTreeMap<(LvId, u8), MapVersion>,
    /// Replicas of which their primary said that they are empty by an order that was for another one of that index: by which,
    /// and since when.
    mistaken: BTreeMap<(LvId, u8), (MapVersion, u64)>,
    /// Replicas that are to be vacated, each since this map.
    vacates: BTreeMap<(LvId, u8), MapVersion>,
    /// Replicas that their primary calls empty in a view: they count for nothing, and go before any other of their LV.
    emptied: BTreeMap<(LvId, u8), View>,
    /// Disks without room for another LV, and when that was said last.
    no_room: BTreeMap<DiskId, u64>,
    /// Disks on which a PV could not be made for long, and when that was so last.
    unmade_on: BTreeMap<DiskId, u64>,
    planned_lvs_ms: u64,
    /// The time at which moves for balance were planned last, and the place among the volumes where the next plan goes
    /// on.
    balanced_ms: u64,
    balanced_to: usize,
    /// The disk that was to join next at the last tick.
    disks_before: DiskId,
    /// Data servers that were up then.
    data_up_before: usize,
    marks: Marks,
    copies: Copies,
    /// The version of the protocol that each server spoke last, and in which run, while this manager leads.
    reported_versions: ReportedVersions,
    partition_reports: PartitionReports,
    rest: Option<Quiescence>,
    /// Looks at all groups.
    looks: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Policy {
    leading: Option<Leading>,
    /// Of servers that spoke to this manager while another led.
    overheard: FollowerHeartbeats,
    tickets: u64,
    /// See [`Policy::let_volumes_move`].
    moves_volumes: bool,
    planted: Planted,
}

/// One step's surroundings.
struct StepContext<'a> {
    now_ms: u64,
    map: &'a Topology,
    leading: &'a mut Leading,
    tickets: &'a mut u64,
    moves_volumes: bool,
    planted: Planted,
    out: &'a mut Vec<PolicyEffect>,
}

impl Policy {
    /// One with a bug that is to be found.
    #[must_use]
    pub fn planted(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }

    /// Lets volumes begin to move for balance, or not: not before it is said that all managers are of releases that go on
    /// with such moves.
    pub fn let_volumes_move(&mut self, may: bool) {
        self.moves_volumes = may;
    }

    /// Returns a server that keeps the cluster's version below `newest`, if this manager leads and there is one.
    #[must_use]
    pub fn held_back_by(&self, map: &Topology, newest: u8) -> Option<ServerId> {
        self.leading.as_ref()?.reported_versions.below(map, newest)
    }

    /// Takes one event, with the map as this manager has applied it.
    pub fn step(
        &mut self,
        now_ms: u64,
        event: PolicyEvent,
        map: &Topology,
        out: &mut Vec<PolicyEffect>,
    ) {
        match event {
            PolicyEvent::Elected { shortened_since_ms } => {
                let overheard = std::mem::take(&mut self.overheard);
                let manages = |server: &&ServerRecord| {
                    let is_there = matches!(server.state, ServerState::Up | ServerState::Down);
                    is_there && server.roles.contains(&ServerRole::Manager)
                };
                let managers = map.servers.values().filter(manages).count();
                self.leading = Some(Leading {
                    healths: Healths::new(now_ms, &overheard, managers),
                    leases: Leases::new(now_ms, shortened_since_ms),
                    proposals: BTreeMap::new(),
                    under_way: BTreeSet::new(),
                    told_members: BTreeMap::new(),
                    caught_up: BTreeMap::new(),
                    moving: BTreeSet::new(),
                    leads: BTreeMap::new(),
                    targets: Targets::default(),
                    of_groups: VolumesByGroup::default(),
                    wants_lv: BTreeMap::new(),
                    created: BTreeMap::new(),
                    unmade: BTreeSet::new(),
                    unmade_since_ms: BTreeMap::new(),
                    making_since_ms: BTreeMap::new(),
                    added: BTreeMap::new(),
                    mistaken: BTreeMap::new(),
                    vacates: BTreeMap::new(),
                    emptied: BTreeMap::new(),
                    no_room: BTreeMap::new(),
                    unmade_on: BTreeMap::new(),
                    planned_lvs_ms: now_ms,
                    balanced_ms: now_ms,
                    balanced_to: 0,
                    disks_before: map.next.disk,
                    data_up_before: data_up(map),
                    marks: Marks::default(),
                    copies: Copies::new(now_ms),
                    reported_versions: ReportedVersions::default(),
                    partition_reports: PartitionReports::default(),
                    rest: None,
                    looks: 0,
                });
                return;
            }
            PolicyEvent::Deposed => {
                self.leading = None;
                return;
            }
            _ => {}
        }
        let (Some(leading), tickets) = (&mut self.leading, &mut self.tickets) else {
            if let PolicyEvent::FollowerHeartbeats(server) = event
                && map.servers.contains_key(&server)
            {
                self.overheard.insert(server, now_ms);
            }
            return;
        };
        if map.founded.is_none() {
            return;
        }
        leading.of_groups.follow(map);
        let mut turn = StepContext {
            now_ms,
            map,
            leading,
            tickets,
            moves_volumes: self.moves_volumes,
            planted: self.planted,
            out,
        };
        if ends_quiescence(&event) {
            turn.leading.rest = None;
        }
        match event {
            PolicyEvent::From(server, message) => turn.receive(server, message),
            PolicyEvent::Decided(ticket, applied) => turn.decided(ticket, applied),
            PolicyEvent::Confirmed(ticket) => turn.confirmed(ticket),
            PolicyEvent::VersionReported(server, boot, version) => {
                turn.record_version(server, boot, version)
            }
            PolicyEvent::Tick => turn.tick(),
            // It leads since: what the server says comes by way of others too.
            PolicyEvent::FollowerHeartbeats(_) => {}
            PolicyEvent::NotGranted => turn.leading.leases.do_not_wait(),
            PolicyEvent::Elected { .. } | PolicyEvent::Deposed => unreachable!("handled above"),
        }
    }
}

impl StepContext<'_> {
    fn ticket(&mut self) -> Ticket {
        *self.tickets += 1;
        Ticket(*self.tickets)
    }

    fn tell(&mut self, server: ServerId, message: ManagerMessage) {
        self.out.push(PolicyEffect::Tell(server, message));
    }

    fn is_under_way(&self, subject: Subject) -> bool {
        self.leading.under_way.contains(&subject)
    }

    /// A primary says that its view is active.
    fn activate(&mut self, (server, boot): (ServerId, BootId), pg: PgId, view: View) {
        let runs = self.map.servers.get(&server).is_some_and(|record| record.boot == boot);
        let is_active = self.map.pg(pg).is_none_or(PgRecord::is_active);
        if runs && !is_active && self.leads(server, pg, view) {
            self.propose(Subject::Pg(pg), Command::ViewActivated(pg, view));
        }
    }

    /// Proposes, unless something about the subject is under way or too much in all; it is tried again at the next
    /// occasion.
    fn propose(&mut self, subject: Subject, command: Command) {
        if self.leading.proposals.len() >= POLICY_PROPOSALS_MAX
            || !self.leading.under_way.insert(subject)
        {
            return;
        }
        let ticket = self.ticket();
        self.leading.proposals.insert(ticket, subject);
        self.out.push(PolicyEffect::Propose(ticket, command));
    }

    fn decided(&mut self, ticket: Ticket, applied: Option<Applied>) {
        let Some(subject) = self.leading.proposals.remove(&ticket) else { return };
        self.leading.under_way.remove(&subject);
        match (subject, applied) {
            (_, None | Some(Err(_))) => {}
            (Subject::Pg(pg), Some(Ok(_))) => {
                self.send_view(pg);
                self.decide_group(pg);
            }
            (_, Some(Ok(Outcome::Lv(lv)))) => self.make_pvs(lv),
            (Subject::Lv(lv), Some(Ok(outcome))) => {
                let is_made = |index: &u8| {
                    self.leading.created.get(&lv).is_some_and(|created| created.contains(index))
                };
                if let Outcome::Replica(_, index) = outcome {
                    self.leading.added.insert((lv, index), self.map.version);
                    if !is_made(&index) {
                        self.leading.unmade.insert((lv, index));
                    }
                }
                self.lv_changed(lv);
            }
            (Subject::Session(session), Some(Ok(_)))
                if !self.map.sessions.contains_key(&session) =>
            {
                let meta = self.servers(ServerRole::Meta);
                meta.for_each(|s| self.tell(s, ManagerMessage::SessionClosed(session)));
            }
            _ => {}
        }
    }

    /// Servers that are up with this role.
    fn servers(&self, role: ServerRole) -> impl Iterator<Item = ServerId> + use<> {
        let up = |s: &&ServerRecord| s.state == ServerState::Up;
        let map = self.map.servers.iter().filter(|(_, s)| up(s) && s.roles.contains(&role));
        map.map(|(server, _)| *server).collect::<Vec<_>>().into_iter()
    }

    fn receive(&mut self, server: ServerId, message: ServerMessage) {
        let Some(record) = self.map.servers.get(&server) else { return };
        if record.state == ServerState::Removed {
            return;
        }
        if message.boot().is_some_and(|boot| record.ended.contains(&boot)) {
            // It is late, or its server has yet to see that another run is in its place.
            return;
        }
        let known = record.boot;
        match message {
            ServerMessage::Started(boot, addresses, has) => {
                if boot == known || self.map.cluster_version < START_AFTER_VERSION {
                    self.started(server, (boot, addresses, has));
                }
            }
            ServerMessage::StartedAfter { before, boot, addresses, has } => {
                // Else it is late, or its server has yet to hear of the run that the map names.
                if [boot, before].contains(&known) {
                    self.started(server, (boot, addresses, has));
                }
            }
            ServerMessage::Heartbeat(boot) => self.heartbeat(server, boot),
            ServerMessage::Renew { boot, sent_ms, led } => {
                self.heartbeat(server, boot);
                self.renew(server, boot, sent_ms, &led);
                // A change that a manager before agreed on, or could not while another was under way, may not have come
                // about.
                for (pg, view) in led {
                    self.activate((server, boot), pg, view);
                }
            }
            ServerMessage::Told(boot, pg, view) => self.view_acknowledged(server, boot, pg, view),
            ServerMessage::Active(boot, pg, view) => {
                if boot == known && self.leads(server, pg, view) {
                    self.activate((server, boot), pg, view);
                    self.send_volumes(pg);
                }
            }
            ServerMessage::CaughtUp(pg, view, learner) => {
                if self.leads(server, pg, view) {
                    self.leading.caught_up.insert((pg, learner), view);
                    self.decide_group(pg);
                }
            }
            ServerMessage::NeedLv(pg, view, has) => {
                if self.leads(server, pg, view) {
                    self.need_lv(pg, server, has);
                }
            }
            ServerMessage::Created(lv, replica, disk, pv) => {
                self.pv_created(lv, replica, (server, disk, pv));
            }
            ServerMessage::Rebuilt(lv, replica, disk) => self.rebuilt(server, lv, replica, disk),
            ServerMessage::Vacated(lv, replica, view, order) => {
                self.vacated(server, (lv, replica), view, order);
            }
            ServerMessage::SessionBegun(boot, session) => {
                // Of a server that is down it would be closed at the next look, and never be open again.
                if boot == known
                    && record.state == ServerState::Up
                    && !self.is_under_way(Subject::Server(server))
                {
                    let command = Command::OpenSession(session, server, boot);
                    self.propose(Subject::Session(session), command);
                }
            }
            ServerMessage::NoRoom(boot, disk) => {
                if boot == known && record.disks.contains_key(&disk) {
                    self.leading.no_room.insert(disk, self.now_ms);
                }
            }
            ServerMessage::Lacks(boot, pg, view) => {
                if boot == known {
                    self.lacks(server, pg, view);
                }
            }
            ServerMessage::Copies { boot, sent_ms, need } => {
                if boot == known {
                    self.needs_copies((server, boot), sent_ms, need);
                }
            }
            ServerMessage::Unheard(boot, pg, view, members) => {
                if boot == known && self.leads(server, pg, view) {
                    self.unheard(pg, view, members);
                }
            }
        }
    }

    /// A run says that it has begun, and may be named.
    fn started(&mut self, server: ServerId, (boot, addresses, has): RunStart) {
        self.leading.healths.note_heartbeat(server, boot, self.now_ms);
        let record = &self.map.servers[&server];
        if (record.boot, record.state) != (boot, ServerState::Up) || record.addresses != addresses {
            let command = Command::ServerStarted(server, boot, addresses, has);
            self.propose(Subject::Server(server), command);
        }
    }

    fn heartbeat(&mut self, server: ServerId, boot: larder_types::BootId) {
        self.leading.healths.note_heartbeat(server, boot, self.now_ms);
        let record = &self.map.servers[&server];
        if record.boot != boot || record.state != ServerState::Up {
            self.tell(server, ManagerMessage::WhoAreYou);
        }
    }

    /// Returns true if a server leads a PG in its present view.
    fn leads(&self, server: ServerId, pg: PgId, view: View) -> bool {
        let record = self.map.pg(pg).filter(|record| record.view == view);
        record.is_some_and(|record| record.members.first() == Some(&server))
    }

    pub(super) fn leads_lv(&self, server: ServerId, lv: LvId) -> bool {
        let pg = self.map.lv(lv).and_then(|lv| self.map.pg(lv.pg));
        pg.is_some_and(|pg| pg.members.first() == Some(&server))
    }

    fn tick(&mut self) {
        self.leading.healths.look(self.now_ms);
        self.ask();
        self.check_servers();
        self.leading.partition_reports.forget_old(self.now_ms);
        self.check_groups();
        // A disk that joins may be what puts wait for.
        let joined = std::mem::replace(&mut self.leading.disks_before, self.map.next.disk);
        let is_due = self.now_ms >= self.leading.planned_lvs_ms + LV_PLAN_MS;
        // Nothing lies on a disk that joined before its server runs.
        let up = data_up(self.map);
        let has_come = up > std::mem::replace(&mut self.leading.data_up_before, up);
        let has_joined = has_come || joined != self.map.next.disk;
        if has_joined {
            self.leading.balanced_ms = self.now_ms.saturating_sub(LV_PLAN_MS);
        }
        if is_due || has_joined {
            self.leading.planned_lvs_ms = self.now_ms;
            self.plan_lvs();
            self.lift_marks();
            self.raise_cluster_version();
        }
    }

    /// Decides what is due for the groups and their volumes.
    fn decide_groups(&mut self) {
        self.set_targets();
        self.balance();
        self.count_moves();
        for pg in (0..self.map.pgs.len() as u32).map(PgId) {
            self.decide_group(pg);
            self.send_view(pg);
        }
        self.make_missing_pvs();
    }

    /// Has servers that are silent taken for down, and closes the sessions of proxies that have been down for long: one that
    /// only stood still finds its session again.
    fn check_servers(&mut self) {
        let is_followed = self.leading.leases.is_followed(self.now_ms);
        for (&server, record) in &self.map.servers {
            let healths = &mut self.leading.healths;
            match record.state {
                ServerState::Up if is_followed && healths.is_silent(server, self.now_ms) => {
                    healths.down(server, self.now_ms);
                    let command = Command::ServerDown(server, record.boot);
                    self.propose(Subject::Server(server), command);
                }
                ServerState::Down => {
                    healths.down(server, self.now_ms);
                    if is_followed && healths.is_down_for(server, SESSION_KEPT_MS, self.now_ms) {
                        self.close_sessions(server);
                    }
                }
                _ => {}
            }
        }
    }

    fn close_sessions(&mut self, server: ServerId) {
        let own = self.map.sessions.iter().filter(|(_, session)| session.server == server);
        for session in own.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.propose(Subject::Session(session), Command::CloseSession(session));
        }
    }

    /// Returns how far a server counts for what is new.
    fn placement_state(&self, server: ServerId) -> PlacementState {
        let Some(record) = self.map.servers.get(&server) else { return PlacementState::Out };
        let healths = &self.leading.healths;
        match record.state {
            ServerState::Joining | ServerState::Removed => PlacementState::Out,
            _ if record.draining || healths.is_lost(server, self.now_ms) => PlacementState::Out,
            ServerState::Down => PlacementState::Away,
            ServerState::Up if healths.is_settled(server, self.now_ms) => PlacementState::In,
            ServerState::Up => PlacementState::Away,
        }
    }
}

/// Data servers that are up.
fn data_up(map: &Topology) -> usize {
    let data = map.servers.values().filter(|server| server.roles.contains(&ServerRole::Data));
    data.filter(|server| server.state == ServerState::Up).count()
}

#[cfg(test)]
mod tests;
