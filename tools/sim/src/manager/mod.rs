//! A manager: quorum, map and policy, with the thin driver that a real one has too.
//!
//! ```text
//!  other managers ◀──▶ Quorum ──Apply──▶ Topology ──▶ maps, to whoever asks
//!                        ▲ │                 │
//!                 Propose│ │Elected, Decided ▼
//!                        │ └───────────▶ Policy ◀──▶ servers
//! ```
//!
//! # Invariants
//!
//! 1. The quorum's effects are carried out in the order in which they came, those of a step made meanwhile behind them.
//! 2. A write is told to be persisted when it is synced, not before.
//! 3. A server's message is handed on at most once, so that managers who take each other for the leader do not
//!    hand it round.

mod disk;
mod founding;
mod news;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::limits::HEARTBEAT_MS;
use larder_protocol::manager::policy::{Policy, PolicyEffect, PolicyEvent, ServerMessage};
use larder_protocol::manager::quorum::{
    LogIndex, LogWrite, ProposalEnd, Quorum, QuorumEffect, QuorumEvent, Ticket,
};
use larder_protocol::manager::state::{Applied, Command, MapVersion, Topology};
use larder_types::ServerId;
use larder_types::codec::{decode, encode};

use crate::agreed::Shared;
use crate::clock::MS;
use crate::event::{FromManagers, ManagerIn, NodeIn, ProxyIn, SimEvent, StoreIn};
use crate::net::Net;
use crate::servers::Server;
use crate::setup::Setup;
use crate::verdict::Finding;
use disk::ManagerDisk;
pub(crate) use founding::MEMBERS_MIN;

/// Between two ticks of the quorum.
const TICK_US: u64 = HEARTBEAT_MS * MS / 3;
/// Ticks of the quorum between two of the policy.
const TICKS_OF_POLICY: u64 = 4;
/// One in so many commands is followed by a snapshot, long before the log is long.
const SNAPSHOT_ONE_IN: u64 = 60;
/// Names what the founder proposes; the policy counts from 1.
const FOUNDING: Ticket = Ticket(u64::MAX);
/// Names what an operator proposes.
const OPERATOR: Ticket = Ticket(u64::MAX - 1);

/// A run of the manager.
struct Life {
    quorum: Quorum,
    policy: Policy,
    map: Topology,
    /// The map as it was last shown.
    shown: Arc<Topology>,
    /// The last command, and what it did.
    last: (LogIndex, Option<Applied>),
    todo: VecDeque<QuorumEffect>,
    writing: VecDeque<(u64, LogWrite)>,
    /// Servers that wait for a map newer than this.
    watchers: BTreeMap<ServerId, MapVersion>,
    is_founding: bool,
    ticks: u64,
}

/// A manager and its disk.
pub(crate) struct Manager {
    id: usize,
    me: ServerId,
    setup: Arc<Setup>,
    agreed: Shared,
    disk: ManagerDisk,
    run: u64,
    life: Option<Life>,
}

impl Manager {
    pub(crate) fn new(id: usize, setup: &Arc<Setup>, agreed: &Shared) -> Self {
        Self {
            id,
            me: setup.id_of(Server::Manager(id)),
            setup: setup.clone(),
            agreed: agreed.clone(),
            disk: ManagerDisk::default(),
            run: 0,
            life: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// True if it leads, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.quorum.leads())
    }

    /// The process is gone; some of what it was about to write may have been written.
    pub(crate) fn die(&mut self, net: &mut Net) {
        let Some(life) = self.life.take() else { return };
        let written = net.rng.below(life.writing.len() as u64 + 1) as usize;
        life.writing.iter().take(written).for_each(|(_, write)| self.disk.append(write));
    }

    /// Its machine lost power.
    pub(crate) fn lose_power(&mut self, net: &mut Net) {
        assert!(self.life.is_none(), "without power nothing runs");
        self.disk.crash(&mut net.rng);
    }

    /// Starts with what the disk has; the first start of all founds the quorum.
    pub(crate) fn start(&mut self, net: &mut Net) {
        assert!(self.life.is_none(), "a server runs once");
        self.run += 1;
        let (seed, now_ms) = (net.rng.next_u64(), self.now_ms(net));
        let mut out = Vec::new();
        let quorum = if self.id == 0 && self.disk.is_empty() {
            let managers = (0..self.setup.managers).map(Server::Manager);
            let voters: Vec<ServerId> = managers.map(|manager| self.setup.id_of(manager)).collect();
            Quorum::found(self.me, &voters, seed, now_ms, &mut out)
        } else {
            Quorum::restore(self.me, self.disk.read(), seed, now_ms, &mut out)
        };
        let mut policy = Policy::planted(self.setup.options.bugs.protocol);
        policy.let_volumes_move(true);
        self.life = Some(Life {
            quorum,
            policy,
            map: Topology::default(),
            shown: Arc::default(),
            last: (LogIndex(0), None),
            todo: out.into(),
            writing: VecDeque::new(),
            watchers: BTreeMap::new(),
            is_founding: false,
            ticks: 0,
        });
        self.go_on(net);
        net.after(TICK_US, (self.id, ManagerIn::Tick { run: self.run }));
    }

    fn now_ms(&self, net: &Net) -> u64 {
        self.setup.clock_ms(self.me, net.now_us())
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().expect("checked when the input came")
    }

    /// Takes what happens to it; what was meant for an earlier run is lost.
    pub(crate) fn handle(&mut self, input: ManagerIn, net: &mut Net) {
        if self.life.is_none() {
            return;
        }
        match input {
            ManagerIn::Quorum { from, message } => {
                self.step(QuorumEvent::Peer(from, message), net);
            }
            ManagerIn::Server { from, message, handed_on } => {
                self.hear(from, message, handed_on, net);
            }
            ManagerIn::AskMap { from, known } => {
                self.life().watchers.insert(from, known);
                self.show_map(net);
            }
            ManagerIn::Operator(command) => {
                self.step(QuorumEvent::Propose(OPERATOR, bytes_of(&command)), net);
            }
            ManagerIn::Written { run, write } if run == self.run => self.written(write, net),
            ManagerIn::Tick { run } if run == self.run => self.tick(net),
            ManagerIn::Written { .. } | ManagerIn::Tick { .. } => {}
        }
        self.go_on(net);
    }

    fn step(&mut self, event: QuorumEvent, net: &mut Net) {
        let now_ms = self.now_ms(net);
        let mut out = Vec::new();
        self.life().quorum.step(now_ms, event, &mut out);
        self.life().todo.extend(out);
    }

    /// Carries out what the quorum wants, until it wants nothing.
    fn go_on(&mut self, net: &mut Net) {
        while let Some(effect) = self.life().todo.pop_front() {
            self.perform(effect, net);
        }
    }

    fn perform(&mut self, effect: QuorumEffect, net: &mut Net) {
        match effect {
            QuorumEffect::Persist(number, write) => self.persist(number, write, net),
            QuorumEffect::Send(to, message) => {
                let from = self.me;
                if let Server::Manager(manager) = self.setup.server(to) {
                    net.send(
                        Server::Manager(self.id),
                        (manager, ManagerIn::Quorum { from, message }),
                    );
                }
            }
            QuorumEffect::Apply(index, command) => self.apply(index, &command, net),
            QuorumEffect::Restore(index, state) => {
                net.faults.add("maps restored", 1);
                let life = self.life();
                life.map = decode("map", &state).expect("a map as it was encoded");
                life.last = (index, None);
                self.changed(net);
            }
            QuorumEffect::TakeSnapshot => self.snapshot(net),
            QuorumEffect::Elected { term, shortened_since_ms } => {
                net.faults.add("managers elected", 1);
                net.tell(format_args!("manager {} leads in {term:?}", self.id));
                self.policy(PolicyEvent::Elected { shortened_since_ms }, net);
                self.found(net);
            }
            QuorumEffect::Deposed(term) => {
                net.tell(format_args!("manager {} does not lead in {term:?} any more", self.id));
                self.policy(PolicyEvent::Deposed, net);
            }
            QuorumEffect::Decided(FOUNDING, _) => {
                self.life().is_founding = false;
                self.found(net);
            }
            QuorumEffect::Decided(OPERATOR, _) => {}
            QuorumEffect::Decided(ticket, end) => {
                let (index, applied) = &self.life().last;
                let came = if end == ProposalEnd::Applied(*index) { applied.clone() } else { None };
                self.policy(PolicyEvent::Decided(ticket, came), net);
            }
            QuorumEffect::Confirmed(ticket) => self.policy(PolicyEvent::Confirmed(ticket), net),
            QuorumEffect::Halt(why) => net.find(Finding::Contradiction(why)),
        }
    }

    fn persist(&mut self, number: u64, write: LogWrite, net: &mut Net) {
        let slow = if net.rng.one_in(50) { 200 * MS } else { 2 * MS };
        let delay = 20 + net.rng.below(slow);
        net.after(delay, (self.id, ManagerIn::Written { run: self.run, write: number }));
        self.life().writing.push_back((number, write));
        if self.setup.options.bugs.driver.says_persisted_at_once() {
            self.step(QuorumEvent::Persisted(number), net);
        }
    }

    fn written(&mut self, number: u64, net: &mut Net) {
        while let Some((_, write)) =
            self.life().writing.pop_front_if(|(written, _)| *written <= number)
        {
            self.disk.append(&write);
        }
        self.disk.sync();
        self.step(QuorumEvent::Persisted(number), net);
    }

    fn apply(&mut self, index: LogIndex, bytes: &Bytes, net: &mut Net) {
        if let Err(wrong) = self.agreed.borrow_mut().applied(index, bytes) {
            net.find(Finding::Contradiction(wrong));
            return;
        }
        let command: Command = decode("command", bytes).expect("a command as it was encoded");
        let life = self.life();
        let version = life.map.version;
        let applied = life.map.apply(index, command.clone());
        let is_new = life.map.version > version;
        life.last = (index, Some(applied.clone()));
        net.say(format_args!("manager {} applies {command:?}: {applied:?}", self.id));
        if is_new {
            self.changed(net);
        }
        if net.rng.one_in(SNAPSHOT_ONE_IN) {
            self.snapshot(net);
        }
    }

    /// Shows a new map.
    fn changed(&mut self, net: &mut Net) {
        let life = self.life();
        life.shown = Arc::new(life.map.clone());
        let shown = life.shown.clone();
        let before = self.agreed.borrow().map.clone();
        if let Err(wrong) = self.agreed.borrow_mut().made(&shown) {
            net.find(Finding::Contradiction(wrong));
        }
        news::count(&before, &shown, net);
        news::tell(&before, &shown, &self.setup, net);
        news::delay_deposed(&self.setup, &before, &shown, net);
        self.show_map(net);
    }

    /// Answers those who wait for a newer map.
    fn show_map(&mut self, net: &mut Net) {
        let life = self.life();
        let map = life.shown.clone();
        let newer = life.watchers.extract_if(.., |_, known| *known < map.version);
        let receivers: Vec<ServerId> = newer.map(|(server, _)| server).collect();
        for server in receivers {
            self.send(server, FromManagers::Map(map.clone()), net);
        }
    }

    fn send(&self, to: ServerId, what: FromManagers, net: &mut Net) {
        let what: SimEvent = match self.setup.server(to) {
            Server::Node(node) => (node, NodeIn::Managers(what)).into(),
            Server::Store(store) => (store, StoreIn::Managers(what)).into(),
            Server::Proxy(proxy) => (proxy, ProxyIn::Managers(what)).into(),
            Server::Manager(_) => return,
        };
        net.send(Server::Manager(self.id), what);
    }

    fn snapshot(&mut self, net: &mut Net) {
        let life = self.life();
        let (index, state) = (life.last.0, encode(&life.map));
        self.step(QuorumEvent::Snapshot(index, state.into()), net);
    }

    fn policy(&mut self, event: PolicyEvent, net: &mut Net) {
        let now_ms = self.now_ms(net);
        let life = self.life();
        let mut out = Vec::new();
        life.policy.step(now_ms, event, &life.map, &mut out);
        for effect in out {
            match effect {
                PolicyEffect::Propose(ticket, command) => {
                    self.step(QuorumEvent::Propose(ticket, bytes_of(&command)), net);
                }
                PolicyEffect::Confirm(ticket) => self.step(QuorumEvent::Confirm(ticket), net),
                PolicyEffect::Tell(server, message) => {
                    self.send(server, FromManagers::Says(message), net);
                }
            }
        }
    }

    /// Takes a server's message to the leader.
    fn hear(&mut self, from: ServerId, message: ServerMessage, handed_on: bool, net: &mut Net) {
        let (id, me) = (self.id, self.me);
        let quorum = &self.life().quorum;
        if quorum.leads() {
            return self.policy(PolicyEvent::From(from, message), net);
        }
        let leader = quorum.leader().filter(|leader| *leader != me && !handed_on);
        self.policy(PolicyEvent::FollowerHeartbeats(from), net);
        if let Some(leader) = leader
            && let Server::Manager(manager) = self.setup.server(leader)
        {
            let input = ManagerIn::Server { from, message, handed_on: true };
            net.send(Server::Manager(id), (manager, input));
        }
    }

    fn tick(&mut self, net: &mut Net) {
        net.after(TICK_US, (self.id, ManagerIn::Tick { run: self.run }));
        self.step(QuorumEvent::Tick, net);
        self.life().ticks += 1;
        if self.life().ticks.is_multiple_of(TICKS_OF_POLICY) {
            self.policy(PolicyEvent::Tick, net);
        }
    }

    /// Has the next thing made that a new cluster lacks.
    fn found(&mut self, net: &mut Net) {
        let setup = self.setup.clone();
        let life = self.life();
        if !life.quorum.leads() || life.is_founding {
            return;
        }
        if let Some(command) = founding::next(&setup, &life.map) {
            life.is_founding = true;
            self.step(QuorumEvent::Propose(FOUNDING, bytes_of(&command)), net);
        }
    }
}

fn bytes_of(command: &Command) -> Bytes {
    encode(command).into()
}
