//! The servers that reach each other. A cut lasts for seconds or minutes, in one direction or both,
//! between two sets of servers.

use larder_env::SeededRng;

use crate::clock::MS;
use crate::servers::Server;

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
pub(crate) const OF_KIND_MAX: usize = 16;

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

    pub(crate) fn of(servers: impl IntoIterator<Item = Server>) -> Self {
        let mut all = Self::default();
        servers.into_iter().for_each(|server| all.insert(server));
        all
    }

    pub(crate) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Some servers do not reach some others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) from: Servers,
    pub(crate) to: Servers,
    /// Nor are they reached by them.
    pub(crate) is_both: bool,
    /// Between whom, for the counts.
    pub(crate) between: &'static str,
}

impl Cut {
    /// A server and all managers do not hear each other; of a manager, it and the others.
    pub(crate) fn off(server: Server, managers: usize) -> Self {
        let managers = (0..managers).map(Server::Manager);
        let (from, to) = (Servers::of([server]), Servers::of(managers));
        Self { from, to: to.without(from), is_both: true, between: "server cut off" }
    }

    /// Microseconds for which it lasts.
    pub(crate) fn lasts_us(rng: &mut SeededRng) -> u64 {
        let more_us = if rng.one_in(LONG_ONE_IN) { LONG_US_MORE } else { CUT_US_MORE };
        CUT_US_MIN + rng.below(more_us)
    }

    pub(crate) fn parts(self, from: Server, to: Server) -> bool {
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
    use super::*;

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
}
