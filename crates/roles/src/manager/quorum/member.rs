//! One manager without its connections: the quorum's state machine, the map that its log makes, and the policy,
//! which acts only while this manager leads.
//!
//! ```text
//!  peer, hear, propose, tick ─▶ Quorum ─Apply─▶ Topology ─▶ Policy ─▶ Tell
//!                                 ▲ │ └─ Send, Answer           │
//!                        write ───┘ └─▶ disk                    │
//!                                 ▲ Propose, Confirm            │
//!                                 └─────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. All inputs since the last [`Member::write`] share one write of the disk. Effects that depend on it leave
//!    afterwards.
//! 2. The policy sees the map as of the entry whose effect is being carried out.
//! 3. A snapshot has the map with all entries that were applied before it.
//! 4. From the cluster's version [`PROTOCOL_TIMELINES`] on, a manager that leads proposes nothing before its timeline.

use std::collections::{BTreeMap, VecDeque};

use larder_env::rng::unique_u64;
use larder_net::limits::PROTOCOL_MAX;
use larder_protocol::manager::balance::moving_volumes;
use larder_protocol::manager::policy::{
    ManagerMessage, Policy, PolicyEffect, PolicyEvent, ServerMessage,
};
use larder_protocol::manager::quorum::{
    LogIndex, LogWrite, MemberChange, ProposalEnd, Quorum, QuorumEffect, QuorumEvent,
    QuorumMessage, Ticket,
};
use larder_protocol::manager::state::{Applied, Command, MapVersion, ServerState, Topology};
use larder_types::codec::{decode, encode};
use larder_types::{BootId, ServerId};

use super::committed::CommittedQuestions;
use super::counts::{ManagerStatus, QuorumStatus};
use super::disk::{PATH, QuorumDisk};
use super::error::ManagerError;
use super::membership::next_change;
use super::releases::{Releases, check_commands};
use super::routes::ServerRoutes;
use crate::limits::{COLOCATED_MAX, PROTOCOL_CLUSTER_VERSION, PROTOCOL_TIMELINES};
use crate::planted::{Bug, has};
use crate::wire::{Beat, ManagerReply};

/// An effect for the driver to carry out. `A` is the asker that waits for the outcome of a proposal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MemberEffect<A> {
    /// Send to another manager; may be lost.
    Send(ServerId, QuorumMessage),
    /// Send to a server; may be lost.
    Tell(ServerId, ManagerMessage),
    /// Forward a message of this server (the second id) to the manager that leads; may be lost.
    HandOn(ServerId, ServerId, ServerMessage),
    /// Have another manager forward a message to a server (the second id); may be lost.
    HandBack(ServerId, ServerId, ManagerMessage),
    /// Answer a proposal, or a question for the committed version.
    Answer(A, ManagerReply),
}

/// The proposer of a command, which gets the outcome.
enum Proposer<A> {
    Requester(A),
    Policy(Ticket),
    /// A change of the managers, which is decided anew at each tick.
    Membership(MemberChange),
    /// The leader, for its timeline.
    Timeline,
}

/// One manager without its connections.
pub(super) struct Member<A> {
    me: ServerId,
    now_ms: u64,
    quorum: Quorum,
    policy: Policy,
    server_routes: ServerRoutes,
    releases: Releases,
    map: Topology,
    /// End of the log when this run began.
    began_with: LogIndex,
    disk: QuorumDisk,
    /// The write that is due. The quorum asks for no other before this is done.
    unwritten: Option<(u64, LogWrite)>,
    /// The events that the quorum is to take next.
    events: VecDeque<QuorumEvent>,
    tickets: u64,
    proposers: BTreeMap<Ticket, Proposer<A>>,
    committed_questions: CommittedQuestions<A>,
    /// The outcome of the command that was applied last.
    latest: Option<(LogIndex, Applied)>,
    /// A snapshot is due once all effects of the step are carried out.
    snapshot_due: bool,
    /// A change of the managers is under way.
    changing: bool,
    /// The quorum was too busy to take the timeline, which is proposed again.
    timeline_due: bool,
    /// Writes of the log.
    writes: u64,
    /// The number of volumes that move, in this version of the map.
    moving: (MapVersion, u64),
    out: Vec<MemberEffect<A>>,
}

impl<A> Member<A> {
    /// The first manager of a new cluster, alone. `seed` decides election timeouts.
    pub(super) fn found(
        me: ServerId,
        disk: QuorumDisk,
        seed: u64,
        now_ms: u64,
    ) -> Result<Self, ManagerError> {
        let mut effects = Vec::new();
        let quorum = Quorum::found(me, &[me], seed, now_ms, &mut effects);
        Self::begin(me, quorum, disk, now_ms, effects)
    }

    /// A manager with the log on its disk. `seed` decides election timeouts. If the disk is empty it waits until a leader sends
    /// it the log.
    pub(super) fn restore(
        me: ServerId,
        disk: QuorumDisk,
        seed: u64,
        now_ms: u64,
    ) -> Result<Self, ManagerError> {
        let mut effects = Vec::new();
        let quorum = Quorum::restore(me, disk.stored().clone(), seed, now_ms, &mut effects);
        Self::begin(me, quorum, disk, now_ms, effects)
    }

    fn begin(
        me: ServerId,
        quorum: Quorum,
        disk: QuorumDisk,
        now_ms: u64,
        effects: Vec<QuorumEffect>,
    ) -> Result<Self, ManagerError> {
        let mut member = Self {
            me,
            now_ms,
            began_with: quorum.last().index,
            quorum,
            policy: Policy::default(),
            server_routes: ServerRoutes::default(),
            releases: Releases::default(),
            map: Topology::default(),
            disk,
            unwritten: None,
            events: VecDeque::new(),
            tickets: 0,
            proposers: BTreeMap::new(),
            committed_questions: CommittedQuestions::default(),
            latest: None,
            snapshot_due: false,
            changing: false,
            timeline_due: false,
            writes: 0,
            moving: (MapVersion(0), 0),
            out: Vec::new(),
        };
        member.perform(effects)?;
        member.settle()?;
        Ok(member)
    }

    /// The map of all entries that were applied here.
    pub(super) fn map(&self) -> &Topology {
        &self.map
    }

    /// Returns true if the map has all entries that the log had when this run began. Until then it may be older than a map that
    /// the last run showed.
    pub(super) fn is_current(&self) -> bool {
        self.quorum.applied() >= self.began_with
    }

    /// Returns true if this manager leads.
    pub(super) fn leads(&self) -> bool {
        self.quorum.leads()
    }

    /// See [`Quorum::is_led`].
    pub(super) fn is_led(&self) -> bool {
        self.quorum.is_led()
    }

    /// Its knowledge of the quorum.
    pub(super) fn quorum_status(&self) -> QuorumStatus {
        let (leads, leader) = (self.leads(), self.quorum.leader());
        QuorumStatus { leads, leader, members: self.quorum.members() }
    }

    /// Its state, for metrics.
    pub(super) fn status(&mut self) -> ManagerStatus {
        // Counting looks at all volumes: it is done once for each map.
        if self.moving.0 != self.map.version {
            self.moving = (self.map.version, moving_volumes(&self.map) as u64);
        }
        ManagerStatus {
            leads: self.leads(),
            has_leader: self.quorum.is_led(),
            voters: self.quorum.members().voters.len(),
            term: self.quorum.term().0,
            log_last: self.quorum.last().index.0,
            log_applied: self.quorum.applied().0,
            map_version: self.map.version.0,
            cluster_version: self.map.cluster_version,
            moving: self.moving.1,
            balance_paused: self.map.balance_paused_ms.is_some(),
            writes: self.writes,
        }
    }

    /// Sets the clock, in milliseconds; it never goes back.
    pub(super) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// Acts on the time that has passed.
    pub(super) fn tick(&mut self) -> Result<(), ManagerError> {
        self.take(QuorumEvent::Tick)?;
        if !self.is_led() {
            self.give_up_questions();
        }
        if std::mem::take(&mut self.timeline_due) && self.leads() {
            self.begin_timeline();
        }
        let (members, now) = (self.quorum.members(), (self.now_ms, self.leads()));
        self.policy.let_volumes_move(self.releases.may_balance(self.me, &members, now));
        self.check_versions();
        self.consider(PolicyEvent::Tick);
        self.consider_members();
        self.settle()
    }

    /// Notes that a manager speaks this version of the protocol.
    pub(super) fn note_version(&mut self, manager: ServerId, version: u8) {
        self.releases.note_version(manager, version);
    }

    /// Notes that a run of a server speaks this version of the protocol with this manager. If its release does not know the
    /// cluster's version, that must not be raised: managers of that release could not read their log.
    pub(super) fn note_server_version(&mut self, server: ServerId, boot: BootId, version: u8) {
        if self.leads() {
            let version = if version < PROTOCOL_CLUSTER_VERSION { 0 } else { version };
            self.consider(PolicyEvent::VersionReported(server, boot, version));
        }
    }

    /// While this manager leads, notes its own version, and the server that keeps the cluster's version below it.
    fn check_versions(&mut self) {
        if !self.leads() {
            return self.releases.holds_back(None, self.now_ms);
        }
        if let Some(record) = self.map.servers.get(&self.me) {
            self.consider(PolicyEvent::VersionReported(self.me, record.boot, PROTOCOL_MAX));
        }
        let holds_back = self.policy.held_back_by(&self.map, PROTOCOL_MAX);
        self.releases.holds_back(holds_back, self.now_ms);
    }

    /// Takes a message of another manager; refuses one that this release cannot handle.
    pub(super) fn peer(&mut self, from: ServerId, said: QuorumMessage) -> Result<(), ManagerError> {
        if let Err(why) = self.quorum.admits(&said).and_then(|()| check_commands(&said)) {
            tracing::error!(%from, %why, "refused a manager's message: do all managers run one release?");
            return Ok(());
        }
        self.take(QuorumEvent::Peer(from, said))
    }

    /// Takes a message of a server, which came from the server itself or was forwarded by a manager (`by`). Forwards to the
    /// leader only messages from the server itself, so that none circulates between managers that take each other for the
    /// leader.
    pub(super) fn receive(
        &mut self,
        from: ServerId,
        said: ServerMessage,
        by: Option<ServerId>,
    ) -> Result<(), ManagerError> {
        if self.leads() {
            if self.map.servers.contains_key(&from) {
                self.server_routes.note_route(from, by, self.now_ms);
            }
            self.consider(PolicyEvent::From(from, said));
            return self.settle();
        }
        self.consider(PolicyEvent::FollowerHeartbeats(from));
        if by.is_none()
            && let Some(leader) = self.quorum.leader().filter(|leader| *leader != self.me)
        {
            self.out.push(MemberEffect::HandOn(leader, from, said));
        }
        Ok(())
    }

    /// Takes the beat of a meta server as a message of each server that it covers. A beat that the leader gets directly
    /// is not forwarded to it.
    pub(super) fn beat(
        &mut self,
        from: ServerId,
        version: u8,
        beat: Beat,
    ) -> Result<(), ManagerError> {
        let Beat { boot, sent_ms, led, heard_by, mut beside } = beat;
        beside.truncate(COLOCATED_MAX);
        beside.retain(|(server, _)| *server != from && self.is_beside(from, *server));
        if !self.leads() && heard_by.is_some() && heard_by == self.quorum.leader() {
            let others = beside.into_iter().map(|(server, _)| server);
            others.chain([from]).for_each(|it| self.consider(PolicyEvent::FollowerHeartbeats(it)));
            return Ok(());
        }
        self.note_server_version(from, boot, version);
        if heard_by.is_none() {
            self.consider(PolicyEvent::NotGranted);
        }
        self.receive(from, ServerMessage::Renew { boot, sent_ms, led }, None)?;
        for (server, boot) in beside {
            self.note_server_version(server, boot, version);
            self.receive(server, ServerMessage::Heartbeat(boot), None)?;
        }
        Ok(())
    }

    /// Returns true if two servers listen at the same address, so that they are of one process.
    fn is_beside(&self, server: ServerId, other: ServerId) -> bool {
        let known = |server| self.map.servers.get(&server);
        let (Some(server), Some(other)) = (known(server), known(other)) else { return false };
        let is_there = other.state != ServerState::Removed;
        is_there && !server.addresses.is_empty() && server.addresses == other.addresses
    }

    /// Proposes a command. The asker gets the outcome.
    pub(super) fn propose(&mut self, command: &Command, requester: A) -> Result<(), ManagerError> {
        if let Some(older) = self.held_up_by(command) {
            self.out.push(MemberEffect::Answer(requester, ManagerReply::OlderManager(older)));
            return Ok(());
        }
        let ticket = match has(Bug::AnswersUnagreed) && self.leads() {
            true => self.answer_unagreed(command, requester),
            false => self.ticket(Proposer::Requester(requester)),
        };
        self.take(QuorumEvent::Propose(ticket, encode(command).into()))
    }

    /// Tells the version of the map that has every command that was answered before, if this manager leads.
    pub(super) fn ask_committed(&mut self, requester: A) -> Result<(), ManagerError> {
        let answer = match self.leads() && self.is_led() {
            true => self.committed_questions.ask(requester).map_err(|it| (it, ManagerReply::Busy)),
            false => Err((requester, self.not_leader())),
        };
        self.out.extend(answer.err().map(|(it, reply)| MemberEffect::Answer(it, reply)));
        self.begin_confirmation();
        self.settle()
    }

    fn begin_confirmation(&mut self) {
        if let Some(ticket) = self.committed_questions.begin(self.map.version) {
            self.events.push_back(QuorumEvent::Confirm(ticket));
        }
    }

    /// A majority follows this manager since the question of this ticket.
    fn confirmed(&mut self, ticket: Ticket) {
        let Some((version, askers)) = self.committed_questions.confirmed(ticket) else {
            return self.consider(PolicyEvent::Confirmed(ticket));
        };
        assert!(self.map.version >= version, "the map never goes back");
        let answer = |asker| MemberEffect::Answer(asker, ManagerReply::Committed(version));
        self.out.extend(askers.into_iter().map(answer));
        self.begin_confirmation();
    }

    fn give_up_questions(&mut self) {
        let reply = self.not_leader();
        let askers = self.committed_questions.give_up().into_iter();
        self.out.extend(askers.map(|asker| MemberEffect::Answer(asker, reply.clone())));
    }

    /// The answer of a manager that does not lead.
    fn not_leader(&self) -> ManagerReply {
        match self.is_led() {
            true => {
                ManagerReply::NotLeader(self.quorum.leader().filter(|leader| *leader != self.me))
            }
            false => ManagerReply::NoQuorum,
        }
    }

    /// See [`Bug::AnswersUnagreed`].
    fn answer_unagreed(&mut self, command: &Command, requester: A) -> Ticket {
        let mut map = self.map.clone();
        let applied = map.apply(LogIndex(map.applied.0 + 1), command.clone());
        self.out.push(MemberEffect::Answer(requester, ManagerReply::Applied(applied)));
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Carries out the write that is due, and those that follow from it.
    pub(super) fn write(&mut self) -> Result<(), ManagerError> {
        while let Some((number, write)) = self.unwritten.take() {
            self.disk.write(write)?;
            self.writes += 1;
            self.take(QuorumEvent::Persisted(number))?;
        }
        Ok(())
    }

    /// Drains the effects, in the order in which they are to be carried out.
    pub(super) fn effects(&mut self) -> std::vec::Drain<'_, MemberEffect<A>> {
        self.out.drain(..)
    }

    /// While this manager leads, a voter that may not know a command. It would refuse the command and all entries after it for
    /// ever.
    fn held_up_by(&mut self, command: &Command) -> Option<ServerId> {
        let members = self.leads().then(|| self.quorum.members())?;
        self.releases.held_up_by(self.me, &members, command)
    }

    fn ticket(&mut self, proposer: Proposer<A>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.proposers.insert(ticket, proposer);
        ticket
    }

    fn take(&mut self, event: QuorumEvent) -> Result<(), ManagerError> {
        self.events.push_back(event);
        self.settle()
    }

    /// Has the quorum take its events, and those that follow from them.
    fn settle(&mut self) -> Result<(), ManagerError> {
        while let Some(event) = self.events.pop_front() {
            let mut effects = Vec::new();
            self.quorum.step(self.now_ms, event, &mut effects);
            self.perform(effects)?;
        }
        Ok(())
    }

    fn perform(&mut self, effects: Vec<QuorumEffect>) -> Result<(), ManagerError> {
        for effect in effects {
            match effect {
                QuorumEffect::Persist(number, write) => {
                    let before = self.unwritten.replace((number, write));
                    assert!(before.is_none(), "one write at a time");
                }
                QuorumEffect::Send(to, message) => {
                    self.out.push(MemberEffect::Send(to, message));
                }
                QuorumEffect::Apply(index, command) => {
                    let command: Command = decode("a command of the managers", &command)
                        .map_err(|error| ManagerError::Unreadable(error.to_string()))?;
                    let logged = tracing::enabled!(tracing::Level::DEBUG).then(|| command.clone());
                    let before = self.map.cluster_version;
                    let applied = self.map.apply(index, command);
                    let version = self.map.cluster_version;
                    if version > before {
                        tracing::info!(version, before, "the cluster's version was raised");
                        if before < PROTOCOL_TIMELINES && self.leads() {
                            self.begin_timeline();
                        }
                    }
                    if let Some(command) = logged {
                        tracing::debug!(
                            index = index.0,
                            ?command,
                            ?applied,
                            "the managers committed a command"
                        );
                    }
                    self.latest = Some((index, applied));
                }
                QuorumEffect::Restore(_, state) => self.restore_map(&state)?,
                QuorumEffect::TakeSnapshot => self.snapshot_due = true,
                QuorumEffect::Elected { term, shortened_since_ms } => {
                    tracing::info!(term = term.0, "this manager is the leader");
                    self.server_routes.clear();
                    self.begin_timeline();
                    self.consider(PolicyEvent::Elected { shortened_since_ms });
                }
                QuorumEffect::Deposed(term) => {
                    tracing::info!(term = term.0, "this manager is no longer the leader");
                    self.give_up_questions();
                    self.consider(PolicyEvent::Deposed);
                }
                QuorumEffect::Decided(ticket, end) => self.decided(ticket, end),
                QuorumEffect::Confirmed(ticket) => self.confirmed(ticket),
                QuorumEffect::Halt(why) => return Err(ManagerError::Halted(why)),
            }
        }
        if std::mem::take(&mut self.snapshot_due) {
            let state = self.map.encode().into();
            self.events.push_back(QuorumEvent::Snapshot(self.quorum.applied(), state));
        }
        Ok(())
    }

    fn restore_map(&mut self, state: &[u8]) -> Result<(), ManagerError> {
        let map: Topology =
            Topology::decode(state).map_err(|error| ManagerError::Unreadable(error.to_string()))?;
        if let Some(why) = map.contradiction() {
            return Err(ManagerError::Unusable { file: PATH, why });
        }
        self.map = map;
        Ok(())
    }

    /// Gives the policy an event. The commands that it proposes wait for [`Member::settle`].
    fn consider(&mut self, event: PolicyEvent) {
        let mut effects = Vec::new();
        self.policy.step(self.now_ms, event, &self.map, &mut effects);
        for effect in effects {
            let event = match effect {
                PolicyEffect::Propose(ticket, command) => {
                    if !self.quorum.is_answered() || self.held_up_by(&command).is_some() {
                        self.consider(PolicyEvent::Decided(ticket, None));
                        continue;
                    }
                    let ticket = self.ticket(Proposer::Policy(ticket));
                    QuorumEvent::Propose(ticket, encode(&command).into())
                }
                PolicyEffect::Confirm(ticket) if has(Bug::ConfirmsItself) => {
                    self.consider(PolicyEvent::Confirmed(ticket));
                    continue;
                }
                PolicyEffect::Confirm(ticket) => QuorumEvent::Confirm(ticket),
                PolicyEffect::Tell(server, message) => {
                    if let Some(by) = self.server_routes.around(server, self.now_ms) {
                        let message = message.clone();
                        self.out.push(MemberEffect::HandBack(by, server, message));
                    }
                    self.out.push(MemberEffect::Tell(server, message));
                    continue;
                }
            };
            self.events.push_back(event);
        }
    }

    /// Proposes the leader's timeline, before any command of the policy.
    fn begin_timeline(&mut self) {
        if self.map.cluster_version >= PROTOCOL_TIMELINES {
            let ticket = self.ticket(Proposer::Timeline);
            let command = encode(&Command::BeginTimeline(unique_u64()));
            self.events.push_back(QuorumEvent::Propose(ticket, command.into()));
        }
    }

    fn consider_members(&mut self) {
        if self.changing || !self.leads() {
            return;
        }
        if let Some(change) = next_change(&self.map, &self.quorum.members()) {
            self.changing = true;
            let ticket = self.ticket(Proposer::Membership(change));
            self.events.push_back(QuorumEvent::ChangeMembers(ticket, change));
        }
    }

    fn decided(&mut self, ticket: Ticket, end: ProposalEnd) {
        let Some(proposer) = self.proposers.remove(&ticket) else { return };
        let applied = match end {
            ProposalEnd::Applied(at) => {
                self.latest.as_ref().filter(|latest| latest.0 == at).map(|latest| latest.1.clone())
            }
            _ => None,
        };
        match proposer {
            Proposer::Membership(change) => {
                self.changing = false;
                if matches!(end, ProposalEnd::Applied(_)) {
                    tracing::info!(?change, "the managers have changed");
                }
            }
            // It still leads, and was too busy.
            Proposer::Timeline if end == ProposalEnd::Busy => self.timeline_due = true,
            Proposer::Timeline => {}
            Proposer::Policy(ticket) => self.consider(PolicyEvent::Decided(ticket, applied)),
            Proposer::Requester(requester) => {
                let reply = match (end, applied) {
                    (ProposalEnd::Applied(_), Some(applied)) => ManagerReply::Applied(applied),
                    (ProposalEnd::Busy, _) => ManagerReply::Busy,
                    (ProposalEnd::NotLeader | ProposalEnd::Lost, _) => {
                        let leader = self.quorum.leader().filter(|leader| *leader != self.me);
                        ManagerReply::NotLeader(leader)
                    }
                    _ => ManagerReply::Unknown,
                };
                self.out.push(MemberEffect::Answer(requester, reply));
            }
        }
    }
}
