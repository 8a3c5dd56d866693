//! Faults: links that are cut, stores that crash or are lost, regions that leave and join.

use larder_types::RegionId;

use super::super::site::Site;
use super::{Happening, World};

impl World {
    pub(super) fn fault(&mut self) {
        let count = self.sites.len() as u64;
        let (at, to) = (self.rng.below(count) as usize, self.rng.below(count) as usize);
        match self.rng.below(10) {
            0..=3 => {
                self.counts.cuts += 1;
                let (from, to) = (self.sites[at].id, self.sites[to].id);
                self.cuts.insert((from, to));
                if self.rng.one_in(2) {
                    self.cuts.insert((to, from));
                }
            }
            4 | 5 => self.cuts.clear(),
            6..=8 => {
                self.counts.crashes += 1;
                self.sites[at].crash();
                let away = self.rng.below(8_000);
                self.later(self.pace * away, Happening::Start(at));
            }
            _ if self.rng.one_in(3) => self.wipe(at),
            _ if self.has_leavers && self.left.contains(&at) => self.join(at),
            _ if self.has_leavers && self.sites.len() - self.left.len() > 2 => self.leave(at),
            _ => {}
        }
    }

    /// A region is removed for good, with all its data.
    fn leave(&mut self, at: usize) {
        self.counts.leaves += 1;
        self.counts.lost_with_a_region += self.judge.wiped(&self.sites, at);
        let old = self.sites[at].id;
        self.sites[at].crash();
        self.sites[at].disk.entries.clear();
        self.left.insert(at);
        self.regions.remove(&old);
        self.cuts.retain(|(from, to)| *from != old && *to != old);
        self.begin_anew(None);
    }

    /// A region joins that has nothing yet.
    fn join(&mut self, at: usize) {
        let id = RegionId(self.last.0 + 1);
        let Site { skew_ms, clock_step_ms, part_bytes, bounds, .. } = self.sites[at];
        let pgs = 1 + self.rng.below(4) as u32;
        let site = Site::new(id, pgs, self.journal_max, skew_ms, self.bug);
        self.sites[at] = Site { clock_step_ms, part_bytes, bounds, ..site };
        self.left.remove(&at);
        self.regions.insert(id, pgs);
        self.last = id;
        self.begin_anew(Some(at));
    }

    /// All know the list of regions from now on: they begin anew, with their tokens.
    fn begin_anew(&mut self, joined: Option<usize>) {
        for at in 0..self.sites.len() {
            if self.sites[at].pull.is_some() || joined == Some(at) {
                self.start(at);
            }
        }
    }

    /// A region loses all its data. It comes back under another number.
    fn wipe(&mut self, at: usize) {
        if self.left.contains(&at) {
            return;
        }
        self.counts.wipes += 1;
        self.counts.lost_with_a_region += self.judge.wiped(&self.sites, at);
        let old = self.sites[at].id;
        self.regions.remove(&old);
        self.cuts.retain(|(from, to)| *from != old && *to != old);
        self.join(at);
    }
}
