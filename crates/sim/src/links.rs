//! The servers that reach each other. A cut lasts for seconds or minutes, in one direction or both,
//! between two sets of servers.

use larder_env::SeededRng;

use crate::net::MS;
use crate::servers::Server;
use crate::setup::{MACHINES_MAX, Setup};

/// Least time of a cut.
const CUT_US_MIN: u64 = 1_000 * MS;
/// Its time beyond the least: long enough for the managers to find down whom they do not hear, and to let go who is found
/// down.
const CUT_US_MORE: u64 = 20_000 * MS;
/// One in so many cuts is a long one.
const LONG_ONE_IN: u64 = 8;
/// The time of a long one beyond that: older than a grant may become.
const LONG_US_MORE: u64 = 150_000 * MS;

/// Servers of one kind that a set has room for.
const OF_KIND_MAX: usize = 16;
const _: () = assert!(MACHINES_MAX <= OF_KIND_MAX, "every machine has its servers in a set");

/// A set of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Servers(u64);

impl Servers {
    fn bit(server: Server) -> u64 {
        let (kind, at) = match server {
            Server::Node(at) => (0, at),
            Server::Store(at) => (1, at),
            Server::Proxy(at) => (2, at),
            Server::Manager(at) => (3, at),
        };
        assert!(at < OF_KIND_MAX, "a set has no room for {server:?}");
        1 << (kind * OF_KIND_MAX + at)
    }

    pub(crate) fn has(self, server: Server) -> bool {
        self.0 & Self::bit(server) != 0
    }

    pub(crate) fn insert(&mut self, server: Server) {
        self.0 |= Self::bit(server);
    }

    pub(crate) fn remove(&mut self, server: Server) {
        self.0 &= !Self::bit(server);
    }

    fn of(servers: impl IntoIterator<Item = Server>) -> Self {
        let mut all = Self::default();
        servers.into_iter().for_each(|server| all.insert(server));
        all
    }

    fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Some servers do not reach some others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    from: Servers,
    to: Servers,
    /// Nor are they reached by them.
    is_both: bool,
    /// Between whom, for the counts.
    pub(crate) between: &'static str,
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

    /// A server and all managers do not hear each other; of a manager, it and the others.
    pub(crate) fn off(server: Server, setup: &Setup) -> Self {
        let managers = (0..setup.managers).map(Server::Manager);
        let (from, to) = (Servers::of([server]), Servers::of(managers));
        Self { from, to: to.without(from), is_both: true, between: "server cut off" }
    }

    /// Microseconds for which it lasts.
    pub(crate) fn lasts_us(rng: &mut SeededRng) -> u64 {
        let more_us = if rng.one_in(LONG_ONE_IN) { LONG_US_MORE } else { CUT_US_MORE };
        CUT_US_MIN + rng.below(more_us)
    }

    fn parts(self, from: Server, to: Server) -> bool {
        let parts = |from: Server, to: Server| self.from.has(from) && self.to.has(to);
        parts(from, to) || self.is_both && parts(to, from)
    }
}

/// All cuts of the moment.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Cut>);

impl Links {
    pub(crate) fn cut(&mut self, cut: Cut) {
        self.0.push(cut);
    }

    /// Ends a cut, once if there are two that are the same.
    pub(crate) fn mend(&mut self, cut: Cut) {
        if let Some(at) = self.0.iter().position(|known| *known == cut) {
            self.0.remove(at);
        }
    }

    pub(crate) fn mend_all(&mut self) {
        self.0.clear();
    }

    /// True if nothing that one sends reaches the other.
    pub(crate) fn are_cut(&self, from: Server, to: Server) -> bool {
        self.0.iter().any(|cut| cut.parts(from, to))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::setup::Options;

    const ONE: Server = Server::Node(0);
    const TWO: Server = Server::Store(0);

    #[test]
    fn a_cut_of_one_direction_leaves_the_other() {
        let between = "two servers";
        let (from, to) = (Servers::of([ONE]), Servers::of([TWO]));
        let mut links = Links::default();
        let cut = Cut { from, to, is_both: false, between };
        links.cut(cut);
        assert!(links.are_cut(ONE, TWO) && !links.are_cut(TWO, ONE));
        links.cut(Cut { is_both: true, ..cut });
        assert!(links.are_cut(TWO, ONE) && !links.are_cut(ONE, Server::Store(1)));
        links.mend(Cut { is_both: true, ..cut });
        assert!(links.are_cut(ONE, TWO) && !links.are_cut(TWO, ONE));
        links.mend(cut);
        assert!(!links.are_cut(ONE, TWO));
    }

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
