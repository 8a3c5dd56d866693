//! Faults that a setup can have.

use larder_env::SeededRng;
use larder_kv::FlushFault;
use larder_types::ServerId;

use crate::faults::{DiskOf, FaultKind};
use crate::links::{Cut, Servers};
use crate::servers::{Part, Server};
use crate::setup::Setup;

impl FaultKind {
    /// Draws one that this setup can have.
    pub(crate) fn draw(rng: &mut SeededRng, setup: &Setup) -> Self {
        let machine = rng.below(setup.machines as u64) as usize;
        let disk = if rng.one_in(2) { DiskOf::Node(machine) } else { DiskOf::Store(machine) };
        let several = setup.options.members > 1;
        let manager = rng.below(setup.managers as u64) as usize;
        match rng.below(42) {
            0..=2 => Self::Kill(Part::Machine(machine)),
            3 => Self::Kill(Part::Node(machine)),
            4 => Self::Kill(Part::Store(machine)),
            5 => Self::PowerLoss(machine),
            6 | 7 => Self::KillThenPowerLoss(machine),
            8 => Self::AllPowerLoss,
            9..=12 => Self::PowerLossAt(disk, 1 + rng.below(12)),
            13 => Self::PowerLossAt(disk, 1 + rng.below(100)),
            14 | 15 | 28 | 29 => Self::FailedSync(disk),
            16 => Self::FailedOperation(disk, 1 + rng.below(20)),
            17 => Self::DiskFull(disk),
            18 | 19 => Self::Rot,
            20 => {
                let size = 1i64 << rng.below(36);
                Self::ClockJump(machine, if rng.one_in(2) { -size } else { size })
            }
            21 if !setup.proxy_inside => {
                Self::Kill(Part::Proxy(rng.below(setup.proxies as u64) as usize))
            }
            22 if !setup.proxy_inside => Self::Storm,
            23 => {
                let faults = [
                    FlushFault::Full,
                    FlushFault::FailBefore,
                    FlushFault::FailAfter,
                    FlushFault::CrashBefore,
                    FlushFault::CrashAfter,
                ];
                Self::Flush(machine, faults[rng.below(5) as usize])
            }
            24 if several => Self::Away(machine),
            25 if several => Self::StoreAway(machine),
            26 if several => Self::Wiped(machine),
            27 if several => Self::CutOff(Server::Node(machine)),
            30 => Self::Kill(Part::Manager(manager)),
            31 if !setup.proxy_inside => Self::ManagerAway(manager),
            32 if !setup.proxy_inside => {
                let id = rng.below(setup.servers() as u64) as u32;
                Self::CutOff(setup.server(ServerId(id)))
            }
            37..=41 if !setup.proxy_inside => Self::Cut(Cut::draw(rng, setup)),
            33 if several => Self::Draining(Server::Node(machine)),
            34..=36 if several => Self::Draining(Server::Store(machine)),
            _ => Self::PowerLossAt(disk, 1 + rng.below(200)),
        }
    }

    /// Draws one that concerns a log.
    pub(crate) fn draw_of_log(rng: &mut SeededRng, setup: &Setup) -> Self {
        let machine = rng.below(setup.machines as u64) as usize;
        match rng.below(4) {
            0 => Self::PowerLoss(machine),
            1 => Self::PowerLossAt(DiskOf::Node(machine), 1 + rng.below(6)),
            _ => Self::FailedOperation(DiskOf::Node(machine), 1 + rng.below(6)),
        }
    }

    /// Draws one that concerns the members of PGs.
    pub(crate) fn draw_of_members(rng: &mut SeededRng, setup: &Setup) -> Self {
        let machine = rng.below(setup.machines as u64) as usize;
        let manager = rng.below(setup.managers as u64) as usize;
        match rng.below(15) {
            0 => Self::CutOff(Server::Node(machine)),
            1 => Self::Away(machine),
            6 => Self::CutOff(Server::Manager(manager)),
            7 => Self::Kill(Part::Manager(manager)),
            8 => Self::Laggard(Server::Node(machine)),
            9 | 10 => Self::Draining(Server::Node(machine)),
            12..=14 => Self::Draining(Server::Store(machine)),
            2 | 3 => Self::StoreAway(machine),
            _ => Self::Wiped(machine),
        }
    }

    /// Draws one that parts servers from each other.
    pub(crate) fn draw_of_links(rng: &mut SeededRng, setup: &Setup) -> Self {
        let machine = rng.below(setup.machines as u64) as usize;
        match rng.below(10) {
            0 => Self::Kill(Part::Node(machine)),
            1 => Self::Kill(Part::Store(machine)),
            2 => Self::Away(machine),
            _ => Self::Cut(Cut::draw(rng, setup)),
        }
    }
}

impl Cut {
    /// Draws one between servers of any two kinds, around a machine, or through the midst of the cluster.
    pub(crate) fn draw(rng: &mut SeededRng, setup: &Setup) -> Self {
        let mut any = |count: usize| rng.below(count as u64) as usize;
        let (node, store) = (any(setup.machines), any(setup.machines));
        let (proxy, manager) = (any(setup.proxies), any(setup.managers));
        let other = (node + 1 + any(setup.machines.max(2) - 1)) % setup.machines;
        let (one, two, between) = match any(8) {
            0 => (Server::Proxy(proxy), Server::Node(node), "proxy cut off from meta server"),
            1 => (Server::Proxy(proxy), Server::Store(store), "proxy cut off from data server"),
            2 | 3 if other != node => {
                (Server::Node(node), Server::Node(other), "meta server cut off from another")
            }
            4 => (Server::Node(node), Server::Store(store), "meta server cut off from data server"),
            5 | 6 => return Self::around(rng, setup),
            _ => {
                let all = setup.all_servers().filter(|server| *server != Server::Manager(manager));
                let all: Vec<Server> = all.collect();
                (all[any(all.len())], Server::Manager(manager), "server cut off from a manager")
            }
        };
        Self::drawn(rng, Servers::of([one]), Servers::of([two]), between)
    }

    /// One that leaves some machines on one side and all others on the other.
    fn around(rng: &mut SeededRng, setup: &Setup) -> Self {
        let machines = setup.machines + setup.proxies;
        let is_one = rng.one_in(2);
        let first = rng.below(machines as u64) as usize;
        let apart: Vec<bool> =
            (0..machines).map(|at| at == first || !is_one && rng.one_in(2)).collect();
        let inside = Servers::of(setup.all_servers().filter(|it| apart[setup.machine_of(*it)]));
        let outside = Servers::of(setup.all_servers()).without(inside);
        let between = if is_one { "machine cut off" } else { "cluster cut in two" };
        Self::drawn(rng, inside, outside, between)
    }

    fn drawn(rng: &mut SeededRng, one: Servers, two: Servers, between: &'static str) -> Self {
        let (from, to) = if rng.one_in(2) { (one, two) } else { (two, one) };
        Self { from, to, is_both: rng.one_in(2), between }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::setup::Options;

    #[test]
    fn servers_of_any_two_kinds_are_cut_off_from_each_other() {
        let drawn = |seed| Setup::draw(seed, Options { members: 3, ..Options::default() });
        let setup = (0..).map(drawn).find(|setup| setup.managers > 1).expect("most have several");
        let mut rng = SeededRng::new(1);
        let kind = |server: Server| Server::role(server) as u8;
        let mut cut_kinds = BTreeSet::new();
        for _ in 0..500 {
            let cut = Cut::draw(&mut rng, &setup);
            for (one, two) in setup.all_servers().flat_map(|one| {
                setup.all_servers().filter(move |two| *two != one).map(move |two| (one, two))
            }) {
                if cut.parts(one, two) {
                    cut_kinds.insert((kind(one), kind(two), cut.is_both));
                }
            }
        }
        // Data servers and proxies say nothing to their own kind.
        assert_eq!(cut_kinds.len(), 2 * 4 * 4, "{cut_kinds:?}");
    }
}
