//! The choices of a seed before anything happens: all of a [`Setup`] is drawn here.

mod faults;

use larder_env::SeededRng;
use larder_protocol::scheduler::Policy;
use larder_protocol::space::Fragmentation;

use crate::clock::{Clock, MS};
use crate::faults::{Fault, FaultKind};
use crate::mix::Mix;
use crate::setup::{
    COALESCING_ONE_IN, HEAVY_ONE_IN, MACHINES_MAX, MessageFaults, Options, RESTLESS_ONE_IN, Setup,
    WIDE_ONE_IN,
};

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
        let message_faults = MessageFaults {
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
            message_faults,
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
