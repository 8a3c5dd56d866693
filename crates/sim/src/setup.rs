//! The choices of a seed before anything happens: the cluster, its weather, the faults to come.

use larder_env::SeededRng;
use larder_protocol::limits::{LEASE_DRIFT_MS, LEASE_GRANTED_MS};
use larder_protocol::scheduler::Policy;
use larder_protocol::space::Fragmentation;

use crate::faults::{Fault, FaultKind};
use crate::mix::Mix;
use crate::net::MS;
use crate::planted::Bugs;
use crate::trace::Text;

/// The options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Members of each placement group: 1 or 3.
    pub members: usize,
    /// Machines of a cluster, from `members` to [`MACHINES_MAX`]; drawn if not given.
    pub machines: Option<usize>,
    /// Calls of clients.
    pub ops: u32,
    /// Large ops, so that batches cross from one segment of the log into the next. One in
    /// [`HEAVY_ONE_IN`] seeds has them anyway.
    pub heavy_log: bool,
    /// Members that often go and come. One in [`RESTLESS_ONE_IN`] seeds of several members has them
    /// anyway.
    pub restless: bool,
    /// Primaries of every other view serve above their high-water marks before the rows are read, and some runs of servers
    /// are of a release that knows no marks.
    pub early: bool,
    /// Pieces of objects that were appended to are coalesced. One in [`COALESCING_ONE_IN`] seeds does so anyway.
    pub coalesces: bool,
    /// Bugs to be found.
    pub bugs: Bugs,
    /// Text to be kept.
    pub text: Text,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: 1,
            machines: None,
            ops: 500,
            heavy_log: false,
            restless: false,
            early: false,
            coalesces: false,
            bugs: Bugs::default(),
            text: Text::None,
        }
    }
}

/// One in so many messages is lost, doubled, late or very late; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    pub(crate) very_late: u64,
}

/// A clock that never jumps, but runs too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) offset_ms: u64,
    pub(crate) per_mille: u64,
}

impl Clock {
    fn draw(rng: &mut SeededRng) -> Self {
        let range = 2 * (1000 - SLOWEST_PER_MILLE) + 1;
        Self { offset_ms: rng.below(1 << 40), per_mille: SLOWEST_PER_MILLE + rng.below(range) }
    }
}

/// A run's circumstances.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) options: Options,
    /// Machines, each with a meta server and a data server.
    pub(crate) machines: usize,
    pub(crate) replicas: usize,
    pub(crate) pgs: u32,
    /// Managers, each on one of the machines.
    pub(crate) managers: usize,
    /// Clocks of all servers.
    pub(crate) clocks: Vec<Clock>,
    /// Proxies; with `proxy_inside` the only one lives and dies with the only machine.
    pub(crate) proxies: usize,
    pub(crate) proxy_inside: bool,
    pub(crate) clients: usize,
    /// Longest pause of a client between two calls, in microseconds. Where it is long, what the managers do takes
    /// place among calls and not between them.
    pub(crate) pause_us: u64,
    pub(crate) keys: usize,
    pub(crate) pvs_per_disk: u32,
    /// Bytes of attributes that some puts carry, to fill the log.
    pub(crate) ballast: usize,
    /// One in so many puts outlives the age at which its grant is ended.
    pub(crate) stubborn_one_in: u64,
    pub(crate) weather: Weather,
    /// The fragmentation at which LVs are compacted.
    pub(crate) fragmentation: Fragmentation,
    /// The policy by which proxies choose the replicas that they read.
    pub(crate) read_policy: Policy,
    /// Pieces of objects that were appended to are coalesced.
    pub(crate) coalesces: bool,
    pub(crate) mix: Mix,
    pub(crate) faults: Vec<Fault>,
    /// Milliseconds since 1970 at the start.
    pub(crate) epoch_ms: u64,
}

/// Most machines of a cluster.
pub const MACHINES_MAX: usize = 15;
/// One in so many seeds of several members has a wide cluster, of up to [`MACHINES_MAX`] machines.
pub const WIDE_ONE_IN: u64 = 16;
/// One in so many seeds has proxies that coalesce pieces.
pub const COALESCING_ONE_IN: u64 = 3;
/// One in so many seeds has large ops.
pub const HEAVY_ONE_IN: u64 = 40;
/// One in so many seeds of several members has members that often go and come.
pub const RESTLESS_ONE_IN: u64 = 8;
/// One in so many seeds of several members has servers that often do not reach each other.
const PARTED_ONE_IN: u64 = 6;
/// Faults of the network that are added to such a seed's.
const PARTED_FAULTS: u32 = 12;
/// Most clients.
const CLIENTS_MAX: u64 = 8;
/// Keys of a seed beyond those that its clients need.
const KEYS_MORE: u64 = 20;
/// One in so many seeds of several members has a row of an index that rots unseen.
const INDEX_ROT_ONE_IN: u64 = 3;
/// One in so many seeds of several members has clients that take their time.
const LEISURELY_ONE_IN: u64 = 4;
/// Longest pause of such a client.
const LONG_PAUSE_US: u64 = 150 * MS;
/// Faults of members that are added to such a seed's.
const RESTLESS_FAULTS: u32 = 15;
/// One in so many seeds has many puts that are very slow, and few faults.
const PATIENT_ONE_IN: u64 = 10;
/// Faults of the log's disk that are added to such a seed's.
const HEAVY_FAULTS: u32 = 20;
/// Slowest clock, in thousandths of true time; the fastest is as much too fast. Two such clocks drift apart by less
/// than a lease allows.
const SLOWEST_PER_MILLE: u64 = 960;
const _: () = assert!(
    LEASE_GRANTED_MS * (2000 - SLOWEST_PER_MILLE)
        < (LEASE_GRANTED_MS + LEASE_DRIFT_MS) * SLOWEST_PER_MILLE,
    "the managers wait out a lease whichever clocks are the fast and the slow one"
);
/// Least faults of a run.
const FAULTS_MIN: u64 = 5;
/// Calls of clients in a run for each of its least faults, if there are many.
const OPS_PER_FAULT: u64 = 100;
/// Faults of a run beyond the least.
const FAULTS_MORE: u64 = 8;

/// Machines of a wide cluster, if the seed is to have one. Of draws of its own, so that other seeds stay what they are.
fn draw_wide(seed: u64, options: Options) -> Option<usize> {
    let mut rng = SeededRng::new(seed ^ 0x51DE);
    let (is_wide, more) = (rng.one_in(WIDE_ONE_IN), (MACHINES_MAX - options.members) as u64);
    let drawn = options.members + rng.below(more + 1) as usize;
    options.machines.or(is_wide.then_some(drawn))
}

/// In half of all seeds whatever is free is worth compacting as soon as the largest chunk of late does not fit a piece of
/// it. Of draws of its own, as above.
fn draw_fragmentation(seed: u64) -> Fragmentation {
    let is_eager = SeededRng::new(seed ^ 0xC04A).one_in(2);
    let eager = Fragmentation { free_percent: 1, scattered_percent: 1, pieces: 1 };
    if is_eager { eager } else { Fragmentation::default() }
}

/// Of draws of its own, as above.
fn draw_read_policy(seed: u64) -> Policy {
    let drawn = SeededRng::new(seed ^ 0x4EAD).below(Policy::ALL.len() as u64);
    Policy::ALL[drawn as usize]
}

/// Of draws of its own, as above.
fn draw_coalescing(seed: u64) -> bool {
    SeededRng::new(seed ^ 0xC0A1).one_in(COALESCING_ONE_IN)
}

impl Setup {
    /// More or fewer clients and keys than is usual. Of draws of its own, as above.
    fn draw_size(&mut self) {
        let mut rng = SeededRng::new(self.seed ^ 0x512E);
        self.clients = 1 + rng.below(CLIENTS_MAX) as usize;
        // Many calls of one key at once take a history's checker too long.
        let least = self.clients.div_ceil(2);
        self.keys = least + rng.below(KEYS_MORE) as usize;
    }

    pub(crate) fn draw(seed: u64, options: Options) -> Self {
        let mut rng = SeededRng::new(seed ^ 0x5E7D);
        let single = options.members == 1;
        let proxy_inside = single && rng.one_in(2);
        let keys = 3 + rng.below(8) as usize;
        let heavy = rng.one_in(HEAVY_ONE_IN) || options.heavy_log;
        let ballast = match (heavy, rng.below(5)) {
            (true, _) => 100_000 + rng.below(300_000) as usize,
            (false, 0) => 20_000 + rng.below(60_000) as usize,
            (false, _) => 0,
        };
        let calm = rng.one_in(4) || proxy_inside;
        let weather = Weather {
            lost: if calm { 0 } else { 20 + rng.below(200) },
            doubled: if calm { 0 } else { 10 + rng.below(100) },
            late: 10 + rng.below(50),
            very_late: 100 + rng.below(400),
        };
        let few_pgs = 1 << rng.below(3);
        let few = if single { 1 } else { options.members + rng.below(3) as usize };
        let wide = if single { None } else { draw_wide(seed, options) };
        let machines = wide.unwrap_or(few);
        // A PG for most machines, so that they have something to do.
        let pgs = if wide.is_some() { 4 * few_pgs } else { few_pgs };
        let patient = rng.one_in(PATIENT_ONE_IN);
        let mut setup = Self {
            seed,
            options,
            machines,
            replicas: if single { 1 } else { 1 + rng.below(3) as usize },
            pgs,
            managers: if single || rng.one_in(4) { 1 } else { 3 },
            clocks: Vec::new(),
            proxies: if proxy_inside { 1 } else { 2 },
            proxy_inside,
            clients: 2 + rng.below(4) as usize,
            pause_us: 2 * MS,
            keys,
            pvs_per_disk: pgs * if single { 1 } else { 4 } + rng.below(3) as u32,
            ballast,
            stubborn_one_in: if patient { 30 } else { 1000 },
            weather,
            fragmentation: draw_fragmentation(seed),
            read_policy: draw_read_policy(seed),
            coalesces: options.coalesces || draw_coalescing(seed),
            mix: Mix::draw(seed),
            faults: Vec::new(),
            epoch_ms: 1_800_000_000_000 + rng.below(1_000_000),
        };
        if !setup.mix.is_usual {
            setup.draw_size();
        }
        setup.clocks = (0..setup.servers()).map(|_| Clock::draw(&mut rng)).collect();
        let least = FAULTS_MIN.max(u64::from(options.ops) / OPS_PER_FAULT);
        let mut count = least + if patient { 0 } else { rng.below(FAULTS_MORE) };
        if wide.is_some() {
            count += machines as u64;
        }
        for _ in 0..count {
            let at_op = rng.below(u64::from(options.ops)) as u32;
            let kind = setup.mix.draw_fault(|| FaultKind::draw(&mut rng, &setup));
            setup.faults.push(Fault { at_op, kind });
        }
        if heavy {
            for _ in 0..HEAVY_FAULTS {
                let at_op = rng.below(u64::from(options.ops)) as u32;
                let kind = FaultKind::draw_of_log(&mut rng, &setup);
                setup.faults.push(Fault { at_op, kind });
            }
        }
        if !single && rng.one_in(INDEX_ROT_ONE_IN) {
            // Late: what rots is often written anew.
            let at_op = options.ops - 1 - rng.below(u64::from(options.ops.div_ceil(3))) as u32;
            setup.faults.push(Fault { at_op, kind: FaultKind::IndexRot });
        }
        if !single && rng.one_in(LEISURELY_ONE_IN) {
            setup.pause_us = LONG_PAUSE_US;
        }
        if !single && (rng.one_in(RESTLESS_ONE_IN) || options.restless) {
            setup.pause_us = LONG_PAUSE_US;
            for _ in 0..RESTLESS_FAULTS {
                let at_op = rng.below(u64::from(options.ops)) as u32;
                let kind = FaultKind::draw_of_members(&mut rng, &setup);
                setup.faults.push(Fault { at_op, kind });
            }
        }
        if !single && rng.one_in(PARTED_ONE_IN) {
            setup.pause_us = LONG_PAUSE_US;
            for _ in 0..PARTED_FAULTS {
                let at_op = rng.below(u64::from(options.ops)) as u32;
                let kind = FaultKind::draw_of_links(&mut rng, &setup);
                setup.faults.push(Fault { at_op, kind });
            }
        }
        setup.faults.sort_by_key(|fault| fault.at_op);
        setup
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_few_seeds_read_by_all_policies() {
        let drawn: BTreeSet<Policy> = (0..25).map(draw_read_policy).collect();
        assert_eq!(drawn.len(), Policy::ALL.len(), "{drawn:?}");
    }
}
