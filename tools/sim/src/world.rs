//! The whole world of one run: machines, proxies, clients and what goes wrong with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_env::{Disk, SeededRng, SimDisk};
use larder_protocol::manager::state::Command;
use larder_types::{OpId, PgId};

use crate::agreed::Shared;
use crate::client::Clients;
use crate::clock::MS;
use crate::event::{ManagerIn, SimEvent};
use crate::faults::{DiskOf, FaultKind};
use crate::links::Cut;
use crate::manager::{MEMBERS_MIN, Manager};
use crate::net::Net;
use crate::node::{NoStart, Node};
use crate::places::names;
use crate::process_end::ProcessEnd;
use crate::proxy::Proxy;
use crate::proxy_context::DamagedCopies;
use crate::reduction::Reduction;
use crate::servers::{Part, Server};
use crate::setup::{MessageFaults, Setup};
use crate::store::Store;
use crate::trace::Trace;
use crate::verdict::Finding;

/// Bytes of a meta server's disk.
const NODE_DISK_BYTES: u64 = 64 << 20;
/// Bytes of a data server's disk.
const STORE_DISK_BYTES: u64 = 64 << 20;

/// See the module's head.
pub(crate) struct World {
    pub(crate) setup: Arc<Setup>,
    /// The parts left out.
    less: Reduction,
    pub(crate) net: Net,
    pub(crate) agreed: Shared,
    pub(crate) managers: Vec<Manager>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) stores: Vec<Store>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) clients: Clients,
    pub(crate) rotten: DamagedCopies,
    /// Meta servers that lost their disk and that the managers do not know of yet.
    lost: BTreeSet<usize>,
    pub(crate) ops: u32,
    pub(crate) faults: u64,
    /// Clients make no more calls.
    pub(crate) closing: bool,
}

impl World {
    pub(crate) fn new(setup: Setup, less: Reduction) -> Self {
        let setup = Arc::new(setup);
        let mut rng = SeededRng::new(setup.seed);
        let trace = Trace::new(setup.options.text);
        let machines = setup.machines;
        let disk = |rng: &mut SeededRng, bytes| SimDisk::new(rng.next_u64(), bytes);
        let agreed = Shared::default();
        let nodes = (0..machines)
            .map(|id| Node::new(id, &setup, &agreed, disk(&mut rng, NODE_DISK_BYTES)))
            .collect();
        let stores = (0..machines)
            .map(|id| Store::new(id, &setup, disk(&mut rng, STORE_DISK_BYTES)))
            .collect();
        let clients = Clients::new(&setup, SeededRng::new(rng.next_u64()));
        let mut net = Net::new(SeededRng::new(rng.next_u64()), setup.message_faults, trace);
        let managers: Vec<Manager> =
            (0..setup.managers).map(|id| Manager::new(id, &setup, &agreed)).collect();
        let rotten = DamagedCopies::default();
        let proxies = (0..setup.proxies)
            .map(|id| Proxy::new(id, &setup, &rotten, &agreed, &mut net))
            .collect();
        for manager in 0..managers.len() {
            net.after(0, SimEvent::Restart(Part::Manager(manager)));
        }
        for client in 0..setup.clients {
            net.after(30 * MS, SimEvent::Client(client));
        }
        for machine in 0..machines {
            net.after(0, SimEvent::Restart(Part::Node(machine)));
            net.after(0, SimEvent::Restart(Part::Store(machine)));
        }
        Self {
            setup,
            less,
            net,
            agreed,
            managers,
            nodes,
            stores,
            proxies,
            clients,
            rotten,
            lost: BTreeSet::new(),
            ops: 0,
            faults: 0,
            closing: false,
        }
    }

    /// Lets things happen until `until_us`, or something is found.
    pub(crate) fn run_until(&mut self, until_us: u64) {
        while self.net.finding().is_none() {
            let Some(what) = self.net.next(until_us) else { return };
            self.take(what);
        }
    }

    fn take(&mut self, what: SimEvent) {
        if self.net.trace.wants_events() {
            self.say(&what);
        }
        match what {
            SimEvent::Node(id, input) => {
                if let Err(fate) = self.nodes[id].handle(input, &mut self.net) {
                    self.end(Part::Node(id), &fate);
                }
                self.check_odd();
            }
            SimEvent::Store(id, input) => {
                if let Err(fate) = self.stores[id].handle(input, &mut self.net) {
                    self.end(Part::Store(id), &fate);
                }
            }
            SimEvent::Manager(id, input) => self.managers[id].handle(input, &mut self.net),
            SimEvent::Proxy(id, input) => {
                if let Some(client) = self.proxies[id].handle(input, &mut self.net) {
                    self.done(client);
                }
                if self.proxies[id].is_shut_out() {
                    self.begin_anew(id);
                }
            }
            SimEvent::Client(client) => self.next_call(client),
            SimEvent::Restart(part) => self.restart(part),
            SimEvent::Strikes(kind) if !self.closing => self.inject(kind),
            SimEvent::Strikes(_) => {}
            SimEvent::Over(kind) => {
                self.net.tell(format_args!("over: {kind:?}"));
                self.over(kind);
            }
        }
    }

    fn say(&mut self, what: &SimEvent) {
        let mut text = format!("{what:?}");
        if text.len() > 260 {
            let end = (0..=260).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        self.net.say(format_args!("{text}"));
    }

    fn next_call(&mut self, client: usize) {
        if self.closing || self.ops >= self.setup.options.ops {
            return;
        }
        while let Some(fault) = self.setup.faults.get(self.faults as usize).copied() {
            if fault.at_op > self.ops {
                break;
            }
            if !self.less.averted.contains(&(self.faults as usize)) {
                self.inject(fault.kind);
            }
            self.faults += 1;
        }
        let up: Vec<usize> =
            (0..self.proxies.len()).filter(|proxy| self.proxies[*proxy].serves()).collect();
        if up.is_empty() {
            self.net.after(20 * MS, SimEvent::Client(client));
            return;
        }
        let proxy = up[self.net.rng.below(up.len() as u64) as usize];
        self.ops += 1;
        let (call, task) = self.clients.next_call(client, &self.proxies[proxy].context);
        let number = self.ops - 1;
        if self.less.skipped.contains(&number) {
            self.clients.done(client);
            self.net.after(MS, SimEvent::Client(client));
            return;
        }
        self.net.tell(format_args!("client {client}: call {number}, {call} through proxy {proxy}"));
        if let Some(client) = self.proxies[proxy].begin(client, task, &mut self.net) {
            self.done(client);
        }
    }

    pub(crate) fn done(&mut self, client: usize) {
        let answered = self.clients.done(client);
        self.net.answers.add(answered, 1);
        self.net.tell(format_args!("client {client}: {answered}"));
        let pause = self.net.rng.below(self.setup.pause_us);
        self.net.after(pause, SimEvent::Client(client));
    }

    /// A part ends by itself.
    fn end(&mut self, part: Part, fate: &ProcessEnd) {
        self.net.tell(format_args!("{part:?} ends: {fate:?}"));
        match (fate, part) {
            (ProcessEnd::Stuck(text), _) => {
                self.net.find(Finding::NotQuiescent(format!("{part:?}: {text}")));
            }
            (ProcessEnd::PowerLost, Part::Node(machine) | Part::Store(machine)) => {
                self.power_off(machine);
            }
            (_, part) => self.kill(part),
        }
    }

    /// With all roles in one process no part dies alone.
    fn widen(&self, part: Part) -> Part {
        match part {
            Part::Node(machine) | Part::Store(machine) | Part::Manager(machine)
                if self.setup.proxy_inside =>
            {
                Part::Machine(machine)
            }
            part => part,
        }
    }

    /// Processes die; page caches stay.
    pub(crate) fn kill(&mut self, part: Part) {
        let part = self.widen(part);
        match part {
            Part::Machine(machine) => {
                self.stop_node(machine);
                self.stop_store(machine);
                self.stop_manager(machine);
                if self.setup.proxy_inside {
                    self.stop_proxy(0);
                }
            }
            Part::Node(machine) => self.stop_node(machine),
            Part::Store(machine) => self.stop_store(machine),
            Part::Proxy(proxy) => self.stop_proxy(proxy),
            Part::Manager(manager) => self.stop_manager(manager),
        }
        let pause = 100 + self.net.rng.below(120 * MS);
        self.net.after(pause, SimEvent::Restart(part));
    }

    /// A meta server is gone for longer than the others wait for it; perhaps with its disk.
    fn lose(&mut self, machine: usize, wiped: bool) {
        let agreed = self.agreed.borrow();
        let is_known = |lost: usize| {
            let (node, server) = (&self.nodes[lost], self.setup.id_of(Server::Node(lost)));
            node.is_up() && names(&agreed.map, server, node.run)
        };
        self.lost.retain(|lost| !is_known(*lost));
        let spares = agreed.can_spare(machine, &self.lost, MEMBERS_MIN);
        drop(agreed);
        if wiped && !spares {
            return;
        }
        self.stop_node(machine);
        if wiped {
            self.lost.insert(machine);
            self.net.faults.add("meta server's disk lost", 1);
            let seed = self.net.rng.next_u64();
            self.nodes[machine].wipe(SimDisk::new(seed, NODE_DISK_BYTES));
        }
        let pause = 500 * MS + self.net.rng.below(6_000 * MS);
        self.net.after(pause, SimEvent::Restart(Part::Node(machine)));
    }

    fn stop_node(&mut self, machine: usize) {
        self.nodes[machine].die();
        self.nodes[machine].disk.kill();
    }

    fn stop_store(&mut self, machine: usize) {
        self.stores[machine].die();
        self.stores[machine].disk.kill();
    }

    /// A machine's manager, if it has one.
    fn stop_manager(&mut self, machine: usize) {
        if let Some(manager) = self.managers.get_mut(machine) {
            manager.die(&mut self.net);
        }
    }

    /// A proxy whose session the managers closed ends its work, and goes on under another.
    fn begin_anew(&mut self, proxy: usize) {
        self.net.faults.add("proxies shut out", 1);
        self.kill(Part::Proxy(proxy));
    }

    fn stop_proxy(&mut self, proxy: usize) {
        for client in self.proxies[proxy].die() {
            self.done(client);
        }
    }

    fn power_off(&mut self, machine: usize) {
        self.kill(Part::Machine(machine));
        self.crash_disks(machine);
    }

    fn crash_disks(&mut self, machine: usize) {
        self.nodes[machine].disk.crash();
        self.stores[machine].disk.crash();
        if let Some(manager) = self.managers.get_mut(machine) {
            manager.lose_power(&mut self.net);
        }
    }

    fn restart(&mut self, part: Part) {
        self.net.tell(format_args!("{part:?} starts"));
        match part {
            Part::Machine(machine) => {
                self.start_manager(machine);
                self.start_node(machine);
                self.start_store(machine);
                if self.setup.proxy_inside {
                    self.start_proxy(0);
                }
            }
            Part::Node(machine) => self.start_node(machine),
            Part::Store(machine) => self.start_store(machine),
            Part::Proxy(proxy) => self.start_proxy(proxy),
            Part::Manager(manager) => self.start_manager(manager),
        }
    }

    fn start_manager(&mut self, machine: usize) {
        if let Some(manager) = self.managers.get_mut(machine).filter(|manager| !manager.is_up()) {
            manager.start(&mut self.net);
        }
    }

    fn start_node(&mut self, machine: usize) {
        if self.nodes[machine].is_up() {
            return;
        }
        let fate = match self.nodes[machine].start(&mut self.net) {
            Ok(()) => return,
            Err(NoStart::Later(fate)) => fate,
            Err(NoStart::Damaged(text) | NoStart::Unfit(text)) => {
                self.net.find(Finding::NoStart(format!("meta server {machine}: {text}")));
                return;
            }
        };
        self.end(Part::Node(machine), &fate);
    }

    fn start_store(&mut self, machine: usize) {
        if self.stores[machine].is_up() {
            return;
        }
        match self.stores[machine].start(&mut self.net) {
            Ok(()) => {}
            Err(Ok(fate)) => self.end(Part::Store(machine), &fate),
            Err(Err(text)) => {
                self.net.find(Finding::NoStart(format!("data server {machine}: {text}")));
            }
        }
    }

    fn start_proxy(&mut self, proxy: usize) {
        if !self.proxies[proxy].is_up() {
            let fresh = Proxy::new(proxy, &self.setup, &self.rotten, &self.agreed, &mut self.net);
            self.proxies[proxy] = fresh;
        }
    }

    fn disk(&self, of: DiskOf) -> &Arc<SimDisk> {
        match of {
            DiskOf::Node(machine) => &self.nodes[machine].disk,
            DiskOf::Store(machine) => &self.stores[machine].disk,
        }
    }

    fn capacity(of: DiskOf) -> u64 {
        match of {
            DiskOf::Node(_) => NODE_DISK_BYTES,
            DiskOf::Store(_) => STORE_DISK_BYTES,
        }
    }

    fn inject(&mut self, kind: FaultKind) {
        self.net.tell(format_args!("FAULT: {kind:?}"));
        self.net.faults.add(kind.name(), 1);
        match kind {
            FaultKind::Kill(part) => self.kill(part),
            FaultKind::PowerLoss(machine) => self.power_off(machine),
            FaultKind::KillThenPowerLoss(machine) => {
                self.kill(Part::Machine(machine));
                self.crash_disks(machine);
            }
            FaultKind::StoreAway(machine) => {
                self.stop_store(machine);
                let pause = 500 * MS + self.net.rng.below(6_000 * MS);
                self.net.after(pause, SimEvent::Restart(Part::Store(machine)));
            }
            FaultKind::Away(machine) => self.lose(machine, false),
            FaultKind::Wiped(machine) => self.lose(machine, true),
            FaultKind::AllPowerLoss => {
                (0..self.setup.machines).for_each(|machine| self.power_off(machine));
            }
            FaultKind::PowerLossAt(of, n) => self.disk(of).power_off_after(n),
            FaultKind::FailedSync(of) => self.disk(of).fail_next_sync(),
            FaultKind::FailedOperation(of, n) => self.disk(of).fail_after(n),
            FaultKind::DiskFull(of) => {
                let disk = self.disk(of).reopen();
                let free = disk.free_bytes().unwrap_or(0);
                let left = self.net.rng.below(64 << 10).min(free);
                disk.set_capacity(Self::capacity(of).saturating_sub(free) + left);
            }
            FaultKind::Rot => self.rot(),
            FaultKind::IndexRot => self.rot_index(),
            FaultKind::ClockJump(machine, ms) => {
                self.nodes[machine].skew_ms = self.nodes[machine].skew_ms.saturating_add(ms);
            }
            FaultKind::Storm => {
                self.net.message_faults =
                    MessageFaults { lost: 4, doubled: 4, late: 4, very_late: 20 };
            }
            FaultKind::CutOff(server) => {
                self.net.links.cut(Cut::off(server, self.setup.managers));
            }
            FaultKind::Cut(cut) => self.net.links.cut(cut),
            FaultKind::Laggard(server) => self.net.laggards.insert(server),
            FaultKind::Draining(server) => {
                self.set_draining(server, true);
                let leader = self.managers.iter().position(Manager::leads);
                if let Some(leader) = leader.filter(|_| self.net.rng.one_in(3)) {
                    // While it waits for a lease to run out, perhaps.
                    let kill = FaultKind::Kill(Part::Manager(leader));
                    let delay = self.net.rng.below(3_000 * MS);
                    self.net.after(delay, SimEvent::Strikes(kill));
                }
            }
            FaultKind::ManagerAway(manager) => {
                self.stop_manager(manager);
                let pause = 500 * MS + self.net.rng.below(6_000 * MS);
                self.net.after(pause, SimEvent::Restart(Part::Manager(manager)));
            }
            FaultKind::Flush(machine, fault) => self.nodes[machine].kv.fail_next_flush(fault),
        }
        let lasts_us = kind.lasts_us(&mut self.net.rng);
        if lasts_us > 0 {
            self.net.after(lasts_us, SimEvent::Over(kind));
        }
    }

    /// A fault with an end is over.
    pub(crate) fn over(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::DiskFull(of) => self.disk(of).set_capacity(Self::capacity(of)),
            FaultKind::Storm if self.closing => {}
            FaultKind::Storm => self.net.message_faults = self.setup.message_faults,
            FaultKind::CutOff(server) => {
                self.net.links.mend(Cut::off(server, self.setup.managers));
            }
            FaultKind::Draining(server) => self.set_draining(server, false),
            FaultKind::Cut(cut) => self.net.links.mend(cut),
            FaultKind::Laggard(server) => self.net.laggards.remove(server),
            _ => {}
        }
    }

    /// An operator tells the leader, and repeats the end of a drain until it is in the map.
    fn set_draining(&mut self, of: Server, draining: bool) {
        let server = self.setup.id_of(of);
        let leader = self.managers.iter().position(Manager::leads);
        if let Some(leader) = leader {
            let command = Command::SetDraining(server, draining);
            self.net.soon((leader, ManagerIn::Operator(command)));
        }
        let record = self.agreed.borrow().map.servers.get(&server).cloned();
        if !draining && record.is_some_and(|record| record.draining) {
            let again = SimEvent::Over(FaultKind::Draining(of));
            self.net.after(500 * MS, again);
        }
    }

    /// A bit rots in one copy of an object that its primary shows, if another copy is sound.
    fn rot(&mut self) {
        let pg = PgId(self.net.rng.below(u64::from(self.setup.pgs)) as u32);
        let primary = self.agreed.borrow().primary(pg);
        if !self.nodes[primary].is_up() {
            return;
        }
        let chunks = self.nodes[primary].chunks_of(pg);
        if chunks.is_empty() {
            return;
        }
        let chunk = &chunks[self.net.rng.below(chunks.len() as u64) as usize];
        let replica = self.net.rng.below(16) as usize % self.setup.replicas;
        let is_sound =
            |at: &usize| *at != replica && !self.rotten.borrow().contains(&(chunk.grant, *at));
        if self.setup.replicas > 1 && !chunk.holders.iter().any(|at| is_sound(&at)) {
            return;
        }
        let place = self.agreed.borrow().place(&self.setup, chunk.lv, replica);
        let Some((store, pv)) = place else { return };
        let at = self.net.rng.below(u64::from(chunk.len));
        if self.stores[store].rot(pv, &chunk.extents, at) {
            self.rotten.borrow_mut().insert((chunk.grant, replica));
        }
    }

    /// A row changes in the index of one member of a PG: once, so that most members have what was stored.
    fn rot_index(&mut self) {
        let pgs = self.setup.pgs;
        let first = self.net.rng.below(u64::from(pgs)) as u32;
        let any = (0..pgs).map(|at| PgId((first + at) % pgs));
        if any.into_iter().any(|pg| self.change_row_of(pg)) {
            return;
        }
        let again = SimEvent::Strikes(FaultKind::IndexRot);
        self.net.after(500 * MS, again);
    }

    fn change_row_of(&mut self, pg: PgId) -> bool {
        let members = self.agreed.borrow().whole(pg).unwrap_or_default();
        let at = self.net.rng.below(members.len().max(1) as u64) as usize;
        let up = members.get(at).filter(|member| self.nodes[**member].is_up());
        let row = up.and_then(|member| self.nodes[*member].change_row(pg, &mut self.net.rng));
        let Some(row) = row else { return false };
        self.net.tell(format_args!("in meta server {}: {}", members[at], row.escape_ascii()));
        self.net.faults.add("rows of indexes changed", 1);
        self.agreed.borrow_mut().changed_rows.insert(pg, row);
        true
    }

    /// Checks that a member found odd lacks the rows that most members have, if they still show the
    /// same versions.
    fn check_odd(&mut self) {
        let odd = std::mem::take(&mut self.agreed.borrow_mut().odd);
        for (pg, odd) in odd {
            let agreed = self.agreed.borrow();
            let Some(row) = agreed.changed_rows.get(&pg) else { continue };
            let shown = |node: usize| self.nodes[node].shown(row);
            let members = &agreed.map.pgs[pg.0 as usize].members;
            let shows: Vec<_> = members.iter().map(|member| shown(member.0 as usize)).collect();
            let op = |shown: &Option<(OpId, bool)>| shown.map(|(op, _)| op);
            let are_same = shows.iter().all(|it| op(it) == op(&shows[0]));
            let is_rotten = |it: &Option<(OpId, bool)>| it.is_some_and(|(_, rotten)| rotten);
            let alike = shows.iter().filter(|it| is_rotten(it) == is_rotten(&shown(odd))).count();
            if are_same && alike < members.len() && 2 * alike > members.len() {
                let text =
                    format!("pg {pg}: meta server {odd} is called odd, and is not: {shows:?}");
                self.net.find(Finding::Contradiction(text));
            }
        }
    }
}

impl World {
    pub(crate) fn report(mut self) -> crate::Report {
        for machine in 0..self.setup.machines {
            for disk in [&self.nodes[machine].disk, &self.stores[machine].disk] {
                let counts = disk.counts();
                self.net.trace.note(&[counts.operations, counts.syncs, counts.sectors_lost]);
                self.net.faults.add("unsynced sectors lost", counts.sectors_lost);
                self.net.faults.add("unsynced sectors kept", counts.sectors_kept);
                self.net.faults.add("unsynced names lost", counts.names_lost);
                self.net.faults.add("writes refused for want of space", counts.full_refusals);
            }
        }
        let finding = self.net.finding().cloned();
        crate::Report {
            seed: self.setup.seed,
            trace_hash: self.net.trace.hash(),
            events: self.net.trace.events(),
            ops: u64::from(self.ops),
            faults: self.faults,
            faults_by_kind: self.net.faults,
            answers: self.net.answers,
            finding,
            tail: self.net.trace.into_tail(),
        }
    }
}
