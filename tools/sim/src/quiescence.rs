//! Rest: when nothing goes wrong any more, what is under way ends by itself, and clients are served.
//!
//! It is judged twice. First nobody is restarted: who was away when the faults ended comes back, and nobody else begins
//! anew, so that what only a restart would cure is found.

use larder_protocol::digest::Compared;
use larder_protocol::limits::{PROBATION_DOUBLINGS_MAX, PROBATION_MS};
use larder_protocol::manager::state::{LvRecord, ReplicaState};
use larder_protocol::pg::Role;
use larder_types::PgId;

use crate::client::Probe;
use crate::clock::MS;
use crate::faults::{DiskOf, FaultKind};
use crate::links::Servers;
use crate::servers::{Part, Server};
use crate::setup::MessageFaults;
use crate::verdict::Finding;
use crate::world::World;

/// Between two looks.
pub(crate) const CHECK_INTERVAL_US: u64 = 50 * MS;
/// Virtual microseconds in which the store must come to rest: a server that came and went often is trusted again after its
/// probation only.
const REST_US: u64 = 300_000 * MS + (PROBATION_MS << PROBATION_DOUBLINGS_MAX) * MS;
/// Looks at rest, one after the other, after which nothing is under way any more.
const STABLE_CHECKS: u32 = 10;
/// Between two looks whether a probe is answered.
const PROBE_INTERVAL_US: u64 = 2 * MS;
/// Between two tries of a probe.
const PROBE_AGAIN_US: u64 = 500 * MS;
/// Virtual microseconds within which a call must be served at rest.
const SERVED_US: u64 = 30_000 * MS;
/// The client that probes.
const PROBER: usize = 0;
/// Weather without faults. Messages still overtake each other.
const FAIR: MessageFaults = MessageFaults { lost: 0, doubled: 0, late: 50, very_late: 0 };

impl World {
    /// Every fault ends: what was armed, what is lasting, and the weather. Who is away comes back by itself.
    pub(crate) fn end_faults(&mut self) {
        self.net.tell(format_args!("every fault ends"));
        self.net.message_faults = FAIR;
        self.net.links.mend_all();
        self.net.laggards = Servers::default();
        for machine in 0..self.setup.machines {
            self.nodes[machine].disk.disarm();
            self.nodes[machine].kv.disarm();
            self.stores[machine].disk.disarm();
            self.over(FaultKind::DiskFull(DiskOf::Node(machine)));
            self.over(FaultKind::DiskFull(DiskOf::Store(machine)));
            self.over(FaultKind::Draining(Server::Node(machine)));
            self.over(FaultKind::Draining(Server::Store(machine)));
        }
    }

    /// Every machine and proxy restarts.
    pub(crate) fn restart_all(&mut self) {
        self.net.tell(format_args!("everything restarts"));
        for machine in 0..self.setup.machines {
            self.kill(Part::Machine(machine));
        }
        for proxy in 0..self.proxies.len() {
            self.kill(Part::Proxy(proxy));
        }
    }

    /// Waits until nothing is under way; a finding if that does not come.
    pub(crate) fn quiesce(&mut self) {
        let end_us = self.net.now_us() + REST_US;
        let mut calm_looks = 0;
        while self.net.finding().is_none() && calm_looks < STABLE_CHECKS {
            let until_us = self.net.now_us() + CHECK_INTERVAL_US;
            self.run_until(until_us);
            calm_looks += 1;
            if let Err(restless) = self.rests() {
                calm_looks = 0;
                if self.net.now_us() > end_us {
                    self.net.find(Finding::NotQuiescent(restless));
                }
            }
        }
        self.net.tell(format_args!("the store rests"));
    }

    /// Reads and writes every key and lists them all, through every proxy: with nothing wrong, each call is answered.
    pub(crate) fn probe_all(&mut self) {
        for proxy in 0..self.proxies.len() {
            for probe in self.clients.probes() {
                if self.net.finding().is_some() {
                    return;
                }
                self.probe(proxy, probe);
            }
        }
    }

    /// Makes a call until it is served: replicas that were out of reach are opened again after some seconds only.
    fn probe(&mut self, proxy: usize, probe: Probe) {
        let end_us = self.net.now_us() + SERVED_US;
        while self.net.finding().is_none() && !self.is_served(proxy, probe) {
            if self.net.now_us() > end_us {
                self.net.find(Finding::NoService(format!("{probe:?} through proxy {proxy}")));
            }
            let until_us = self.net.now_us() + PROBE_AGAIN_US;
            self.run_until(until_us);
        }
    }

    fn is_served(&mut self, proxy: usize, probe: Probe) -> bool {
        if !self.proxies[proxy].serves() {
            return false;
        }
        let unserved = self.clients.unserved;
        self.proxies[proxy].context.misbehave_no_more();
        self.proxies[proxy].context.was_full();
        let task = self.clients.probe(PROBER, probe, &self.proxies[proxy].context);
        self.net.tell(format_args!("proxy {proxy} is probed: {probe:?}"));
        if let Some(client) = self.proxies[proxy].begin(PROBER, task, &mut self.net) {
            self.done(client);
        }
        while self.clients.busy() && self.net.finding().is_none() {
            let until_us = self.net.now_us() + PROBE_INTERVAL_US;
            self.run_until(until_us);
        }
        // A full cluster may have no volume left to give.
        let context = &self.proxies[proxy].context;
        self.clients.unserved == unserved || context.was_full()
    }

    /// Names a part that is not at rest yet.
    fn rests(&self) -> Result<(), String> {
        self.proxies_quiesce()?;
        let agreed = self.agreed.borrow();
        if agreed.map.servers.values().any(|server| server.draining) {
            return Err("a server drains".to_owned());
        }
        let is_filled = |lv: &&LvRecord| {
            lv.present().all(|(_, replica)| replica.state == ReplicaState::Current)
        };
        let mut filling = agreed.map.lvs.iter().filter(|lv| !is_filled(lv));
        if let Some(lv) = filling.find(|lv| !self.has_lost(lv.pg)) {
            return Err(format!("a replica is being filled: {lv:?}"));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.is_up() {
                return Err(format!("meta server {at} is down"));
            }
            if let Some(under_way) = node.under_way() {
                return Err(format!("meta server {at}: {under_way}"));
            }
            for pg in node.pgs() {
                if pg.is_whole() && pg.ledger().is_none() {
                    return Err(format!("meta server {at} reads what pg {} names", pg.id()));
                }
                if pg.wants_count() {
                    return Err(format!("meta server {at} counts what pg {} has", pg.id()));
                }
                if pg.is_unread() {
                    return Err(format!("meta server {at} reads what pg {} has free", pg.id()));
                }
                let Some(members) = agreed.whole(pg.id()) else {
                    let record = agreed.map.pg(pg.id());
                    return Err(format!("pg {} lacks members: {record:?}", pg.id()));
                };
                if !members.contains(&at) {
                    continue;
                }
                let primary = members[0] == at;
                let gauges = pg.gauges();
                let wanted = if primary { Role::Serving } else { Role::Backup };
                if pg.role() != wanted
                    || pg.view() != agreed.view(pg.id())
                    || gauges.tail_ops > 0
                    || gauges.open_puts > 0
                    || primary && (gauges.is_reaping || pg.wants_to_reap(true))
                    || gauges.waiting_calls > 0
                    || gauges.refills + gauges.moves > 0
                    || primary && pg.wants_walk().is_some() && !self.has_lost(pg.id())
                {
                    let (id, role) = (pg.id(), pg.role());
                    let open: Vec<_> = pg.open_chunks().map(|chunk| chunk.grant.op).collect();
                    return Err(format!(
                        "meta server {at}, pg {id}: {role:?}, {gauges:?}, open: {open:?}"
                    ));
                }
                if primary && node.wants_lv(pg.id()) {
                    return Err(format!("meta server {at}: pg {} waits for a volume", pg.id()));
                }
                if primary && members.len() > 1 && pg.compared() != Some(Compared::Equal) {
                    return Err(format!("pg {}: its indexes: {:?}", pg.id(), pg.compared()));
                }
            }
        }
        Ok(())
    }

    /// True if no copy of some chunk of a PG is good, as all that it had were damaged on purpose: it is tried for ever
    /// to copy it.
    pub(crate) fn has_lost(&self, pg: PgId) -> bool {
        let primary = self.agreed.borrow().primary(pg);
        self.nodes[primary].chunks_of(pg).iter().any(|chunk| self.good_copy(chunk).is_none())
    }

    fn proxies_quiesce(&self) -> Result<(), String> {
        for (at, proxy) in self.proxies.iter().enumerate() {
            if !proxy.serves() {
                return Err(format!("proxy {at} does not serve"));
            }
            if let Some(under_way) = proxy.under_way() {
                return Err(format!("proxy {at}: {under_way}"));
            }
        }
        let sessions = self.agreed.borrow().map.sessions.len();
        if sessions != self.proxies.len() {
            return Err(format!("{sessions} sessions are open"));
        }
        Ok(())
    }
}
